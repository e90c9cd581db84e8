"""What a run was worth: each figure against an independent reckoning."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lab_plans import OWN

from fast.lab import Budget, Run, load_task
from fast.lab.judging import Goal, Judge, Question, judge_run, judge_trial
from fast.lab.measures import Report, Tick, distance_of, live_state, mean_state, replica_ticks
from fast.lab.results import Result, spread, summary_of
from fast.lab.tuning import Setting

TASK = load_task(OWN)
SETTING = Setting("ssp(bound=3)", 0.5)


def report(name: str = "worker 0", **figures: Any) -> Report:
    return Report(**{"name": name, "ended_ns": 100, "steps": 1, "samples": 1, **figures})


def always(label: int) -> dict[str, torch.Tensor]:
    """Values of a model that always answers this label."""
    state = {name: torch.zeros_like(value) for name, value in live_state(TASK.model()).items()}
    state["1.running_var"].fill_(1.0)
    state["4.bias"][label] = 1.0
    return state


def share(label: int) -> float:
    return float((TASK.test()[1] == label).float().mean())


WORST, BEST = min(range(3), key=share), max(range(3), key=share)


def run(ticks: list[Tick] | None = None, final: int = WORST, **others: Any) -> Run:
    figures: dict[str, Any] = {"workers": [report(), report("worker 1")], **others}
    return Run(ticks or [], always(final), [torch.ones(3)] * 2, **figures)


def question(target: float = 0.5, **others: Any) -> Question:
    return Question(Judge(TASK, TASK.test()), target, Budget(220, 110, 32), **others)


def judged(what: Run, target: float = 0.5, **others: Any) -> Result:
    return judge_run(question(target, **others), SETTING, "ssp(bound=1)", "ssp", 7, what)


def tick(at_s: float, label: int, **figures: Any) -> Tick:
    return Tick(at_s, always(label), **figures)


def test_to_target_means_the_first_tick_that_reaches_it() -> None:
    ticks = [
        tick(1.0, WORST, samples=50, nbytes=10),
        tick(2.5, BEST, samples=99, nbytes=30),
        tick(3.0, WORST, samples=120, nbytes=60),
        tick(4.0, BEST, samples=200, nbytes=90),
    ]
    between = (share(WORST) + share(BEST)) / 2
    result = judged(run(ticks), between)
    assert result.reached_target and result.time_to_target_s == 2.5
    assert (result.samples_to_target, result.bytes_to_target) == (99, 30)
    assert result.epochs_to_target == pytest.approx(99 / 110)
    assert result.final_score == pytest.approx(share(WORST))
    assert result.curve["score"] == pytest.approx([share(WORST), share(BEST), share(WORST), share(BEST)])
    never = judged(run(ticks), 1.0)
    assert not never.reached_target and never.time_to_target_s is None and never.bytes_to_target is None


def test_a_trial_is_judged_like_a_run_on_the_data_it_is_given() -> None:
    images, labels = TASK.test()
    only = labels == WORST
    asked = Question(Judge(TASK, (images[only], labels[only])), 0.9, Budget(220, 110, 32))
    trial = judge_trial(asked, SETTING, run([tick(1.0, BEST, samples=5), tick(2.0, WORST, samples=9)]))
    assert (trial.time_to_target_s, trial.samples_to_target, trial.score) == (2.0, 9, 1.0)
    assert (trial.strategy, trial.rate) == ("ssp(bound=3)", 0.5)
    assert trial.held
    fallen = judge_trial(asked, SETTING, run([tick(1.0, WORST, samples=5)], final=BEST))
    assert fallen.samples_to_target == 5 and not fallen.held
    assert judge_trial(asked, SETTING, run([tick(1.0, BEST)], final=BEST)).held, "it had nothing to lose"


def test_a_goal_looks_no_further_than_the_tick_that_reaches_it() -> None:
    seen: list[Any] = []

    class Watching(Judge):
        def __call__(self, state: Any) -> float | None:
            seen.append(state)
            return super().__call__(state)

    ticks = [
        tick(1.0, WORST),
        Tick(2.0, {**always(BEST), "4.bias": torch.full((3,), math.nan)}),
        tick(3.0, BEST),
    ]
    goal = Goal(Watching(TASK, TASK.test()), share(BEST))
    assert goal.score == -math.inf, "nothing seen yet"
    assert goal.look([*ticks, tick(4.0, BEST)]) is ticks[2] and goal.reached is ticks[2]
    assert len(seen) == 3 and goal.scores == [share(WORST), None, share(BEST)] and goal.score == share(BEST)


def test_what_comes_too_late_for_a_goal_is_not_looked_at() -> None:
    goal = Goal(Judge(TASK, TASK.test()), share(BEST), by_s=2.0)
    assert [goal(each) for each in (tick(1.0, WORST), tick(2.0, WORST), tick(2.5, BEST))] == [
        False,
        False,
        True,
    ]
    assert goal.reached is None and len(goal.scores) == 2


def test_figures_of_the_workers_are_averaged_and_staleness_is_pooled() -> None:
    workers = [
        report(steps=10, samples=100, bytes_sent=40, waited_ns=25, computed_ns=60, staleness={0: 1, 2: 1}),
        report("worker 1", steps=13, samples=130, bytes_sent=20, ended_ns=200, waited_ns=0),
    ]
    server = report("server 0", bytes_sent=500, staleness={3: 2})
    result = judged(run(workers=workers, servers=[server]), reference_samples_per_s=4e8)
    assert (result.steps, result.samples, result.bytes_sent_per_worker) == (11.5, 230, 30)
    assert result.bytes_sent == 560
    assert result.wait_fraction == pytest.approx((25 / 100 + 0 / 200) / 2)
    assert result.compute_fraction == pytest.approx((60 / 100 + 0 / 200) / 2)
    assert result.mean_staleness == pytest.approx((0 + 2 + 3 + 3) / 4) and result.max_staleness == 3
    assert result.staleness == {"0": 1, "2": 1, "3": 2}
    assert result.duration_s == 200e-9
    assert result.samples_per_s == pytest.approx(230 / 200e-9)
    assert result.scaling_efficiency == pytest.approx(230 / 200e-9 / (2 * 4e8))


def test_what_is_left_of_a_participants_time_was_idle() -> None:
    early = report(ended_ns=60, computed_ns=30, sent_ns=5, waited_ns=15, merged_ns=10)
    late = report("worker 1", started_ns=20, ended_ns=120, computed_ns=100)
    first, second = judged(run(workers=[early, late])).participants
    assert [first[f"{part}_s"] for part in ("compute", "send", "wait", "merge", "idle")] == pytest.approx(
        [30e-9, 5e-9, 15e-9, 10e-9, 60e-9]
    )
    assert second["idle_s"] == pytest.approx(20e-9)


def test_the_graph_has_letters_by_link_and_each_mean_once() -> None:
    both = [([0, 1], 9, 300)]
    workers = [report(means=both, links=[(2, 4, 80)]), report("worker 1", means=both)]
    graph = judged(run(workers=workers, servers=[report("server 0", links=[(0, 4, 99)])])).graph
    assert graph == {
        "workers": 2,
        "servers": 1,
        "letters": [[0, 2, 4, 80], [2, 0, 4, 99]],
        "means": [[[0, 1], 9, 600]],
    }


def test_single_replicas_are_scored_beside_the_consolidated_model() -> None:
    copies = (always(BEST), always(WORST))
    result = judged(run([tick(1.0, WORST), tick(2.0, BEST, replicas=copies)]))
    assert result.replica_scores == pytest.approx([share(BEST), share(WORST)])
    assert result.curve["replica_worst"] == [None, pytest.approx(share(WORST))]
    assert result.curve["replica_best"] == [None, pytest.approx(share(BEST))]


def test_a_model_without_numbers_has_no_score_whatever_it_answers() -> None:
    """Its arg max is 0 for every sample, and would score as if it had learned that."""
    broken = always(0)
    broken["0.weight"][0, 0] = math.nan
    result = judged(run([Tick(1.0, broken), tick(2.0, BEST)]), 0.01)
    assert result.diverged and result.curve["score"][0] is None
    assert result.time_to_target_s == 2.0
    ended = Run([], broken, [torch.ones(3)], [report()])
    assert judged(ended).final_score is None and judge_trial(question(), SETTING, ended).diverged


def test_a_score_that_is_no_number_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN compares with nothing, and would stay the best of all trials if it came first."""
    monkeypatch.setattr(type(TASK), "score", lambda *_: math.nan)
    assert Judge(TASK, TASK.test())(always(0)) is None
    assert judge_trial(question(), SETTING, run()).diverged


def test_steps_that_took_longer_than_the_pace_are_counted() -> None:
    workers = [report(steps=10, paced_steps=1), report("worker 1", steps=30, paced_steps=4)]
    assert judged(run(workers=workers), paced=True).pace_exceeded == pytest.approx(5 / 40)
    assert judged(run(workers=workers)).pace_exceeded is None


def test_the_distance_is_relative_to_the_mean() -> None:
    """Replicas (3, 4) and (5, 4): each is 1 away from their mean (4, 4), which is sqrt(32) long."""
    assert distance_of([torch.tensor([3.0, 4.0]), torch.tensor([5.0, 4.0])]) == pytest.approx(
        1 / math.sqrt(32)
    )
    assert distance_of([torch.tensor([0.1, 0.2])] * 3) == 0


def test_replicas_are_kept_at_five_ticks_the_last_among_them() -> None:
    assert replica_ticks(50) == {9, 19, 29, 39, 49}
    assert replica_ticks(1) == {0} and replica_ticks(3) == {0, 1, 2}
    assert all(len(replica_ticks(n)) == 5 and n - 1 in replica_ticks(n) for n in range(5, 99))


def test_means_of_states_average_weights_and_keep_the_largest_counter() -> None:
    one, two = (
        {"w": torch.tensor([1.0, 3.0]), "n": torch.tensor(2)},
        {"w": torch.tensor([3.0, 3.0]), "n": torch.tensor(5)},
    )
    mean = mean_state([one, two])
    assert torch.equal(mean["w"], torch.tensor([2.0, 3.0])) and mean["n"] == 5


# Over seeds


def test_spread_is_that_of_a_sample() -> None:
    assert spread([1.0, None, 3.0, math.nan, 5.0]) == {
        "mean": 3.0,
        "std": 2.0,
        "min": 1.0,
        "max": 5.0,
        "n": 3,
    }
    assert spread([None]) is None
    assert spread([2.0]) == {"mean": 2.0, "std": 0.0, "min": 2.0, "max": 2.0, "n": 1}


def test_a_summary_is_over_the_seeds_of_what_was_asked() -> None:
    common: dict[str, Any] = {
        "strategy": "local_sgd(tau=4)",
        "asked": "local_sgd(tau=10)",
        "label": "local_sgd(tau=4)",
    }
    rows = [
        Result(seed=0, reached_target=True, time_to_target_s=2.0, final_score=0.9, **common),
        Result(seed=0, strategy="allreduce()", asked="allreduce()", label="allreduce", error="no"),
        Result(seed=1, final_score=0.7, diverged=True, **common),
    ]
    local, failed = summary_of(rows)
    assert (local["seeds"], local["reached"], local["failed"], local["diverged"]) == (2, 1, 0, 1)
    assert local["time_to_target_s"] == {"mean": 2.0, "std": 0.0, "min": 2.0, "max": 2.0, "n": 1}
    assert local["final_score"]["mean"] == pytest.approx(0.8)
    assert (failed["failed"], failed["final_score"]) == (1, None)
