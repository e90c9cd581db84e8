"""The picture of who waits for whom, as text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.core import Me, Strategy
from fast.errors import Deadlock, FastError
from fast.sim.waiting import Waiting, find_circle, longest_chain, picture
from fast.view import View

from .problem import LeastSquares


def waiting(who: int, whom: tuple[int, ...], what: str = "letter 'weights'", name: str = "worker") -> Waiting:
    return Waiting(f"{name} {who}", 3, whom, f"{what} from {', '.join(map(str, whom))}")


def shown(edges: dict[int, tuple[int, ...]], workers: int) -> str:
    return picture({who: waiting(who, whom) for who, whom in edges.items()}, View(0, tuple(range(workers))))


def test_a_circle_comes_first_then_those_who_hang_on_to_it():
    assert shown({0: (1,), 1: (2,), 2: (0,), 3: (0, 1)}, 5).splitlines() == [
        "nothing can happen any more, and somebody still waits:",
        "  worker 0 -> worker 1 -> worker 2 -> worker 0, each for letter 'weights'",
        "  +-> 0 --> 1 --> 2 -+",
        "  +------------------+",
        "      3 --> 0, 1",
        "  worker 0 (step 3) waits for letter 'weights' from 1",
        "  worker 1 (step 3) waits for letter 'weights' from 2",
        "  worker 2 (step 3) waits for letter 'weights' from 0",
        "  worker 3 (step 3) waits for letter 'weights' from 0, 1",
        "workers 4 have left or paused.",
        "Every letter that is waited for must be sent to the one who waits, under the same tag, and all "
        "members of a mean must come to it.",
    ]


def test_without_a_circle_it_is_the_longest_chain():
    lines = shown({0: (1,), 1: (2,), 3: (2,)}, 4).splitlines()
    assert lines[1:4] == [
        "  worker 0 -> worker 1 -> worker 2, each for letter 'weights'; worker 2 doesn't wait",
        "      0 --> 1 --> 2",
        "      3 --> 2",
    ]


def test_reasons_that_differ_are_only_in_the_list():
    waits = {
        0: waiting(0, (2,), "letter 'a'"),
        2: Waiting("server 2", 7, (0,), "the mean, to which 0 must still come"),
    }
    lines = picture(waits, View(0, (0, 1), (2,))).splitlines()
    assert lines[1] == "  worker 0 -> server 2 -> worker 0"
    assert "  server 2 (step 7) waits for the mean, to which 0 must still come" in lines
    assert "workers 1 have left or paused." in lines


def test_who_waits_for_itself_is_a_circle_of_one():
    assert "worker 1 -> worker 1, each for letter 'weights'" in shown({1: (1,)}, 2)


def test_who_waits_for_anybody_has_no_arrow():
    text = picture({2: Waiting("server 2", 0, (), "any news")}, View(0, (0, 1), (2,)))
    assert "->" not in text
    assert "server 2 (step 0) waits for any news" in text


def test_of_many_the_first_are_shown_and_the_rest_is_counted():
    lines = shown({who: ((who + 1) % 40,) for who in range(40)}, 60).splitlines()
    assert lines[1] == (
        "  worker 0 -> worker 1 -> worker 2 -> ... -> worker 39 -> worker 0 (40 of them), each for letter 'weights'"
    )
    assert "  and 28 more wait: 28 for letter 'weights'" in lines
    assert lines[-2].endswith("50, 51 and 8 more have left or paused.")
    assert len(lines) == 17


def test_a_worker_that_waits_for_many_names_only_some():
    everybody = {who: tuple(other for other in range(40) if other != who) for who in range(40)}
    text = shown(everybody, 40)
    assert "worker 0 -> worker 1 -> worker 0" in text
    assert (
        "worker 1 (step 3) waits for letter 'weights' of 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 27 more"
        in text
    )


def test_ten_thousand_in_a_row_are_no_problem():
    chain = {who: waiting(who, (who + 1,)) for who in range(10_000)}
    assert longest_chain(chain) == list(range(10_001))
    assert find_circle(chain) == []
    chain[9_999] = waiting(9_999, (0,))
    assert find_circle(chain) == list(range(10_000))


edges = st.dictionaries(
    st.integers(0, 7), st.lists(st.integers(0, 9), max_size=4, unique=True).map(tuple), max_size=8
)


@given(edges)
def test_a_circle_is_one_and_is_found_if_there_is_any(waits: dict[int, tuple[int, ...]]):
    circle = find_circle({who: waiting(who, whom) for who, whom in waits.items()})
    for who, following in zip(circle, [*circle[1:], *circle[:1]], strict=True):
        assert following in waits[who]
    assert len(set(circle)) == len(circle)
    assert bool(circle) == has_circle(waits)


def has_circle(waits: dict[int, tuple[int, ...]]) -> bool:
    """Whoever waits only for those who don't wait is taken away, again and again; a circle remains."""
    left = {who: set(whom) & set(waits) for who, whom in waits.items()}
    while any(not whom for whom in left.values()):
        free = {who for who, whom in left.items() if not whom}
        left = {who: whom - free for who, whom in left.items() if who not in free}
    return bool(left)


@given(edges)
def test_a_chain_is_one_and_none_is_longer(waits: dict[int, tuple[int, ...]]):
    if has_circle(waits):
        return
    chain = longest_chain({who: waiting(who, whom) for who, whom in waits.items()})
    for who, following in pairwise(chain):
        assert following in waits[who]

    def length(who: int) -> int:
        return 1 + max((length(peer) for peer in waits.get(who, ())), default=0)

    assert len(chain) == max((length(who) for who in waits), default=0)


class Ring(Strategy):
    """Each waits for a letter of the one after it, and nobody writes."""

    async def step(self, me):
        await me.receive("weights", (me.id + 1) % 3)


def test_a_simulation_that_is_stuck_shows_it():
    problem = LeastSquares()
    with pytest.raises(Deadlock) as caught:
        problem.simulation(Ring(), problem.batches(3, 1)).run()
    assert "worker 0 -> worker 1 -> worker 2 -> worker 0, each for letter 'weights'" in str(caught.value)


class Restless(Strategy):
    """Waits again and again for what is there at once."""

    async def step(self, me: Me) -> None:
        while True:
            await me.world.compute(0)  # type: ignore[attr-defined]


def test_time_that_stands_still_ends_in_an_error():
    simulation = LeastSquares().simulation(Restless(), LeastSquares().batches(2, [3, 3]))
    with pytest.raises(FastError, match=r"virtual time stands still at 0\.02 s"):
        simulation.run()
