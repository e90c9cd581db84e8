"""The lab: strategies side by side, on the same task, from the same start, over the same data.

Job: built-in tasks, and the comparison of strategies on real or simulated workers.
May import: everything below cli.
Never: disturbs what it measures. Workers only copy their weights while the clock runs; what the
copies are worth is found out after the run.
"""

from fast.lab.budget import Budget
from fast.lab.comparison import Listener, Plan, Real, Simulated, compare, run_plan
from fast.lab.measures import Run
from fast.lab.real import train_task
from fast.lab.results import Comparison, Result
from fast.lab.simulated import simulate_task
from fast.lab.tasks import TASKS, load_task

__all__ = [
    "TASKS",
    "Budget",
    "Comparison",
    "Listener",
    "Plan",
    "Real",
    "Result",
    "Run",
    "Simulated",
    "compare",
    "load_task",
    "run_plan",
    "simulate_task",
    "train_task",
]
