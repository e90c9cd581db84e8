"""What a topology is: who hears whom, as a pure function of places, their number and the round."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from fast.errors import UsageError
from fast.view import View


class Topology(ABC):
    """Subclasses say which places are linked; weights and ids follow from that.

    Workers leave while others train, so `links` has an answer for every number of workers, also
    for those that `check` refuses at the start. And it is called for every worker and step, so it
    takes the time of a few neighbours, not of all workers.
    """

    @property
    def directed(self) -> bool:
        """Whether a place may hear another that doesn't hear it."""
        return False

    @property
    def changing(self) -> bool:
        """Whether the links differ from round to round."""
        return False

    @abstractmethod
    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        """The places that `index` hears among `size` workers: sorted, without itself, each once."""

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        """The places that hear `index`: `links` the other way round. A directed topology that
        doesn't say it itself is asked for the links of all places."""
        if not self.directed:
            return self.links(index, size, round_)
        return tuple(other for other in range(size) if index in self.links(other, size, round_))

    def in_degree(self, index: int, size: int, round_: int) -> int:
        """How many places `index` hears."""
        return len(self.links(index, size, round_))

    def period(self, size: int) -> int:
        """So many rounds in a row join all workers, whichever of them is the first. It is 1 unless
        the links take turns."""
        return 1

    def heard(self, index: int, view: View, round_: int) -> tuple[int, ...]:
        """The ids of those whom `index` hears."""
        return tuple(view.workers[other] for other in self.links(index, len(view.workers), round_))

    def neighbours(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        """The ids of those whom `index` hears, with their mixing weights. The rest is its own.

        W_ij = 1 / (1 + the larger degree of i and j) where channels go both ways. Where they don't,
        W_ij is the share that j gives away, and a topology whose rows then don't add up to 1 is
        refused: it needs push-sum, which is what `audience` is for.
        """
        size = len(view.workers)
        weights = self._balanced if self.directed else self._metropolis
        return {view.workers[other]: weight for other, weight in weights(index, size, round_).items()}

    def audience(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        """The ids of those who hear `index`, with the share of itself that each gets in push-sum.

        p_ji = 1 / (1 + how many hear i), and i keeps as much. So what i gives away and keeps adds
        up to 1 on any graph, and i needs to know nothing but its own audience.
        """
        told = self.told(index, len(view.workers), round_)
        return {view.workers[other]: 1.0 / (1 + len(told)) for other in told}

    def check(self, size: int) -> None:  # noqa: B027 (most topologies connect any number)
        """Refuse a number of workers that this topology can't connect."""

    def describe(self, size: int) -> str:
        """What it does with this many workers, in words."""
        return f"{self.name.replace('_', ' ')} of {size}"

    @property
    def name(self) -> str:
        """As the command line writes it: RandomRegular is random_regular."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def __repr__(self) -> str:
        """The call that makes it, as the command line reads it."""
        known: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        return f"{self.name}({', '.join(f'{each.name}={getattr(self, each.name)!r}' for each in known)})"

    def _metropolis(self, index: int, size: int, round_: int) -> dict[int, float]:
        own = self.in_degree(index, size, round_)
        return {
            other: 1.0 / (1 + max(own, self.in_degree(other, size, round_)))
            for other in self.links(index, size, round_)
        }

    def _balanced(self, index: int, size: int, round_: int) -> dict[int, float]:
        """The shares that `index` gets of others, if with its own they add up to 1."""
        shares = {
            other: 1.0 / (1 + len(self.told(other, size, round_)))
            for other in self.links(index, size, round_)
        }
        total = sum(shares.values()) + 1.0 / (1 + len(self.told(index, size, round_)))
        if abs(total - 1.0) > 1e-9:
            raise UsageError(
                f"{self.describe(size)}: the weights of place {index} add up to {total:.3f} instead of 1, since some "
                "workers hear more or fewer others than they tell, so plain mixing would not keep the "
                "mean. Use a strategy with "
                "push-sum (its shares are topology.audience), or channels that go both ways."
            )
        return shares


def others(index: int, places: Iterable[int]) -> tuple[int, ...]:
    """These places as `links` gives them: sorted, each once, without `index` itself."""
    return tuple(sorted(set(places) - {index}))
