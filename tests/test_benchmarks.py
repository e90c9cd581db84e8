"""What the benchmarks decide before and after they measure: grids, who is left out, what holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.core import Task
from fast.errors import UsageError
from fast.lab import Budget, load_task, simulate_task
from fast.lab.judging import Judge
from fast.lab.tasks.mnist import MnistMlp
from fast.loop.loading import strategy_from
from fast.sim import Cluster, Compute
from fast.sim.cluster import Work
from fast.strategies.catalogue import catalogue
from scripts import script

scores, slow, moments = script("preset_scores"), script("slow_links"), script("moments")
awake, cells, keeping = (script(f"truth.{name}") for name in ("awake", "cells", "keeping"))
scoring, weather = script("truth.scoring"), script("truth.weather")
FAIR = weather.Weather()


# Climbing a grid


@given(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True), st.data())
def test_climbing_finds_the_top_of_a_hill(heights: list[int], data: st.DataObject) -> None:
    top = data.draw(st.integers(0, len(heights)))
    hill = sorted(heights[:top]) + sorted(heights[top:], reverse=True)
    rates, asked = [2.0**place for place in range(len(hill))], list[float]()

    def worth(rate: float) -> float:
        asked.append(rate)
        return float(hill[rates.index(rate)])

    start = data.draw(st.sampled_from(rates))
    shuffled = data.draw(st.permutations(rates))
    assert scores.climb(shuffled, worth, start) == rates[hill.index(max(hill))]
    assert len(asked) == len(set(asked)), "every trial is a whole training"


def test_climbing_stays_where_nothing_is_better() -> None:
    assert scores.climb((0.5, 1.0, 2.0), lambda rate: 0.9) == 1.0
    assert scores.climb((0.5, 1.0, 2.0), lambda rate: -math.inf if rate > 0.7 else 0.1) == 0.5


# Scores of presets


def test_the_catalogue_says_who_is_decentral() -> None:
    names = [preset.name for preset in scores.decentral_presets()]
    assert {"local_sgd", "dpsgd", "gossip", "torus", "choco"} <= set(names)
    assert not {"allreduce", "ssp", "downpour", "hogwild"} & set(names)


@pytest.mark.parametrize(("steps", "tau"), [(3440, 10), (100, 10), (99, 9), (50, 5), (3, 1)])
def test_only_intervals_that_are_too_long_are_cut(steps: int, tau: int) -> None:
    preset = catalogue()["local_sgd"]
    assert scores.default_call(preset, steps) == preset(tau=tau).call


def test_what_waits_for_a_smaller_rate_begins_in_the_middle() -> None:
    preset = catalogue()["post_local_sgd"]
    assert scores.default_call(preset, 3440) == preset(after=1720).call


def test_what_counts_no_steps_is_never_cut() -> None:
    for name in ("gossip", "choco", "dpsgd"):
        assert scores.default_call(catalogue()[name], 1) == catalogue()[name]().call


def row(*found: float | None) -> object:
    return scores.Row("x", "x()", False, 1.0, found, 0.0, 1.0)


def test_a_point_below_still_holds() -> None:
    base = row(0.97, 0.98, 0.975)
    assert row(0.96, 0.97, 0.966).holds(base)
    assert not row(0.96, 0.97, 0.964).holds(base)
    assert not row(0.99, None, 0.99).holds(base), "one seed has no score"
    assert not row().holds(base), "it was never trained"


def test_rows_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    file, terms = tmp_path / "rows.json", scores.Terms(8.0, 3, (0.5, 1.0))
    failed = replace(row(), name="y", rate=math.nan, replica_distance=math.nan, error="it was refused")
    assert scores.kept(file, terms) == {}
    scores.keep(file, terms, [row(0.5, None), failed])
    again = scores.kept(file, terms)
    assert again["x"] == row(0.5, None)
    assert again["y"].error == "it was refused" and math.isnan(again["y"].rate)

    class Nobody:
        def row(self, preset: object) -> object:
            raise AssertionError("it was known")

    preset = replace_name(catalogue()["gossip"], "x")
    assert list(scores.measured(Nobody(), [preset], again)) == [row(0.5, None)]
    with pytest.raises(SystemExit, match="name another file"):
        scores.kept(file, replace(terms, seeds=2))


def replace_name(preset: object, name: str) -> object:
    return type("Named", (), {"name": name, "__call__": preset})()


def test_only_presets_that_there_are() -> None:
    assert [preset.name for preset in scores.chosen("gossip,dpsgd")] == ["allreduce", "dpsgd", "gossip"]
    with pytest.raises(SystemExit, match="gosip"):
        scores.chosen("gosip,dpsgd")


# Slow links


def outcome(
    call: str, rate: float, *, score: float | None = 0.5, at_s: float | None = None, took_s: float = 1.0
):  # type: ignore[no-untyped-def]
    job = slow.Job("1gbit", call, rate, 0, 2.0, tuning=True)
    return slow.Outcome(job, took_s, score, None if at_s is None else slow.Reached(at_s, 1.0, 0.0))


def test_who_can_not_be_first_any_more_is_left_out() -> None:
    found = [
        outcome("a", 1.0, score=0.6),
        outcome("a", 2.0, score=0.7),
        outcome("a", 4.0, score=0.5),
        outcome("b", 1.0, score=0.4, took_s=6.0),
        outcome("c", 1.0, score=None),
        outcome("c", 2.0, score=0.97, at_s=5.0),
    ]
    best = slow.best_of(found)
    assert best is found[-1]
    assert slow.survivors(found, 5.0, 2) == [found[1], found[0]], "b has taken 6 s already, and c is there"
    assert slow.survivors(found, math.inf, 2) == [found[1], found[3]], "one of each call"
    assert slow.survivors(found, 5.0, 0) == []
    assert slow.best_of(found[:-1]) is None


def test_trials_get_longer_and_fewer() -> None:
    """With times that follow from call and rate alone, the tuning finds the earliest of all in few trials."""
    asked: list[tuple[float, str, float]] = []
    needs = {("a", 1.0): 10.0, ("a", 2.0): 5.0, ("b", 1.0): 3.0, ("b", 2.0): 50.0}
    seconds = {"a": 1.0, "b": 2.0}

    def train(jobs):  # type: ignore[no-untyped-def]
        for job in jobs:
            asked.append((job.epochs, job.call, job.rate))
            there = needs[job.call, job.rate] <= job.epochs
            score = 1 - needs[job.call, job.rate] / 100
            at_s = seconds[job.call] * needs[job.call, job.rate] if there else None
            found = outcome(job.call, job.rate, score=score, at_s=at_s, took_s=seconds[job.call] * job.epochs)
            yield replace(found, job=job)

    rungs = (slow.Rung(2, 2), slow.Rung(4, 2), slow.Rung(16, 0))
    chosen = slow.tuned([slow.Contestant("x", ("a", "b"))], slow.MILD, (1.0, 2.0), rungs, train)
    assert (chosen["x"].job.call, chosen["x"].job.rate) == ("a", 2.0)
    assert asked[4:] == [(4, "a", 2.0), (4, "b", 1.0), (6, "a", 2.0)], "b was there after 6 s"


def test_the_grid_holds_for_every_interval_and_probability() -> None:
    known = catalogue()
    assert slow.calls_of(known["local_sgd"]) == tuple(known["local_sgd"](tau=tau).call for tau in (8, 64))
    assert slow.calls_of(known["gossip"]) == tuple(known["gossip"](p=p).call for p in (0.02, 0.2))
    assert slow.calls_of(known["tree_easgd"])[-1] == known["tree_easgd"](up=64, down=64).call
    assert slow.calls_of(known["post_local_sgd"])[0] == known["post_local_sgd"](tau=8, after=slow.AFTER).call
    assert slow.calls_of(known["choco"]) == (known["choco"]().call,)


def test_values_that_a_preset_refuses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = catalogue()["streaming_diloco"]
    monkeypatch.setattr(slow, "STEPS", (4, 64))
    assert slow.calls_of(preset) == (preset(interval=64).call,), "it overlaps 5 steps, so 4 are too few"


def test_ratios_and_what_is_demanded() -> None:
    blank = slow.Row(slow.SLOW.name, "", True)
    rows = slow.compared(
        [
            replace(blank, name=slow.BASE.name, decentral=False, at_s=100.0),
            replace(blank, name=slow.PACKED.name, decentral=False, at_s=9.0),
            replace(blank, name="late"),
            replace(blank, name="slow", at_s=20.0),
            replace(blank, name="fast", at_s=9.5),
        ]
    )
    assert [row.name for row in rows] == [slow.PACKED.name, "fast", "slow", slow.BASE.name, "late"]
    assert rows[1].ratio == pytest.approx(100 / 9.5) and rows[1].ratio_packed == pytest.approx(9 / 9.5)
    assert rows[-1].ratio is None
    packed = replace(blank, name=slow.PACKED.name, seeds_s=(8.0, None, 12.0))
    other = replace(blank, name="fast", at_s=6.0, seeds_s=(4.0, 8.0, 6.0))
    assert slow.compared([packed, other])[0].ratio_packed == 2.0, "over the seeds with which packed got there"
    never = replace(packed, seeds_s=(None, None, None))
    assert slow.compared([never, other])[0].ratio_packed is None
    assert slow.holds(slow.SLOW, rows)
    assert not slow.holds(slow.SLOW, [row for row in rows if row.name != "fast"]), "packed is not decentral"
    assert not slow.holds(slow.SLOW, [])


def test_trainings_over_slow_links_that_are_kept_arent_done_again(tmp_path: Path) -> None:
    done: list[str] = []

    def train(jobs: Iterable[Any]) -> Iterator[Any]:
        for job in jobs:
            done.append(job.call)
            yield replace(outcomes[job.call], job=job)

    outcomes = {
        "a": outcome("a", 1.0, score=0.9, at_s=2.5),
        "b": outcome("b", 1.0),
        "c": slow.Outcome(slow.Job("1gbit", "c", 1.0, 0, 2.0, tuning=True), math.inf, None, error="no"),
    }
    jobs = [outcomes[call].job for call in "abab"]
    first = list(slow.remembering(train, tmp_path / "kept")(jobs))
    again = list(slow.remembering(train, tmp_path / "kept")([*jobs[:2], outcomes["c"].job]))
    assert done == ["a", "b", "c"] and first == [outcomes[call] for call in "abab"]
    assert again == [outcomes[call] for call in "abc"]
    assert list(slow.remembering(train, tmp_path / "kept")([outcomes["c"].job])) == [outcomes["c"]]
    assert done == ["a", "b", "c"]


def test_the_slow_links_are_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring takes 2 (P - 1) hops with a slice each: about 67 times a step of 5 ms."""
    monkeypatch.setattr(slow, "_task", lambda _: MnistMlp())  # its images needn't be here
    slice_s = 4 * (784 * 64 + 64 + 64 * 10 + 10) / 64 / (10e6 / 8)
    assert 126 * (slice_s + 1e-4) / slow.STEP_S == pytest.approx(67, abs=0.5)
    job = slow.Job(slow.SLOW.network, "", 1.0, 0, 1.0, tuning=True)
    assert slow.mean_s(job) == pytest.approx(2e-4 + 126 * slice_s)
    mild = replace(job, network=slow.MILD.network)
    assert slow.mean_s(mild) / slow.STEP_S == pytest.approx(2, rel=0.02)


def test_a_simulated_training_on_slow_links() -> None:
    """In lock-step a step takes its computing and a mean; the model is there when the target is."""
    job = slow.Job("10mbit,0.1ms", "allreduce", 1.0, 0, 2.0, tuning=False, task="digits", workers=4)
    found = slow.trained(job)
    steps = 2 * 7
    assert found.duration_s == pytest.approx(steps * (slow.STEP_S + slow.mean_s(job)), rel=0.05)
    assert found == slow.trained(job), "time is virtual"
    local = slow.trained(replace(job, call="local_sgd(tau=100)", rate=2.0, epochs=16.0))
    assert local.reached is not None and local.reached.sent_bytes <= 2 * 8 * 4810 * 0.75 * 1.1
    assert local.reached.at_s == pytest.approx(
        local.reached.epochs * 7 * slow.STEP_S + slow.mean_s(job), abs=2.5 * slow.mean_s(job)
    )


@pytest.mark.parametrize("codec", ["one_bit_sgd", "error_feedback(top_k(0.01))"])
def test_codecs_are_timed_over_letters_and_trained_without(codec: str) -> None:
    """The mean of what codecs make of gradients is the one that the real rounds make, up to what these encode twice."""
    job = slow.Job(
        "10mbit,0.1ms", f"allreduce(codec={codec})", 1.0, 0, 2.0, tuning=False, task="digits", workers=4
    )
    plain, own = (slow.step_of(call, job.network, "digits", 4) for call in ("allreduce", job.call))
    assert own[0] < plain[0] and own[1] < plain[1] / 4
    found = slow.trained(job)
    assert found.duration_s == pytest.approx(14 * own[0])
    task = load_task("digits")
    real = simulate_task(task, strategy_from(job.call), workers=4, budget=Budget.of(task, 4, 2.0, ticks=1))
    assert found.score == pytest.approx(Judge(task, task.test())(real.final), abs=0.05)


def test_what_can_not_be_trained_is_an_outcome_too() -> None:
    job = slow.Job("1gbit", "dpsgd(topology=hypercube())", 1.0, 0, 1.0, tuning=True, task="digits", workers=3)
    found = slow.trained(job)
    assert found.error is not None and found.score is None and found.reached is None


# Moments


@pytest.mark.parametrize(("kind", "rate"), [("momentum", 0.05), ("adamw", 0.005)])
def test_a_task_with_an_optimizer_that_remembers(kind: str, rate: float) -> None:
    digits = load_task("digits")
    task = moments.Remembering(digits, kind)
    optimizer = task.optimizer(task.model())
    assert isinstance(optimizer, torch.optim.AdamW if kind == "adamw" else torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert len(task.train()) == len(digits.train()) and task.labels() == digits.labels()


def test_tasks_of_another_shape_are_refused() -> None:
    class Odd(Task):
        batch_size = 7
        stackable = True
        name = "odd"
        model = optimizer = loss = train = test = batch = score = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match="odd"):
        moments.Remembering(Odd(), "momentum")


def test_policies_are_refused_where_they_can_not_be() -> None:
    for method in moments.methods():
        for policy in moments.POLICIES:
            assert repr(policy) in strategy_from(moments.call_of(method, policy)).call
    bench = moments.Bench(moments.Situation("digits", "iid", "adamw", 2.0, 2), 1, (1.0,))
    assert all(bench.row(method, "correct").refused for method in moments.methods())
    kept = bench.row("local_sgd", "keep")
    assert kept.refused is None and kept.scores[0] > 0.2
    assert list(bench.rows(dict.fromkeys(keys(), kept))) == [kept] * len(moments.choices())


def keys() -> list[tuple[str, ...]]:
    return [("digits", "iid", "adamw", method, policy) for method, policy in moments.choices()]


def test_tables_are_put_in_their_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{moments.BEGIN}\nold\n{moments.END}\nafter\n")
    moments.put_into(page, ["one", "two"])
    assert page.read_text() == f"before\n{moments.BEGIN}\n\none\n\ntwo\n\n{moments.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="has no lines"):
        moments.put_into(page, [])


def test_rows_of_moments_are_kept_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    row = moments.Row("digits", "iid", "adamw", "dpsgd", "keep", "dpsgd()", 1.0, (0.9, None), 12.0)
    assert moments.kept(file) == {}
    moments.keep(file, [row])
    assert moments.kept(file) == {row.key: row}


def test_the_table_has_a_cell_for_every_choice() -> None:
    base = moments.Row("digits", "iid", "adamw", "allreduce", "", "allreduce()", 1.0, (0.9, 0.92))
    some = [replace(base, method="dpsgd", policy=policy, rate=0.5) for policy in moments.POLICIES]
    some[2] = replace(some[2], refused="no")
    lines = moments.table("title", [base, *some]).splitlines()
    assert lines[2] == "| | keep | average | correct | reset |"
    assert lines[4] == "| `allreduce` | 91.0 ±1.4 (x 1) | | | |"
    assert lines[5].count("91.0 ±1.4 (x 0.5)") == 3 and "refused" in lines[5]
    assert len({line.count("|") for line in lines[2:]}) == 1


# The error of the simulator


def test_weather_that_lasts_for_a_repetition_is_in_both_times_and_cancels() -> None:
    """The machine was half as fast in one repetition, and as fast as before in the calibration of another."""
    cell = cells.Cell("1.9 M", 2, None, "allreduce")
    real = [cells.Seen(cells.Time(step, step / 2), FAIR) for step in (1.0, 2.0, 1.0)]
    model = [cells.Time(step, step / 4) for step in (1.1, 2.0, 2.0)]
    row = scoring.row_of(cell, real, model)
    assert row.error == pytest.approx(0.1) and row.outside_error == pytest.approx(-0.45)
    assert (row.measured.step_s, row.simulated.step_s, row.low_s, row.high_s) == (1.0, 2.0, 1.0, 2.0)


def test_what_was_measured_of_the_simulators_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions of a ground that are whole; and nothing that was measured at another pace or with other cores."""
    grid, file = cells.grid(quick=True), tmp_path / "error.json"
    two, four = (sorted({cell.ground for cell in grid})[place] for place in (0, 1))
    seen = cells.Seen(cells.Time(1.0, 0.5), weather.Weather(1.5, 2.0))
    times = {cell: [seen] * (2 if cell.ground == two else 1) for cell in grid}
    last = [cell for cell in grid if cell.ground == two][-1]
    times[last] = times[last][:1]  # it was ended in the middle of a repetition
    models = {two: [{"n": 1}, {"n": 2}], four: [{"n": 3}]}
    keeping.keep(file, keeping.Findings(times, models, awake=True))
    found = keeping.kept(file, grid)
    assert {len(own) for own in found.times.values()} == {1} and list(found.times) == grid and found.awake
    assert found.models == {two: [{"n": 1}], four: [{"n": 3}]} and found.times[grid[0]] == [seen]
    assert keeping.kept(file, grid, awake=True) == found
    with pytest.raises(
        SystemExit, match="stay awake, and now they halt: name another file, or leave out --cores"
    ):
        keeping.kept(file, grid, awake=False)
    monkeypatch.setitem(cells.PACES_S["64-64-10"], 4, 1.0)
    found = keeping.kept(file, grid)
    assert {cell.ground for cell in found.begun().times} == {two} and found.models[four] == []
    nothing = keeping.kept(tmp_path / "none", grid, awake=True)
    assert nothing.models == {two: [], four: []} and not nothing.begun().times and list(nothing.times) == grid


def test_cores_stay_awake_as_long_as_the_wish_is_held(tmp_path: Path) -> None:
    wishes = tmp_path / "wishes"

    def held() -> bool:
        return wishes.resolve() in {link.resolve() for link in Path("/proc/self/fd").iterdir()}

    with awake.cores_awake(wishes) as granted:
        assert not granted, "there is nobody who takes wishes"
    wishes.write_bytes(b"")
    with awake.cores_awake(wishes) as granted:
        assert granted and held() and wishes.read_bytes() == bytes(4), "no latency at all, in four bytes"
    assert not held()


def test_other_weather_scales_computing_and_cold_caches_each_by_its_own() -> None:
    servers = Work(apply_s=0.1)
    work = Work(0.2, op_rate=30.0, means=((2, 8, 0.5),), cold=((1.0, 0.3),), warm_s=2.0, servers=servers)
    calm = Cluster(Compute(step_s=4.0), work=work)
    stormy = weather.Weather(1.5, 3.0).over(calm)
    assert isinstance(stormy.compute, Compute) and stormy.compute.step_s == 6.0
    assert stormy.work.turn_s == pytest.approx(0.3) and stormy.work.op_rate == 20.0
    assert stormy.work.means == ((2, 8, 0.75),) and stormy.work.warm_s == 3.0
    assert stormy.work.cold == ((1.0, pytest.approx(0.9)),)
    assert stormy.work.servers is not None and stormy.work.servers.apply_s == pytest.approx(0.15)
    assert FAIR.over(calm) == calm


class Scripted:
    """Instead of a process that computes: what it will have seen."""

    def __init__(self, *looks: tuple[float, float]) -> None:
        self._looks = iter(looks)

    def submit(self, *_: object) -> Future[tuple[float, float]]:
        done = Future[tuple[float, float]]()
        done.set_result(next(self._looks))
        return done


def test_a_run_is_made_again_until_the_weather_stays_and_is_compared_with_the_calibration() -> None:
    """Looks: to load, before and after the calibration (2 and 4: 3), after each of three tries."""
    looks = [(9.0, 9.0), (2.0, 1.0), (4.0, 1.0), (8.0, 1.0), (6.0, 2.0), (6.6, 4.0), (6.6, 4.0)]
    glass, runs = weather.Barometer([Scripted(*looks)]), iter(range(9))
    glass.while_(lambda: None, "task")
    assert glass.around(lambda: next(runs)) == (2, weather.Weather(pytest.approx(6.3 / 3), 3.0)), (
        "4, 8, 6 then 6.6"
    )
    assert glass.around(lambda: next(runs)) == (3, weather.Weather(pytest.approx(6.6 / 3), 4.0))
