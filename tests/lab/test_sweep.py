"""Sweeps: what is tried, that nothing but the arguments decides what comes out, and which settings are unbeaten."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_plans import BROKEN, OWN, TUNED

from fast.errors import FastError, UsageError
from fast.lab import Plan, Real, Simulated, compare
from fast.lab.sweep import Jobs, Point, Record, Sweep, Swept, front, jobs_of, run_sweep
from fast.lab.sweep import searching as searching_module
from fast.lab.sweep.points import best
from fast.lab.sweep.record import RESULT, TRIALS
from fast.lab.sweep.searching import aims
from fast.lab.sweep.space import parse_knob, parse_rates
from fast.lab.tuning import RATES, Setting
from fast.loop.loading import strategy_from
from fast.strategies.calls import arguments_of


def plan(strategies: str, workers: int = 2, task: str = OWN, **options: Any) -> Plan:
    return Plan.of(task, strategies, workers, world=Simulated(), **{"epochs": 1, **options})


def call(text: str) -> str:
    return strategy_from(text).call


# What is tried


def test_the_grid_is_the_product_of_knobs_and_rates() -> None:
    sweep = Sweep.of(plan("slowmo"), rates=[1.0, 0.5])
    expected = [
        Setting(call(f"slowmo(tau={tau}, beta={beta})"), rate)
        for tau in (12, 4, 25)
        for beta in (0.5, 0.2, 0.7)
        for rate in (1.0, 0.5)
    ]
    assert list(sweep.grids[0]) == expected and sweep.spaces[0].asked == call("slowmo")


def test_without_rates_those_of_tuning_and_without_knobs_only_those() -> None:
    sweep = Sweep.of(plan("allreduce,local_sgd(tau=3)"))
    assert [list(each) for each in sweep.grids] == [
        [Setting(call("allreduce"), rate) for rate in RATES],
        [Setting(call("local_sgd(tau=3)"), rate) for rate in RATES],
    ], "a knob that the user has turned stays"
    assert sweep.trials == 2 * len(RATES)


def test_values_of_the_users_own_take_the_place_of_the_strategys() -> None:
    knobs = ["local_sgd.tau=2,8,32,8", "p=0.3"]
    sweep = Sweep.of(plan("local_sgd,gossip,dpsgd"), knobs=knobs, rates=[2.0])
    assert [list(each) for each in sweep.grids] == [
        [Setting(call(f"local_sgd(tau={tau})"), 2.0) for tau in (2, 8, 32)],
        [Setting(call("gossip(p=0.3)"), 2.0)],
        [Setting(call("dpsgd"), 2.0)],
    ]


def test_a_knob_that_was_turned_can_be_swept_too_and_values_may_be_parts() -> None:
    sweep = Sweep.of(
        plan("choco(gamma=0.3)"),
        knobs=["choco.codec=top_k(0.05),top_k(0.2)", "choco.gamma=0.3,0.1"],
        rates=[1.0],
    )
    assert [setting.call for setting in sweep.grids[0]] == [
        call(f"choco(codec=top_k({ratio}), gamma={gamma})")
        for ratio, gamma in itertools.product((0.05, 0.2), (0.3, 0.1))
    ]


def test_combinations_that_can_not_be_built_are_left_out_and_counted() -> None:
    """A step can't be cancelled where two servers have a shard each."""
    sweep = Sweep.of(
        plan("tensorflow", 4), knobs=["tensorflow.cancel=False,True", "servers=1,2"], rates=[1.0, 2.0]
    )
    expected = [
        call(f"tensorflow(backups={backups}, cancel={cancel}, servers={servers})")
        for backups, cancel, servers in itertools.product((None, 2, 3), (False, True), (1, 2))
        if not (cancel and servers == 2)
    ]
    assert [setting.call for setting in sweep.grids[0]] == [each for each in expected for _ in range(2)]
    assert sweep.left_out == {call("tensorflow"): 3}


def test_a_value_that_is_there_twice_is_tried_once_and_nothing_is_left_out(tmp_path: Path) -> None:
    """A strategy of somebody's own may count its default among its knobs."""
    idea = tmp_path / "waiting.py"
    idea.write_text(
        "import fast\n"
        "class Waiting(fast.Strategy):\n"
        "    knobs = {'every': (2, 4)}\n"
        "    def __init__(self, every=2):\n"
        "        self.every = every\n"
        "    async def step(self, me):\n"
        "        me.apply(me.gradient)\n"
    )
    sweep = Sweep.of(plan(f"{idea}:Waiting"), rates=[1.0])
    assert [arguments_of(setting.call) for setting in sweep.grids[0]] == [{"every": "2"}, {"every": "4"}]
    assert sweep.left_out == {}


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        (["tau"], "write strategy.argument=value"),
        (["local_sgd.tau="], "write strategy.argument=value"),
        (["local_sgd.tau=2,,"], "write strategy.argument=value"),
        (["local_sgd.tua=2"], "local_sgd has no argument tua. Did you mean tau"),
        (["locl_sgd.tau=2"], "no strategy of this sweep is called locl_sgd. Did you mean local_sgd"),
        (["rho=2"], "no strategy of this sweep has an argument rho. There are: tau"),
        (["local_sgd.tau=0"], "--knob local_sgd.tau=0: "),
        (["local_sgd.tau=two"], "--knob local_sgd.tau=two: nothing is called"),
        (["local_sgd.tau=2", "tau=3"], "tau is given twice"),
    ],
)
def test_knobs_that_can_not_be_turned_are_refused(knobs: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Sweep.of(plan("local_sgd"), knobs=knobs)


def test_values_that_so_many_workers_can_not_train_with_are_refused() -> None:
    with pytest.raises(UsageError, match=r"backups=5: .*none is left"):
        Sweep.of(plan("tensorflow", 3), knobs=["tensorflow.backups=5"])


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "one"])
def test_rates_are_numbers_above_0(text: str) -> None:
    assert parse_rates("0.5,1,0.5") == [0.5, 1.0]
    with pytest.raises(UsageError, match="--rates"):
        parse_rates(text)


def test_values_are_cut_at_commas_outside_brackets() -> None:
    turned = parse_knob("my/ideas.py:Mine.codec=chain(clip(1.0), top_k(0.1)),None, my.py:rule,'a,b'")
    assert (turned.strategy, turned.knob) == ("my/ideas.py:Mine", "codec")
    assert turned.values == ("chain(clip(1.0), top_k(0.1))", "None", "my.py:rule", "'a,b'")


def test_a_sweep_is_a_matter_of_the_simulator() -> None:
    with pytest.raises(UsageError, match="runs in the simulator"):
        Sweep.of(Plan.of(OWN, "allreduce", 2, epochs=1, world=Real()))


# What no other setting beats

costs = st.one_of(st.none(), st.tuples(st.integers(1, 6), st.integers(0, 6)))


def point(number: int, cost: tuple[float, int] | None, score: float | None = 0.5, **others: Any) -> Point:
    time_s, nbytes = cost or (None, None)
    return Point(f"strategy{number}()", 1.0, score, time_s, nbytes, **others)


@given(st.lists(costs, max_size=12))
def test_the_front_is_what_nobody_beats(drawn: list[tuple[int, int] | None]) -> None:
    """Against every pair: beaten is who meets another that is nowhere worse and somewhere better."""
    points = [point(number, cost) for number, cost in enumerate(drawn)]
    reached = [(each, each.cost) for each in points if each.cost is not None]
    unbeaten = {
        each
        for each, (time_s, nbytes) in reached
        if not any(
            other[0] <= time_s and other[1] <= nbytes and other != (time_s, nbytes) for _, other in reached
        )
    }
    found = front(points)
    assert set(found) == unbeaten and len(found) == len(unbeaten)
    times = [each.time_to_target_s for each in found]
    assert times == sorted(times)  # type: ignore[type-var]


def test_the_best_reaches_the_target_first_and_else_scores_highest() -> None:
    failed, lost = point(0, None, None, error="no"), point(1, None, None)
    low, high = point(2, None, 0.2), point(3, None, 0.9)
    slow, fast_, lean = point(4, (3.0, 1), 0.1), point(5, (2.0, 9), 0.1), point(6, (2.0, 8), 0.1)
    assert best([failed, lost, low]) is low and best([low, high, lost]) is high
    assert best([high, slow]) is slow and best([slow, fast_]) is fast_ and best([slow, fast_, lean]) is lean


# Trials


def test_a_trial_is_the_run_of_a_comparison_with_its_seed() -> None:
    """Times, bytes and score of `fast.lab.compare`, which judges every tick on its own way."""
    sweep = Sweep.of(plan("gossip(p=0.5),ssp", epochs=4, target=0.6), knobs=["bound=3"], rates=[1.0])
    with jobs_of(sweep, 1) as jobs:
        swept = run_sweep(sweep, jobs)
    compared = compare(
        OWN, "gossip(p=0.5),ssp(bound=3)", 2, epochs=4, target=0.6, seeds=[sweep.seed], world=Simulated()
    )
    for found, row in zip(swept.points, compared.results, strict=True):
        assert row.time_to_target_s is not None and row.bytes_to_target
        assert found.strategy == row.strategy and found.score == row.final_score
        assert found.cost == (row.time_to_target_s, row.bytes_to_target)
        assert (found.duration_s, found.bytes_sent) == (row.duration_s, row.bytes_sent)


def test_settings_are_judged_on_validation_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_TEST_SEAL", str(tmp_path / "seal"))
    swept = swept_here(Sweep.of(plan("allreduce", task=TUNED), rates=[1.0]))
    assert swept.to_json()["judged_on"] == "validation" and swept.points[0].score is not None
    assert not (tmp_path / "seal").exists(), "nobody has looked at the test data"


def test_what_fails_has_no_figures_and_stops_nobody() -> None:
    swept = swept_here(Sweep.of(plan(f"{BROKEN},allreduce"), rates=[1.0, 2.0]))
    failed, fine = swept.tried.values()
    assert [each.error for each in failed] == ["ValueError: an idea that doesn't work"] * 2
    assert all(each.error is None and each.score is not None for each in fine)
    assert swept.failed == list(failed)


def swept_here(sweep: Sweep) -> Swept:
    with jobs_of(sweep, 1) as jobs:
        return run_sweep(sweep, jobs)


# Whatever the number of jobs, and whoever finishes first


def worth(setting: Setting) -> Point:
    """A formula with its best at rate sqrt(2) and tau 8; bytes fall as tau grows."""
    tau = float(arguments_of(setting.call).get("tau", "1"))
    time_s = (1 + (math.log2(setting.rate) - 0.5) ** 2) * (1 + abs(tau - 8) / 16)
    lost = setting.rate > 3.5
    cost = (None, None) if lost else (time_s, round(1e6 / tau))
    return Point(setting.call, setting.rate, None if lost else 0.9, *cost, duration_s=9.0, bytes_sent=10**7)


class Scripted(Jobs):
    """So many at once, which end in an order that a seed decides."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.random, self.under_way = count, random.Random(seed), list[Setting]()
        self.started: list[Setting] = []

    @property
    def free(self) -> bool:
        return len(self.under_way) < self.count

    def start(self, setting: Setting) -> None:
        assert self.free and setting not in self.started, "each setting is tried once"
        self.under_way.append(setting)
        self.started.append(setting)

    def wait(self) -> list[Point]:
        ended = self.random.randint(1, len(self.under_way))
        return [worth(self.under_way.pop(self.random.randrange(len(self.under_way)))) for _ in range(ended)]

    def close(self) -> None: ...


@functools.cache
def made(name: str) -> Sweep:
    if name == "grid":
        return Sweep.of(plan("local_sgd,gossip,local_sgd(tau=4)"), knobs=["p=0.1,0.5"])
    return Sweep.of(plan("local_sgd,allreduce"), search=13)


either = pytest.mark.parametrize("name", ["grid", "search"])


@either
def test_the_result_does_not_depend_on_how_many_jobs_there_are(name: str) -> None:
    first = run_sweep(made(name), Scripted(1, 0)).to_json()
    for count, seed in ((2, 1), (50, 3)):
        assert run_sweep(made(name), Scripted(count, seed)).to_json() == first


@either
@pytest.mark.parametrize("kept", [0, 11])
def test_a_sweep_that_was_killed_goes_on_to_the_same_end(name: str, kept: int, tmp_path: Path) -> None:
    """Ended in the middle of a line, after so many whole ones."""
    sweep = made(name)
    whole = run_sweep(sweep, Scripted(2, 0))

    def write(record: Record, jobs: Jobs) -> None:
        swept = run_sweep(sweep, jobs, known=record.known, keep=record.add)
        record.write_result(swept.to_json())

    with Record.create(tmp_path / "whole", sweep.wanted) as record:
        write(record, Scripted(2, 0))
    lines = (tmp_path / "whole" / TRIALS).read_bytes().splitlines(keepends=True)
    (tmp_path / "torn").mkdir()
    torn = b"".join(lines[: 1 + kept]) + lines[1 + kept][:30]
    (tmp_path / "torn" / TRIALS).write_bytes(torn)
    with Record.resume(tmp_path / "torn") as record:
        assert len(record.known) == kept
        assert Sweep.again(record.wanted).wanted == sweep.wanted
        jobs = Scripted(3, 5)
        write(record, jobs)
        assert len(jobs.started) == len(whole.points) - kept, "what is known isn't tried again"
    assert (tmp_path / "torn" / RESULT).read_bytes() == (tmp_path / "whole" / RESULT).read_bytes()
    assert sorted((tmp_path / "torn" / TRIALS).read_bytes().splitlines()) == sorted(
        line.rstrip(b"\n") for line in lines
    )


def test_what_failed_is_tried_again_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    sweep = Sweep.of(plan("allreduce"), rates=[1.0, 2.0])
    (one, other) = sweep.grids[0]
    with Record.create(tmp_path / "a", sweep.wanted) as record:
        record.add(Point(one.call, one.rate, error="disk full"))
    with (tmp_path / "a" / TRIALS).open("a") as file:
        file.write('{"strategy": "allr\n')
    with Record.resume(tmp_path / "a") as record:
        record.add(worth(other))
    with Record.resume(tmp_path / "a") as record:
        assert record.known == {other: worth(other)}


def test_folders_that_are_no_sweep_and_those_of_others_are_refused(tmp_path: Path) -> None:
    sweep = Sweep.of(plan("allreduce"), rates=[1.0])
    with Record.create(tmp_path / "a", sweep.wanted):
        with pytest.raises(UsageError, match="is there already"):
            Record.create(tmp_path / "a", sweep.wanted)
        with pytest.raises(UsageError, match="another process"):
            Record.resume(tmp_path / "a")
    with pytest.raises(UsageError, match=r"has no trials\.jsonl"):
        Record.resume(tmp_path)
    later = msgspec.json.encode({**msgspec.to_builtins(sweep.wanted), "schema": 2}) + b"\n"
    for damaged in (b"", b'{"schema": 1}\n', b"no json\n", later):
        (tmp_path / TRIALS).write_bytes(damaged)
        with pytest.raises(UsageError, match="doesn't begin like a sweep"):
            Record.resume(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    wanted = Sweep.of(plan("allreduce"), rates=[1.0]).wanted
    with Path("/dev/full").open("wb") as full:
        record = Record(tmp_path, full, wanted, {})
        with pytest.raises(FastError, match=r"No space left.*go on with: fast sweep --resume"):
            record.add(worth(Setting("local_sgd(tau=4)")))
        record.close()


# Search


def test_a_search_begins_with_what_the_strategy_does_by_itself_and_finds_better() -> None:
    swept = run_sweep(Sweep.of(plan("local_sgd"), search=40), Scripted(4, 0))
    points = swept.points
    assert points[0].setting == Setting(call("local_sgd"), 1.0) and 30 < len(points) <= 40
    taus = [int(arguments_of(each.strategy)["tau"]) for each in points]
    assert min(taus) >= 4 and max(taus) <= 25 and len(set(taus)) > 3, "between the values, not only those"
    assert all(min(RATES) <= each.rate <= max(RATES) for each in points)
    first, fastest = points[0].time_to_target_s, best(points).time_to_target_s
    assert first is not None and fastest is not None and fastest < 0.95 * first


def test_a_search_chooses_among_what_is_no_number_and_leaves_out_what_can_not_be_built() -> None:
    knobs = ["cancel=False,True", "servers=1,2"]
    points = run_sweep(Sweep.of(plan("tensorflow", 4), knobs=knobs, search=24), Scripted(3, 1)).points
    drawn = [arguments_of(each.strategy) for each in points]
    seen = {(values["cancel"], values["servers"]) for values in drawn}
    assert len(seen) > 1 and seen <= {("False", "1"), ("False", "2"), ("True", "1")}
    backups = {values["backups"] for values in drawn}
    assert len(backups) > 1 and backups <= {"None", "2", "3"}


def test_the_seed_decides_what_is_searched() -> None:
    tried = [
        [each.setting for each in run_sweep(Sweep.of(plan("local_sgd", seeds=[seed]), search=6), Scripted(1, 0)).points]
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert tried[0] == tried[1] != tried[2]


def test_the_nearer_to_the_target_the_better() -> None:
    """Reached, then missed by little, by much, a lost model; what failed says nothing."""
    spent: dict[str, Any] = {"duration_s": 4.0, "bytes_sent": 1000}
    order = [
        aims(each, 0.9)
        for each in (
            point(0, (2.0, 500), 0.9, **spent),
            point(1, (4.0, 1000), 0.9, **spent),
            point(2, None, 0.8, **spent),
            point(3, None, 0.1, **spent),
            point(4, None, None, **spent),
        )
    ]
    assert order[0] == (math.log(2.0), math.log(500))
    for axis in (0, 1):
        along = [each[axis] for each in order if each is not None]
        assert len(along) == 5 and along == sorted(set(along))
    assert aims(point(5, None, None, error="no"), 0.9) is None


def test_a_search_without_optuna_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching_module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fast-training\[search\]'"):
        Sweep.of(plan("local_sgd"), search=3)
    assert Sweep.of(plan("local_sgd"), rates=[1.0]).trials == 3, "the grid needs nothing"


# What comes out


def test_the_result_has_every_trial_and_says_which_are_unbeaten() -> None:
    swept = run_sweep(made("grid"), Scripted(2, 0))
    data = json.loads(json.dumps(swept.to_json(), allow_nan=False))
    assert [each["label"] for each in data["strategies"]] == ["local_sgd", "gossip", "local_sgd(tau=4)"]
    for entry, space in zip(data["strategies"], made("grid").spaces, strict=True):
        rows = entry["trials"]
        assert len(rows) == math.prod(map(len, space.knobs.values())) * len(RATES)
        assert entry["best"]["time_to_target_s"] == min(reached(rows, "time_to_target_s"))
        assert entry["reached"] == len(reached(rows, "time_to_target_s")) < len(rows)
    everything = [row for entry in data["strategies"] for row in entry["trials"]]
    unbeaten = {(row["strategy"], row["rate"]) for row in everything if row["on_front"]}
    assert unbeaten == {(row["strategy"], row["rate"]) for row in data["front"]}
    assert min(reached(everything, "bytes_to_target")) == data["front"][-1]["bytes_to_target"]
    assert not {"timestamps", "machine", "commit"} & set(data) and "cores" not in data["facts"]


def reached(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def test_a_setting_that_two_strategies_share_is_tried_once_and_belongs_to_both() -> None:
    jobs = Scripted(2, 0)
    swept = run_sweep(made("grid"), jobs)
    shared = {Setting(call("local_sgd(tau=4)"), rate) for rate in RATES}
    assert all(jobs.started.count(setting) == 1 for setting in shared)
    wide, _, narrow = swept.tried.values()
    assert {each.setting for each in narrow} == shared < {each.setting for each in wide}


@pytest.mark.parametrize("jobs", [0, -2])
def test_at_least_one_job(jobs: int) -> None:
    with pytest.raises(UsageError, match=f"--jobs {jobs}"):
        jobs_of(made("grid"), jobs)


# Processes


@pytest.mark.real
def test_two_processes_find_what_one_does() -> None:
    sweep = Sweep.of(plan("local_sgd,gossip"), rates=[1.0])
    alone = swept_here(sweep).to_json()
    with jobs_of(sweep, 2) as jobs:
        assert run_sweep(sweep, jobs).to_json() == alone


@pytest.mark.long
@pytest.mark.real
def test_a_process_that_dies_is_named_with_what_it_tried(tmp_path: Path) -> None:
    idea = tmp_path / "deadly.py"
    idea.write_text(
        "import os, fast\n"
        "class Deadly(fast.Strategy):\n"
        "    async def step(self, me):\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    sweep = Sweep.of(plan(f"{idea}:Deadly"), rates=[1.0, 2.0])
    says = "a process of the sweep was killed by signal 9, .* while it tried .*Deadly"
    with jobs_of(sweep, 2) as jobs, pytest.raises(FastError, match=says):
        run_sweep(sweep, jobs)
