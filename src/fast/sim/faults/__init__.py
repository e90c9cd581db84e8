"""Faults as scenarios: sentences about what goes wrong, and who makes it happen in a simulation.

A `Scenario` is a value: it is read from sentences and prints as them. `Scenario.check` refuses what can't
be. A `Director` carries it out. `random_scenario` draws one from a seed, `simpler` and `shrink` find the
smallest one that still fails.
"""

from fast.sim.faults.director import Director
from fast.sim.faults.drawing import random_scenario
from fast.sim.faults.scenario import Scenario, parse_scenario, read_scenario
from fast.sim.faults.shrinking import shrink, simpler

__all__ = [
    "Director",
    "Scenario",
    "parse_scenario",
    "random_scenario",
    "read_scenario",
    "shrink",
    "simpler",
]
