"""All ways to make a sum, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from torch import Tensor

from fast.collectives import cost
from fast.collectives.agreement import Company
from fast.collectives.butterfly import doubling, rabenseifner
from fast.collectives.canonical import Rule
from fast.collectives.direct import direct, exchange
from fast.collectives.mail import Entry, Mail
from fast.collectives.ring import ring
from fast.collectives.tree import tree
from fast.core.world import Link
from fast.errors import UsageError
from fast.parts.codecs.base import Codec

AUTO = "auto"


@dataclass(frozen=True)
class Canonical:
    """Adds by ascending member. Its first letters go to everybody, so it finds out itself who is there."""

    run: Callable[[Mail, Tensor, tuple[int, ...], Entry, Rule, Tensor], Awaitable[Company]]
    cost: cost.Cost
    canonical = True


@dataclass(frozen=True)
class AnyOrder:
    """Turns terms into sums, in place, over exactly these members, in an order of its own."""

    run: Callable[[Mail, Tensor, tuple[int, ...]], Awaitable[None]]
    cost: cost.Cost
    canonical = False


Sum = Canonical | AnyOrder

SUMS: Mapping[str, Sum] = MappingProxyType(
    {
        "direct": Canonical(direct, cost.direct),
        "exchange": Canonical(exchange, cost.exchange),
        "scatter_reduce": Canonical(direct, cost.direct),
        "ring": AnyOrder(ring, cost.ring),
        "doubling": AnyOrder(doubling, cost.doubling),
        "rabenseifner": AnyOrder(rabenseifner, cost.rabenseifner),
        "tree": AnyOrder(tree, cost.tree),
    }
)
"""`scatter_reduce` is what systems of parameter servers call the direct exchange."""
SPARSE = ("exchange", "sparse_doubling", "sparse_split")
"""The ways to add what a sparse codec sends."""


@dataclass(frozen=True)
class Choice:
    """How a caller wants its sums to be made."""

    link: Link
    algorithm: str = AUTO
    any_order: bool = False

    def of(self, members: int, nbytes: int) -> str:
        """The name of the algorithm: the one that was asked for, or the cheapest in the order wanted.

        All members know the same numbers, so they come to the same one.
        """
        if self.algorithm != AUTO:
            return check_algorithm(self.algorithm, SUMS)
        allowed = [name for name in cost.COSTS if self.any_order or SUMS[name].canonical]
        return cost.choose(allowed, members, nbytes, self.link)


def check_algorithm(name: str, known: Collection[str] = (*SUMS, *SPARSE), what: str = "this sum") -> str:
    """The name, if there is such an algorithm; UsageError with the nearest right one otherwise."""
    if name == AUTO or name in known:
        return name
    if name in (*SUMS, *SPARSE):
        raise UsageError(
            f"algorithm={name!r} doesn't work for {what}; take {', '.join((AUTO, *dict.fromkeys(known)))}"
        )
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join((AUTO, *dict.fromkeys(known)))}."
    raise UsageError(f"there is no algorithm {name!r}. {hint}")


def algorithms_for(codec: Codec | None) -> tuple[Collection[str], str]:
    """The names that a mean of what this codec makes may be asked for by, and what it is in words."""
    if codec is None or codec.summable or codec.rounds:
        return tuple(SUMS), "this sum"
    if codec.sparse:
        return SPARSE, f"{codec!r}, which sends values with their places"
    return ("direct",), f"{codec!r}, whose bytes can't be added"
