"""Sweeps: many settings of each strategy, every one a whole training in the simulator.

Job: `Sweep.of` says what is tried (a grid over `Strategy.knobs` and learning rates, or a search in the space
around them) and refuses what can't be; `run_sweep` tries it with so many processes (`jobs_of`); a `Record` keeps
every trial from the moment it has ended, so that a sweep goes on where it stopped; `Swept` is what came of
it: the best settings, and those that no other beats in both time and bytes to the target.
May import: everything below cli.
Never: lets chance, a clock, the number of processes or the order in which they finish change a result. What a
trial gives depends on its setting and the seed alone.
"""

from fast.lab.sweep.jobs import Jobs, jobs_of
from fast.lab.sweep.points import Point, front
from fast.lab.sweep.record import Record
from fast.lab.sweep.running import Swept, run_sweep
from fast.lab.sweep.wanted import Sweep

__all__ = ["Jobs", "Point", "Record", "Sweep", "Swept", "front", "jobs_of", "run_sweep"]
