"""What `join` is told beside model, optimizer and strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fast.errors import UsageError
from fast.loop.large_batch import LargeBatch
from fast.loop.policies import check_decay
from fast.trace import Observer


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `join`, which says what they mean."""

    before_apply: Callable[[], None] | None = None
    check_finite: bool = False
    accumulate: int = 1
    large_batch: LargeBatch | None = None
    observers: Iterable[Observer] = ()
    ema: float | None = None

    def __post_init__(self) -> None:
        check_decay(self.ema)
        if self.accumulate < 0:
            raise UsageError(
                f"join(accumulate={self.accumulate}): it counts backward passes per step, or is 0 if you mark the last "
                "one with `with fast.final_backward():`"
            )
        if self.large_batch is not None and not isinstance(self.large_batch, LargeBatch):
            raise UsageError(
                f"join(large_batch={self.large_batch!r}): it takes a plan, such as fast.LargeBatch(batch=32, "
                "warm_up=100) or fast.LargeBatch.of(loader, epochs=5)"
            )
