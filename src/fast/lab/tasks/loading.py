"""How tasks are found: by name, or in a file of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from fast.core import Task
from fast.errors import UsageError
from fast.lab import datasets
from fast.lab.tasks.digits import Digits
from fast.lab.tasks.kjv import Kjv
from fast.lab.tasks.mnist import MnistCnn, MnistMlp, MnistSmall, MnistWide
from fast.lab.tasks.quadratic import Quadratic
from fast.loop.loading import classes_of, load_module, load_name

_BUILT_IN = (Digits, Quadratic, MnistSmall, MnistMlp, MnistCnn, MnistWide, Kjv)

TASKS: Mapping[str, type[Task]] = MappingProxyType({task.name: task for task in _BUILT_IN})
"""The built-in tasks by name."""
_PAGE = "docs/how-to/write-a-task.md shows a whole one."


def load_task(text: str) -> Task:
    """A built-in task by its name; or the Task `Name` of a `file.py:Name`; or the one of a `file.py`.

    Data sets that it names must be there: nothing is downloaded when training has begun.
    """
    task = _found(text)
    for name in task.data():
        datasets.require(datasets.find(name))
    return task


def _found(text: str) -> Task:
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        return _named(path, name)
    if text.endswith(".py"):
        return _only(text)
    if text in TASKS:
        return TASKS[text]()
    near = get_close_matches(text, TASKS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Built in: {', '.join(TASKS)}."
    raise UsageError(f"there is no task {text!r}. {hint} A task of your own is given as file.py:Name.")


# Tasks in files


def _named(path: str, name: str) -> Task:
    if not name.isidentifier():
        raise UsageError(f"{path}:{name}: after the colon comes the name of a Task, as in {path}:MyTask")
    return _made(f"{path}:{name}", load_name(path, name))


def _only(path: str) -> Task:
    """The one task that a file defines. Unfinished ones count only if there is no other."""
    own = {name: found for name, found in classes_of(load_module(path, "a task")).items() if name[0] != "_"}
    tasks = {name: found for name, found in own.items() if issubclass(found, Task)}
    finished = [name for name, found in tasks.items() if not inspect.isabstract(found)]
    candidates = finished or list(tasks)
    if not candidates:
        found = f"It defines {', '.join(own)}." if own else "It defines no classes."
        raise UsageError(f"{path} has no task. {found} A task is a subclass of fast.Task: {_PAGE}")
    if len(candidates) > 1:
        raise UsageError(
            f"{path} has {len(candidates)} tasks: {', '.join(candidates)}. Name one: {path}:{candidates[0]}"
        )
    return _made(f"{path}:{candidates[0]}", tasks[candidates[0]])


def _made(text: str, found: Any) -> Task:
    """A class is called, and so is a function that returns a task."""
    if inspect.isabstract(found) and issubclass(found, Task):
        missing = ", ".join(f"{name}()" for name in sorted(found.__abstractmethods__))
        raise UsageError(f"{text} isn't a whole task: it lacks {missing}. {_PAGE}")
    try:
        task = found() if callable(found) else found
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{text} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UsageError(f"{text} is {task!r}, and a task is a subclass of fast.Task. {_PAGE}")
    return task


# What a task says


def epochs_of(task: Task) -> float:
    """How long a task trains unless told otherwise."""
    return float(task.epochs)


def target_of(task: Task) -> float:
    """The score to reach unless told otherwise."""
    target = getattr(task, "target", None)
    if not isinstance(target, int | float):
        raise UsageError(
            f"{type(task).__name__} states no target. Give one: --target, or `target = 0.9` in it."
        )
    return float(target)


def samples_of(task: Task) -> int:
    """How many training samples there are."""
    try:
        samples = len(task.train())
    except TypeError as error:
        raise UsageError(
            f"{type(task).__name__}.train() returns something without a length ({error}). Return a sequence; "
            "range(n) will do if batch() knows what the numbers mean."
        ) from error
    if samples < 1:
        raise UsageError(f"{type(task).__name__}.train() has no samples, so there is nothing to train on")
    return samples
