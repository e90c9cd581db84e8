"""The mean among workers of two hosts: within each host first, against letters between all pairs of workers.

The hosts are network namespaces of this machine (Linux, root and iproute2), with two workers each, lines of a limited
rate and TLS between them. The peer is `algorithm="direct"`, which gives the same bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import fast
import harness
from fast.core import drive
from fast.core.world import Round
from fast.engine import current_seat
from fast.engine.namespaces import Cluster, available
from fast.runtime import RealWorld
from fast.transport.tcp import new_secret
from harness import Row, Times

RATES = ("100mbit", "1gbit")
SIZES = {"100 kB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
ROUNDS = {"100 kB": 20, "1 MB": 4, "10 MB": 1}
HOSTS, EACH = 2, 2
OURS, PAIRS = "within hosts first", "in pairs"
_WORKER, _PORT = "FAST_BENCH_ACROSS", "29500"


# A worker


def worker(repetitions: int) -> Times:
    """Size after size, both take turns."""
    torch.set_num_threads(1)
    model = nn.Linear(1, 1)
    fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "allreduce")
    runtime = current_seat().sessions[0].runtime
    assert runtime is not None
    world, times = runtime.world, Times()
    for size, nbytes in SIZES.items():
        contestants = {
            f"{size}, {OURS}": _mean(world, nbytes, "auto"),
            f"{size}, {PAIRS}": _mean(world, nbytes, "direct"),
        }
        meet = _mean(world, 4, "auto")
        times |= harness.take_turns(contestants, repetitions=repetitions, rounds=ROUNDS[size], meet=meet)
    return times


def _mean(world: RealWorld, nbytes: int, algorithm: str) -> harness.Contestant:
    members = world.start_view.workers
    tensor = world.transport.allocate(nbytes).view(torch.float32).fill_(world.id + 1)

    def mean() -> torch.Tensor:
        return drive(world.collective(Round(tensor, members, read_only=True, algorithm=algorithm))).tensor

    expected = (len(members) + 1) / 2
    if not bool((mean() == expected).all()):
        raise AssertionError(f"the mean of 1 to {len(members)} should be {expected} everywhere")
    return mean


# The contest


def contest(rate: str, repetitions: int) -> list[Row]:
    times = slowest(rate, repetitions)
    return [
        harness.compare(
            f"{size}, {rate}, {HOSTS} hosts with {EACH} workers",
            times[f"{size}, {OURS}"],
            times[f"{size}, {PAIRS}"],
            PAIRS,
        )
        for size in SIZES
    ]


def slowest(rate: str, repetitions: int) -> Times:
    """Per repetition, the slowest worker's time."""
    with Cluster(HOSTS, rate=rate) as cluster, TemporaryDirectory(prefix="fast-bench-") as folder:
        processes = [
            cluster.run(
                rank // EACH,
                [sys.executable, str(Path(__file__).resolve())],
                env=_environment(rank, cluster.address(0), Path(folder), repetitions),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(HOSTS * EACH)
        ]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit("a worker failed; what it said is above")
        found: list[Times] = [json.loads(out) for out in said]
    return {name: [max(each) for each in zip(*(t[name] for t in found), strict=True)] for name in found[0]}


def _environment(rank: int, address: str, folder: Path, repetitions: int) -> dict[str, str]:
    secret = folder / "job.secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(new_secret().text())
    return {
        **os.environ,
        _WORKER: str(repetitions),
        "OMP_NUM_THREADS": "1",
        "FAST_SECRET_FILE": str(secret),
        "RANK": str(rank),
        "WORLD_SIZE": str(HOSTS * EACH),
        "MASTER_ADDR": address,
        "MASTER_PORT": _PORT,
    }


def main() -> None:
    if _WORKER in os.environ:
        print(json.dumps(worker(int(os.environ[_WORKER]))))
        return
    arguments = harness.options(__doc__)
    reason = available()
    if reason is not None:
        sys.exit(f"this benchmark needs network namespaces: {reason}")
    one = partial(contest, repetitions=3 if arguments.quick else 15)
    rates = RATES[:1] if arguments.quick else RATES
    harness.report([row for rate in rates for row in one(rate)], arguments.json)


if __name__ == "__main__":
    main()
