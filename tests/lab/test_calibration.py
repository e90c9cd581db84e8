"""Calibration: what is made of measured times, and a small one for real."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_plans import OWN

from fast.cli import calibrate
from fast.cli.calibrate import calibrate_command, files_of
from fast.cli.compare import compare_command
from fast.engine import LocalEngine
from fast.errors import UsageError
from fast.lab import Budget, Plan, Real, load_task, simulate_task
from fast.lab import training as lab_training
from fast.lab.calibration import Effort, Measurements, cluster_of, load_of_others, measure, probing
from fast.lab.calibration.fitting import Line, Spread, after_the_last, fit_line
from fast.lab.calibration.measuring import Crowd, waits_of
from fast.lab.calibration.words import found_in_words, warnings
from fast.lab.recording import COMPUTE, MERGE, SEND, WAIT, Excerpt, Slice
from fast.lab.surroundings import cores
from fast.lab.training import Pace
from fast.loop.loading import strategy_from
from fast.sim.cluster import Compute, load_cluster, read_cluster, to_toml
from running import Lent

# Fitting


@given(
    fixed=st.floats(1e-7, 1e-2),
    rate=st.floats(1e6, 1e11),
    sizes=st.lists(st.integers(0, 10**8), min_size=2, max_size=8, unique=True),
)
def test_a_line_is_found_again(fixed: float, rate: float, sizes: list[int]) -> None:
    line = fit_line([(nbytes, fixed + nbytes / rate) for nbytes in sizes])
    for nbytes in sizes:
        assert line.at(nbytes) == pytest.approx(fixed + nbytes / rate, rel=2e-3)


def test_small_letters_count_as_much_as_large_ones() -> None:
    """10 % more or less on megabytes must not change what 4 kB cost: with absolute errors it would, a lot."""
    noise = {4 << 10: 1.0, 64 << 10: 1.0, 4 << 20: 1.1, 8 << 20: 0.9}
    line = fit_line([(nbytes, factor * (10e-6 + nbytes / 10e9)) for nbytes, factor in noise.items()])
    assert line.at(4 << 10) == pytest.approx(10e-6 + (4 << 10) / 10e9, rel=0.05)
    assert line.rate == pytest.approx(10e9, rel=0.1)


def test_noise_makes_nothing_negative() -> None:
    assert fit_line([(1000, 5e-6), (2000, 4e-6)]) == Line(pytest.approx(4.4e-6, rel=0.05), math.inf)
    through_zero = fit_line([(1000, 1e-6), (2000, 3e-6)])
    assert through_zero.fixed_s == 0 and 0 < through_zero.rate < 1e9
    assert fit_line([(7, 3e-6)]) == Line(3e-6)
    with pytest.raises(UsageError, match="at least one point"):
        fit_line([])


def test_quartiles() -> None:
    spread = Spread.of([7000, 1000, 5000, 3000])
    assert (spread.median_s, spread.low_s, spread.high_s, spread.count) == (4e-6, 2.5e-6, 5.5e-6, 4)
    assert spread.uncertainty == pytest.approx(0.375)
    with pytest.raises(UsageError, match="nothing was measured"):
        Spread.of([])


def test_sigma_is_that_of_the_log_normal_distribution_with_these_quartiles() -> None:
    sigma, quarter = 0.3, 0.6744897501960817
    spread = Spread(1.0, math.exp(-sigma * quarter), math.exp(sigma * quarter), 100)
    assert spread.sigma == pytest.approx(sigma)


def test_a_mean_takes_from_when_the_last_one_came() -> None:
    came, left = [[10, 100], [20, 90]], [[50, 130], [60, 150]]
    assert after_the_last(came, left) == [35.0, 40.0]


def test_waits_are_told_from_all_else() -> None:
    slices = [
        Slice(COMPUTE, 0, 3),
        Slice(SEND, 3, 5),
        Slice(WAIT, 8, 10),
        Slice(MERGE, 18, 4),
        Slice(WAIT, 22, 7),
    ]
    assert waits_of(Excerpt("worker 0", slices=slices)) == [10, 7]


def test_nobody_is_timed_on_a_shared_core_after_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers settle before every repetition, and the trials in which they sleep come after all others."""
    done: list[str] = []
    bench = SimpleNamespace(me=SimpleNamespace(workers=(0, 1, 2), id=0), meet=lambda: None)
    for name in ("steps", "waking", "means", "fanning"):
        monkeypatch.setattr(probing.trials, name, lambda *_, rest_s=0.0, **__: {})
    monkeypatch.setattr(probing.trials, "spinning", dict)
    monkeypatch.setattr(probing.trials, "settle", lambda _: done.append("settled"))
    monkeypatch.setattr(probing, "_bench", lambda told: bench)
    monkeypatch.setattr(probing, "current_seat", lambda: None)
    monkeypatch.setattr(probing, "close_sessions", lambda seat: None)
    monkeypatch.setattr(probing, "_add", lambda found, times: None)
    orders = {"task": "digits", "cores": 2, "repetitions": 2, "rounds": 1, "sizes": [4096]}
    names = list(probing.probe(orders))
    sleeping = [name for name in names if name.startswith("waking after") or name == "rested"]
    assert len(done) == 3 and len(sleeping) == len(probing.trials.NAPS_S) + 1
    assert names[-len(sleeping) :] == sleeping


# The model

SIZES = (4096, 1 << 20, 8 << 20)


def spread(seconds: float) -> Spread:
    return Spread(seconds, seconds * 0.98, seconds * 1.02, 60)


def by_size(fixed: float, rate: float = math.inf) -> dict[int, Spread]:
    return {nbytes: spread(fixed + nbytes / rate) for nbytes in SIZES}


def waking() -> dict[float, Spread]:
    return {0.0: spread(500e-6), 0.002: spread(700e-6), 0.008: spread(690e-6), 0.03: spread(1500e-6)}


def crowd(workers: int, slower: float, weather: float = 1.0, **more: Any) -> Crowd:
    """`weather`: how much longer everything took than in other jobs, `slower`: than alone in the same one."""
    slower *= weather
    return Crowd(
        workers,
        spread(300e-6 * slower),
        spread(100e-6 * slower),
        400e-6 * weather if slower > 1 else None,
        waking(),
        by_size(workers * 1e-4, 2e9),
        **more,
    )


def machine() -> Measurements:
    """A machine whose numbers are known."""
    return Measurements(
        task="digits",
        weights_bytes=20_000,
        cores=2,
        repetitions=6,
        crowds=(
            crowd(2, 1.0),
            crowd(4, 1.25, weather=3.0, to_all=spread(60e-6 + 4096 / 5e9 + 2 * 7e-6), run=spread(3e-3)),
        ),
        computing=spread(300e-6),
        alone=spread(280e-6),
        variation=spread(1.0),
        turn=spread(100e-6),
        rested_turn=spread(110e-6),
        oversleeping=spread(60e-6),
        applying=spread(40e-6),
        server_applying=spread(35e-6),
        answering=spread(250e-6),
        operations={nbytes: spread(4 * 5e-6 + 6 * nbytes / 12e9) for nbytes in SIZES},
        sending=by_size(60e-6, 5e9),
        reading=by_size(30e-6),
        merging={nbytes: spread(5e-6 + 2 * nbytes / 12e9 + nbytes / 20e9) for nbytes in SIZES},
        trips=by_size(200e-6, 4e9),
        ways=by_size(25e-6, 40e9),
    )


def test_the_model_has_the_numbers_that_were_measured() -> None:
    cluster = cluster_of(machine())
    work = cluster.work
    assert isinstance(cluster.compute, Compute)
    assert cluster.compute.step_s == 300e-6
    assert cluster.compute.spread == pytest.approx(math.log(1.02 / 0.98) / 1.349, rel=1e-3)
    assert (work.turn_s, work.apply_s, work.cores, work.slice_s) == (100e-6, 40e-6, 2, 3e-3)
    assert (work.send_s, work.send_rate) == pytest.approx((60e-6, 5e9), rel=1e-3)
    assert work.message_s == pytest.approx(7e-6, rel=1e-2)
    assert (work.read_s, work.read_rate) == pytest.approx((30e-6, 20e9), rel=1e-2)
    assert (work.op_s, work.op_rate) == pytest.approx((5e-6, 12e9), rel=1e-3)
    link = cluster.network.placed(4).between(0, 3)
    assert (link.latency_s, link.rate_bytes_per_s) == pytest.approx((25e-6, 40e9), rel=1e-2)
    assert work.crowding == ((4, 1.25),)
    assert work.cold == ((0.002, 200e-6), (0.008, 200e-6), (0.03, 1000e-6)) and work.warm_s == 500e-6
    assert work.servers is not None
    assert (work.servers.turn_s, work.servers.apply_s) == pytest.approx((0, 35e-6), rel=1e-3)
    ways, reading, sending = 2 * (25e-6 + 20_000 / 40e9), 30e-6 + 20_000 / 20e9, 60e-6 + 20_000 / 5e9
    assert work.servers.wake_s == pytest.approx(250e-6 - ways - reading - sending, rel=1e-2)
    assert work.wake_s == 0, "what waking a worker takes is in its round trips"
    assert work.servers.send_s == work.send_s and work.servers.op_rate == work.op_rate
    for workers in (2, 4):
        for nbytes in SIZES:
            took = workers * 1e-4 + nbytes / 2e9
            assert work.mean_ns(workers, nbytes) == pytest.approx(took * 1e9, rel=1e-3)


def test_the_model_is_a_file() -> None:
    cluster = cluster_of(machine())
    assert read_cluster(to_toml(cluster)) == cluster


def test_without_more_workers_than_cores_nobody_is_crowded() -> None:
    found = machine()
    work = cluster_of(replace(found, crowds=found.crowds[:1])).work
    assert work.crowding == () and work.message_s == 0


def test_what_was_found_is_said_with_its_quartiles() -> None:
    found = machine()
    text = "\n".join(found_in_words(found, cluster_of(found)))
    assert "computing a step of digits: 300 µs (294 µs to 306 µs) with 2 cores at work" in text
    assert "a mean of 4 on this host: 402 µs" in text and "1.25 with 4" in text and "6 times in turn" in text


def test_a_way_that_is_lost_in_the_copying_is_said_to_be() -> None:
    """Copying takes 1 / 5 + 1 / 20 ns a byte: the way's 1 / 40 is a tenth of it, 1 / 4 as much again."""
    fast, slow = machine(), replace(machine(), ways=by_size(25e-6, 4e9))
    for found, lost in ((fast, True), (slow, False)):
        cluster = cluster_of(found)
        (way,) = (line for line in found_in_words(found, cluster) if line.startswith("on the way"))
        (link,) = (line for line in cluster.in_words(4) if line.startswith("two on one host"))
        for words in (way, link):
            assert ("too fast to be told from nothing" in words and "memory" in words) == lost
    assert (
        "on the way: 25 µs and 4 GB/s (round trip" in way and "have 32 Gbit/s between them; a letter" in link
    )


def test_a_busy_machine_and_wide_quartiles_are_warned_of() -> None:
    found = machine()
    assert warnings(found, 0.1) == []
    (busy,) = warnings(found, 1.4)
    assert busy.startswith("1.4 of 2 cores were busy")
    (wide,) = warnings(replace(found, turn=Spread(100e-6, 60e-6, 140e-6, 9)), 0.0)
    assert wide == "a turn varies much: half of the values lie between 60 µs and 140 µs"


def test_the_load_of_others() -> None:
    """Of 100 ticks of two cores 40 were neither idle nor waiting for a disk; how many cores we may use is no matter."""
    before, after = "cpu  10 0 10 100 0 0 0 0", "cpu  40 0 20 150 10 0 0 0"
    stats = iter([f"{all_cores}\ncpu0 1\ncpu1 1\nintr 5" for all_cores in (before, after)])
    assert load_of_others(0.0, lambda: next(stats)) == pytest.approx(0.8)


# Pace and stragglers


class Clock:
    """Time that passes only when somebody sleeps or says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lab_training, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("pace_s", "slow_steps", "ends_ms"),
    [
        (0.02, None, [20, 40, 70]),
        (0.02, {1}, [20, 100, 130]),
        (None, {0, 2}, [8, 10, 130]),
        (None, None, [2, 4, 34]),
    ],
)
def test_a_paces_rest_and_a_stragglers_extra_time_are_slept(
    clock: Clock, pace_s: float | None, slow_steps: set[int] | None, ends_ms: list[int]
) -> None:
    """Steps of 2, 2 and 30 ms; four times slower in some of them."""
    slowness = None if slow_steps is None else (lambda step: 4.0 if step in slow_steps else 1.0)
    pace, ends = Pace(pace_s, slowness, clock.sleep), []
    for computing_ms in (2, 2, 30):
        pace.begin()
        clock.now_ns += computing_ms * 1_000_000
        pace.keep()
        ends.append(clock.now_ns // 1_000_000)
    assert ends == ends_ms
    assert pace.exceeded == (1 if pace_s else 0)


def test_a_real_straggler_is_checked_and_kept() -> None:
    plan = Plan.of(OWN, "allreduce", 2, world=Real("4x"), pace_s=0.02)
    assert plan.settings.world == Real("4x") and Plan.again(plan.settings).settings == plan.settings
    with pytest.raises(UsageError, match="no straggler"):
        Plan.of(OWN, "allreduce", 2, world=Real("slow"))


# For real


@pytest.mark.long
@pytest.mark.real
def test_the_last_worker_is_slower_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAST_TEST_SEAL", str(tmp_path / "seal"))
    compare_command(
        OWN, "allreduce", workers=2, epochs=1, pace="5ms", straggler="4x", seed=0, json="out.json"
    )
    data = json.loads(Path("out.json").read_text())
    (row,) = data["results"]
    usual, slow = row["participants"]
    assert data["settings"]["world"] == {"kind": "real", "straggler": "4x"}
    assert usual["compute_s"] >= row["steps"] * 0.005
    assert slow["compute_s"] >= row["steps"] * 0.020, "a sleep never ends early"


@pytest.mark.long
@pytest.mark.real
def test_a_tiny_calibration(engine: LocalEngine) -> None:
    """All of it is measured, positive and finite; the file reads back, and simulates."""
    found = measure("digits", workers=(3,), effort=Effort(1, 0.001), engine=engine)
    cluster = cluster_of(found)
    few = max(2, found.cores)
    assert [crowd.workers for crowd in found.crowds] == sorted({3, few, max(3, few + 1)})
    spreads = [value for value in vars(found).values() if isinstance(value, Spread)]
    for sizes in (found.operations, found.sending, found.reading, found.merging, found.trips):
        spreads += sizes.values()
    assert [crowd.alone_s is not None for crowd in found.crowds] == [
        crowd.workers > few for crowd in found.crowds
    ]
    for one in found.crowds:
        spreads += [one.computing, one.turn, *one.means.values()]
    assert all(0 < each.low_s <= each.median_s <= each.high_s < 60 for each in spreads)
    assert 20e-6 < found.computing.median_s < 60 and found.weights_bytes == 4810 * 4
    assert read_cluster(to_toml(cluster)) == cluster
    run = simulate_task(
        load_task("digits"),
        strategy_from("ssp"),
        workers=3,
        budget=Budget.of(load_task("digits"), 3, 0.5),
        cluster=cluster,
    )
    steps = sum(report.samples for report in run.workers) / 32
    assert run.duration_ns * 3 / steps > cluster.compute.step_s * 1e9  # type: ignore[attr-defined]


@pytest.mark.real
def test_the_command_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, engine: LocalEngine
) -> None:
    monkeypatch.setattr(calibrate, "QUICK", Effort(1, 0.001))
    monkeypatch.setattr(calibrate, "LocalEngine", lambda: Lent(engine))
    out = tmp_path / "machine.toml"
    written = tmp_path / "measured.json"
    assert calibrate_command(["quadratic"], workers="2", out=str(out), quick=True, json=str(written)) == 0
    assert isinstance(load_cluster(out).compute, Compute)
    said = capsys.readouterr()
    assert (
        "computing a step of quadratic" in said.out and f"fast simulate quadratic --cluster {out}" in said.out
    )
    assert "measuring: 2 workers" in said.err
    data = json.loads(written.read_text())
    assert (data["schema"], data["kind"]) == (1, "calibration")
    (own,) = data["tasks"]
    assert (own["task"], own["file"], own["cluster"]["work"]["cores"]) == ("quadratic", str(out), cores())
    assert own["measured"]["computing"]["median_s"] > 0 and own["measured"]["crowds"][0]["workers"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": "2,x"}, "numbers of workers"),
        ({"workers": "1,2"}, "from 2 to"),
        ({"out": "/no/such/folder/x.toml"}, "a folder that exists"),
        ({"tasks": ["nothing"]}, "nothing"),
        ({"json": "/no/such/folder/x.json"}, "there is no folder /no/such/folder"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_measured(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        calibrate_command(**{"tasks": ["digits"], "workers": "2", "out": "machine.toml", **options})


def test_each_of_several_tasks_has_a_file_of_its_own(tmp_path: Path) -> None:
    files = files_of(["digits", OWN], tmp_path / "m.toml")
    assert files["digits"] == tmp_path / "m-digits.toml"
    assert files[OWN].parent == tmp_path and files[OWN].name.startswith("m-problems-py-")
    assert files_of(["digits"], tmp_path / "m.toml") == {"digits": tmp_path / "m.toml"}


def test_what_could_not_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.toml").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).is_dir())
    with pytest.raises(UsageError, match="there already and can't be written"):
        files_of(["digits"], tmp_path / "m.toml")
    files_of(["digits"], tmp_path / "other.toml")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tasks.py").write_text((Path(OWN.partition(":")[0])).read_text())
    name = OWN.partition(":")[2]
    twice = [f"{tmp_path / folder / 'tasks.py'}:{name}" for folder in ("a", "b")]
    with pytest.raises(UsageError, match="to one file"):
        files_of(twice, tmp_path / "m.toml")
