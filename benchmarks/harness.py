"""What the benchmarks share: starting workers, taking turns with a peer, the table and the JSON.

Machines are shared and noisy, so absolute times mean little from one run to the next. Everything
here therefore compares inside one run: the contestants take turns in the same processes, each
repetition gives one ratio, and the median of those ratios is the result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist

from fast.engine import Job, LocalEngine, current_seat

HERE = Path(__file__).resolve().parent
PRELOAD = ["torch._dynamo", "torch.distributed", "torch.nn.parallel"]
"""Imported once, before the workers are forked: torch would import its compiler in each of them."""
Times = dict[str, list[float]]
"""Per contestant, the seconds per round of each repetition."""
Contestant = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One comparison. A ratio above 1 means that we are ahead."""

    name: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    ratio: float


def compare(name: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, unit: str = "ms") -> Row:
    """The median of the ratios of each repetition, not the ratio of two medians: noise that lasts
    for a repetition hits both and cancels."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    ratio = statistics.median(b / a for a, b in zip(ours, peer, strict=True))
    return Row(name, statistics.median(ours) * scale, statistics.median(peer) * scale, peer_name, unit, ratio)


# In the process that is started


def options(description: str | None) -> argparse.Namespace:
    """The two arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there as well; - is standard output")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; under a minute")
    return parser.parse_args()


@contextlib.contextmanager
def engine() -> Iterator[LocalEngine]:
    """Workers on this machine that find the benchmarks' modules, with Gloo on the loopback."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with LocalEngine() as started:
        yield started


def run(started: LocalEngine, workers: int, entry: str, **arguments: Any) -> Times:
    """Run `entry` ("module:function") on each worker; per repetition, the slowest worker's time."""
    with TemporaryDirectory(prefix="fast-bench-") as folder:
        job = Job(
            workers=workers,
            entry=entry,
            server_entry="",
            arguments={**arguments, "folder": folder},
            preload=PRELOAD,
        )
        outcome = started.run(job, _show)
    if outcome.failure is not None:
        sys.exit(f"{outcome.failure.who}: {outcome.failure.message}\n{outcome.failure.traceback}")
    first: Times = outcome.results[0]
    return {
        name: [max(times) for times in zip(*(result[name] for result in outcome.results), strict=True)]
        for name in first
    }


def _show(message: Mapping[str, Any]) -> None:
    """What workers write is for the reader's eyes, not part of the result."""
    if message["event"] == "line":
        note(f"{message['who']}: {message['text']}")


def note(text: str) -> None:
    """A remark beside the table; the table alone may be on standard output."""
    print(text, file=sys.stderr, flush=True)


def report(rows: Sequence[Row], to: str | None) -> None:
    """The table; or, with `--json -`, the JSON in its place."""
    note(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, this benchmark included")
    if to == "-":
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    if to:
        Path(to).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    width = max(len(row.name) for row in rows)
    peers = max(len(row.peer_name) for row in rows)
    print(f"{'':{width}}  {'ours':>10} {'peer':>10}       {'peer':{peers}}  ratio")
    for row in rows:
        print(
            f"{row.name:{width}}  {row.ours:10.3f} {row.peer:10.3f} {row.unit:4}  {row.peer_name:{peers}} "
            f"{row.ratio:6.2f}"
        )


# In the workers


@contextlib.contextmanager
def gloo(folder: str) -> Iterator[None]:
    """torch.distributed over Gloo among the workers of this job."""
    seat = current_seat()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=seat.id, world_size=seat.workers
    )
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def take_turns(
    contestants: Mapping[str, Contestant], *, repetitions: int, rounds: int, meet: Contestant
) -> Times:
    """One block of rounds per contestant and repetition, the first place going round.

    Before each block everybody meets, and one round that isn't timed brings the workers into step
    and the contestant's memory back into the caches.
    """
    times: Times = {name: [] for name in contestants}
    order = list(contestants)
    for contestant in contestants.values():
        contestant()  # the first touch of memory, connections, plans
    for repetition in range(repetitions):
        shift = repetition % len(order)
        for name in order[shift:] + order[:shift]:
            meet()
            times[name].append(_time(contestants[name], rounds))
    return times


def _time(contestant: Contestant, rounds: int) -> float:
    contestant()
    began = time.perf_counter()
    for _ in range(rounds):
        contestant()
    return (time.perf_counter() - began) / rounds
