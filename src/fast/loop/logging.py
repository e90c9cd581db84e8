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
    checked = {name: _checked(name, value) for name, value in values.items()}
    logbook = current_seat().logbook
    if logbook is not None and checked:
        logbook.log({name: _taken(value) for name, value in checked.items()})


def _checked(name: str, value: object) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value
        found = "a complex number" if value.is_complex() else f"a tensor with {value.numel()} elements"
    elif isinstance(value, Real):
        return float(value)
    else:
        found = type(value).__name__
    raise UsageError(
        f"fast.log({name}=...): a value is a number or a tensor with one element, and this is {found}. "
        f"Log one number of it, such as {name}.mean() or len({name})."
    )


def _taken(value: float | Tensor) -> float | Tensor:
    """The value as it is now. On the CPU it is read; elsewhere it is copied, and read when nobody waits for it."""
    if isinstance(value, float):
        return value
    return value.item() if value.device.type == "cpu" else value.detach().clone()
