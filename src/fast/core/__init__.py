"""The contracts: Strategy, me, World, Replica, Letter, Task.

Job: say what a strategy may ask for, and what a world, a replica and a task must offer.
May import: parts, membership, wire, view, trace, errors.
Never: does I/O, reads a clock, draws a random number or looks at the environment. All of that
comes from the World that a participant is handed.
"""

from fast.core.letter import GRADIENT, OTHER, WEIGHTS, Letter, Tag, fold_newest, fold_sum
from fast.core.mailbox import Mailbox
from fast.core.me import Me
from fast.core.replica import Replica
from fast.core.strategy import Strategy
from fast.core.task import Task
from fast.core.turns import begin_turn, drive, end_turn, serve_turn, start, step_turn
from fast.core.world import Need, Reduction, World

__all__ = [
    "GRADIENT",
    "OTHER",
    "WEIGHTS",
    "Letter",
    "Mailbox",
    "Me",
    "Need",
    "Reduction",
    "Replica",
    "Strategy",
    "Tag",
    "Task",
    "World",
    "begin_turn",
    "drive",
    "end_turn",
    "fold_newest",
    "fold_sum",
    "serve_turn",
    "start",
    "step_turn",
]
