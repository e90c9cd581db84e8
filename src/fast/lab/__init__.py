"""The lab: strategies side by side, on the same task, from the same start, over the same data.

Job: built-in tasks and their data, and the comparison of strategies on real or simulated workers.
May import: everything below cli.
Never: disturbs what it measures. Workers only copy their weights while the clock runs; what the
copies are worth is found out after the run.
"""

from fast.lab.budget import Budget
from fast.lab.comparison import Listener, Stage, compare, run_plan
from fast.lab.journal import Folder, Journal
from fast.lab.measures import Run
from fast.lab.plan import Plan
from fast.lab.real import train_task
from fast.lab.results import Comparison, Result
from fast.lab.settings import Real, Settings, Simulated, settings_of
from fast.lab.simulated import simulate_task
from fast.lab.tasks import TASKS, load_task
from fast.lab.tuning import DEFAULT_TRIALS

__all__ = [
    "DEFAULT_TRIALS",
    "TASKS",
    "Budget",
    "Comparison",
    "Folder",
    "Journal",
    "Listener",
    "Plan",
    "Real",
    "Result",
    "Run",
    "Settings",
    "Simulated",
    "Stage",
    "compare",
    "load_task",
    "run_plan",
    "settings_of",
    "simulate_task",
    "train_task",
]
