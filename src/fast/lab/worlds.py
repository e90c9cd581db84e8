"""The runs of a comparison in either world, by its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from fast.core import Strategy
from fast.engine import LocalEngine
from fast.lab.budget import Budget
from fast.lab.measures import Run
from fast.lab.plan import Plan
from fast.lab.real import train_task
from fast.lab.settings import Simulated
from fast.lab.simulated import simulate_task
from fast.lab.tuning import Setting
from fast.loop.loading import strategy_from
from fast.sim.checkers import Checkers
from fast.sim.fuzzing import checkers_for

Listen = Callable[[dict[str, Any]], None]
ALONE_STEPS = 200
"""So many steps tell the throughput of one worker."""


@dataclass(frozen=True)
class Notes:
    """Where a run tells what happens in it."""

    listen: Listen
    run: str
    """Its name among the metrics."""
    metrics: str | None = None
    """The file of the metrics, to which real workers write their ticks themselves."""


class Trainer(ABC):
    """Trains the runs of one plan, one after another. Use it in a `with` statement."""

    @abstractmethod
    def train(self, setting: Setting, seed: int, notes: Notes) -> Run: ...

    @abstractmethod
    def alone_samples_per_s(self, listen: Listen) -> float | None:
        """The throughput of one worker that talks to nobody."""

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


def trainer_of(plan: Plan) -> Trainer:
    world = plan.settings.world
    return _InSimulation(plan, world) if isinstance(world, Simulated) else _OnProcesses(plan)


@final
class _OnProcesses(Trainer):
    def __init__(self, plan: Plan) -> None:
        self._plan, self._engine = plan, LocalEngine()

    def train(self, setting: Setting, seed: int, notes: Notes) -> Run:
        settings = self._plan.settings
        return train_task(
            settings.task,
            setting.call,
            workers=settings.workers,
            budget=self._plan.budget,
            seed=seed,
            engine=self._engine,
            deadline_s=settings.deadline_s,
            groups=settings.order or (),
            listen=notes.listen,
            metrics=notes.metrics,
            run=notes.run,
            rate=setting.rate,
            split=settings.split,
            pace_s=settings.pace_s,
            straggler=settings.world.straggler,
        )

    def alone_samples_per_s(self, listen: Listen) -> float | None:
        """From a short training."""
        plan, batch = self._plan, self._plan.task.batch_size
        run = train_task(
            plan.settings.task,
            "allreduce",
            workers=1,
            budget=Budget(ALONE_STEPS * batch, plan.budget.epoch_samples, batch, ticks=1),
            engine=self._engine,
            deadline_s=plan.settings.deadline_s,
            listen=listen,
            pace_s=plan.settings.pace_s,
        )
        return run.workers[0].samples / (run.duration_ns / 1e9)

    def close(self) -> None:
        self._engine.close()


@final
class _InSimulation(Trainer):
    def __init__(self, plan: Plan, world: Simulated) -> None:
        self._plan, self._world = plan, world
        self._given = {repr(strategy): strategy for strategy in plan.strategies}

    def train(self, setting: Setting, seed: int, notes: Notes) -> Run:
        def tell(steps: int, now_ns: int) -> None:
            workers = self._plan.settings.workers
            notes.listen(
                {"event": "progress", "steps": [steps], "workers": workers, "virtual_s": now_ns / 1e9}
            )

        return simulate_task(
            self._plan.task,
            self._strategy(setting.call),
            workers=self._plan.settings.workers,
            budget=self._plan.budget,
            cluster=self._world.model(),
            seed=seed,
            rate=setting.rate,
            split=self._plan.split,
            on_tick=tell,
            scenario=self._world.faults(),
            checkers=self._checkers(setting.call),
            gradients=self._world.gradients,
            groups=self._plan.settings.order,
        )

    def _checkers(self, call: str) -> Checkers | None:
        return checkers_for(self._strategy(call), self._world.faults()) if self._world.check else None

    def _strategy(self, call: str) -> Strategy:
        """The object that was given, if it was: one that was built by hand has no call to build it from."""
        return self._given.get(call) or strategy_from(call)

    def alone_samples_per_s(self, listen: Listen) -> float | None:
        """A stated constant here: the time of a step."""
        step_s = self._world.step_s
        return self._plan.task.batch_size / step_s if step_s else None

    def close(self) -> None:
        """Nothing was opened."""
