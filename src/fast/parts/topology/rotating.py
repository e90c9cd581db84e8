"""Several topologies that take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fast.errors import UsageError
from fast.parts.topology.base import Topology
from fast.view import View


class Rotating(Topology):
    """Several topologies in turn: round t uses the one at place t mod n of the list, and each of
    them counts its own rounds, so that those which change themselves show all their graphs.

    >>> from fast.parts.topology.ready import Ring, Star
    >>> turns = Rotating([Ring(), Star()])
    >>> turns.links(2, 5, 0), turns.links(2, 5, 1), turns.links(2, 5, 2)
    ((1, 3), (0,), (1, 3))
    """

    def __init__(self, topologies: Sequence[Topology]) -> None:
        self.topologies = tuple(topologies)
        if not self.topologies:
            raise UsageError("rotating needs topologies to take turns, such as rotating([ring, hypercube])")
        for each in self.topologies:
            if not isinstance(each, Topology):
                raise UsageError(
                    f"rotating needs topologies, such as rotating([ring, hypercube]), and got {each!r}"
                )

    @property
    def directed(self) -> bool:
        return any(each.directed for each in self.topologies)

    @property
    def changing(self) -> bool:
        return len(self.topologies) > 1 or self.topologies[0].changing

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        topology, own_round = self._turn(round_)
        return topology.links(index, size, own_round)

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        topology, own_round = self._turn(round_)
        return topology.told(index, size, own_round)

    def in_degree(self, index: int, size: int, round_: int) -> int:
        topology, own_round = self._turn(round_)
        return topology.in_degree(index, size, own_round)

    def neighbours(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        topology, own_round = self._turn(round_)
        return topology.neighbours(index, view, own_round)

    def audience(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        topology, own_round = self._turn(round_)
        return topology.audience(index, view, own_round)

    def period(self, size: int) -> int:
        return len(self.topologies) * max(each.period(size) for each in self.topologies)

    def check(self, size: int) -> None:
        for each in self.topologies:
            each.check(size)

    def describe(self, size: int) -> str:
        return "in turn: " + "; ".join(each.describe(size) for each in self.topologies)

    def __repr__(self) -> str:
        return f"rotating({[*self.topologies]})"

    def _turn(self, round_: int) -> tuple[Topology, int]:
        """Whose turn it is, and which of its own rounds that is."""
        return self.topologies[round_ % len(self.topologies)], round_ // len(self.topologies)
