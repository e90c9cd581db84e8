"""Situations: what is measured of the machines, what a what-if changes, and what can't be."""

from __future__ import annotations

from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.lab import Simulated
from fast.lab.planner.measuring import sizes_of
from fast.lab.planner.needs import Needs, parse_memory
from fast.lab.planner.situation import Situation
from fast.lab.sizes import Sizes
from fast.sim import Cluster
from fast.sim.cluster import cluster_of, read_cluster

WHOLE = 512_000
"""Parameters that fill 32 layers without padding: 2,048,000 bytes of weights."""

RACKS = """
schema = 1
[compute]
step = "5ms"
speeds = "0-1:1,2-3:0.5"
straggler = "3x@0.2/5"
[network]
rate = "1gbit"
latency = "100us"
receive = "500mbit"
message = "5us"
hosts = 2
[network.racks]
hosts = 2
rate = "200mbit"
latency = "1ms"
[[network.links]]
from = 0
to = 3
rate = "10mbit"
latency = "3ms"
"""


def situation(
    workers: int = 8, needs: Needs | None = None, parameters: float = WHOLE, **words: object
) -> Situation:
    return Situation.of(Sizes.of_parameters(parameters), workers, Simulated(**words), needs)  # type: ignore[arg-type]


# What is measured of machines


def test_machines_without_differences_have_no_stragglers() -> None:
    straggling = situation().straggling
    assert (straggling.always, straggling.at_times, straggling.worst) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("words", "always"),
    [
        ({"straggler": "4x"}, 4.0),
        ({"speeds": "0-5:1,6-7:0.5"}, 2.0),
        ({"speeds": "0-2:1,3-7:0.5"}, 1.0),
        ({"speeds": "0-5:2,6-7:1", "straggler": "3x"}, 6.0),
        ({"straggler": "4x@0.5"}, 1.0),
    ],
)
def test_slow_machines_are_measured_against_the_median(words: dict[str, str], always: float) -> None:
    assert situation(**words).straggling.always == pytest.approx(always)


@pytest.mark.parametrize(
    ("workers", "words", "always", "step_s"),
    [
        (2, {"straggler": "4x"}, 4.0, 0.02),
        (2, {"speeds": "1,0.625"}, 1.6, 0.02),
        (4, {"speeds": "0-1:0.5,2-3:0.25"}, 2.0, 0.04),
        (4, {"speeds": "0-3:0.25"}, 1.0, 0.08),
        (4, {"speeds": "0-2:4,3:1", "step": "1s"}, 4.0, 0.25),
    ],
)
def test_a_step_is_that_of_the_worker_in_the_middle(
    workers: int, words: dict[str, str], always: float, step_s: float
) -> None:
    """Of two the faster one: half of the workers are no exception."""
    plan = situation(workers, **words)
    assert (plan.straggling.always, plan.step_s) == pytest.approx((always, step_s))


def test_workers_with_a_time_or_a_pace_of_their_own() -> None:
    sizes, text = Sizes.of_parameters(WHOLE), "schema = 1\n[compute]\n"
    own = Situation(sizes, 3, read_cluster(text + 'workers = { 0 = "1s", 1 = "1s", 2 = "3s" }\n'))
    assert (own.straggling.always, own.step_s) == pytest.approx((3.0, 1.0))
    paced = 'step = "10ms"\npace = "40ms"\nspeeds = "0-1:0.5"\n'
    even = Situation(sizes, 3, read_cluster(text + paced))
    late = Situation(sizes, 3, read_cluster(text + paced + 'straggler = "2x"\n'))
    for plan, always in ((even, 1.0), (late, 2.0)):
        seen = sorted(plan.compute.duration_ns(worker, 3, 0, 0) / 1e9 for worker in range(3))
        assert seen == pytest.approx([0.04, 0.04, 0.04 * always])
        assert (plan.straggling.always, plan.step_s) == pytest.approx((always, 0.04))


@pytest.mark.parametrize("words", [{"straggler": "5x@0.1"}, {"straggler": "3x@0.02"}])
def test_stragglers_at_times_cost_what_rounds_of_the_simulator_cost(words: dict[str, str]) -> None:
    planned = situation(16, **words)
    compute = cluster_of(**words).compute  # type: ignore[arg-type]
    rounds = [max(compute.duration_ns(worker, 16, step, 7) for worker in range(16)) for step in range(2000)]
    assert planned.straggling.at_times == pytest.approx(mean(rounds) / 20e6, rel=0.05)


def test_a_spread_costs_what_rounds_of_the_simulator_cost() -> None:
    planned, compute = situation(16, spread=0.3), cluster_of(spread=0.3).compute
    rounds = [max(compute.duration_ns(worker, 16, step, 7) for worker in range(16)) for step in range(500)]
    assert planned.straggling.at_times == pytest.approx(median(rounds) / 20e6, rel=0.1)
    assert planned.step_s == pytest.approx(
        mean(compute.duration_ns(0, 16, step, 7) for step in range(20_000)) / 1e9, rel=0.02
    )


def test_the_way_between_two_hosts_is_as_slow_as_its_slowest_part() -> None:
    sizes = Sizes.of_parameters(WHOLE)
    racks = Situation(sizes, 8, read_cluster(RACKS))
    assert racks.rate_bytes_per_s == 200e6 / 8 and racks.latency_s == pytest.approx(1.105e-3)
    lonely = RACKS.replace("from = 0\nto = 3", "from = 0\nto = 7")
    assert Situation(sizes, 8, read_cluster(lonely)).rate_bytes_per_s == 200e6 / 8, "one link is no other"
    around = 'schema = 1\n[network]\nprofile = "1gbit"\nhosts = [0, 1, 1, 0]\n'
    assert Situation(sizes, 4, read_cluster(around)).rate_bytes_per_s == 125e6, "and so does a host of two"
    wifi = situation(network="wifi")
    assert wifi.rate_bytes_per_s == 2.5e6 and wifi.latency_s == pytest.approx(5.1e-3)


# What if


def test_a_faster_network_is_faster_in_everything_between_hosts() -> None:
    plan = Situation(Sizes.of_parameters(WHOLE), 4, read_cluster(RACKS))
    network = plan.with_network(faster=10).network
    assert (network.rate_bytes_per_s, network.receives) == pytest.approx((1.25e9, 0.625e9))
    assert (network.latency_s, network.message_s) == pytest.approx((10e-6, 0.5e-6))
    assert network.racks is not None and network.racks.rate_bytes_per_s == pytest.approx(250e6)
    assert network.racks.latency_s == pytest.approx(1e-4)
    assert network.links[0, 3].rate_bytes_per_s == pytest.approx(12.5e6)
    assert plan.with_network(faster=10).compute == plan.compute


@given(workers=st.integers(2, 12), times=st.integers(1, 5), slow=st.integers(0, 11))
def test_more_workers_are_as_many_of_each_speed(workers: int, times: int, slow: int) -> None:
    slow = min(slow, workers - 1)
    plan = situation(workers, speeds=f"0-{slow}:0.5")
    more = plan.with_workers(times=times)
    assert more.workers == workers * times
    before = sorted(plan.compute.duration_ns(each, workers, 0, 0) for each in range(workers))
    after = sorted(more.compute.duration_ns(each, more.workers, 0, 0) for each in range(more.workers))
    assert after == sorted(before * times)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_network_of_no_speed_is_refused(factor: float) -> None:
    with pytest.raises(UsageError, match="times as fast"):
        situation().with_network(faster=factor)


def test_fewer_than_no_workers_are_refused() -> None:
    with pytest.raises(UsageError, match="times the workers"):
        situation().with_workers(times=0)


# Memory


def test_memory_is_counted_in_copies_of_the_weights() -> None:
    sizes = [2 * 2_048_000 - 1, 2 * 2_048_000, 4 * 2_048_000 - 1, 4 * 2_048_000]
    plans = [situation(needs=Needs(memory_bytes=memory)) for memory in sizes]
    assert [plan.model_bytes for plan in plans] == [2_048_000] * 4
    assert [plan.fits for plan in plans] == [False, True, True, True]
    assert [plan.fits_optimizer for plan in plans] == [False, False, False, True]


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4GB", 4e9), ("1.5 mb", 1.5e6), ("2GiB", 2 * 2**30), ("1e3kB", 1e6)]
)
def test_amounts_of_memory(text: str, nbytes: float) -> None:
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("text", ["4", "", "-4GB", "4gbit", "4 apples", "0GB", "1..2GB", "1e999GB", "nanGB"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UsageError, match="Write for example 4GB"):
        parse_memory(text)


# What can't be


@pytest.mark.parametrize("workers", [1, 0, -3])
def test_a_plan_needs_two_workers(workers: int) -> None:
    with pytest.raises(UsageError, match="from 2 workers on"):
        situation(workers)


def test_nobody_waits_for_a_million_workers() -> None:
    with pytest.raises(UsageError, match="a plan for 1,000,000,000 workers: predictions end at 30,000"):
        situation(10**9)


@pytest.mark.parametrize("step", ["0s", "0.1ns", "1e-300s"])
def test_a_step_takes_time(step: str) -> None:
    with pytest.raises(UsageError, match="a step of 0 s"):
        situation(step=step)


@pytest.mark.parametrize(
    "words", [{"straggler": "1e300x"}, {"straggler": "1e300x@0.1"}, {"network": "1e-300,1ms"}]
)
def test_nobody_waits_for_ever(words: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="a plan reckons with at most 1e\\+09 s"):
        situation(**words)


def test_machines_of_another_kind_are_refused() -> None:
    class Own:
        def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
            return 1

    with pytest.raises(UsageError, match="needs a Compute, not Own"):
        Situation(Sizes.of_parameters(WHOLE), 4, Cluster(Own()))


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"hostile": -1}, "-1 hostile workers"),
        ({"tuning": "high"}, "normal or low"),
        ({"memory_bytes": 0.0}, "can't be"),
        ({"memory_bytes": -5.0}, "can't be"),
        ({"memory_bytes": float("nan")}, "can't be"),
        ({"reproducible": True, "unreliable": True}, "contradiction"),
    ],
)
def test_needs_that_cant_be(needs: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Needs(**needs)  # type: ignore[arg-type]


@given(hostile=st.integers(1, 20), more=st.integers(-10, 10))
def test_hostile_workers_need_enough_others(hostile: int, more: int) -> None:
    workers = max(2, 2 * hostile + 3 + more)
    if workers >= 2 * hostile + 3:
        assert situation(workers, Needs(hostile=hostile)).workers == workers
        return
    with pytest.raises(UsageError, match=f"{2 * hostile + 3} workers"):
        situation(workers, Needs(hostile=hostile))


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        ({"tuning": "low"}, "has to be searched for"),
        ({"hostile": 1}, "nobody else has the part"),
        ({"unreliable": True}, "goes with every machine"),
    ],
)
def test_a_model_that_must_be_cut_contradicts_some_needs(needs: dict[str, object], why: str) -> None:
    fitting = Needs(memory_bytes=1e9, **needs)  # type: ignore[arg-type]
    assert situation(needs=fitting).fits
    with pytest.raises(UsageError, match=why):
        situation(needs=Needs(memory_bytes=1e6, **needs))  # type: ignore[arg-type]


@pytest.mark.parametrize("needs", [{"iid": False}, {"small_data": True}, {"reproducible": True}])
def test_a_model_that_must_be_cut_may_have_other_needs(needs: dict[str, object]) -> None:
    """By the table model parallelism needs no large and balanced data, and is trivial to reproduce."""
    assert not situation(needs=Needs(memory_bytes=1e6, **needs)).fits  # type: ignore[arg-type]


# Measuring


MODEL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 7))
        self[2].bias.requires_grad_(False)

class Wide(nn.Linear):
    pass

def huge():
    return nn.Linear(10**6, 10**6, bias=False)

def number():
    return 3

def lazy():
    return nn.LazyLinear(3)

frozen = nn.Linear(2, 2).requires_grad_(False)
"""


@pytest.fixture
def models(tmp_path: object) -> str:
    path = tmp_path / "some_models.py"  # type: ignore[operator]
    path.write_text(MODEL)
    return str(path)


def test_a_module_is_measured_without_values(models: str) -> None:
    sizes, task = sizes_of(f"{models}:Net", None)
    assert task is None and sizes.parameters == 100 * 50 + 50 + 50 * 7
    assert [segment.shape for segment in sizes.layout.segments] == [(50, 100), (50,), (7, 50)]
    huge, _ = sizes_of(f"{models}:huge", None)
    assert huge.parameters == 10**12


def test_a_task_is_measured() -> None:
    sizes, task = sizes_of("digits", None)
    assert task == "digits" and sizes.parameters > 1000 and sizes.name == "digits"


@pytest.mark.parametrize(
    ("what", "parameters", "said"),
    [
        (None, None, "which model"),
        ("digits", 25e6, "takes the place"),
        ("digit", None, "Did you mean digits"),
        ("{models}:Nothing", None, "has no Nothing"),
        ("{models}:Wide", None, "can't be built without arguments"),
        ("{models}:number", None, "makes int"),
        ("{models}:frozen", None, "no parameters to train"),
        ("{models}:lazy", None, "whose size isn't known"),
        (None, 1e19, "more than torch can count"),
        ("nowhere.py:Net", None, "no file nowhere.py"),
    ],
)
def test_what_cant_be_measured(models: str, what: str | None, parameters: float | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sizes_of(None if what is None else what.format(models=models), parameters)
