"""Places that are dealt anew: the kit, and what chance must and must not do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.parts import Channels, Exponential, Hypercube, Ring, Shuffled, Star, Topology
from fast.parts.topology.shuffled import deal
from fast.testing import check_topology
from fast.testing.topology import contraction

ONE_DIGIT = Hypercube(one_peer=True)


@pytest.mark.parametrize("topology", [Exponential(), ONE_DIGIT, Ring(), Star()], ids=repr)
def test_kit(topology: Topology) -> None:
    check_topology(Shuffled(topology), sizes=range(1, 13))


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 9))
def test_everybody_has_one_place(size: int, seed: int, number: int) -> None:
    place, worker = deal(size, seed, number)
    assert sorted(place) == sorted(worker) == [*range(size)]
    assert [worker[at] for at in place] == [*range(size)]


def test_places_stay_for_a_period_and_then_change() -> None:
    dealt, size = Shuffled(ONE_DIGIT), 8
    pairs = [tuple(dealt.links(worker, size, at) for worker in range(size)) for at in range(9)]
    first = deal(size, 0, 0)
    for at in range(3):  # all three digits with the same places
        for worker in range(size):
            assert dealt.links(worker, size, at) == (first[1][first[0][worker] ^ 1 << at],)
    assert deal(size, 0, 0) != deal(size, 0, 1) != deal(size, 0, 2)
    assert len(set(pairs)) > 3


def test_in_time_everybody_meets_everybody() -> None:
    """Which a hypercube alone never does: it has three partners for each of eight."""
    met = {Shuffled(ONE_DIGIT).links(0, 8, at)[0] for at in range(60)}
    assert met == {*range(1, 8)}
    assert len({ONE_DIGIT.links(0, 8, at)[0] for at in range(60)}) == 3


def test_a_seed_is_a_deal() -> None:
    assert Shuffled(Ring(), 3) == Shuffled(Ring(), 3)
    told = [[Shuffled(Exponential(), seed).told(0, 16, at) for at in range(12)] for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]


def test_each_deal_mixes_as_the_topology_does() -> None:
    assert contraction(Shuffled(ONE_DIGIT), 8, rounds=3) == pytest.approx(0, abs=1e-7)
    assert contraction(Shuffled(Ring()), 8, rounds=1) == pytest.approx(contraction(Ring(), 8))
    assert contraction(Shuffled(Ring()), 16, rounds=16) < contraction(Ring(), 16)


def test_in_words() -> None:
    assert Shuffled(ONE_DIGIT).describe(8) == (
        "hypercube of 8 in 3 dimensions, one of them per round; places are dealt anew every 3 rounds"
    )
    assert Shuffled(Ring()).describe(4) == "ring of 4; places are dealt anew in every round"
    assert Shuffled(Channels(one_way=[(0, 1), (1, 0)])).directed is False
    assert Shuffled(Exponential()).directed is Shuffled(Exponential()).changing is True


def test_refusals() -> None:
    with pytest.raises(UsageError, match="shuffled needs a topology"):
        Shuffled("ring")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed"):
        Shuffled(Ring(), -1)
    with pytest.raises(UsageError, match="needs a power of two"):
        Shuffled(ONE_DIGIT).check(6)
