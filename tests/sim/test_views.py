"""The views that all participants share are those that membership's own rule gives."""

from hypothesis import given
from hypothesis import strategies as st

from fast.membership import Change, Why, view_now
from fast.sim.views import Views
from fast.view import View


@given(st.data(), st.integers(2, 9), st.sampled_from([1, 3]))
def test_views_that_are_kept_up_to_date_are_those_worked_out_anew(data, size, period):
    """Changes come one by one, as they can: somebody who is there leaves, somebody who isn't comes, and in
    lock-step no change counts before a step that somebody has taken."""
    start = View(0, tuple(range(size)), (size,))
    changes: list[Change] = []
    views, away, step = Views(start, changes), set(), 0
    for _ in range(data.draw(st.integers(0, 12))):
        who = data.draw(st.integers(0, size - 1))
        if who in away:
            changes.append(Change(who, step + 2 * size * period, Why.CAME))
            away.discard(who)
            step += 2 * size * period
        elif len(away) < size - 1:
            changes.append(Change(who, step))
            away.add(who)
        step += data.draw(st.integers(0, 2 * size * period))
        assert views.now() == view_now(start, changes, keep=-1, step=None, period=period)
        for at in range(max(0, step - 3), step + 1):
            assert views.at(at, period) == view_now(start, changes, keep=-1, step=at, period=period)
    assert set(views.now().workers) == set(range(size)) - away
    assert views.now().servers == (size,)
