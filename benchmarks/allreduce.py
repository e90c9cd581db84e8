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

import torch
import torch.distributed as dist

import harness
from fast.core import drive
from fast.core.world import Round
from fast.engine import LocalEngine, current_seat
from fast.runtime import RealWorld
from fast.transport import Transport
from fast.view import View
from harness import Row, Times

SIZES = {"4 kB": 4_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "100 MB": 100_000_000}
ROUNDS = {"4 kB": 50, "1 MB": 20, "10 MB": 5, "100 MB": 2}
WORKERS = (2, 4)
OURS, GLOO, MEMORY, MPI = "ours", "Gloo", "copying memory", "Open MPI"
MPI_OPTIONS = (
    *("--allow-run-as-root", "--oversubscribe"),
    *("--mca", "osc", "^ucx", "--mca", "btl_tcp_if_include", "lo"),
)
"""More processes than cores, also as root; on one machine, over the loopback."""
TIMEOUT_S = 300


# A worker


def worker(repetitions: int, folder: str) -> Times:
    """Size after size: ours, Gloo, and copying as many bytes as ours moves."""
    seat = current_seat()
    times: Times = {}
    transport = seat.connect()
    world = RealWorld(transport, View(0, tuple(range(seat.workers))), ())
    with harness.gloo(folder):
        for size, nbytes in SIZES.items():
            found = {_key(size, who): each for who, each in contestants(world, transport, nbytes).items()}
            times |= harness.take_turns(
                found, repetitions=repetitions, rounds=ROUNDS[size], meet=dist.barrier
            )
    world.close()
    return times


def contestants(world: RealWorld, transport: Transport, nbytes: int) -> dict[str, harness.Contestant]:
    """One round each."""
    return {
        OURS: _ours(world, transport, nbytes),
        GLOO: partial(dist.all_reduce, torch.zeros(nbytes // 4)),  # ones would overflow
        MEMORY: _copying(len(world.start_view.workers), nbytes),
    }


def _key(size: str, who: str) -> str:
    return f"{size}, {who}"


def _ours(world: RealWorld, transport: Transport, nbytes: int) -> harness.Contestant:
    members = world.start_view.workers
    tensor = transport.allocate(nbytes).view(torch.float32).fill_(world.id + 1)

    def mean() -> torch.Tensor:
        return drive(world.collective(Round(tensor, members, read_only=True))).tensor

    expected = (len(members) + 1) / 2
    if not bool((mean() == expected).all()):
        raise AssertionError(f"the mean of 1 to {len(members)} should be {expected} everywhere")
    return mean


def _copying(workers: int, nbytes: int) -> harness.Contestant:
    """Together the P workers must read P inputs of N bytes and write one result: (P + 1) N bytes.
    A copy reads and writes, so each of them copies (P + 1) N / 2 P bytes."""
    share = (workers + 1) * nbytes // (2 * workers) // 4
    source, target = torch.ones(share), torch.zeros(share)
    return partial(target.copy_, source)


# Open MPI, in a job of its own


def open_mpi(workers: int, repetitions: int) -> dict[str, list[float]] | str:
    """Per size the seconds per round of each repetition, or why there are none."""
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        return "there is no mpiexec; install the extra: pip install -c constraints.txt -e '.[mpi]'"
    program = (sys.executable, str(harness.HERE / "peers" / "open_mpi.py"), str(repetitions))
    sizes = (f"{SIZES[size]}:{ROUNDS[size]}" for size in SIZES)
    command = (mpiexec, "-n", str(workers), *MPI_OPTIONS, *program, *sizes)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TIMEOUT_S} s"
    if done.returncode:
        return f"it ended with exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"
    return dict(zip(SIZES, json.loads(done.stdout), strict=True))


# The contest


def contest(engine: LocalEngine, workers: int, *, repetitions: int, blocks: int) -> list[Row]:
    """Our job and MPI's take turns, `blocks` times each."""
    times: Times = {}
    ours: dict[str, list[float]] = {size: [] for size in SIZES}
    mpi: dict[str, list[float]] = {size: [] for size in SIZES}
    missing = ""
    for _ in range(blocks):
        block = harness.run(engine, workers, "allreduce:worker", repetitions=repetitions)
        for name, values in block.items():
            times.setdefault(name, []).extend(values)
        other = missing or open_mpi(workers, repetitions)
        if isinstance(other, str):
            missing = other
            continue
        for size in SIZES:
            ours[size].append(statistics.median(block[_key(size, OURS)]))
            mpi[size].append(statistics.median(other[size]))
    if missing:
        harness.note(f"{workers} workers: Open MPI is left out, because {missing}")
    rows = []
    for size in SIZES:
        name = f"{size}, {workers} workers"
        rows += [
            harness.compare(name, times[_key(size, OURS)], times[_key(size, peer)], peer)
            for peer in (GLOO, MEMORY)
        ]
        if not missing:
            rows.append(harness.compare(name, ours[size], mpi[size], MPI))
    return rows


def main() -> None:
    options = harness.options(__doc__)
    effort = {"repetitions": 4, "blocks": 1} if options.quick else {"repetitions": 9, "blocks": 3}
    with harness.engine() as engine:
        rows = [row for workers in WORKERS for row in contest(engine, workers, **effort)]
    harness.report(rows, options.json)
    for row in rows:
        if row.peer_name == MEMORY:
            harness.note(
                f"{row.name}: {1 / row.ratio:.1f} times as long as the same processes take to copy as many bytes"
            )


if __name__ == "__main__":
    main()
