"""Shrinking: down to the smallest case that still fails, within a limit, and always to an end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core import Strategy
from fast.errors import UsageError
from fast.sim.faults import parse_scenario, shrink, simpler
from fast.sim.faults.deeds import Cut, Deed, Freezes, Mishap, Mishaps, Moves

from .scenarios import SCENARIOS


class Admits(Strategy):
    admits = True


DAY = (
    "worker 5 freezes at 1.5s for 500ms; worker 3 dies at 2.345s; "
    "workers 0-3 and 4-7 are cut apart from 4.2s for 1.3s; "
    "letters from 1 to 2 take 50ms longer from 2s for 1s; 17% of letters from 3 to 4 are lost from 1s; "
    "worker 2 flips signs from step 10 for 5 steps; deaths are noticed after 370ms"
)


def shrunk(text, fails, **options):
    return str(shrink(parse_scenario(text), simpler, fails, **options))


def test_what_fails_anyway_needs_nothing():
    assert shrunk(DAY, lambda scenario: True) == ""


def test_a_death_alone_remains_at_the_first_moment_with_the_lowest_number():
    def fails(scenario):
        return any(clause.deed is Deed.DIE for clause in scenario.of(Moves))

    assert shrunk(DAY, fails) == "worker 0 dies at 0s"


def test_a_death_after_a_time_remains_at_a_round_one():
    def fails(scenario):
        return any(clause.deed is Deed.DIE and clause.when.ns >= 137_000_000 for clause in scenario.of(Moves))

    assert shrunk(DAY, fails) == "worker 0 dies at 200ms"


def test_the_worker_that_matters_is_kept():
    def fails(scenario):
        return any(3 in clause.who.workers for clause in scenario.of(Moves))

    assert shrunk(DAY, fails) == "worker 3 dies at 0s"


def test_two_clauses_that_only_fail_together_stay_together():
    def fails(scenario):
        cut = any(clause.span.length and clause.span.length.ns >= 10**9 for clause in scenario.of(Cut))
        frozen = any(clause.for_ns >= 10**7 for clause in scenario.of(Freezes))
        return cut and frozen

    assert shrunk(DAY, fails) == ("worker 0 freezes at 0s for 10ms; worker 0 and 1 are cut apart for 1s")


def test_groups_shares_and_spans_become_small():
    def fails(scenario):
        return any(clause.mishap is Mishap.LOST and clause.percent >= 3 for clause in scenario.of(Mishaps))

    assert shrunk(DAY, fails) == "3% of letters are lost"


def test_steps_become_few():
    text = "workers 1,4,6 scale by 3 from step 37 for 12 steps"

    def fails(scenario):
        return any(clause.span.start.number >= 4 for clause in scenario.clauses)

    assert shrunk(text, fails) == "worker 0 scales by 3 at step 4"


def test_what_cannot_be_is_passed_by():
    """A return without a death is none: the fuzzer answers False for it."""
    text = "worker 3 dies at 2s; worker 1 freezes at 1s for 1s; worker 3 returns at 6s"

    def fails(scenario):
        try:
            scenario.check(Admits(), 8, 0)
        except UsageError:
            return False
        return any(clause.deed is Deed.RETURN for clause in scenario.of(Moves))

    small = shrunk(text, fails)
    assert len(parse_scenario(small).clauses) == 2
    assert "returns" in small and "dies" in small and "freezes" not in small


@settings(max_examples=100, deadline=None)
@given(SCENARIOS)
def test_candidates_are_new_possible_and_can_be_read(scenario):
    candidates = [*simpler(scenario)]
    assert scenario not in candidates
    assert all(parse_scenario(str(candidate)) == candidate for candidate in candidates[:40])


@settings(max_examples=40, deadline=None)
@given(SCENARIOS, st.integers(0, 3))
def test_it_comes_to_an_end_at_a_case_none_of_whose_candidates_fails(scenario, kept):
    """Whatever is asked for: here, so many clauses."""

    def fails(candidate):
        return len(candidate.clauses) >= kept

    if not fails(scenario):
        return
    small = shrink(scenario, simpler, fails, tries=10**6)
    assert len(small.clauses) == kept
    assert not any(fails(candidate) for candidate in simpler(small))


def test_tries_are_counted_and_no_case_is_tried_twice():
    asked = []

    def fails(scenario):
        asked.append(scenario)
        return len(scenario.clauses) >= 3

    shrunk(DAY, fails, tries=30)
    assert len(asked) == len(set(asked)) == 30


# The same for anything else: the interface is only `simpler` and `fails`


def fewer(case):
    workers, steps = case
    yield from ((each, steps) for each in range(1, workers))
    yield from ((workers, each) for each in range(1, steps))


@given(st.integers(3, 40), st.integers(7, 40))
def test_it_shrinks_anything(workers, steps):
    assert shrink((workers, steps), fewer, lambda case: case[0] >= 3 and case[1] >= 7, tries=10_000) == (3, 7)
