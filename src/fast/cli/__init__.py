"""The command line: run, replay, compare, simulate, calibrate, plan, sweep, report, strategies, tasks, data.

Job: read what the user typed, check all of it before anything starts, show what happens.
May import: everything.
Never: trains, measures or decides anything itself.
"""

from fast.cli.app import main

__all__ = ["main"]
