"""Local steps, and now and then the mean of all workers' weights: among themselves, through a master, or once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from torch import Tensor

from fast.core import WEIGHTS, Me, Strategy, Tag
from fast.parts import Rule, mean
from fast.strategies.decentral.moments import Common, Moments, Past
from fast.strategies.merging import merged, merged_of_all

TAU = MappingProxyType({"tau": (4, 25)})


@dataclass
class Since:
    """What happened since the last exchange."""

    past: Past | None = None
    samples: int = 0

    async def exchange(self, me: Me, moments: Moments, common: Common) -> None:
        """Go on with the common weights, and with what the policy makes of the moments; if there are none, because too
        few took part for a rule, everybody goes on with its own."""
        weights = await common(me.weights)
        if weights is None:
            return
        me.weights.copy_(weights)
        await moments.settle(me, self.past, common)
        self.samples = 0


class LocalSteps(Strategy):
    """Local steps, and every `tau` steps w <- mean_i w_i, weighted by the samples in between; or w <- rule({w_i})."""

    synchronous = True
    identity_alone = True
    knobs = TAU

    def __init__(self, *, tau: int, moments: Moments, rule: Rule = mean) -> None:
        self.tau, self.moments, self.rule = tau, moments, rule
        self.admits = self.survives_death = rule is mean  # else everybody's weights go over letters

    def state(self, me: Me) -> Since:
        return Since(self.moments.start(me))

    async def step(self, me: Me) -> None:
        await local_step(me, me.state, self.tau, self.moments, self.rule)


async def local_step(me: Me, since: Since, tau: int, moments: Moments, rule: Rule = mean) -> None:
    """One step of a worker's own; if it is the last of `tau`, the mean of all."""
    me.apply(me.gradient)
    since.samples += me.samples
    moments.moved(me, since.past)
    if (me.steps + 1) % tau == 0:
        await since.exchange(me, moments, partial(merged_of_all, me, rule, weight=since.samples))


@dataclass
class Phase:
    """Which of the two phases a worker is in, and what tells it when to change."""

    rates: list[float]
    """The learning rates of the step before."""
    since: Since = field(default_factory=Since)
    local: bool = False
    fell: bool = False
    """Whether a learning rate has fallen."""

    def watch(self, rates: list[float]) -> None:
        self.fell |= any(now < before for now, before in zip(rates, self.rates, strict=True))
        self.rates = rates


class PostLocal(Strategy):
    """w <- optimizer(w, mean_i g_i) as all-reduce does it, bit for bit; after the switch, local steps.

    The switch comes after so many steps, or when a learning rate has fallen. Rates belong to each worker, and
    some schedulers set them by what that worker alone has seen (a plateau of its loss), so workers ask each
    other, every `tau` steps: if one of them has seen a fall, all switch at this step.
    """

    synchronous = True
    identity_alone = True
    knobs = TAU

    def __init__(self, *, tau: int, after: int | None, moments: Moments) -> None:
        self.tau, self.after, self.moments = tau, after, moments
        self.admits = after is not None  # who comes late can't know whether a rate had fallen

    def state(self, me: Me) -> Phase:
        return Phase(me.rates, Since(self.moments.start(me)))

    async def step(self, me: Me) -> None:
        phase: Phase = me.state
        if not phase.local and await self._is_time(me):
            phase.local, phase.since = True, Since(self.moments.start(me))
        if phase.local:
            await local_step(me, phase.since, self.tau, self.moments)
        else:
            me.apply(await me.mean_gradient(weight=me.samples))

    async def _is_time(self, me: Me) -> bool:
        """Whether this is the first local step: everybody comes to the same answer."""
        if self.after is not None:
            return me.steps >= self.after
        me.state.watch(me.rates)
        if me.steps % self.tau:
            return False
        fallen = await me.mean(me.weights.new_full((1,), float(me.state.fell)))
        return not fallen.is_meta and bool(fallen > 0)  # where there are sizes only, rates never change


class Master(Strategy):
    """Local steps; every `tau` steps a server gets all weights, and sends their mean back: w <- mean_i w_i.

    The server keeps the mean: it is the model. Alone, every step ends with an exchange, so that it has all. Another
    `rule` takes the mean's place; where too few came for it, all go on from the model as it was.
    """

    synchronous = True
    identity_alone = True
    servers_optimize = False
    tags = (Tag("replica", carries=WEIGHTS), Tag("mean", carries=WEIGHTS))
    knobs = TAU

    def __init__(self, *, tau: int, moments: Moments, rule: Rule = mean) -> None:
        self.tau, self.moments, self.rule = tau, moments, rule

    def servers(self, workers: int) -> int:
        return 1

    def state(self, me: Me) -> Since | None:
        return None if me.is_server else Since(self.moments.start(me))

    async def step(self, me: Me) -> None:
        since: Since = me.state
        me.apply(me.gradient)
        since.samples += me.samples
        self.moments.moved(me, since.past)
        if me.alone or (me.steps + 1) % self.tau == 0:
            await since.exchange(me, self.moments, partial(self._ask, me))

    async def _ask(self, me: Me, tensor: Tensor) -> Tensor:
        """The mean of everybody's, from the master."""
        (master,) = me.servers
        me.send(master, tensor, "replica", samples=me.state.samples, model=tensor is me.weights)
        return (await me.receive("mean", master)).tensor

    async def serve(self, me: Me) -> None:
        letters, _ = await me.gather("replica", me.all_workers)
        if not letters:
            return
        counted = [replace(letter, weight=float(letter.note["samples"])) for letter in letters.values()]
        common = merged(me, self.rule, counted)
        if common is not None and all(letter.note["model"] for letter in counted):
            me.weights.copy_(common)
        me.send(letters, me.weights if common is None else common, tag="mean")


class OneShot(Strategy):
    """w_i <- optimizer(w_i, g_i), each worker for itself. The mean is made when all have ended."""

    synchronous = True
    identity_alone = True
    survives_loss = True
    admits = True

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)
