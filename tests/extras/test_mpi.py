"""mpiexec starts the workers. Needs the extra `mpi`: run with `make test-extras`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launching import SCRIPT, Ended, Launch
from running import Runner

MPIEXEC = Path(sys.executable).parent / "mpiexec"
pytest.importorskip("mpi4py", reason="the extra mpi isn't installed here: make test-extras")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MPIEXEC.exists(), reason="the extra mpi isn't installed here: make test-extras"),
]
OPTIONS = [
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "osc",
    "^ucx",
    "--mca",
    "btl_tcp_if_include",
    "lo",
]


def mpiexec(launch: Launch, *arguments: object, deadline_s: int = 30, workers: int = 4) -> Ended:
    command = [str(MPIEXEC), "-n", str(workers), *OPTIONS, sys.executable, SCRIPT, *map(str, arguments)]
    launch.start(command, {"FAST_DEADLINE": str(deadline_s), "TMPDIR": "/tmp"})
    (ended,) = launch.ended()
    return ended


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(tau=4)", "dpsgd"])
def test_the_bits_of_fast_run(launch: Launch, runner: Runner, strategy: str) -> None:
    expected = runner.results("attached_bodies:train", 4, strategy=strategy)
    ended = mpiexec(launch, strategy)
    assert ended.code == 0, ended.err
    assert ended.finals == expected and ended.sentences == []


@pytest.mark.parametrize("strategy", ["gossip", "ssp(bound=2)"])
def test_asynchronous_strategies_run_to_their_end(launch: Launch, strategy: str) -> None:
    ended = mpiexec(launch, strategy)
    assert ended.code == 0, ended.err
    assert len(ended.finals) == 4 and len({*ended.finals}) == 1


@pytest.mark.parametrize(
    ("fault", "code"), [("raises", 1), ("exits with 3", 3), ("is killed", 128 + 9), ("is told to stop", 0)]
)
def test_the_exit_code_of_mpiexec_is_that_of_the_worker_that_failed(
    launch: Launch, fault: str, code: int
) -> None:
    ended = mpiexec(launch, "allreduce", fault, 1)
    assert ended.code in {1, code} if code else ended.code == 0, ended.err
    said = {sentence.partition(":")[0] for sentence in ended.sentences}
    assert (
        said <= {"worker 1 failed", "worker 1 was told to stop and leaves after 6 steps"}
        or "lost" in ended.err
    )


def test_a_worker_that_never_comes_ends_the_run_at_the_deadline(launch: Launch) -> None:
    ended = mpiexec(launch, "allreduce", "returns before join", 1, deadline_s=6)
    assert ended.code == 1 and "Traceback" not in ended.err
    assert ended.sentences and all(
        each.startswith("not all workers that mpiexec has started have come to fast.join within 6 s")
        for each in ended.sentences
    )
