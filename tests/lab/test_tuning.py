"""The search for settings: the same number of trials for everybody, spent where they help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.lab.tuning import RATES, Setting, Trial, Tuning, knobs_for, next_setting
from fast.loop.loading import strategy_from
from fast.strategies.calls import open_knobs, with_argument

ASKED = "local_sgd(tau=10)"
KNOBS = {"tau": (4, 25)}


def trial(rate: float, samples: int | None = None, score: float | None = 0.5, call: str = ASKED) -> Trial:
    return Trial(call, rate, score=score, samples_to_target=samples, samples_per_s=100.0)


def after(samples: dict[float, int], knobs: dict[str, tuple[object, ...]] = KNOBS) -> Setting:
    return next_setting(ASKED, knobs, [trial(rate, samples.get(rate)) for rate in RATES])


def test_first_comes_the_same_grid_for_everybody() -> None:
    for asked, knobs in ((ASKED, KNOBS), ("allreduce()", {})):
        trials: list[Trial] = []
        for rate in RATES:
            setting = next_setting(asked, knobs, trials)
            assert setting == Setting(asked, rate)
            trials.append(trial(rate, call=asked))
    assert sorted(RATES) == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(("best", "beyond"), [(4.0, 8.0), (0.125, 0.0625)])
def test_past_the_edge_where_the_edge_was_best(best: float, beyond: float) -> None:
    assert after({best: 10}) == Setting(ASKED, beyond)


def test_then_the_knobs_at_the_best_rate() -> None:
    assert after({0.5: 10, 1.0: 20}) == Setting("local_sgd(tau=4)", 0.5)


def test_then_between_the_rates() -> None:
    assert after({0.5: 10}, {}) == Setting(ASKED, pytest.approx(0.5 * 2**0.5, rel=1e-3))


@given(st.lists(st.one_of(st.none(), st.integers(1, 90)), min_size=30, max_size=30), st.booleans())
def test_nothing_is_tried_twice(samples: list[int | None], with_knobs: bool) -> None:
    trials: list[Trial] = []
    for needed in samples:
        setting = next_setting(ASKED, KNOBS if with_knobs else {}, trials)
        near = [each.rate for each in trials if each.strategy == setting.call]
        assert all(abs(setting.rate / rate - 1) > 0.01 for rate in near) and 0 < setting.rate < 1e12
        trials.append(trial(setting.rate, needed, call=setting.call))


def test_the_best_reaches_the_target_soonest_and_else_scores_highest() -> None:
    never, high = trial(1.0, score=0.7), trial(2.0, score=0.8)
    late, soon = trial(4.0, 30, score=0.9), trial(0.5, 20, score=0.6)
    failed, diverged = Trial(ASKED, 8.0, error="no"), Trial(ASKED, 9.0, diverged=True)
    assert Tuning(ASKED, [failed, diverged, never]).chosen is never
    assert Tuning(ASKED, [never, high, failed]).chosen is high
    assert Tuning(ASKED, [never, high, late, soon, diverged]).chosen is soon
    assert Tuning(ASKED, [trial(1.0, 20), trial(2.0, 20)]).chosen.rate == 1.0, "of equal ones the first"


def test_who_falls_below_the_target_again_comes_after_all_who_stay() -> None:
    lucky = Trial(ASKED, 4.0, score=0.71, samples_to_target=20, samples_per_s=100.0, held=False)
    late = trial(1.0, 30, score=0.95)
    assert Tuning(ASKED, [lucky, late]).chosen is late
    assert Tuning(ASKED, [lucky, trial(1.0, score=0.9)]).chosen is lucky, "before one that was never there"


def test_a_trial_during_which_the_machine_was_busy_is_not_held_against_its_rate() -> None:
    """One call takes as long per sample at any rate; another call is judged by its own speed."""
    busy = Trial(ASKED, 1.0, 0.9, samples_to_target=100, samples_per_s=10.0)
    quiet = Trial(ASKED, 2.0, 0.9, samples_to_target=120, samples_per_s=50.0)
    assert Tuning(ASKED, [quiet, busy]).chosen is busy
    slower = Trial("local_sgd(tau=4)", 1.0, 0.9, samples_to_target=90, samples_per_s=40.0)
    faster = Trial("local_sgd(tau=25)", 1.0, 0.9, samples_to_target=130, samples_per_s=80.0)
    assert Tuning(ASKED, [quiet, busy, slower]).chosen is busy, "100 / 50 before 90 / 40"
    assert Tuning(ASKED, [quiet, busy, slower, faster]).chosen is faster, "130 / 80"


def test_the_output_has_every_trial_and_marks_the_chosen_one() -> None:
    trials = [trial(1.0, 30), trial(0.5, 20), trial(0.5, 10, call="local_sgd(tau=4)")]
    data = Tuning(ASKED, trials).to_json()
    assert data["budget"] == 3 and not data["at_edge"]
    assert [row["chosen"] for row in data["trials"]] == [False, False, True]  # type: ignore[index, attr-defined]
    assert Tuning(ASKED, trials[:2]).at_edge and Tuning(ASKED, trials[:2]).to_json()["at_edge"]


def test_a_knob_that_the_user_has_turned_stays() -> None:
    assert open_knobs(strategy_from("local_sgd")) == KNOBS
    assert open_knobs(strategy_from("local_sgd(tau=3)")) == {}
    assert open_knobs(strategy_from("allreduce")) == {}


def test_knobs_that_can_not_be_turned_are_left_alone() -> None:
    """Two or three backups of three workers would leave nobody, or one; a quorum says already how many are awaited."""
    assert knobs_for(strategy_from("tensorflow"), 8) == {"backups": (2, 3)}
    assert knobs_for(strategy_from("tensorflow"), 3) == {"backups": (2,)}
    assert knobs_for(strategy_from("tensorflow"), 2) == {}
    assert knobs_for(strategy_from("tensorflow(quorum=0.6)"), 8) == {}
    assert knobs_for(strategy_from("local_sgd"), 2) == KNOBS


@pytest.mark.parametrize("name", ["local_sgd", "ssp", "torus", "gossip"])
def test_every_knob_of_a_preset_can_be_turned(name: str) -> None:
    strategy = strategy_from(name)
    for knob, values in open_knobs(strategy).items():
        for value in values:
            turned = strategy_from(with_argument(strategy.call, knob, value))
            assert turned.call == with_argument(strategy.call, knob, value) != strategy.call
