"""A server's books, against plain ones that are made anew for every question."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.strategies.central.clocks import Clocks, Shares
from fast.view import View


def view(*workers: int, number: int = 0) -> View:
    return View(number, workers, (9,))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_the_slowest_is_the_minimum_of_all_who_are_there(pushes: list[tuple[int, int]]):
    clocks, plain = Clocks.of(view(0, 1, 2, 3)), dict.fromkeys(range(4), 0)
    for worker, more in pushes:
        plain[worker] += more
        clocks.take(worker, plain[worker], None)
        assert clocks.slowest == min(plain.values())
        assert clocks.pushed == plain


@given(st.lists(st.integers(0, 3), max_size=60), st.sampled_from([0, 1, 2, 5, inf]))
def test_whoever_is_within_the_bound_may_read_and_nobody_else(pushes: list[int], bound: float):
    clocks, plain, waiting = Clocks.of(view(0, 1, 2, 3)), dict.fromkeys(range(4), 0), set[int]()
    for worker in pushes:
        if worker in waiting:  # a worker that waits doesn't push
            continue
        plain[worker] += 1
        waiting.add(worker)
        clocks.take(worker, plain[worker], plain[worker] - bound)
        ready = {each for each in waiting if plain[each] - min(plain.values()) <= bound}
        waiting -= ready
        assert set(clocks.ready([worker])) == ready
        assert set(clocks.reading) == waiting


def test_who_has_left_holds_nobody_back_and_gets_nothing():
    clocks = Clocks.of(view(0, 1, 2))
    clocks.take(0, 1, 1)
    clocks.take(1, 1, 1)
    assert clocks.ready([0, 1]) == []
    clocks.attend(view(1, number=2), {0: 0, 2: 0})
    assert clocks.slowest == 1
    assert clocks.ready([]) == [1]
    clocks.take(2, 5, 0)
    assert clocks.ready([2]) == []


def test_who_has_left_is_waited_for_until_all_that_it_pushed_is_here():
    """The news of a departure may be faster than the letters that were sent before it."""
    clocks = Clocks.of(view(0, 1))
    clocks.take(0, 3, 3)
    clocks.take(1, 1, None)
    clocks.attend(view(0, number=1), {1: 3})
    assert (clocks.slowest, clocks.leaving) == (1, {1: 3})
    clocks.take(1, 2, 0)
    assert (clocks.slowest, clocks.ready([1])) == (2, [])
    clocks.take(1, 3, None)
    assert (clocks.slowest, clocks.pushed, clocks.leaving) == (3, {0: 3}, {})
    assert clocks.ready([1]) == [0]


def test_who_comes_is_as_far_as_the_slowest():
    clocks = Clocks.of(view(0, 1))
    clocks.take(0, 6, None)
    clocks.take(1, 4, None)
    clocks.attend(view(0, 1, 2, number=1), {})
    assert clocks.pushed == {0: 6, 1: 4, 2: 4}
    clocks.attend(view(0, 1, 2, 3, number=1), {})  # the same view
    assert 3 not in clocks.pushed


def test_when_all_have_left_nobody_is_the_slowest():
    clocks = Clocks.of(view(0))
    clocks.attend(view(number=1), {0: 0})
    assert clocks.slowest == inf
    assert clocks.moved() and not clocks.moved()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=20))
def test_a_share_is_the_part_of_the_samples_that_all_workers_would_bring(pushes: list[tuple[int, int]]):
    shares, last = Shares(), dict[int, int]()
    for worker, samples in pushes:
        last[worker] = samples
        mean = sum(last.values()) / len(last)
        assert shares.take(worker, samples, 4) == pytest.approx(samples / (4 * mean))


def test_who_has_left_has_no_part_in_the_shares_of_others():
    shares = Shares()
    for worker, samples in enumerate((8, 8, 8)):
        shares.take_in(view(0, 1, 2), worker, samples)
    assert shares.take_in(view(0, 1, 2), 2, 2) == pytest.approx(2 / 18)
    assert shares.take_in(view(0, 1, number=1), 0, 8) == 0.5
    assert shares.take_in(view(0, 1, number=1), 2, 5) == pytest.approx(5 / (2 * 7))  # it was on its way
    assert shares.take_in(view(0, 1, number=1), 1, 8) == 0.5
    assert shares.take_in(view(0, 1, 3, number=2), 3, 8) == pytest.approx(1 / 3)


def test_those_who_push_elsewhere_have_a_part():
    shares = Shares(others=(24.0, 2))
    assert shares.take(0, 4, 4) == pytest.approx(4 / (4 * 28 / 3))
    assert shares.take(1, 4, 4) == 4 / 32


def test_shares_of_nothing_and_of_nobody():
    assert Shares().take(0, 0, 3) == 0
    assert Shares().take(0, 16, 0) == 1  # the last one's last push, when everybody has left
