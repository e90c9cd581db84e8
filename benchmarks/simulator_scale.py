"""How the simulator grows: 100, 1,000 and 10,000 workers with sizes only, against a bare queue of events.

The limit is a loop over a heap with as many events as the simulation had, on as many workers, in which an event does
nothing but put the next one into the queue: no letters, no programs, no models. What the simulator takes
beyond that per event is its own work. If it grew with the number of workers, the ratio would fall.
"""

from __future__ import annotations

import heapq
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch

import harness
from fast.lab import Simulated
from fast.lab.crew import only_new_garbage
from fast.lab.sizes import Sizes, Sizing, simulate_sizes
from fast.loop.loading import strategy_from
from harness import Row

WORKERS, STRATEGIES = (100, 1000, 10_000), ("allreduce", "dpsgd", "gossip")
PARAMETERS = 25_000_000
WORLD = Simulated(network="10gbit", step="200ms", straggler="5x@0.1")
LIMIT = "bare queue of events"


@dataclass(frozen=True)
class Effort:
    """Worker-steps of one run at least, and how often it is repeated."""

    worker_steps: int
    repetitions: int

    def steps(self, workers: int) -> int:
        return max(3, self.worker_steps // workers)


def bare_queue_s(workers: int, events: int) -> float:
    """How long the limit takes."""
    numbers, queue = count(), list[tuple[int, int, int]]()
    for worker in range(min(workers, events)):
        heapq.heappush(queue, (worker, next(numbers), worker))
    with only_new_garbage():
        began_s = time.perf_counter()
        for _ in range(events):
            now_ns, _, worker = heapq.heappop(queue)
            heapq.heappush(queue, (now_ns + 1000 + worker % 7, next(numbers), worker))
        return time.perf_counter() - began_s


def contest(sizes: Sizes, strategy: str, workers: int, effort: Effort) -> tuple[Row, str]:
    """One row: per worker-step, ours and the limit; and a remark with what it comes to."""
    ours, limit, found = list[float](), list[float](), list[Sizing]()
    steps = effort.steps(workers)
    for _ in range(effort.repetitions):
        found.append(
            simulate_sizes(sizes, strategy_from(strategy), workers=workers, steps=steps, world=WORLD)
        )
        ours.append(found[-1].real_s / found[-1].tally.steps)
        limit.append(bare_queue_s(workers, found[-1].events) / found[-1].tally.steps)
    name = f"{strategy}, {workers:,} workers"
    return harness.compare(name, ours, limit, LIMIT, unit="us"), f"{name}: {_remark(found)}"


def _remark(found: Sequence[Sizing]) -> str:
    real_s = statistics.median(each.real_s for each in found)
    first = found[0]
    return (
        f"{first.tally.steps / real_s:,.0f} worker-steps and {first.events / real_s:,.0f} events a second, "
        f"{first.events / first.tally.steps:.1f} events per worker-step, {first.virtual_s / real_s:.2g} virtual "
        f"seconds in one, at most {peak_mb():,.0f} MB so far"
    )


def peak_mb() -> float:
    """The most memory that this process has had; sizes ascend, so it is that of the largest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def main() -> None:
    options = harness.options(__doc__)
    effort = Effort(3_000, 1) if options.quick else Effort(100_000, 3)
    sizes, rows = Sizes.of_parameters(PARAMETERS), list[Row]()
    with one_thread():
        harness.note(f"{sizes.name}, {WORLD.short()}; before anything ran: {peak_mb():,.0f} MB")
        for workers in WORKERS:
            for strategy in STRATEGIES:
                row, remark = contest(sizes, strategy, workers, effort)
                rows.append(row)
                harness.note(remark)
    harness.report(rows, options.json)
    for strategy in STRATEGIES:
        harness.note(_growth(strategy, rows))


def _growth(strategy: str, rows: Sequence[Row]) -> str:
    fewest, *_, most = (row for row in rows if row.name.startswith(strategy))
    times = f"{most.ours / fewest.ours:.2f} times what it takes with {WORKERS[0]:,}"
    return f"{strategy}: a worker-step with {WORKERS[-1]:,} workers takes {times}, {1 / most.ratio:.0f} times the limit"


if __name__ == "__main__":
    main()
