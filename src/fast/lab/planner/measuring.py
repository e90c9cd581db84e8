"""How large a model is: told as a number, or measured on a task or on a user's own module, without any values."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fast.adapters.parameters import widest
from fast.core import Task
from fast.errors import FastError, UsageError
from fast.lab.sizes import Sizes
from fast.lab.tasks import load_task
from fast.loop.loading import load_name
from fast.view import Layout


def sizes_of(what: str | None, parameters: float | None) -> tuple[Sizes, str | None]:
    """The sizes, and the task if it was one: `what` is a task, or file.py:Name of a task or a module."""
    if what is not None and parameters is not None:
        raise UsageError(f"--parameters takes the place of a task; leave it out, or leave out {what}")
    if parameters is not None:
        return Sizes.of_parameters(parameters), None
    if what is None:
        raise UsageError(
            "a plan for which model? Give --parameters 25e6, a task such as digits, or model.py:Name of a module"
        )
    module = _module(what)
    return (sizes_of_module(what, module), None) if module is not None else (_of_task(what), what)


def sizes_of_module(name: str, module: nn.Module) -> Sizes:
    """Of what of a module is trained; it may be on the meta device."""
    trained = [(each, p) for each, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise UsageError(f"{name} has no parameters to train, so there is nothing to exchange")
    if any(is_lazy(p) for _, p in trained):
        raise UsageError(
            f"{name} has parameters whose size isn't known before it has seen data. Say --parameters, or give a "
            "function that returns the model after a first batch."
        )
    return Sizes(name, Layout.of([(each, p.shape) for each, p in trained], widest([p for _, p in trained])))


def _of_task(text: str) -> Sizes:
    return Sizes.of_task(text, load_task(text))


def _module(text: str) -> nn.Module | None:
    """The module that a file defines, made without values; None if it isn't one."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        return None
    found = load_name(path, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found) or (inspect.isclass(found) and not issubclass(found, nn.Module)):
        return None
    made = _made(text, found)
    if not isinstance(made, nn.Module | Task):
        raise UsageError(f"{text} makes {type(made).__name__}; a plan needs a task or a torch.nn.Module")
    return made if isinstance(made, nn.Module) else None


def _made(text: str, build: Any) -> object:
    try:
        with torch.device("meta"):
            return build()
    except FastError:
        raise
    except Exception as error:
        raise UsageError(
            f"{text} can't be built without arguments and values: {type(error).__name__}: {error}. Give a function "
            "that takes none and returns the model, or say --parameters."
        ) from error
