"""Averaging among all workers: every step (gradients) or every few steps (weights)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from fast.core import Me, Strategy
from fast.parts import Rule
from fast.parts.codecs import Codec
from fast.strategies.merging import merged


class AllReduce(Strategy):
    """w <- optimizer(w, mean_i g_i): every worker takes the same step."""

    synchronous = True
    replicas_agree = True

    def __init__(
        self,
        *,
        codec: Codec | None = None,
        algorithm: str = "auto",
        order: str = "canonical",
        bucket_bytes: int | None = None,
    ) -> None:
        self.codec, self.algorithm, self.order = codec, algorithm, order
        self.bucket_bytes = bucket_bytes
        self.identity_alone = codec is None or not codec.has_momentum
        # Other rounds than the plain mean go over letters: who takes part is agreed on for good.
        self.admits = self.survives_death = codec is None and algorithm == "auto"

    async def step(self, me: Me) -> None:
        mean = me.mean_gradient(
            weight=me.samples, codec=self.codec, algorithm=self.algorithm, order=self.order
        )
        me.apply(await mean)


class GatherAndMerge(Strategy):
    """w <- optimizer(w, rule({g_i})): everybody gets all gradients and merges them by itself, in the same order."""

    synchronous = True
    replicas_agree = True
    identity_alone = True
    survives_death = False

    def __init__(self, *, rule: Rule) -> None:
        self.rule = rule

    async def step(self, me: Me) -> None:
        update = merged(me, self.rule, await me.gather_gradients(weight=me.samples))
        if update is not None:
            me.apply(update)


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
