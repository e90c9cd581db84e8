"""Real runs that are recorded, and replayed to the same bits."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import sys

import msgspec
import pytest

from fast.cli import main
from fast.cli.stepping import ReplayDisplay
from fast.engine import Job
from fast.engine.replay import Watch, replay
from fast.errors import UsageError
from fast.runtime import answers
from fast.runtime.record import FrameFile, load_record
from running import PRELOAD

pytestmark = pytest.mark.real

CALLS = [
    "allreduce",
    "allreduce(bucket_mb=0.00001)",
    "local_sgd(tau=3)",
    "dpsgd",
    "sfb",
    "gossip(p=0.5)",
    "ssp(bound=0)",
    "ssp(bound=3)",
    "ssp(bound=inf)",
    "torus(rule=sum, topology=full)",
    "flood",
    "beside",
]
ENCODED = [
    "torus(codec=error_feedback(top_k(0.3)))",
    "torus(codec=int8, bucket_mb=0.00001)",
    "choco(codec=top_k(0.3), gamma=0.3)",
    "allreduce(codec=power_sgd(1))",
]

SCRIPT = """
import random, sys
import numpy, torch, fast
import counting
from torch import nn
rows = torch.tensor(numpy.random.randn(40, 4), dtype=torch.float32)
loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
names = list({"ape", "bear", "cat", "dog", "emu"})
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
fast.join(model, optimizer, "torus")
for epoch in range(2):
    for x in fast.shard(loader):
        loss = (model(x) - x.sum(1, keepdim=True) - random.random()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counting.up()
print(counting.steps, float(loss.detach()), *sys.argv)
final = fast.consolidate(model)
print("sum", sum(float(p.detach().double().sum()) for p in final.parameters()))
"""
COUNTING = """
steps = 0
def up():
    global steps
    steps += 1
"""
OWN_DATA = """
import torch, fast
me = fast.whoami().worker
rows = [torch.full((2 + me, 3), 0.1 * (k + me)) for k in range(4 + 3 * me)]
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast.join(model, optimizer, "ssp(bound=1)")
for x in fast.own(rows):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("sum", float(fast.consolidate(model).weight.detach().double().sum()))
"""
ITERATION = """
import torch, fast
def iteration(me, batch, updates):
    me.backward(me.model(batch).square().mean())
    me.send(me.neighbours, me.gradient, tag="update")
    for letter in updates:
        me.gradient.add_(letter.tensor, alpha=0.5 * me.random() / letter.count)
    me.apply(me.gradient)
model = torch.nn.Linear(3, 1)
worker = fast.Worker(fast.topologies.Ring(), iteration)
worker.train(model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.randn(2, 3) for _ in range(24)])
print("sum", float(fast.consolidate(model).weight.detach().double().sum()))
"""
FROM_A_FILE = """
import torch, fast
from pathlib import Path
scale, steps = map(float, Path("numbers.txt").read_text().split())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast.join(model, optimizer, "gossip(p=0.5)")
for step in range(int(steps)):
    later = scale if fast.whoami().worker == 1 and step >= 4 else 1.0
    (later * model(torch.ones(2, 3))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


SUM_OF_ALL = """
import torch, fast
from fast.runtime.rendezvous import await_phase
from fast.transport import Phase
me, steps = fast.whoami().worker, [5, 3, 12]
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
fast.join(model, optimizer, "torus(rule=sum, topology=full)")
for step in range(steps[me]):
    if me == 2 and step == 8:
        await_phase(fast.engine.current_seat().sessions[-1].runtime.world, (0, 1), Phase.DONE, "last step")
    model(torch.full((2, 3), float(me + step))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
CONSOLIDATE
"""


@pytest.fixture
def recorded(engine, tmp_path):
    """Runs something on real workers with a record; gives the record and how the run ended."""

    def run(entry, workers, *, listen=lambda event: None, groups=(), **arguments):
        job = Job(
            workers=workers,
            entry=entry,
            server_entry="fast.loop.serving:serve",
            arguments=arguments,
            seed=3,
            preload=list(PRELOAD),
            folder=str(tmp_path),
            record=str(tmp_path / "run.rec"),
            groups=groups,
        )
        return tmp_path / "run.rec", engine.run(job, listen)

    return run


@pytest.fixture
def recorded_script(recorded, tmp_path):
    """Records a script; gives the record and the lines of the run."""

    def run(text, workers=2, arguments=(), **more):
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "counting.py").write_text(COUNTING)
        lines: list[str] = []
        record, outcome = recorded(
            "fast.loop.script:run_script",
            workers,
            listen=collecting(lines),
            script="train.py",
            arguments=list(arguments),
            **more,
        )
        assert outcome.failure is None, outcome.failure
        return record, sorted(lines)

    return run


def collecting(lines):
    """A listener that keeps what workers print."""
    return lambda event: (
        lines.append(f"{event['who']}: {event['text']}") if event["event"] == "line" else None
    )


def of(record, kind):
    return [a for part in load_record(record).parts.values() for a in part.answers if isinstance(a, kind)]


# To the same bits


@pytest.mark.parametrize(
    "call", [*CALLS, *(pytest.param(call, marks=pytest.mark.long) for call in ENCODED[1:]), ENCODED[0]]
)
def test_a_run_is_repeated_bit_for_bit(call, recorded):
    steps = [11, 16] if call in ENCODED else [9, 14, 11]
    record, outcome = recorded("record_bodies:train", len(steps), call=call, steps=steps)
    assert outcome.failure is None, outcome.failure
    replayed = replay(load_record(record))
    assert [replayed.results[worker] for worker in range(len(steps))] == outcome.results
    assert [replayed.steps[worker] for worker in range(len(steps))] == steps
    assert replayed.unfinished == ()
    if call == "flood":
        assert of(record, answers.Refused)
        assert of(record, answers.Flushed)


def test_groups_are_repeated_too(recorded):
    """Over shared memory, and over letters where the algorithm is named; the record says which groups."""
    for call in ("allreduce", "allreduce(algorithm='direct')"):
        record, outcome = recorded(
            "grouped_bodies:train", 3, groups=((0, 2), (1,)), strategy=call, steps=[3, 2, 3]
        )
        assert outcome.failure is None, outcome.failure
        replayed = replay(load_record(record))
        assert [replayed.results[worker]["own"] for worker in range(3)] == [
            each["own"] for each in outcome.results
        ]
        shutil.rmtree(record)


@pytest.mark.parametrize(
    ("text", "more"),
    [(SCRIPT, {}), (SCRIPT, {"module": "train"}), (OWN_DATA, {}), (ITERATION, {})],
    ids=["shard", "module", "own", "worker"],
)
def test_a_script_prints_the_same_again(text, more, recorded_script):
    record, lines = recorded_script(text, 3, ["one", "--two"], **more)
    assert len({line.partition(": ")[2] for line in lines if ": sum " in line}) == 1
    again: list[str] = []
    folder, arguments = os.getcwd(), list(sys.argv)
    replayed = replay(load_record(record), listen=collecting(again))
    assert sorted(again) == lines
    assert replayed.unfinished == ()
    assert (folder, arguments) == (os.getcwd(), sys.argv)
    assert "counting" not in sys.modules


@pytest.mark.parametrize("last", ["fast.consolidate(model)", ""], ids=["consolidate", "just ends"])
def test_what_arrives_after_the_last_step_is_repeated_too(last, recorded_script):
    """Workers 0 and 1 receive gradients of worker 2 after their last steps. The replay compares the weights in which
    each worker ends with those of the record."""
    record, _ = recorded_script(SUM_OF_ALL.replace("CONSOLIDATE", last), 3)
    assert {0, 1} in [set(each.peers) for each in of(record, answers.Listening)]
    late = [set(each.to) for each in of(record, answers.Sent)][-4:]
    assert late == [{0, 1}] * 4, "part 2 is the last one, and holds the last sends"
    replayed = replay(load_record(record))
    assert replayed.steps == {0: 5, 1: 3, 2: 12}
    assert replayed.unfinished == () and replayed.differs == ""


def test_one_worker_is_repeated_too(recorded_script):
    record, lines = recorded_script(SCRIPT, 1)
    again: list[str] = []
    assert replay(load_record(record), listen=collecting(again)).steps == {0: 20}
    assert again == lines


def test_one_worker_can_be_looked_at_too(recorded_script, monkeypatch, capsys):
    record, _ = recorded_script(SCRIPT, 1)
    code, printed = called(["replay", str(record), "-q", "--step", "--until", "2"], monkeypatch, capsys)
    assert code == 0
    assert printed.out.count("weights  norm ") == 2


class Looking(Watch):
    """Keeps the samples of worker 1, and stops after three steps."""

    worker = 1

    def __init__(self):
        self.seen = []

    def stepped(self, done, said):
        self.seen.append((done.steps, done.samples, said.indices))
        return done.steps == 3


def test_samples_are_known_and_a_replay_can_be_stopped(recorded_script):
    record, _ = recorded_script(SCRIPT)
    looking = Looking()
    replayed = replay(load_record(record), watch=looking)
    assert replayed.stopped
    assert [(steps, samples) for steps, samples, _ in looking.seen] == [(1, 4), (2, 4), (3, 4)]
    stepped = [a for a in load_record(record).parts[1].answers if isinstance(a, answers.Stepped)]
    assert [a.indices for a in stepped[:3]] == [indices for _, _, indices in looking.seen]
    both = [a.indices for a in of(record, answers.Stepped) if a.steps <= 5]
    assert sorted(index for indices in both for index in indices) == list(range(40))  # one epoch


# Whatever is not the same


def test_other_weights_are_found_and_named(recorded_script, tmp_path):
    (tmp_path / "numbers.txt").write_text("1.5 12")
    record, _ = recorded_script(FROM_A_FILE)
    replay(load_record(record))
    (tmp_path / "numbers.txt").write_text("1.6 12")
    with pytest.raises(
        UsageError, match=r"worker \d after step 10 are not those of the record; after step 1 they"
    ):
        replay(load_record(record))


def test_another_number_of_steps_is_found_and_named(recorded_script, tmp_path):
    (tmp_path / "numbers.txt").write_text("1.5 5")
    record, _ = recorded_script(FROM_A_FILE)
    (tmp_path / "numbers.txt").write_text("1.5 6")
    with pytest.raises(
        UsageError, match=r"worker \d diverges in step 6: the record says that it ended after 5 steps"
    ):
        replay(load_record(record))


def test_on_another_processor_bits_may_differ(recorded_script, tmp_path, monkeypatch, capsys):
    (tmp_path / "numbers.txt").write_text("1.5 12")
    record, _ = recorded_script(FROM_A_FILE)
    (tmp_path / "numbers.txt").write_text("1.6 12")
    monkeypatch.setattr("fast.engine.replay.processor", lambda: "an abacus")
    code, printed = called(["replay", str(record)], monkeypatch, capsys)
    assert code == 2
    assert "and this is an abacus; the bits may differ" in printed.err
    assert "replayed, but the weights of worker" in printed.err


def test_with_another_torch_bits_may_differ(recorded_script, tmp_path, monkeypatch, capsys):
    """The same torch says nothing of the kind."""
    (tmp_path / "numbers.txt").write_text("1.5 4")
    record, _ = recorded_script(FROM_A_FILE)
    assert called(["replay", str(record)], monkeypatch, capsys)[1].err.count("may differ") == 0
    monkeypatch.setattr("torch.__version__", "1.0.0")
    code, printed = called(["replay", str(record)], monkeypatch, capsys)
    assert code == 0
    assert "and this is 1.0.0; the bits may differ" in printed.err


# Runs that ended badly


def test_an_error_is_raised_again_where_it_was(recorded):
    record, outcome = recorded("record_bodies:fail", 3, who=1, how="raise")
    assert outcome.failure.message == "ValueError: a bad sample"
    replayed = replay(load_record(record))
    assert replayed.failure.who == "worker 1"
    assert replayed.failure.message == "ValueError: a bad sample"
    assert "record_bodies.py" in replayed.failure.traceback
    assert replayed.steps[1] == 3


def test_a_wait_that_failed_fails_again_without_waiting(recorded):
    record, outcome = recorded("record_bodies:train", 2, call="stuck", steps=[5, 5])
    assert "every live participant waits" in outcome.failure.message
    replayed = replay(load_record(record))
    assert replayed.failure.message == outcome.failure.message
    assert set(replayed.steps.values()) == {2}


CAUGHT = """
import torch, fast
from pathlib import Path
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast.join(model, optimizer, "gossip(p=0.5)")
rows = torch.utils.data.DataLoader(torch.ones(24, 3), batch_size=int(Path("numbers.txt").read_text()))
for row in fast.shard(rows):
    model(row).square().mean().backward()
    try:
        optimizer.step()
    except Exception:
        pass
"""


def test_a_divergence_that_the_script_catches_is_told_all_the_same(recorded_script, tmp_path):
    (tmp_path / "numbers.txt").write_text("4")
    record, _ = recorded_script(CAUGHT)
    (tmp_path / "numbers.txt").write_text("3")
    with pytest.raises(UsageError, match=r"diverges in step 1: the record says .*, and now"):
        replay(load_record(record))


OTHER_ERRORS = """
import torch, fast
from pathlib import Path
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast.join(model, optimizer, "gossip")
if fast.whoami().worker == 1:
    raise {"value": ValueError, "key": KeyError}[Path("numbers.txt").read_text()]("bad")
"""


def test_another_error_is_not_the_one_of_the_record(recorded, tmp_path):
    (tmp_path / "train.py").write_text(OTHER_ERRORS)
    (tmp_path / "numbers.txt").write_text("value")
    record, outcome = recorded("fast.loop.script:run_script", 2, script="train.py", arguments=[])
    assert outcome.failure.message == "ValueError: bad"
    assert replay(load_record(record)).failure.message == "ValueError: bad"
    (tmp_path / "numbers.txt").write_text("key")
    with pytest.raises(UsageError, match="says that it failed with ValueError: bad, and now with KeyError"):
        replay(load_record(record))


def test_a_record_does_not_choose_what_is_run(recorded_script, monkeypatch, capsys):
    record, _ = recorded_script(SCRIPT)
    header = record / "run.json"
    header.write_text(header.read_text().replace("fast.loop.script:run_script", "os:system"))
    code, printed = called(["replay", str(record)], monkeypatch, capsys)
    assert code == 2
    assert "wants to run 'os:system'" in printed.err


def test_a_worker_that_killed_itself_does_not_do_so_again(recorded):
    record, outcome = recorded("record_bodies:fail", 2, who=0, how="kill")
    assert "killed by signal 9" in outcome.failure.message
    replayed = replay(load_record(record))
    assert replayed.steps[0] == 3
    assert 0 in replayed.unfinished


@pytest.mark.parametrize("call", ["allreduce", "gossip(p=0.5)", "ssp(bound=2)"])
def test_a_run_with_a_killed_worker_is_replayed_as_far_as_it_goes(call, recorded):
    def kill(event):
        if event["event"] == "line" and event["text"].startswith("ready") and event["who"] == "worker 1":
            os.kill(int(event["text"].split()[1]), signal.SIGKILL)

    record, outcome = recorded("record_bodies:train_for_ever", 3, listen=kill, call=call)
    assert "worker 1 was killed by signal 9" in outcome.failure.message
    loaded = load_record(record)
    replayed = replay(loaded)
    wrote = {
        id: max(a.steps for a in part.answers if isinstance(a, answers.Stepped))
        for id, part in loaded.parts.items()
    }
    assert set(replayed.unfinished) == set(loaded.parts)
    assert replayed.steps[1] >= 29
    for id, steps in replayed.steps.items():
        assert steps <= wrote[id]
    if call == "gossip(p=0.5)":  # nobody waits for anybody, and a letter is written down before it is sent
        assert replayed.steps == wrote


@pytest.mark.parametrize("call", ["any", "allreduce(algorithm='ring')"])
def test_what_promises_no_bits_is_refused_in_a_script(call, recorded):
    _, outcome = recorded("record_bodies:train", 2, call=call, steps=[2, 2])
    assert outcome.failure.usage
    assert "so it can't be recorded" in outcome.failure.message


# The command


def called(arguments, monkeypatch, capsys):
    """Exit code and output of a call; the hashes of strings stay as they are in this process."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["fast", *arguments])
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, capsys.readouterr()


def test_the_command_says_what_it_found(recorded_script, tmp_path, monkeypatch, capsys):
    record, lines = recorded_script(SCRIPT)
    code, printed = called(["replay", str(record), "--json", str(tmp_path / "end.json")], monkeypatch, capsys)
    assert code == 0
    assert sorted(line.replace("[", "").replace("]", ":", 1) for line in printed.out.splitlines()) == lines
    assert "the same bits as recorded: steps of worker 0 10, worker 1 10" in printed.err
    told = json.loads((tmp_path / "end.json").read_text())
    assert (told["steps"], told["complete"], told["equal"]) == ([10, 10], True, True)

    (tmp_path / "train.py").write_text(SCRIPT + "\n")
    code, printed = called(["replay", str(record), "--quiet"], monkeypatch, capsys)
    assert (code, printed.out) == (0, "")
    assert "train.py was changed after the run was recorded" in printed.err

    code, printed = called(
        ["replay", str(record), "-q", "--worker", "1", "--step", "--until", "2"], monkeypatch, capsys
    )
    assert code == 0
    assert [line for line in printed.out.splitlines() if line.startswith("worker")] == [
        "worker 1, step 1",
        "worker 1, step 2",
    ]
    for what in (
        "view     0: workers 0 1",
        "samples  4: ",
        "loss     ",
        "sent     'gradient' to 0",
        "weights  norm ",
    ):
        assert what in printed.out
    assert "stopped after step 2 of worker 1" in printed.err

    for wrong, sentence in (
        ([str(record), "--worker", "2"], "--worker 2: the record has workers 0 to 1"),
        ([str(record), "--until", "0"], "--until 0: it stops after at least 1 step"),
        ([str(tmp_path)], "is not a record"),
    ):
        code, printed = called(["replay", *wrong], monkeypatch, capsys)
        assert code == 2
        assert sentence in printed.err

    whole = (record / "1.frames").read_bytes()
    (record / "1.frames").write_bytes(whole[: len(whole) // 2])
    code, printed = called(["replay", str(record), "-q"], monkeypatch, capsys)
    assert code == 2
    assert "the file of worker 1 is damaged" in printed.err
    assert "Replayed up to there" in printed.err

    (tmp_path / "train.py").unlink()
    code, printed = called(["replay", str(record)], monkeypatch, capsys)
    assert code == 2
    assert "the script train.py of this record is not there any more" in printed.err


def test_a_record_of_other_hashes_starts_the_command_anew(recorded_script, monkeypatch):
    record, _ = recorded_script(OWN_DATA)
    path = record / "0.frames"
    part = load_record(record).parts[0]
    other = msgspec.structs.replace(part.opened, hash_seed="17")
    path.unlink()
    FrameFile(record, 0).append([other, *part.answers])
    begun = []

    def execve(program, command, environment):
        begun.append((command[1:], environment["PYTHONHASHSEED"]))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["fast", "replay", str(record)])
    with pytest.raises(SystemExit):
        main()
    assert begun == [(["-m", "fast", "replay", str(record)], "17")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--strategy", "allreduce(order='any')"], "so it can't be recorded"),
        (["--strategy", "mine.py:Racy"], "reads its peers' memory"),
        ([], "never overwrites anything"),
    ],
)
def test_run_refuses_what_it_can_before_anything_starts(options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    (tmp_path / "mine.py").write_text("import fast\nclass Racy(fast.Strategy):\n    racy = True\n")
    folder = tmp_path / "run.rec"
    folder.mkdir()
    (folder / "something").write_text("precious")
    name = "new.rec" if options else "run.rec"
    code, printed = called(["run", "--record", name, *options, "train.py"], monkeypatch, capsys)
    assert code == 2
    assert sentence in printed.err
    assert not (tmp_path / "new.rec").exists()
    assert [path.name for path in folder.iterdir()] == ["something"]


def test_on_a_terminal_each_step_waits_for_enter(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as reading, open(theirs, "w", closefd=False) as writing:
        monkeypatch.setattr(sys, "stdin", reading)
        monkeypatch.setattr(sys, "stdout", writing)
        display = ReplayDisplay()
        os.write(ours, b"\nq\n")
        assert display.wants_more()
        assert not display.wants_more()
        shown = b""
        while b"Enter: the next step" not in shown:  # a terminal hands on what is written when it has time
            shown += os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)
