"""Trainings to the target in the simulator: with real gradients, and when a step was over with sizes only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import harness
from advising.situations import Case, the_judge, the_sizes, the_task, weights_bytes
from fast.collectives import cost
from fast.core.world import Link
from fast.errors import FastError
from fast.lab import Budget, Run, Simulated, simulate_task
from fast.lab.judging import Goal
from fast.lab.measures import Tick
from fast.lab.planner.efficiency import kind_of
from fast.lab.sizes import simulate_sizes
from fast.lab.splits import parse_split
from fast.lab.watching import Enough
from fast.loop.loading import strategy_from
from fast.parts import mean
from fast.sim import parse_network
from fast.strategies.calls import arguments_of, with_argument
from preset_scores import climb

SYNCHRONOUS = "allreduce"
RATES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Factors on the task's own learning rate; with 4 times the rate nothing learns any more. Those who apply every
gradient by itself need small ones."""
TICKS = 4
"""So often in an epoch the model is scored."""
TUNING_SEED = 1000
CALM = Simulated(network="1gbit", step="20ms", spread=0.1)
"""Where rates are tuned."""
LOST = 0.5
"""Who scores less after a quarter of the time has diverged."""


@dataclass(frozen=True)
class Reached:
    """When and after what the target was reached for the first time; `apart`: replicas differed then."""

    at_s: float
    steps: int
    samples: int
    apart: bool


@dataclass(frozen=True)
class Training:
    call: str
    workers: int
    seed: int
    rate: float
    split: str = "iid"
    """How the data is divided."""
    tuning: bool = False
    case: Case | None = None
    """None for machines that are nearly alike."""
    by_s: float = math.inf
    """When it is too late, in virtual time."""
    within: float = math.inf
    """So many samples, more than which are too many."""

    def budget(self, epochs: float, ticks: int) -> Budget:
        own = self.split != "iid"
        return Budget.of(the_task(), self.workers, epochs, ticks=ticks, whole_steps=own)


def longest(workers: int) -> float:
    """Epochs: many workers take few steps in one."""
    return 80.0 * max(1.0, workers / 8)


def trained(job: Training) -> tuple[Reached | None, float]:
    """Until the target is reached, or nothing can be hoped for; and the score of the last model."""
    epochs = math.ceil(longest(job.workers))
    budget = job.budget(epochs, epochs * TICKS)
    goal = Goal(the_judge(job.tuning), the_task().target, job.by_s)

    def enough(tick: Tick) -> bool:
        lost = tick.samples > budget.samples / 4 and goal.score < LOST
        return goal(tick) or lost or tick.samples >= job.within

    run = _run(job, budget, enough)
    if run is None or goal.reached is None:
        return None, goal.score
    tick = goal.reached
    return Reached(tick.at_s, step_of(budget, len(run.ticks)), tick.samples, tick.distance > 0), goal.score


def _run(job: Training, budget: Budget, enough: Enough = lambda tick: False) -> Run | None:
    world = CALM if job.case is None else job.case.world()
    try:
        return simulate_task(
            the_task(), strategy_from(job.call), workers=job.workers, budget=budget, cluster=world.model(),
            seed=job.seed, rate=job.rate, split=parse_split(job.split), gradients="auto", enough=enough,
        )  # fmt: skip
    except FastError as failure:
        harness.note(f"{job.call} on {job.workers} workers: {type(failure).__name__}: {failure}")
        return None


def step_of(budget: Budget, tick: int) -> int:
    """The step in which workers in lock-step pass this tick."""
    return next(
        steps
        for steps in range(1, budget.steps + 1)
        if budget.ticks_after(budget.samples_after(steps)) >= tick
    )


def tuned(job: tuple[str, int]) -> float:
    """The rate of a call that needs the fewest samples, from the largest on down: those take the least time to try.
    Each is tried for no longer than the best so far."""
    call, workers = job
    fewest = math.inf

    def worth(rate: float) -> float:
        nonlocal fewest
        asked = Training(call, workers, TUNING_SEED, rate, tuning=True, within=fewest)
        reached, score = trained(asked)
        if reached is not None:
            fewest = min(fewest, reached.samples)
            return -reached.samples / (longest(workers) * len(the_task().train()))
        return score - 2 if score >= LOST else -2 - rate  # of two that diverge the smaller one is nearer

    return climb(RATES, worth, start=max(RATES))


def learned(job: Training) -> Reached | None:
    return trained(job)[0]


def tuned_as(call: str) -> str:
    """The call whose rate it has: over how many servers a model is spread makes no difference to what it learns."""
    twin = twin_of(call)
    return with_argument(twin, "servers", 1) if "servers" in arguments_of(twin) else twin


# When it was there


def is_lock_step(call: str) -> bool:
    return strategy_from(call).synchronous


def twin_of(call: str) -> str:
    """Who takes the same steps, but for rounding: the mean of all gradients is one, whichever way it went."""
    strategy = strategy_from(call)
    plain = getattr(strategy, "rule", mean) is mean
    same = strategy.synchronous and plain and kind_of(strategy) == "lock-step"
    return strategy_from(SYNCHRONOUS).call if same else call


def timed_s(case: Case, call: str, steps: int) -> float:
    """When all workers had taken so many steps, with sizes only."""
    sizing = simulate_sizes(
        the_sizes(),
        strategy_from(call),
        workers=case.workers,
        steps=steps,
        world=case.world(),
        seed=case.seed,
    )
    return sizing.virtual_s


def mean_s(case: Case) -> float:
    """How long everybody's mean takes: what it costs to make one model of replicas that differ."""
    network = parse_network(case.network)
    return cost.direct(case.workers, weights_bytes(), Link(network.latency_s, network.rate_bytes_per_s))


# Lock-step doesn't see the time


def verify(case: Case, call: str, epochs: float) -> bool:
    """Whether a training in the situation has the times of one with sizes only, at every tick, and the weights of
    one on other machines."""
    jobs = [Training(call, case.workers, case.seed, 1.0, case.split, case=each) for each in (case, None)]
    budget = jobs[0].budget(epochs, ticks=4)
    here, calm = (_run(job, budget) for job in jobs)
    if here is None or calm is None:
        return False
    return all(
        tick.at_s == timed_s(case, call, step_of(budget, number))
        and all(torch.equal(value, other.state[name]) for name, value in tick.state.items())
        for number, (tick, other) in enumerate(zip(here.ticks, calm.ticks, strict=True), start=1)
    )
