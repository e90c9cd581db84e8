"""Simulations with sizes only: how fast strategies are and what they send, on more workers than weights would fit for.

Nothing is learned here. The programs, machines, links and faults are those of every simulation, and
virtual times, bytes and the order of events are exactly those of a run with values, for strategies whose
decisions don't read weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fast.adapters.optimizer_spec import ELEMENT_WISE
from fast.adapters.sizes import SizesReplica, layout_of, layout_of_parameters, no_values
from fast.core import Strategy, Task
from fast.errors import FastError, UsageError
from fast.lab.crew import only_new_garbage
from fast.lab.settings import Simulated
from fast.lab.tally import Tally
from fast.parts import mean
from fast.sim import Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.sim.faults import Director
from fast.trace import Observer
from fast.view import Layout

STEPS = 100
MOST_PARAMETERS = 2**60
"""Their bytes are fewer than 2**63, which is as far as torch counts."""
OnProgress = Callable[[int, int], None]
"""Called now and then with the steps of all workers so far and the virtual time in nanoseconds."""
_TALKING = 1000
"""So many workers may take part in rounds over letters."""
_TOLD = 1000
"""So often in a run."""


@dataclass(frozen=True)
class Sizes:
    """A model of which the sizes are known."""

    name: str
    layout: Layout
    samples: int = 1
    """In each step of each worker."""
    rates: Sequence[float] = (1.0,)
    rows: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many rows a sample is to linear layers, by the names of their weights."""
    whole_parameters: bool = False
    """Whether the optimizer looks at shapes, so that no parameter may lie on two servers."""

    @staticmethod
    def of_task(name: str, task: Task, *, with_rows: bool = False) -> Sizes:
        """Of a task's model, which is made without values; `with_rows` has it see one batch of data."""
        with torch.device("meta"):
            model = task.model()
            optimizer = task.optimizer(model)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        rows = rows_of(task) if with_rows else MappingProxyType({})
        by_shape = type(optimizer).__name__ not in ELEMENT_WISE
        return Sizes(name, layout_of(model, optimizer), task.batch_size, rates, rows, by_shape)

    @staticmethod
    def of_parameters(count: float) -> Sizes:
        """Of so many float32, in layers of one size."""
        if not math.isfinite(count) or count < 1 or count != int(count):
            raise UsageError(
                f"--parameters {count:g}: a model has a whole number of parameters, such as 25e6"
            )
        if count > MOST_PARAMETERS:
            raise UsageError(f"--parameters {count:g}: more than torch can count the bytes of")
        return Sizes(f"{int(count):,} parameters", layout_of_parameters(int(count)))

    @property
    def parameters(self) -> int:
        return sum(segment.size for segment in self.layout.segments)

    def replica(self, *, counted: bool = False, shard: slice | None = None) -> SizesReplica:
        return SizesReplica(
            self.layout,
            rates=self.rates,
            samples=self.samples,
            rows=self.rows,
            counted=counted,
            shard=shard,
            whole_parameters=self.whole_parameters,
        )

    def servers(self, strategy: Strategy, workers: int, *, counted: bool = False) -> list[SizesReplica]:
        """One replica for each server of a strategy: of its shard, or of all."""
        count = strategy.servers(workers)
        if not strategy.sharded:
            return [self.replica(counted=counted) for _ in range(count)]
        return [self.replica(counted=counted, shard=shard) for shard in self.replica().shards(count)]

    def check(self, strategy: Strategy, workers: int) -> None:
        """Refuse what needs the shapes of matrices where only a number of parameters is known, and
        rounds of so many letters that nobody would see their end."""
        if _by_letters(strategy) and workers > _TALKING:
            raise UsageError(
                f"{strategy!r} makes its means of letters from everybody to everybody, {workers * (workers - 1):,} in "
                f"each step of {workers:,} workers. Simulate up to {_TALKING:,} of them, or a plain mean (allreduce), "
                "which is a formula."
            )
        flat = all(len(segment.shape) < 2 for segment in self.layout.segments)
        if flat and (strategy.uses_factors or _in_rounds(strategy)):
            raise UsageError(
                f"what {strategy!r} sends depends on the shapes of the model's matrices, and only a number of "
                "parameters is given. Give a task: fast simulate TASK --sizes-only."
            )


def _by_letters(strategy: Strategy) -> bool:
    """Whether its means go over letters instead of being the plain one, which is a formula."""
    means = strategy.synchronous and strategy.topology is None
    own_way = getattr(strategy, "codec", None) is not None or getattr(strategy, "algorithm", "auto") != "auto"
    own_rule = getattr(strategy, "rule", mean) is not mean and not strategy.servers(2)
    return means and (own_way or own_rule)


def _in_rounds(strategy: Strategy) -> bool:
    codecs = [getattr(strategy, "codec", None), *(tag.codec for tag in strategy.tags)]
    return any(codec is not None and codec.rounds for codec in codecs)


@torch.no_grad()
def rows_of(task: Task) -> dict[str, int]:
    """How many rows a sample is to each linear layer, seen while one batch passes."""
    model, count = task.model(), min(task.batch_size, len(task.train()))
    rows: dict[str, int] = {}

    def listen(name: str, layer: nn.Linear) -> None:
        def heard(_: nn.Module, args: tuple[Tensor, ...], __: Any) -> None:
            seen = args[0].numel() // layer.in_features // count
            rows[f"{name}.weight"] = rows.get(f"{name}.weight", 0) + seen

        layer.register_forward_hook(heard)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            listen(name, module)
    task.loss(model, task.batch(list(range(count))))
    return rows


@dataclass(frozen=True)
class Sizing:
    """How one strategy did."""

    strategy: str
    workers: int
    servers: int
    tally: Tally
    virtual_s: float
    """Until the last step of the last worker."""
    real_s: float
    events: int

    @property
    def step_s(self) -> float:
        """Virtual time per step of one worker."""
        return self.tally.time_ns / 1e9 / max(1, self.tally.steps)

    @property
    def steps_per_s(self) -> float | None:
        """Of all workers together, per second of virtual time until the last one has finished."""
        return self.tally.steps / self.virtual_s if self.virtual_s else None

    @property
    def step_bytes(self) -> float:
        """Sent per worker and step."""
        return self.tally.bytes_sent / max(1, self.tally.steps)

    @property
    def shares(self) -> dict[str, float | None]:
        """Of the workers' time."""
        tally = self.tally
        parts = {
            "computing": tally.computed_ns,
            "waiting": tally.waited_ns,
            "exchange": tally.exchanged_ns,
            "merging": tally.merged_ns,
        }
        return {name: part / tally.time_ns if tally.time_ns else None for name, part in parts.items()}

    def to_json(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "strategy": self.strategy,
            "workers": self.workers,
            "servers": self.servers,
            "steps": tally.steps,
            "virtual_s": self.virtual_s,
            "step_s": self.step_s,
            "steps_per_s": self.steps_per_s,
            "shares": self.shares,
            "bytes_per_worker_and_step": self.step_bytes,
            "server_bytes_per_worker_and_step": tally.server_bytes / max(1, tally.steps),
            "staleness": {"median": tally.median_staleness, "max": tally.largest_staleness},
            "dropped_letters": tally.dropped,
            "events": self.events,
            "real_s": self.real_s,
        }


def simulate_sizes(
    sizes: Sizes,
    strategy: Strategy,
    *,
    workers: int,
    steps: int,
    world: Simulated | None = None,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    on_progress: OnProgress = lambda steps, now_ns: None,
) -> Sizing:
    """Let every worker take so many steps, with sizes only."""
    world = world or Simulated()
    sizes.check(strategy, workers)
    servers, scenario = strategy.servers(workers), world.faults()
    scenario.check(strategy, workers, servers)
    tally, cluster = Tally(workers), world.model()
    counted = cluster.work.counts
    replicas = [sizes.replica(counted=counted) for _ in range(workers)]
    checkers = Checkers(strategy, finite=False) if world.check else None
    simulation = Simulation(
        strategy,
        [SimWorker(replica, repeat(sizes.samples, steps), replica.compute) for replica in replicas],
        server_replicas=sizes.servers(strategy, workers, counted=counted),
        cluster=cluster,
        seed=seed,
        observers=[tally, *observers, *([checkers] if checkers is not None else [])],
        seed_torch=False,
        faults=Director(scenario, seed) if scenario else None,
        absent=scenario.absent,
    )
    began_s = time.perf_counter()
    with only_new_garbage(), _translated(strategy):
        _run(simulation, checkers, Progress(on_progress, workers * steps))
    return Sizing(
        repr(strategy), workers, servers, tally, tally.last_step_ns / 1e9, time.perf_counter() - began_s,
        simulation.events.happened,
    )  # fmt: skip


def _run(simulation: Simulation, checkers: Checkers | None, progress: Progress) -> None:
    if checkers is None:
        simulation.run(on_step=progress.step)
        return
    checkers.attach(simulation)
    simulation.run(on_step=progress.step, after_event=checkers.after_event)
    checkers.finish()


class Progress:
    """Tells how far a run is, not at every step."""

    def __init__(self, tell: OnProgress, total: int) -> None:
        self._tell, self._steps = tell, 0
        self._each = max(1, total // _TOLD)

    def step(self, me: object, now_ns: int) -> None:
        self._steps += 1
        if self._steps % self._each == 0:
            self._tell(self._steps, now_ns)


@contextmanager
def _translated(strategy: Strategy) -> Iterator[None]:
    """What torch says of tensors without values, in our own words."""
    try:
        yield
    except FastError:
        raise
    except (RuntimeError, TypeError) as error:
        if "meta" not in str(error):
            raise
        raise no_values(f"{strategy!r}") from error
