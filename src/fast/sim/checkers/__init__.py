"""Checkers: they watch every event of a simulated run, and raise `Violation` when a promise is broken.

Each watches one promise (`base.Checker`); `Checkers` puts those together that apply to a strategy.
"""

from fast.sim.checkers.agreement import RoundsAgree, ViewsAgree
from fast.sim.checkers.base import Checker
from fast.sim.checkers.bounds import Lead, Staleness
from fast.sim.checkers.bundle import Checkers, Seen
from fast.sim.checkers.conservation import Conservation
from fast.sim.checkers.fingerprint import TraceHash
from fast.sim.checkers.letters import CountedOnce, LettersAccounted
from fast.sim.checkers.order import FiniteWeights, GoneIsGone, TimeGoesOn
from fast.sim.checkers.reads import ReachKept, ReadsComplete

__all__ = [
    "Checker",
    "Checkers",
    "Conservation",
    "CountedOnce",
    "FiniteWeights",
    "GoneIsGone",
    "Lead",
    "LettersAccounted",
    "ReachKept",
    "ReadsComplete",
    "RoundsAgree",
    "Seen",
    "Staleness",
    "TimeGoesOn",
    "TraceHash",
    "ViewsAgree",
]
