"""How workers end that nobody of ours watches: one sentence each, that names the cause, and an exit code."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launching import Ended, Launch, as_torchrun, free_port, script

pytestmark = pytest.mark.real
Changed = dict[int, dict[str, str]]
LOST = "participant 1 at 127.0.0.1:PORT is lost: nobody listens at its address any more, so its process has ended"


def run(
    launch: Launch, *arguments: object, workers: int = 3, changed: dict[int, dict[str, str]] | None = None
) -> list[Ended]:
    for rank, environ in enumerate(as_torchrun(workers, free_port())):
        launch.start(script(*arguments), environ | (changed or {}).get(rank, {}))
    return launch.ended()


def same_everywhere(sentence: str) -> str:
    """Without the port, which is another one each time."""
    head, colon, tail = sentence.partition("127.0.0.1:")
    return f"{head}{colon}PORT{tail.lstrip('0123456789')}" if colon else sentence


@pytest.mark.parametrize(
    ("fault", "code", "cause"),
    [
        ("raises", 1, "worker 1 failed: ValueError: a bad sample"),
        pytest.param(
            "fails at its end",
            1,
            "worker 1 failed: ValueError: no room for it",
            marks=pytest.mark.long,
        ),
        pytest.param("is interrupted", -signal.SIGINT, "worker 1 was interrupted", marks=pytest.mark.long),
        ("exits with 3", 3, "worker 1 failed: the script ended with exit code 3"),
        ("is killed", -signal.SIGKILL, LOST),
        pytest.param("is gone without a word", 0, LOST, marks=pytest.mark.long),
    ],
)
def test_who_is_left_says_in_one_sentence_why_it_ends(
    launch: Launch, fault: str, code: int, cause: str
) -> None:
    zero, faulty, two = run(launch, "allreduce", fault, 1)
    assert faulty.code == code, faulty.err
    assert [zero.code, two.code] == [1, 1], zero.err
    assert [same_everywhere(each) for each in zero.sentences] == [cause], zero.err
    assert [same_everywhere(each) for each in two.sentences] == [cause], two.err
    assert "Traceback" not in zero.err + two.err
    assert ("Traceback" in faulty.err) == (code == 1), "its own user sees where"
    assert zero.out == faulty.out == two.out == ""


@pytest.mark.parametrize(
    ("fault", "said"),
    [("returns", []), ("is told to stop", ["worker 1 was told to stop and leaves after 6 steps"])],
)
def test_who_leaves_early_leaves_well_and_the_others_go_on(
    launch: Launch, fault: str, said: list[str]
) -> None:
    zero, left, two = run(launch, "allreduce", fault, 1)
    assert [each.code for each in (zero, left, two)] == [0, 0, 0], zero.err
    assert left.sentences == said and left.out == ""
    assert zero.finals == two.finals and len(zero.finals) == 1
    assert zero.sentences == two.sentences == []


def test_a_launcher_that_signals_a_whole_group_does_not_stop_the_servers(launch: Launch) -> None:
    ended = run(launch, "ssp(bound=1)", "is told to stop with its group", 0)
    assert [each.code for each in ended] == [0, 0, 0], ended[1].err
    assert ended[0].finals == [] and ended[1].finals == ended[2].finals != []
    assert ended[1].sentences == ended[2].sentences == []


@pytest.mark.long
def test_a_process_that_the_script_forks_may_end_as_it_likes(launch: Launch) -> None:
    ended = run(launch, "allreduce", "forks", 1)
    assert [each.code for each in ended] == [0, 0, 0], ended[1].err
    assert len({tuple(each.finals) for each in ended}) == 1


@pytest.mark.long
def test_a_worker_that_never_comes_is_named_when_the_deadline_has_passed(launch: Launch) -> None:
    short = {rank: {"FAST_DEADLINE": "20"} for rank in range(3)}  # a dictionary for each
    zero, gone, two = run(launch, "allreduce", "returns before join", 1, changed=short)
    assert [each.code for each in (zero, gone, two)] == [1, 0, 1]
    for each in (zero, two):
        (sentence,) = each.sentences
        assert sentence.startswith(
            "of 3 workers 2 have come to fast.join within 20 s, and these have not: 1."
        )
        assert "Traceback" not in each.err


@pytest.mark.long
def test_without_worker_0_there_is_no_place_to_meet(launch: Launch) -> None:
    port = free_port()
    launch.start(script("allreduce"), as_torchrun(2, port)[1] | {"FAST_DEADLINE": "3"})
    (alone,) = launch.ended()
    assert alone.code == 1 and "Traceback" not in alone.err
    (sentence,) = alone.sentences
    assert sentence.startswith(f"nothing answers at 127.0.0.1:{port} within 3 s")


def test_another_version_of_fast_is_named_on_every_worker(launch: Launch, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("newer")
    info = folder / "fast_training-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-training\nVersion: 9.9.9\n")
    newer = {"PYTHONPATH": with_paths(folder)}
    ended = run(launch, "allreduce", changed={1: newer})
    assert [each.code for each in ended] == [1, 1, 1]
    for worker, each in enumerate(ended):
        (sentence,) = each.sentences
        assert "9.9.9" in sentence and f"worker {worker} has FAST" in sentence, sentence
        assert sentence.endswith("Install the same version on all hosts.")


def with_paths(first: Path) -> str:
    return os.pathsep.join([str(first), os.environ["PYTHONPATH"]])


@pytest.mark.long
def test_another_number_of_workers_is_named(launch: Launch) -> None:
    ended = run(launch, "allreduce", workers=2, changed={1: {"WORLD_SIZE": "1000"}})
    assert [each.code for each in ended] == [1, 1]
    assert ended[0].sentences == [
        "worker 0 was told of 2 workers and worker 1 of 1000. Start all of them with the same number."
    ]


@pytest.mark.long
def test_another_model_is_named_on_every_worker(launch: Launch) -> None:
    ended = run(launch, "allreduce", "another model", 1)
    for each in ended:
        assert each.code == 1 and "Traceback" not in each.err
        (sentence,) = each.sentences
        assert sentence.startswith("the models differ: parameters of worker 0")


@pytest.mark.long
def test_servers_end_with_the_worker_that_has_started_them(launch: Launch) -> None:
    """Killed, it can't tell them."""
    zero, one, two = run(launch, "ssp(bound=1)", "is killed", 0)
    assert zero.code == -signal.SIGKILL and [one.code, two.code] == [1, 1]
    for each in (one, two):
        (sentence,) = each.sentences
        assert "is lost: nobody listens at its address any more" in sentence


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"FAST_DEADLINE": "soon"}, "FAST_DEADLINE='soon' in the environment: a number is needed, 0 or more"),
        ({"RANK": "first"}, "RANK='first' in the environment isn't a number"),
    ],
)
def test_a_wrong_environment_is_one_sentence(launch: Launch, environ: dict[str, str], sentence: str) -> None:
    launch.start(script("allreduce"), as_torchrun(2, free_port())[0] | environ)
    (ended,) = launch.ended()
    assert ended.code != 0 and ended.err == f"fast: {sentence}\n"
