"""Clauses and scenarios of every kind, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from fast.sim.faults.deeds import (
    Cut,
    Datagrams,
    Deed,
    Flip,
    Freezes,
    Late,
    Lies,
    Mishap,
    Mishaps,
    Moves,
    Noise,
    NotANumber,
    Notices,
    Resends,
    Scale,
)
from fast.sim.faults.parties import Group, Route, Span, Step, Time
from fast.sim.faults.scenario import Scenario

IDS = st.sets(st.integers(0, 12), max_size=6).map(tuple)
GROUPS = st.tuples(IDS, st.just(()) | IDS).filter(any).map(lambda ids: Group(*ids))
LENGTHS_NS = st.integers(1, 10**13) | st.sampled_from([1, 1000, 10**6, 10**9, 1_500_000_000])
TIMES = st.integers(0, 10**13).map(Time)
STEPS = st.integers(0, 10**6).map(Step)
WHENS = TIMES | STEPS
BY_TIME = st.builds(Span, WHENS, st.none() | LENGTHS_NS.map(Time))
SPANS = BY_TIME | st.builds(Span, STEPS, st.integers(1, 1000).map(Step))
ROUTES = st.builds(Route, st.none() | GROUPS, st.none() | GROUPS)
POSITIVE = st.floats(1e-9, 1e9, allow_nan=False)
LIES = (
    st.just(Flip())
    | st.just(NotANumber())
    | POSITIVE.map(Noise)
    | st.floats(-1e9, 1e9, allow_nan=False).map(lambda by: Scale(by + 0.0))
)
APART = st.tuples(GROUPS, GROUPS).filter(lambda sides: not sides[0].overlaps(sides[1]))
CLAUSES = st.one_of(
    st.builds(Moves, GROUPS, st.sampled_from(Deed), WHENS),
    st.builds(Freezes, GROUPS, WHENS, LENGTHS_NS),
    st.builds(Lies, GROUPS, LIES, SPANS),
    st.builds(lambda sides, both, span: Cut(*sides, both, span), APART, st.booleans(), BY_TIME),
    st.builds(Late, LENGTHS_NS, st.booleans(), ROUTES, BY_TIME),
    st.builds(Mishaps, st.floats(1e-6, 100), st.sampled_from(Mishap), ROUTES, BY_TIME),
    st.just(Datagrams()),
    st.builds(Resends, LENGTHS_NS),
    st.builds(Notices, st.integers(0, 10**13)),
)
SCENARIOS = st.lists(CLAUSES, max_size=5).map(lambda clauses: Scenario(tuple(clauses)))
