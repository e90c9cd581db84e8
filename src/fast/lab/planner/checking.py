"""Whether an advice was right: its first choices trained in the simulator, with real gradients, to the target.

Where the plan is for a task, that task is trained on the plan's own machines with its own learning rate. A bare
number of parameters can't be trained, so a small task stands in for it: digits, on links and local work that are as
much slower as its model is smaller, so that communication against computation is what it was in the plan. Latencies
stay, and so do the 256 bytes in front of every letter, which weigh more beside a small model. There each strategy has
the best of a few learning rates, the same ones for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fast.core import Strategy, Task
from fast.errors import FastError
from fast.lab.budget import Budget
from fast.lab.judging import Goal, Judge
from fast.lab.measures import Tick
from fast.lab.planner.advice import Advice
from fast.lab.planner.situation import Situation
from fast.lab.simulated import simulate_task
from fast.lab.splits import parse_split
from fast.lab.tasks import epochs_of, load_task, target_of
from fast.sim.cluster import Cluster, Network, Work
from fast.strategies.calls import short_call

TOP = 3
"""So many of the ranked candidates are trained."""
TOLERANCE = 1.5
"""An advice was right if its first choice took at most so many times as long as the best of those."""
STAND_IN = "digits"
STAND_IN_WORKERS = 32
"""With more than these, a step would be more than all the data that it has."""
STAND_IN_EPOCHS = 120.0
RATES = (1.0, 0.5, 2.0)
"""Factors on the learning rate of the task that stands in."""
UNLIKE = "dirichlet(0.3)"
"""How data is divided that isn't the same everywhere."""
TICKS = 4
"""So often in an epoch the model is scored."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """One candidate: what was predicted, against the first choice, and when it reached the target."""

    call: str
    predicted: float
    at_s: float | None
    rate: float | None = None
    epochs: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Ground:
    """What the candidates are trained on."""

    name: str
    task: Task
    workers: int
    cluster: Cluster
    rates: Sequence[float]
    epochs: float
    split: str
    words: str
    """What a reader has to know of it."""


@dataclass(frozen=True)
class Checked:
    """The candidates that were trained, in the order of the advice."""

    ground: str
    rows: tuple[Trained, ...]

    @property
    def best(self) -> Trained | None:
        there = [row for row in self.rows if row.at_s is not None]
        return min(there, key=lambda row: row.at_s or 0.0, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as long as the best of them the first choice took; None if it didn't get there."""
        best, first = self.best, self.rows[0] if self.rows else None
        if best is None or first is None or first.at_s is None or best.at_s is None:
            return None
        return first.at_s / best.at_s if best.at_s else 1.0

    @property
    def right(self) -> bool | None:
        """None where nobody reached the target, so that nothing is known."""
        if self.best is None:
            return None
        return self.ratio is not None and self.ratio <= TOLERANCE

    def lines(self) -> list[str]:
        width = max((len(short_call(row.call)) for row in self.rows), default=0)
        table = [f"  {short_call(row.call):{width}}  {self._row(row)}" for row in self.rows]
        return [self.ground, *table, self.verdict]

    def _row(self, row: Trained) -> str:
        """Times are against the first choice."""
        predicted = f"predicted x {row.predicted:.2f}"
        if row.error is not None:
            return f"{predicted}, couldn't be trained: {row.error}"
        if row.at_s is None:
            return f"{predicted}, didn't reach the target"
        first = self.rows[0].at_s
        against = f" x {row.at_s / first:.2f}" if first else ""
        return f"{predicted}, simulated{against}: {row.at_s:.3g} s to the target with rate x {row.rate:g}"

    @property
    def verdict(self) -> str:
        if self.right is None or self.best is None:
            return "Nobody reached the target, so this says nothing."
        best = short_call(self.best.call)
        if self.ratio == 1.0:
            return "The advice was right: its first choice was the best of these."
        if self.right:
            return (
                f"The advice was close: {best} was the best of these, and the first choice took {self.ratio:.2f} times "
                f"as long, which is within the margin of {TOLERANCE:g}."
            )
        took = "didn't get there" if self.ratio is None else f"took {self.ratio:.2f} times as long"
        return f"The advice was wrong: {best} was the best of these, and the first choice {took}."

    def to_json(self) -> dict[str, Any]:
        return {
            "ground": self.ground,
            "right": self.right,
            "ratio": self.ratio,
            "best": None if self.best is None else self.best.call,
            "rows": [
                {
                    "strategy": row.call,
                    "predicted": row.predicted,
                    "time_to_target_s": row.at_s,
                    "rate": row.rate,
                    "epochs": row.epochs,
                    "error": row.error,
                }
                for row in self.rows
            ],
        }


def check_advice(advice: Advice, *, seed: int = 0, tell: Tell = lambda text: None) -> Checked:
    """Train the first choices of an advice until they reach the target, and see who is there first."""
    ground = ground_of(advice.situation)
    first = advice.ranked[0].time if advice.ranked else 1.0
    rows = []
    for each in advice.ranked[:TOP]:
        tell(f"training {short_call(each.call)} in the simulator")
        rows.append(trained(ground, each.strategy, each.time / first, seed))
    return Checked(ground.words, tuple(rows))


def ground_of(situation: Situation) -> Ground:
    """The plan's own task on its own machines, or one that stands in for its model."""
    split = "iid" if situation.needs.iid else UNLIKE
    if situation.task is not None:
        task = load_task(situation.task)
        words = f"{situation.task} on the plan's machines, with the task's own learning rate:"
        return Ground(
            situation.task,
            task,
            situation.workers,
            situation.cluster(),
            (1.0,),
            epochs_of(task),
            split,
            words,
        )
    task, workers = load_task(STAND_IN), min(situation.workers, STAND_IN_WORKERS)
    smaller = _weights_bytes(task) / situation.model_bytes
    fewer = f" and {workers} workers for {situation.workers}" * (workers < situation.workers)
    words = (
        f"{STAND_IN} stands in for {situation.sizes.name}{fewer}, on links that are slower in the same measure "
        "as its model is smaller; each with the best of the same learning rates:"
    )
    return Ground(
        STAND_IN, task, workers, scaled(situation.cluster(), smaller), RATES, STAND_IN_EPOCHS, split, words
    )


def trained(ground: Ground, strategy: Strategy, predicted: float, seed: int) -> Trained:
    """The earliest of its rates, each tried for no longer than it took the best one so far."""
    best = Trained(strategy.call, predicted, None)
    try:
        strategy.check(ground.workers)
        for rate in ground.rates:
            reached = _reached(ground, strategy, rate, seed, math.inf if best.at_s is None else best.at_s)
            if reached is not None:
                epochs = reached.samples / len(ground.task.train())
                best = Trained(strategy.call, predicted, reached.at_s, rate, epochs)
    except FastError as failure:
        return Trained(strategy.call, predicted, None, error=f"{type(failure).__name__}: {failure}")
    return best


def _reached(ground: Ground, strategy: Strategy, rate: float, seed: int, by_s: float) -> Tick | None:
    """The tick at which the target was reached for the first time."""
    goal = Goal(Judge(ground.task, ground.task.test()), target_of(ground.task), by_s)
    ticks = max(1, round(TICKS * ground.epochs))
    own = ground.split != "iid"
    simulate_task(
        ground.task,
        strategy,
        workers=ground.workers,
        budget=Budget.of(ground.task, ground.workers, ground.epochs, ticks=ticks, whole_steps=own),
        cluster=ground.cluster,
        seed=seed,
        rate=rate,
        split=parse_split(ground.split),
        enough=goal,
        gradients="auto",
    )
    return goal.reached


def _weights_bytes(task: Task) -> int:
    return sum(each.numel() * each.element_size() for each in task.model().parameters())


# Machines for a model of another size


def scaled(cluster: Cluster, factor: float) -> Cluster:
    """All rates times `factor`: so many times as many bytes take as long as before."""
    return Cluster(
        cluster.compute, _scaled_network(cluster.network, factor), _scaled_work(cluster.work, factor)
    )


def _scaled_network(network: Network, factor: float) -> Network:
    racks = network.racks
    return replace(
        _scaled_link(network, factor),
        links={pair: _scaled_link(link, factor) for pair, link in network.links.items()},
        inside=_scaled_link(network.within, factor),
        racks=None if racks is None else replace(racks, rate_bytes_per_s=racks.rate_bytes_per_s * factor),
    )


def _scaled_link(link: Network, factor: float) -> Network:
    receive = link.receive_bytes_per_s
    return replace(
        link,
        rate_bytes_per_s=link.rate_bytes_per_s * factor,
        receive_bytes_per_s=None if receive is None else receive * factor,
    )


def _scaled_work(work: Work, factor: float) -> Work:
    return replace(
        work,
        apply_rate=work.apply_rate * factor,
        send_rate=work.send_rate * factor,
        read_rate=work.read_rate * factor,
        op_rate=work.op_rate * factor,
        means=tuple((members, round(nbytes * factor), took_s) for members, nbytes, took_s in work.means),
        servers=None if work.servers is None else _scaled_work(work.servers, factor),
    )
