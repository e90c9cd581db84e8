"""`fast.log`: values of the user's own, kept beside what is measured anyway."""

from __future__ import annotations

from numbers import Real

from torch import Tensor

from fast.engine import current_seat
from fast.errors import UsageError


def log(**values: float | Tensor) -> None:
    """Log values of the current step under these names: `fast.log(loss=loss, accuracy=0.93)`.

    `fast run` and `fast.launch` keep the values of each worker in the run's folder, and `fast report` draws them: the
    mean over the workers, and how far the workers are apart. A value is a number or a tensor with one element. In a
    plain script nothing is kept.
    """
    taken = {name: _taken(name, value) for name, value in values.items()}
    logbook = current_seat().logbook
    if logbook is not None and taken:
        logbook.log(taken)


def _taken(name: str, value: object) -> float | Tensor:
    """The value as it is now. On the CPU it is read; elsewhere it is copied, and read when nobody waits for it."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.item() if value.is_cpu else value.detach().clone()
    if isinstance(value, (float, int, Real)):  # the first two are known without a search
        return float(value)
    raise UsageError(
        f"fast.log({name}=...): a value is a number or a tensor with one element, and this is {_kind(value)}. "
        f"Log one number of it, such as {name}.mean() or len({name})."
    )


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return "a complex number" if value.is_complex() else f"a tensor with {value.numel()} elements"
