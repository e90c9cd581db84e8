"""A strategy's own arithmetic: its operations on tensors are counted while its programs run, because on
a real machine each of them takes time. The same operations, the same count, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Count = Callable[[int], None]
"""Told of the bytes that an operation reads and writes."""


@final
class Arithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of every operation that moves values, unless `paused`. Views move none."""

    def __init__(self, count: Count) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paused = False
        self._count = count
        self._moves: dict[Any, bool] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.paused and self._moves_values(func):
            written = () if _writes_in_place(func) else _tensors((result,))
            self._count(sum(map(_nbytes, (*_tensors(args), *written))))
        return result

    def _moves_values(self, func: Any) -> bool:
        known = self._moves.get(func)
        if known is None:
            known = self._moves[func] = not (_is_view(func) or _only_allocates(func))
        return known


async def counted(turn: Coroutine[Any, Any, None], arithmetic: Arithmetic) -> None:
    """A turn whose own arithmetic is counted."""
    await _Counted(turn, arithmetic)


class _Counted:
    """Goes on with the turn under the counter, and waits without it: others' turns come in between."""

    def __init__(self, turn: Coroutine[Any, Any, None], arithmetic: Arithmetic) -> None:
        self._turn, self._arithmetic = turn, arithmetic

    def __await__(self) -> Generator[Any, None, None]:
        failed: BaseException | None = None
        try:
            while True:
                try:
                    with self._arithmetic:
                        request = self._turn.send(None) if failed is None else self._turn.throw(failed)
                except StopIteration:
                    return
                failed = None
                try:
                    yield request
                except Exception as error:
                    failed = error
        finally:
            self._turn.close()


def _is_view(func: Any) -> bool:
    """Whether it returns a tensor that is another look at one of its arguments."""
    return any(out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns)


def _only_allocates(func: Any) -> bool:
    name: str = func._schema.name
    return name.startswith(("aten::empty", "aten::new_empty"))


def _writes_in_place(func: Any) -> bool:
    return any(out.alias_info is not None and out.alias_info.is_write for out in func._schema.returns)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
