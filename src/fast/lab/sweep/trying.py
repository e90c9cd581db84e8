"""One trial: a whole training in the simulator, and what it was worth."""

from __future__ import annotations

from fast.core import Task
from fast.errors import FastError
from fast.lab.judging import Judge, Question
from fast.lab.plan import Plan
from fast.lab.settings import Settings
from fast.lab.sweep.points import Point, judged
from fast.lab.tuning import Setting
from fast.lab.worlds import Notes, trainer_of


def judged_on(task: Task) -> str:
    """Validation data, if the task has any; else there is nothing but the test data."""
    return "test" if task.validation() is None else "validation"


class Trying:
    """Tries settings one after another. What comes out depends on setting and seed alone."""

    def __init__(self, plan: Plan, seed: int) -> None:
        task, batch = plan.task, plan.task.validation()
        judge = Judge(task, task.test() if batch is None else batch)
        self._question = Question(judge, plan.settings.target, plan.budget)
        self._trainer, self._seed = trainer_of(plan), seed

    @staticmethod
    def again(settings: Settings, seed: int) -> Trying:
        return Trying(Plan.again(settings), seed)

    def __call__(self, setting: Setting) -> Point:
        """Strategy and task may be anybody's code: whatever they raise ends their own trial and no other."""
        try:
            run = self._trainer.train(setting, self._seed, Notes(lambda message: None, ""))
            return judged(self._question, setting, run)
        except Exception as error:
            words = str(error) if isinstance(error, FastError) else f"{type(error).__name__}: {error}"
            return Point(setting.call, setting.rate, error=words)
