"""Gradients while backward is still running: which buckets are complete, and told in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from torch import Tensor

from fast.errors import UsageError

Told = Callable[[int, Sequence[int]], bool]
"""Called with a bucket's number and the places of its parameters, whose gradients are final. Says
whether it was taken; if not, it is left for the step."""


@final
class BucketTap:
    """Watches the gradients of parameters that are grouped in buckets, the last parameters first.

    A bucket is told when each of its parameters has got its gradient and the buckets before it have
    been told. The last bucket never is: it is complete only when backward ends, and the exchange
    must not move weights that backward still reads. Whoever steps asks for what is left.
    """

    def __init__(
        self, parameters: Sequence[Tensor], buckets: Sequence[Sequence[int]], accumulate: int, told: Told
    ) -> None:
        self._parameters, self._buckets, self._told = parameters, buckets, told
        self.accumulate = accumulate
        self.final = accumulate > 0
        """Whether a backward that runs now may be the last one before the step."""
        self._bucket_of = {place: number for number, places in enumerate(buckets) for place in places}
        self._hooks = [self._hook(place) for place in self._bucket_of]
        self.begin()

    def begin(self) -> None:
        """Before a step's first backward."""
        self._seen = [0] * len(self._parameters)
        self._missing = [set(places) for places in self._buckets]
        self._marks: list[tuple[int, Any]] = []
        self.done = 0
        """So many buckets have been told."""

    def _hook(self, place: int) -> Any:
        hookable: Any = self._parameters[place]  # torch leaves this method without types
        return hookable.register_post_accumulate_grad_hook(lambda _: self._computed(place))

    def _computed(self, place: int) -> None:
        self._seen[place] += 1
        bucket = self._bucket_of[place]
        if bucket < self.done:
            self._refuse_backward()
        if not self.final or self._seen[place] < self.accumulate:
            return
        self._missing[bucket].discard(place)
        while self.done < len(self._buckets) - 1 and not self._missing[self.done]:
            places = self._buckets[self.done]
            if not self._told(self.done, places):
                return
            self._marks += [(each, _mark(self._parameters[each].grad)) for each in places]
            self.done += 1

    def rest(self) -> list[int]:
        """The places whose gradients have not been told. Refuses gradients that were changed after
        they had been: what was sent is not what is there now."""
        for place, mark in self._marks:
            if _mark(self._parameters[place].grad) != mark:
                raise UsageError(
                    "a gradient was changed after backward(), when its bucket had already been sent. To change "
                    "this worker's own gradient, leave bucket_mb out of the strategy. To change the merged one (to "
                    "clip it, say) use before_apply, if the strategy's optimizer runs in the workers."
                )
        return sorted(place for places in self._buckets[self.done :] for place in places)

    def _refuse_backward(self) -> None:
        raise UsageError(
            "backward() ran again before optimizer.step(), when parts of the gradient had already been sent. "
            "Tell fast.join how many passes are accumulated, join(..., accumulate=2), or give accumulate=0 and "
            "run the last one inside `with fast.final_backward():`."
        )

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _mark(gradient: Tensor | None) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)
