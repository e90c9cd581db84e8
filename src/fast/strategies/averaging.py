"""Averaging gradients among all workers, in every step."""

from __future__ import annotations

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
        update = merged(me, self.rule, await me.gather_all(me.gradient, weight=me.samples))
        if update is not None:
            me.apply(update)
