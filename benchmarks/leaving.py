"""What it costs when workers leave early, on a real task: handwritten digits, simulated, the same numbers every time.

    .venv/bin/python benchmarks/leaving.py                # the table of docs/measurements/leaving.md, about two minutes

Eight workers with unequal data (classes dealt out by dirichlet(0.3)), of which two leave after 30 of their 120 steps,
and their data with them. What comes out is compared with nobody leaving, and with these two and their data never
having been there. Scores are the part of the test data that is right; those who stay stand for the model.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from fast.core import Task
from fast.lab import Budget, Run, load_task, simulate_task
from fast.lab.judging import Judge
from fast.lab.measures import mean_state
from fast.lab.splits import Assignment, Split, parse_split
from fast.loop.loading import strategy_from
from fast.sim import Compute, parse_network
from fast.sim.faults import parse_scenario

WORKERS, LEAVERS = 8, (6, 7)
STEPS, LEAVE_AT = 120, 30
STRATEGIES = ("allreduce", "local_sgd", "dpsgd", "sgp", "easgd", "gosgd(p=0.1)", "ad_psgd", "torus")


@dataclass(frozen=True)
class OfEight(Split):
    """As the samples are dealt to eight workers, also where only the first of them are there."""

    def assign(self, task: Task, workers: int, seed: int) -> Assignment:
        dealt = parse_split("dirichlet(0.3)").assign(task, WORKERS, seed)
        assert dealt is not None
        return dealt[:workers]


class Scores(NamedTuple):
    """On the test data."""

    nobody_left: float
    two_left: float
    with_leavers: float
    """The mean of all replicas, those of the leavers as they were when they left."""
    never_there: float


def train(strategy: str, seed: int, *, workers: int = WORKERS, leave: bool = False) -> Run:
    """Whoever is there takes as many steps as it would with everybody."""
    task = load_task("digits")
    scenario = "; ".join(f"worker {worker} stops at step {LEAVE_AT}" for worker in LEAVERS)
    batch = workers * task.batch_size
    return simulate_task(
        task,
        strategy_from(strategy),
        workers=workers,
        budget=Budget(STEPS * batch, len(task.train()), batch, 2, whole_steps=True),
        network=parse_network("1gbit"),
        compute=Compute(0.02),
        scenario=parse_scenario(scenario) if leave else None,
        seed=seed,
        split=OfEight(),
        gradients="auto",
    )


def measured(strategy: str, seed: int) -> Scores:
    task = load_task("digits")
    judge = Judge(task, task.test())
    left = train(strategy, seed, leave=True)
    stayed = [state for worker, state in left.replicas.items() if worker not in LEAVERS]
    owned = strategy_from(strategy).servers(WORKERS) > 0  # then the model is the server's
    models = (
        train(strategy, seed).final,
        left.final if owned else mean_state(stayed),
        left.final,
        train(strategy, seed, workers=WORKERS - len(LEAVERS)).final,
    )
    return Scores(*(judge(model) or 0.0 for model in models))


def mean_of(scores: list[Scores]) -> Scores:
    return Scores(*(fmean(values) for values in zip(*scores, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    seeds = parser.parse_args().seeds
    print("| | nobody leaves | two leave: those who stayed | all replicas, the leavers' too | never there |")
    print("|---|---|---|---|---|")
    for strategy in STRATEGIES:
        found = mean_of([measured(strategy, seed) for seed in range(seeds)])
        print(f"| {strategy} | " + " | ".join(f"{100 * score:.1f}" for score in found) + " |", flush=True)


if __name__ == "__main__":
    main()
