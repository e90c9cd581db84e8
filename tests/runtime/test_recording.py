"""The record of a run: its frames, what can't be recorded, and worlds that read again what they read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fast
from fast.core import Letter, Tag, fold_newest, fold_sum
from fast.core.world import Round
from fast.engine.baton import Baton
from fast.engine.replay_transport import ReplayTransport, Table
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.runtime import RealWorld, Recorder, answers
from fast.runtime.journal import check_recordable, check_round, digest_of, seed_script
from fast.runtime.prompting import Diverged, Halt, Prompter
from fast.runtime.record import FrameFile, Header, Part, create_record, load_part, load_record
from fast.transport import MemoryHub, MemoryTransport
from fast.view import View

VIEW = View(0, (0, 1))
TAGS = (Tag("sum", fold=fold_sum), Tag("newest", fold=fold_newest), Tag("each"))
OPENED = answers.Opened(1, 0, "some processor", "2.0", 1, 7)

small, words = st.integers(0, 99), st.text(max_size=5)
some_answers = st.lists(
    st.one_of(
        st.builds(answers.Looked, small, words, st.dictionaries(small, small)),
        st.builds(answers.TookOne, small, words, small, st.none() | small),
        st.builds(answers.Drew, small, st.floats(0, 1)),
        st.builds(answers.Sent, small, words, st.tuples(small, small), st.tuples(small)),
        st.builds(answers.Refused, small, words, small),
        st.builds(answers.Stepped, small, small, small, small, st.none() | st.tuples(small, small)),
        st.builds(answers.Ended, small, st.binary(max_size=16)),
    ),
    max_size=6,
)


def header(**changes) -> Header:
    about = {
        "entry": "a:b", "arguments": {}, "server_entry": "c:d", "server_arguments": {}, "workers": 1,
        "seed": None, "deadline_s": 1.0, "threads": 1, "folder": "/",
    }  # fmt: skip
    return Header(**(about | changes))


def written(folder: Path, frames) -> Path:
    for old in folder.glob("*.frames"):
        old.unlink()
    file = FrameFile(folder, 0)
    for frame in frames:
        file.append(frame)
    return folder / "0.frames"


# Frames


@given(frames=st.lists(some_answers, max_size=4))
def test_what_was_written_is_read(frames, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("record"), [[OPENED], *frames])
    part = load_part(path, 0)
    assert part.opened == OPENED
    assert part.answers == [answer for frame in frames for answer in frame]
    assert part.damaged == ""


@given(frames=st.lists(some_answers, min_size=1, max_size=4), data=st.data())
def test_a_file_that_is_cut_anywhere_is_read_up_to_there(frames, data, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("record"), [[OPENED], *frames])
    ends = [0]
    while ends[-1] < path.stat().st_size:
        length = int.from_bytes(path.read_bytes()[ends[-1] : ends[-1] + 4], "little")
        ends.append(ends[-1] + 8 + length)
    cut = data.draw(st.integers(0, ends[-1] - 1))
    path.write_bytes(path.read_bytes()[:cut])
    whole = sum(end <= cut for end in ends[1:])
    if not whole:
        with pytest.raises(UsageError, match="can't be replayed"):
            load_part(path, 0)
        return
    part = load_part(path, 0)
    assert part.answers == [answer for frame in frames[: whole - 1] for answer in frame]
    assert bool(part.damaged) == (cut not in ends)


@given(frames=st.lists(some_answers, min_size=1, max_size=4), data=st.data())
def test_a_file_with_a_wrong_byte_is_read_up_to_its_frame(frames, data, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("record"), [[OPENED], *frames])
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    part = part_or_refusal(path)
    if isinstance(part, str):
        assert "can't be replayed" in part
        return
    assert part.damaged
    assert part.answers == [answer for frame in frames for answer in frame][: len(part.answers)]


def part_or_refusal(path: Path) -> Part | str:
    try:
        return load_part(path, 0)
    except UsageError as error:
        return str(error)


@given(content=st.binary(max_size=64))
def test_any_bytes_are_refused_or_read(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "0.frames"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        load_part(path, 0)


# Folders


def test_a_record_is_made_and_found_again(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("pass")
    create_record(tmp_path / "run.rec", header(script="train.py", folder=str(tmp_path)))
    written(tmp_path / "run.rec", [[OPENED], [answers.Ended(3, b"x")]])
    record = load_record(tmp_path / "run.rec")
    assert record.header.versions["torch"] == torch.__version__
    assert record.header.script_digest is not None
    assert record.parts[0].complete
    assert json.loads((tmp_path / "run.rec" / "run.json").read_text())["schema"] == 1


def test_nothing_is_overwritten(tmp_path):
    create_record(tmp_path, header())
    with pytest.raises(UsageError, match="never overwrites"):
        create_record(tmp_path, header())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a record: run.json in it can't be read"),
        ("[]", "of something else"),
        ('{"schema": 1}', "of something else"),
        ('{"kind": "fast record"}', "has no format number"),
        ('{"kind": "fast record", "schema": 2}', "has format 2, and this version of FAST reads up to 1"),
        ('{"kind": "fast record", "schema": 1}', "run.json is damaged"),
        (msgspec.json.encode(header(workers=0)).decode(), "run.json is damaged: 0 workers"),
        (msgspec.json.encode(header(threads=1 << 60)).decode(), "run.json is damaged: .* threads"),
        (msgspec.json.encode(header(workers=1 << 60)).decode(), "has no file of worker 0"),
        ("[" * 100_000, "run.json in it can't be read"),
        (msgspec.json.encode(header()).decode(), "has no file of worker 0"),
    ],
)
def test_what_is_no_record_is_refused(content, sentence, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        load_record(tmp_path)


def test_a_file_of_somebody_else_and_one_of_a_newer_version_are_refused(tmp_path):
    path = written(tmp_path, [[OPENED]])
    with pytest.raises(UsageError, match="is of participant 0; was it renamed"):
        load_part(path, 1)
    with pytest.raises(UsageError, match="made by a newer version"):
        load_part(written(tmp_path, [[msgspec.structs.replace(OPENED, schema=9)]]), 0)


# What can be recorded


class Racy(fast.Strategy):
    racy = True


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Racy(), "reads its peers' memory while they write"),
        (strategy_from("allreduce(order='any')"), 'order="any" adds in an order of its own'),
        (strategy_from("allreduce(algorithm='ring')"), "algorithm='ring' adds in an order of its own"),
    ],
    ids=repr,
)
def test_strategies_that_promise_no_bits_are_refused(strategy, why):
    with pytest.raises(UsageError, match=why):
        check_recordable(strategy)


def test_so_are_their_rounds_and_no_others():
    for algorithm in ("auto", "direct", "exchange"):
        check_round(Round(torch.zeros(1), (0,), algorithm=algorithm))
    for call in ("allreduce", "allreduce(algorithm='direct')", "torus", "ssp(bound=inf)"):
        check_recordable(strategy_from(call))
    with pytest.raises(UsageError, match="algorithm='tree'"):
        check_round(Round(torch.zeros(1), (0,), algorithm="tree"))
    with pytest.raises(UsageError, match="any"):
        check_round(Round(torch.zeros(1), (0,), any_order=True))


def test_numpy_starts_alike_on_all_workers_and_python_differently():
    python, numbers = random.getstate(), numpy.random.get_state()
    try:
        drawn = []
        for worker in (0, 1, 0):
            seed_script(5, worker)
            drawn.append((random.random(), float(numpy.random.random())))
    finally:
        random.setstate(python)
        numpy.random.set_state(numbers)
    assert drawn[0] == drawn[2]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] == drawn[1][1]


# Worlds

Operation = tuple[str, str]
operations = st.lists(
    st.tuples(
        st.sampled_from((0, 1)),
        st.tuples(st.sampled_from(("send", "send", "take", "one", "draw")), st.sampled_from(("sum", "newest", "each"))),
    ),
    max_size=40,
)  # fmt: skip


def perform(world: RealWorld, number: int, operation: Operation) -> object:
    """One operation of a program, and what came of it."""
    verb, tag = operation
    match verb:
        case "send":
            generator = torch.Generator().manual_seed(1000 * world.id + number)
            letter = Letter(world.id, tag, torch.randn(3, generator=generator), steps=(number,))
            world.send((1 - world.id,), letter)
        case "take":
            found = [seen(letter) for letter in world.take(tag, None)]
            world.turn_ended()
            return found
        case "one":
            letter = world.take_one(tag, 1 - world.id)
            found = None if letter is None else seen(letter)
            world.turn_ended()
            return found
        case "draw":
            return world.draw()
    return None


def seen(letter: Letter) -> tuple[object, ...]:
    return letter.sender, letter.steps, digest_of(letter.tensor)


def in_order(folder: Path, asked) -> dict[int, list[object]]:
    """Both programs in one thread, in the order that was drawn; recorded."""
    hub = MemoryHub(2)
    recorders = [Recorder(folder, id, 1) for id in (0, 1)]
    worlds = [
        RealWorld(MemoryTransport(id, hub), VIEW, TAGS, deadline_s=0, journal=recorders[id]) for id in (0, 1)
    ]
    found: dict[int, list[object]] = {0: [], 1: []}
    for number, (who, operation) in enumerate(asked):
        found[who].append(perform(worlds[who], number, operation))
    for id in (0, 1):
        recorders[id].ended(0, lambda: torch.zeros(1))
    return found


def again(folder: Path, asked) -> dict[int, list[object]]:
    """Each program in one go, as far as it comes: whoever needs letters lets the other one run."""
    hub, table = MemoryHub(2), Table()
    baton = Baton(lambda: hub.changes)
    prompters = [Prompter(f"worker {id}", load_part(folder / f"{id}.frames", id)) for id in (0, 1)]
    found: dict[int, list[object]] = {0: [], 1: []}
    errors: list[BaseException] = []

    def program(id: int) -> None:
        transport = ReplayTransport(id, hub, table, baton, prompters[id])
        world = RealWorld(transport, VIEW, TAGS, deadline_s=0, journal=prompters[id])
        try:
            for number, (who, operation) in enumerate(asked):
                if who == id:
                    found[id].append(perform(world, number, operation))
            prompters[id].ended(0, lambda: torch.zeros(1))
        except BaseException as error:
            errors.append(error)

    for id in (1, 0):
        baton.add(id, lambda id=id: program(id), lambda id=id: -id)
    baton.run()
    if errors:
        raise errors[0]
    return found


@given(asked=operations)
def test_programs_read_again_what_they_read_in_whatever_order_they_run(asked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("record")
    assert in_order(folder, asked) == again(folder, asked)


def test_letters_that_had_no_room_fold_again_as_they_did(tmp_path):
    """Ten letters of which two have room: the others fold at the sender, and bits show in which order."""
    send, take = (0, ("send", "sum")), (1, ("take", "sum"))
    asked = [*[send] * 10, take, *[send] * 2, take, take]
    found = in_order(tmp_path, asked)
    written_down = load_part(tmp_path / "0.frames", 0).answers
    refused = [a for a in written_down if isinstance(a, answers.Refused)]
    assert refused[0] == answers.Refused(1, "sum", 3)  # the next ones wait behind it, whatever room there is
    assert any(isinstance(a, answers.Flushed) for a in written_down)
    assert again(tmp_path, asked) == found
    assert [len(letters[0][1]) if letters else 0 for letters in found[1]] == [2, 10, 0]


# Divergence


def prompter(*given_answers: answers.Answer) -> Prompter:
    return Prompter("worker 3", Part(OPENED, list(given_answers)))


def test_another_question_is_named():
    ended = answers.Ended(0, b"")
    with pytest.raises(Diverged, match="worker 3 diverges in step 1: the record says that it drew a random number, "
                       "and now it read its letters 'x'"):  # fmt: skip
        prompter(answers.Drew(0, 0.5), ended).looks(0, "x", None)
    with pytest.raises(Diverged, match=r"drew 0\.5, and now it drew 0\.25"):
        prompter(answers.Drew(0, 0.5), ended).drew(0, 0.25)
    with pytest.raises(Diverged, match="sent a letter 'x' to 1, and now it sent a letter 'x' to 2"):
        prompter(answers.Sent(0, "x", (1,)), ended).addressed(0, "x", (2,), (2,))
    with pytest.raises(Diverged, match="it ended after 0 steps, and now it drew"):
        prompter(ended).drew(0, 0.25)


def test_where_an_unfinished_record_ends_nobody_diverges():
    with pytest.raises(Halt):
        prompter().drew(0, 0.25)


def test_lanes_may_be_interleaved_in_another_way():
    both = prompter(answers.Drew(1, 0.5), answers.Drew(2, 0.25), answers.Drew(1, 0.75), answers.Ended(0, b""))
    both.drew(2, 0.25)
    both.drew(1, 0.5)
    both.drew(1, 0.75)


def test_what_the_others_can_see_is_written_at_once(tmp_path):
    recorder = Recorder(tmp_path, 0, 1)
    recorder.joined(strategy_from("gossip"))  # then its hello is in shared memory
    assert isinstance(load_part(tmp_path / "0.frames", 0).answers[-1], answers.Joined)
    assert recorder.stops(True)  # then its phase is
    assert isinstance(load_part(tmp_path / "0.frames", 0).answers[-1], answers.Stopped)
