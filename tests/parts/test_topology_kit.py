"""What check_topology sees: topologies that each break the contract in one way."""

from __future__ import annotations

import pytest

from fast.errors import UsageError
from fast.parts import Channels, Full, Ring, Topology, Torus
from fast.testing import check_topology
from fast.view import View


class OneWay(Topology):
    """0 -> 1 -> 2 -> 0."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return ((index + 1) % size,)


class Forgetful(Topology):
    """Answers differently each time."""

    def __init__(self) -> None:
        self.asked = 0

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        self.asked += 1
        return tuple(i for i in range(size) if i != index) if self.asked <= size else ()


class Greedy(Ring):
    """Takes everything from each neighbour and keeps a negative rest."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return {view.workers[i]: 1.0 for i in self.links(index, len(view.workers), round_)}


class ById(Ring):
    """Confuses ids with places."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return dict.fromkeys(self.links(index, len(view.workers), round_), 1 / 3)


class Lopsided(Ring):
    """Rows add up to 1, columns don't."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return {view.workers[i]: 0.1 + 0.05 * index for i in self.links(index, len(view.workers), round_)}


class Deaf(Topology):
    """Says the wrong way round who hears whom."""

    directed = True

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return ((index + 1) % size,)

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return ((index + 1) % size,)


class Generous(Ring):
    """Gives everything away and keeps nothing."""

    def audience(self, index: int, view: View, round_: int) -> dict[int, float]:
        return {view.workers[i]: 1 / 2 for i in self.told(index, len(view.workers), round_)}


class Circular(Full):
    """Doubly stochastic, but what i takes of j is not what j takes of i."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        size = len(view.workers)
        return {
            view.workers[i]: 0.3 if (i - index) % size == 1 else 0.1 for i in self.links(index, size, round_)
        }


class Miscounted(Full):
    """Counts itself among those whom it hears."""

    def in_degree(self, index: int, size: int, round_: int) -> int:
        return size


class Brittle(Ring):
    """Works only with all five."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(sorted(((index + 1) % 5, (index - 1) % 5)))


class Prudish(Ring):
    """Has channels both ways and refuses to mix."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        raise UsageError("no")


class Sleepy(Ring):
    """Says that every round joins all workers, and rests in every other one."""

    changing = True

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return super().links(index, size, round_) if round_ % 2 == 0 else ()


class Restless(Ring):
    """Says that it never changes, and does."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return Ring().links(index, size, 0) if round_ == 0 else Full().links(index, size, round_)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (OneWay(), "doesn't hear"),
        (Forgetful(), "pure"),
        (Greedy(), "negative"),
        (ById(), "function of places"),
        (Lopsided(), "columns add up"),
        (Circular(), "aren't symmetric"),
        (Deaf(), r"place 0 tells \(1,\), but those who hear it are \(4,\)"),
        (Generous(), "gives away all that it has"),
        (Miscounted(), "in_degree of place 0 is 5"),
        (Brittle(), "with 1 workers, round 0: place 0 hears"),
        (Prudish(), "isn't directed and refuses"),
        (Sleepy(), r"falls apart into .* in rounds 1 to 1"),
        (Restless(), "differ from round to round"),
        (Channels([(0, 1)]), "falls apart"),
        (Channels(one_way=[(i, i + 1) for i in range(4)]), "falls apart"),
        (Torus(rows=7), "refuses every number"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Topology) else "",
)
def test_the_kit_has_teeth(broken: Topology, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_topology(broken, sizes=[5])


def test_the_kit_lets_a_topology_be_for_one_size() -> None:
    check_topology(Brittle(), sizes=[5], departures=False)
