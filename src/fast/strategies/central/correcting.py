"""How servers that apply pushes on arrival use a staleness correction."""

from __future__ import annotations

from collections.abc import Iterable

from fast.core import Letter, Me
from fast.parts.staleness import Correction, Memory, Push


def corrected(me: Me, push: Letter, correction: Correction, memory: Memory) -> Push:
    """What the optimizer gets instead of this push, by how stale it is at this server now."""
    stale = Push(push.tensor, push.sender, me.version - push.version, len(me.workers))
    return correction.correct(stale, me.weights, memory)


def apply_corrected(me: Me, push: Letter, correction: Correction, memory: Memory, share: float = 1.0) -> None:
    """Apply one push as it is corrected, times its share. The rates that came with it are those of its
    sender; the correction may make them smaller. What counts no samples is nothing, to the correction too."""
    if not push.weight:
        return
    right = corrected(me, push, correction, memory)
    gradient = right.gradient if share == 1.0 else right.gradient * share
    me.apply(gradient, of=[push], rates=[rate * right.rate for rate in push.note["rates"]])


def answer(me: Me, workers: Iterable[int], correction: Correction, memory: Memory, tag: str = "read") -> None:
    """Send these workers the weights, and let the correction remember which."""
    ready = tuple(workers)
    me.send(ready, me.weights, tag=tag)
    correction.answered(ready, me.weights, memory)
