"""Whether `fast compare` tells the truth: the same score as a plain DDP script, and an outside stop-watch.

The score: `allreduce` in a comparison against peers/ddp.py under torchrun, same task, workers,
batch, rate and epochs, several seeds each. The throughput: what the report says against the times
at which a task's own loss was called.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import harness
from fast.lab import Budget, load_task, train_task
from fast.lab.judging import Judge
from harness import Row

PEERS = Path(__file__).resolve().parent / "peers"
WATCHED = f"{PEERS / 'stopwatch.py'}:Timed"
WARM_UP_CALLS = 2
"""Calls of the loss before the training, which nobody counts."""
WORKERS = 4


def ddp(task: str, epochs: int, seed: int) -> dict[str, float]:
    """Score and throughput of the plain script."""
    with TemporaryDirectory(prefix="fast-bench-") as folder:
        to = Path(folder) / "result.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORKERS)]
        subprocess.run(
            [*torchrun, str(PEERS / "ddp.py"), task, str(epochs), str(seed), str(to)],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        found: dict[str, float] = json.loads(to.read_text())
        return found


def ours(task: str, epochs: int, seed: int) -> tuple[float, float, float]:
    """Score, the throughput that would be reported, and that of the task's own stop-watch."""
    problem = load_task(task)
    budget = Budget.of(problem, WORKERS, epochs)
    with TemporaryDirectory(prefix="fast-bench-") as folder:
        os.environ.update(FAST_STOPWATCH=folder, FAST_STOPWATCH_TASK=task)
        run = train_task(WATCHED, "allreduce", workers=WORKERS, budget=budget, seed=seed)
        times = [json.loads(path.read_text())[WARM_UP_CALLS:] for path in Path(folder).glob("*.json")]
    score = Judge(problem, problem.test())(run.final)
    assert score is not None and len(times) == WORKERS
    samples = sum(report.samples for report in run.workers)
    steps = len(times[0])
    # The last call begins the last step; steps - 1 of them lie between the first call and it.
    watched_s = (max(map(max, times)) - min(map(min, times))) * steps / (steps - 1)
    return score, samples / (run.duration_ns / 1e9), samples / watched_s


def rows_of(task: str, epochs: int, seeds: int) -> list[Row]:
    pairs = [(ours(task, epochs, seed), ddp(task, epochs, seed)) for seed in range(seeds)]
    mine, theirs = [own[0] for own, _ in pairs], [peer["score"] for _, peer in pairs]
    for name, scores in (("ours", mine), ("DDP", theirs)):
        harness.note(f"{task}, {name}: scores {', '.join(f'{score:.4f}' for score in scores)}")
    reported, watched = [own[1] for own, _ in pairs], [own[2] for own, _ in pairs]
    title = f"{task}, {WORKERS} workers"
    return [
        _row(f"{title}: final score", mine, theirs, "plain DDP", ""),
        _row(f"{title}: reported samples/s", reported, watched, "stop-watch", ""),
        _row(f"{title}: samples/s", reported, [peer["samples_per_s"] for _, peer in pairs], "plain DDP", ""),
    ]


def _row(name: str, ours: list[float], peer: list[float], peer_name: str, unit: str) -> Row:
    ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
    return Row(name, statistics.fmean(ours), statistics.fmean(peer), peer_name, unit, ratio)


def main() -> None:
    options = harness.options(__doc__)
    rows = rows_of("digits", 20 if options.quick else 60, 2 if options.quick else 5)
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
