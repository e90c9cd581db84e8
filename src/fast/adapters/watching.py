"""Was a gradient changed between backward and step?"""

from __future__ import annotations

from typing import Any, final

from torch import Tensor


@final
class GradientWatch:
    """Watches the gradient of one parameter, which stands for all.

    Whoever clips or scales gradients does it to every one, so one hook is enough; a hook on each
    parameter would cost several microseconds apiece, every step.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._seen: tuple[int, int] | None = None
        hookable: Any = parameter  # torch leaves this method without types
        self._hook = hookable.register_post_accumulate_grad_hook(self._backward_done)

    def _backward_done(self, parameter: Tensor) -> None:
        self._seen = _mark(parameter.grad)

    def changed(self) -> bool:
        """Whether the gradient is another one than backward left, or was written to since."""
        seen, self._seen = self._seen, None
        return seen is not None and seen != _mark(self._parameter.grad)

    def remove(self) -> None:
        self._hook.remove()


def _mark(gradient: Tensor | None) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)
