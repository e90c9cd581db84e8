"""What becomes of the optimizer's moments where weights are exchanged: one choice, the same for all strategies.

Momentum and Adam's moments are sums over the gradients of one worker. When its weights are replaced by a mean
of several workers', they describe a way that nobody has gone. What to do then is a policy:

    keep      they stay local                                                      (nothing is sent)
    average   m_i <- mean_j m_j, each of them, with the same mean as the weights   (as much again for each)
    reset     the optimizer goes on as if it had never taken a step                (nothing is sent)
    correct   m_i <- mu m'_i + (1 - mu) (x'_i - x_i) / sum eta                     (nothing is sent)

In the last one, quasi-global momentum (Lin et al., Quasi-Global Momentum, ICML 2021), x'_i and m'_i are the
weights and the momentum right after the exchange before, x_i the weights right after this one, and sum eta the
learning rates of the steps in between: the momentum becomes that of the way which all of them have gone. It
needs SGD with a momentum mu. With one step between exchanges it is the paper's; for several the paper has
no formula of its own, and the way is divided by their number, so that it stays a gradient's size.

Where an exchange is a round, "average" makes another round for each moment. Where it is a letter that nobody waits for,
the moments travel in it, behind the weights, and are merged with the same factors: `packed` and `unpacked`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fast.core import Me
from fast.errors import UsageError

POLICIES = ("keep", "average", "reset", "correct")
BUFFER = "momentum_buffer"
"""What torch's SGD calls its momentum."""

Common = Callable[[Tensor], Awaitable[Tensor | None]]
"""How a strategy makes one flat tensor of those of all who have just done so with their weights; None if it can't."""


@dataclass
class Past:
    """How it was right after the exchange before, and what has happened since."""

    weights: Tensor
    momentum: Tensor
    walked: list[float]
    """The sum of the learning rates of all steps since, by parameter group."""


@dataclass(frozen=True)
class Moments:
    """One of the policies. A strategy calls `start` for its state, `moved` after each step of the optimizer, and right
    after each exchange, when `me.weights` are those that the worker goes on with, `settle`; or `adjust`, where the
    moments have travelled with the weights."""

    policy: str = "keep"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(
                f"moments={self.policy!r}: what becomes of momentum and Adam's moments when weights are exchanged "
                "is 'keep' (they stay local), 'average', 'reset' or 'correct' (quasi-global momentum, for SGD)"
            )

    @property
    def stay(self) -> bool:
        """Whether there is nothing to do."""
        return self.policy == "keep"

    def start(self, me: Me, *, travel: bool = False) -> Past | None:
        """What has to be remembered between exchanges, as it is now; refuses an optimizer that doesn't fit. `travel`:
        the moments are sent with the weights."""
        moments = me.moments() if self.policy in ("average", "correct") else {}
        if travel and self.policy == "average":
            check_described(me)
        if self.policy != "correct":
            return None
        heavy_groups(me)
        return Past(me.weights.clone(), moments[BUFFER], [0.0] * len(me.rates))

    def moved(self, me: Me, past: Past | None) -> None:
        """The optimizer has taken a step."""
        if past is not None:
            past.walked = [sofar + rate for sofar, rate in zip(past.walked, me.rates, strict=True)]

    async def settle(self, me: Me, past: Past | None, common: Common) -> None:
        """Weights have been exchanged."""
        if self.policy == "average" and not _always_alone(me):
            for name, own in me.moments().items():
                found = await common(own)
                if found is not None:
                    me.set_moments({name: found})
        else:
            self.adjust(me, past)

    def adjust(self, me: Me, past: Past | None) -> None:
        """What a worker does to its moments by itself."""
        if _always_alone(me):
            return
        if self.policy == "reset":
            me.forget_moments()
        elif past is not None:
            _correct(me, past)

    def packed(self, me: Me, weights: Tensor, mass: float = 1.0) -> Tensor:
        """What is sent: these weights; and behind them, where they are averaged, the moments times `mass`."""
        if self.policy != "average":
            return weights
        return torch.cat([weights, *(own.mul_(mass) for own in me.moments().values())])

    def unpacked(self, me: Me, flat: Tensor) -> Tensor:
        """The weights of what was `packed`; the moments behind them are those that the optimizer goes on with."""
        if self.policy != "average":
            return flat
        weights, *moments = torch.split(flat, me.weights.numel())
        if moments:
            me.set_moments(dict(zip(me.moments(), moments, strict=True)))
        return weights


KEEP = Moments()


def heavy_groups(me: Me) -> list[dict[str, Any]]:
    """The parameter groups of an SGD with momentum; any other optimizer is refused."""
    found = "none of torch's own"
    with suppress(UsageError):  # it can't be described, and then it isn't SGD
        spec = me.optimizer_spec()
        if spec is not None:
            groups = list(spec["groups"])
            if spec["name"] == "SGD" and any(group["options"]["momentum"] for group in groups):
                return groups
            found = "SGD without it" if spec["name"] == "SGD" else spec["name"]
    raise UsageError(
        f"{me.strategy!r} corrects the momentum of SGD, and the optimizer is {found}. Take "
        "torch.optim.SGD(..., momentum=0.9), or moments='keep', 'average' or 'reset', which suit any optimizer."
    )


def check_described(me: Me) -> None:
    """Refuse an optimizer of which its replica can't say before the first step what it will remember."""
    try:
        me.optimizer_spec()
    except UsageError as problem:
        raise UsageError(
            f"{me.strategy!r} sends moments in the same letter as weights, so all workers must know from the start "
            "what they are. Use one of torch's own optimizers, or moments='keep'."
        ) from problem


def _always_alone(me: Me) -> bool:
    """Who has been alone from the start has exchanged nothing with anybody."""
    return me.strategy.identity_alone and me.alone


def _correct(me: Me, past: Past) -> None:
    """m <- mu m' + (1 - mu) (x' - x) / sum eta, group by group; from now on this is the exchange before."""
    momentum = past.momentum.clone()
    for part, mu, walked in _heavy_parts(me, past):
        way = (past.weights[part] - me.weights[part]) / walked
        momentum[part] = mu * past.momentum[part] + (1.0 - mu) * way
    me.set_moments({BUFFER: momentum})
    past.weights.copy_(me.weights)
    past.momentum, past.walked = momentum, [0.0] * len(past.walked)


def _heavy_parts(me: Me, past: Past) -> Iterator[tuple[slice, float, float]]:
    """Each segment that has momentum, with it, and with the learning rates that it has moved by; if these were
    all 0, nothing is known of its way. The options are read anew each time: schedulers may change them."""
    for group, walked in zip(heavy_groups(me), past.walked, strict=True):
        mu = float(group["options"]["momentum"])
        if mu and walked:
            yield from ((me.layout.places[name], mu, walked) for name in group["segments"])
