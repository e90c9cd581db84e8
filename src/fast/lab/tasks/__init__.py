"""The built-in tasks, and how tasks are found.

Job: problems to train on, from a convex one to a small transformer; a user's own from a file.
May import: everything below cli; of the lab only data sets.
Never: reads data before a task is asked for it.
"""

from fast.lab.tasks.digits import Digits
from fast.lab.tasks.kjv import Kjv
from fast.lab.tasks.loading import TASKS, epochs_of, load_task, samples_of, target_of
from fast.lab.tasks.mnist import MnistCnn, MnistMlp, MnistSmall, MnistWide
from fast.lab.tasks.quadratic import Quadratic

__all__ = [
    "TASKS",
    "Digits",
    "Kjv",
    "MnistCnn",
    "MnistMlp",
    "MnistSmall",
    "MnistWide",
    "Quadratic",
    "epochs_of",
    "load_task",
    "samples_of",
    "target_of",
]
