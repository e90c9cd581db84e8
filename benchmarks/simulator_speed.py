"""How fast the simulator is: worker-steps a second, against a plain loop over the same gradients.

The loop computes one worker's gradient after another with forward and backward, as a script does: no
simulator, nobody who talks, not even an optimizer's step. The simulator does all of that and computes the
gradients that are under way together. Both take the same batches of the same data, with one thread.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import harness
from fast.adapters.rows import Rows
from fast.core import Task
from fast.lab.batching import evaluator
from fast.lab.crew import only_new_garbage
from fast.loop.loading import strategy_from
from fast.sim import Compute, Simulation, SimWorker, parse_network
from fast.sim.gradients import Together
from harness import Row

WORKERS, STRATEGIES = (256, 1024), ("dpsgd", "gossip")
BATCH, SAMPLES, NEEDED = 32, 8192, 2.0
SIMULATED, EAGER, TRAINED = "simulator", "gradients one by one", "and an optimizer's step each"
PARTS = {
    "optimizer": ("fast/adapters/row_optimizer.py", "fast/adapters/rows.py:apply"),
    "gradients": ("fast/sim/gradients.py", "fast/lab/batching.py", "fast/adapters/rows.py"),
    "letters": (
        *(f"fast/core/me.py:{verb}" for verb in ("send", "_letter", "gather", "letters", "_read")),
        *(f"fast/sim/{file}" for file in ("world.py", "post.py", "inbox.py", "cluster/")),
        *(f"fast/core/{file}" for file in ("mailbox.py", "intake.py", "framing.py")),
    ),
    "merging": ("fast/strategies/",),
}
"""Where a moment belongs: to whichever of these is innermost on the stack."""


class Mlp(Task):
    """64-64-10 on numbers without meaning: only the time counts."""

    name, target, batch_size, stackable = "mlp", 1.0, BATCH, True

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, 64, generator=generator)
        self.y = torch.randint(0, 10, (SAMPLES,), generator=generator)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def train(self) -> Sequence[int]:
        return range(SAMPLES)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        return self.x[rows], self.y[rows]

    def test(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
        return 0.0


def batches(worker: int) -> Iterator[tuple[list[int], int]]:
    """Slices of the data, each worker with a place of its own to begin."""
    start = worker * BATCH
    while True:
        start = (start + BATCH) % (SAMPLES - BATCH)
        yield list(range(start, start + BATCH)), BATCH


class Simulated:
    """A simulation that goes on for some steps of all workers, whenever it is called."""

    def __init__(self, task: Task, strategy: str, workers: int, steps: int) -> None:
        model = task.model()
        rows = Rows(model, task.optimizer(model), task.loss, workers)
        self._simulation = Simulation(
            strategy_from(strategy),
            [SimWorker(replica, batches(worker), _never) for worker, replica in enumerate(rows.replicas)],
            network=parse_network("1gbit"),
            compute=Compute(),
            gradients=Together(evaluator(task, rows, 0)),
        )
        self._steps, self._done = steps, 0

    def __call__(self) -> None:
        self._done += self._steps
        self._simulation.run(pause_after=self._done)


def _never(batch: Any) -> None:
    raise AssertionError("gradients are computed together")


class OneByOne:
    """Forward and backward for each worker in turn, every one with a model of its own."""

    def __init__(self, task: Task, workers: int, steps: int, *, trains: bool) -> None:
        self._task, self._steps, self._trains = task, steps, trains
        self._models = [task.model() for _ in range(workers)]
        self._optimizers = [task.optimizer(model) for model in self._models]
        self._batches = [batches(worker) for worker in range(workers)]

    def __call__(self) -> None:
        for _ in range(self._steps):
            for model, optimizer, mine in zip(self._models, self._optimizers, self._batches, strict=True):
                for p in model.parameters():
                    p.grad = None
                self._task.loss(model, self._task.batch(next(mine)[0])).backward()
                if self._trains:
                    optimizer.step()


class Sampler:
    """Looks a thousand times a second where the program is; what that means is found out afterwards."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def shares(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for stack, count in self._stacks.items():
            found[next(filter(None, map(_part, stack)), "turns and events")] += count
        return {part: count / found.total() for part, count in found.most_common()}


def _part(code: CodeType) -> str | None:
    place = f"{code.co_filename}:{code.co_name}"
    return next((part for part, places in PARTS.items() if any(each in place for each in places)), None)


def contest(
    task: Task, strategy: str, workers: int, *, repetitions: int, steps: int
) -> tuple[list[Row], str]:
    """The rows of one strategy, and a line about where the time went."""
    simulated = Simulated(task, strategy, workers, steps)
    contestants = {
        SIMULATED: simulated,
        EAGER: OneByOne(task, workers, steps, trains=False),
        TRAINED: OneByOne(task, workers, steps, trains=True),
    }
    with only_new_garbage():
        times = harness.take_turns(contestants, repetitions=repetitions, rounds=1, meet=lambda: None)
        with Sampler() as sampler:
            for _ in range(repetitions):
                simulated()
    per_step = {
        name: [seconds / (workers * steps) for seconds in measured] for name, measured in times.items()
    }
    name = f"{strategy}, {workers:,} workers"
    compare = partial(harness.compare, name, per_step[SIMULATED], unit="us")
    rows = [compare(peer=per_step[peer], peer_name=peer) for peer in (EAGER, TRAINED)]
    parts = ", ".join(f"{part} {share:.0%}" for part, share in sampler.shares().items())
    return rows, f"{name}: {1e6 / rows[0].ours:,.0f} worker-steps a second; {parts}"


def main() -> None:
    options = harness.options(__doc__)
    torch.set_num_threads(1)
    task, rows, remarks = Mlp(), list[Row](), list[str]()
    effort = {"repetitions": 3, "steps": 1} if options.quick else {"repetitions": 9, "steps": 4}
    for workers in WORKERS:
        for strategy in STRATEGIES:
            some, remark = contest(task, strategy, workers, **effort)
            rows += some
            remarks.append(remark)
    harness.report(rows, options.json)
    for remark in remarks:
        harness.note(remark)
    for row in rows:
        if row.peer_name == EAGER:
            reached = "reached" if row.ratio >= NEEDED else "NOT reached"
            harness.note(f"{reached}: {row.name}: {row.ratio:.2f}, needed {NEEDED:g}")


if __name__ == "__main__":
    main()
