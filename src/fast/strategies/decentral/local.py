"""Local steps, and now and then the mean of all workers' weights."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from fast.core import Me, Strategy


@dataclass
class Since:
    """What happened since the last exchange."""

    samples: int = 0


class LocalSteps(Strategy):
    """Local steps, and every `tau` steps w <- mean_i w_i, weighted by the samples in between."""

    synchronous = True
    identity_alone = True
    admits = True
    knobs = MappingProxyType({"tau": (4, 25)})

    def __init__(self, *, tau: int) -> None:
        self.tau = tau

    def state(self, me: Me) -> Since:
        return Since()

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)
        me.state.samples += me.samples
        if (me.steps + 1) % self.tau == 0:
            me.weights.copy_(await me.mean(me.weights, weight=me.state.samples, read_only=True))
            me.state.samples = 0
