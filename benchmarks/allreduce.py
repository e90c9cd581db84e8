"""The mean of everybody's tensor: ours against Gloo, Open MPI and the machine's memory.

Ours is `RealWorld.collective(..., read_only=True)`, what a synchronous strategy calls: it leaves
the input intact, adds in canonical order and divides. The peers only add.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import harness
import torch
import torch.distributed as dist
from harness import Row, Times

from fast.core import drive
from fast.engine import LocalEngine, current_seat
from fast.runtime import RealWorld
from fast.view import View

SIZES = {"4 kB": 4_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "100 MB": 100_000_000}
WORKERS = (2, 4)
ROUNDS = {"4 kB": 50, "1 MB": 20, "10 MB": 5, "100 MB": 2}
OURS, GLOO, MEMORY, MPI = "ours", "Gloo", "copying memory", "Open MPI"
MPI_OPTIONS = "--allow-run-as-root --oversubscribe --mca osc ^ucx --mca btl_tcp_if_include lo".split()
TIMEOUT_S = 300


def worker(nbytes: int, repetitions: int, rounds: int, folder: str) -> Times:
    """One worker of the contest for one size: ours, Gloo, and copying as many bytes as ours moves."""
    with harness.gloo(folder):
        return harness.take_turns(
            {OURS: _ours(nbytes), GLOO: _gloo(nbytes), MEMORY: _copying(nbytes)},
            repetitions=repetitions,
            rounds=rounds,
            meet=dist.barrier,
        )


def _ours(nbytes: int) -> harness.Contestant:
    seat = current_seat()
    transport, members = seat.connect(), tuple(range(seat.workers))
    world = RealWorld(transport, View(0, members), ())
    tensor = transport.allocate(nbytes).view(torch.float32).fill_(seat.id + 1)

    def mean() -> torch.Tensor:
        return drive(world.collective(tensor, members, 1.0, None, True)).tensor

    expected = (seat.workers + 1) / 2
    if not bool((mean() == expected).all()):
        raise AssertionError(f"the mean should be {expected} everywhere")
    return mean


def _gloo(nbytes: int) -> harness.Contestant:
    # Zeros: a sum in place would overflow after some hundred rounds.
    return partial(dist.all_reduce, torch.zeros(nbytes // 4))


def _copying(nbytes: int) -> harness.Contestant:
    """Together the workers must read every input and write one result: (P + 1) N bytes. A copy
    reads and writes, so each of the P workers copies (P + 1) N / 2 P bytes."""
    seat = current_seat()
    share = max(1, (seat.workers + 1) * nbytes // (2 * seat.workers) // 4)
    source, target = torch.ones(share), torch.zeros(share)
    return partial(target.copy_, source)


# Open MPI, in a job of its own


def open_mpi(workers: int, nbytes: int, repetitions: int, rounds: int) -> list[float] | str:
    """Seconds per round of each repetition, or why there are none."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        return "there is no mpiexec; install the extra: pip install -c constraints.txt -e '.[mpi]'"
    program = [sys.executable, str(harness.HERE / "peers" / "open_mpi.py")]
    command = [mpiexec, "-n", str(workers), *MPI_OPTIONS, *program, *map(str, (nbytes, repetitions, rounds))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TIMEOUT_S} s"
    if done.returncode:
        return f"exit code {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-400:]}"
    times: list[float] = json.loads(done.stdout)
    return times


def _mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def contest(engine: LocalEngine, workers: int, size: str, *, repetitions: int, blocks: int) -> list[Row]:
    """Our job and MPI's take turns: `blocks` times each."""
    shape = {"nbytes": SIZES[size], "repetitions": repetitions, "rounds": ROUNDS[size]}
    times: Times = {OURS: [], GLOO: [], MEMORY: []}
    ours, mpi, missing = [], [], ""
    for _ in range(blocks):
        block = harness.run(engine, workers, "allreduce:worker", **shape)
        for name, values in block.items():
            times[name] += values
        other = "" if missing else open_mpi(workers, **shape)
        if isinstance(other, str):
            missing = missing or other
        else:
            ours.append(statistics.median(block[OURS]))
            mpi.append(statistics.median(other))
    name = f"{size}, {workers} workers"
    rows = [harness.compare(name, times[OURS], times[peer], peer) for peer in (GLOO, MEMORY)]
    if missing:
        harness.note(f"{name}: Open MPI is left out, because {missing}")
    else:
        rows.insert(1, harness.compare(name, ours, mpi, MPI))
    return rows


def main() -> None:
    options = harness.options(__doc__)
    effort = {"repetitions": 3, "blocks": 1} if options.quick else {"repetitions": 9, "blocks": 3}
    with harness.engine() as engine:
        rows = [
            row for workers in WORKERS for size in SIZES for row in contest(engine, workers, size, **effort)
        ]
    harness.report(rows, options.json)
    for row in rows:
        if row.peer_name == MEMORY:
            harness.note(
                f"{row.name}: {1 / row.ratio:.1f} times the time in which the same processes copy as many bytes"
            )


if __name__ == "__main__":
    main()
