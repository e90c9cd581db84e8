"""Where strategies are fuzzed in tests: the plain least-squares problem, small and fast."""

from __future__ import annotations

from fast.core import Strategy
from fast.sim import Simulation
from fast.sim.checkers import Checkers
from fast.sim.faults import Director
from fast.sim.fuzzing import Case, Trial
from fast.trace import Observer

from .problem import LeastSquares

PROBLEM = LeastSquares()


def simulation_of(
    case: Case, strategy: Strategy, checkers: Checkers, *, observer: Observer | None = None
) -> Simulation:
    """The simulation of one case, with the checkers in it; `observer` hears the records in their place."""
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(case.workers, case.steps),
        lr=0.005,
        seed=case.seed,
        observers=[observer or checkers],
        faults=Director(case.scenario, case.seed),
        absent=case.scenario.absent,
        spoil_letters=True,
        network=None,
        compute=None,
        cluster=case.machines.cluster(),
    )
    checkers.attach(simulation)
    return simulation


def trial_of(strategy: Strategy) -> Trial:
    def trial(case: Case, checkers: Checkers) -> None:
        simulation_of(case, strategy, checkers).run(after_event=checkers.after_event)
        checkers.finish()

    return trial
