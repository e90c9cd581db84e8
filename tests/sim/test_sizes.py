"""Runs with sizes only: the same events as with values, codecs by their formulas, and what needs values says so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from typer.testing import CliRunner

from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.adapters.sizes import PIECES, Sized, layout_of, layout_of_parameters, sized
from fast.cli.app import make_app
from fast.core import Me, Replica, Strategy, Task
from fast.errors import UsageError
from fast.lab import Simulated, load_task
from fast.lab.sizes import Sizes, rows_of, simulate_sizes
from fast.lab.tally import Tally
from fast.loop.loading import strategy_from
from fast.parts.codecs import Codec
from fast.parts.codecs.base import Coder
from fast.sim import Cluster, Simulation, SimWorker, TraceHash
from fast.sim.cluster import Hosts, Work, cluster_of
from fast.sim.faults import Director, parse_scenario
from fast.strategies.catalogue import catalogue
from fast.trace import Meter, Record, Stepped
from fast.view import Layout

WORKERS, STEPS, BATCH = 6, 5, 2
SLOW = cluster_of(None, network="1gbit", step="20ms", straggler="5x@0.2", spread=0.3)
ONE_HOST = replace(SLOW, network=replace(SLOW.network, hosts=Hosts(each=None)))
WORK = Work(turn_s=1e-4, apply_rate=1e9, send_s=2e-5, read_rate=2e9, op_s=1e-5, op_rate=1e9)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def known_sizes() -> Sizes:
    with torch.device("meta"):
        model = network()
    layout = layout_of(model, optimizer_of(model))
    return Sizes("test", layout, BATCH, (0.1,), {"0.weight": 1, "2.weight": 1})


def simulation_of(
    strategy: Strategy,
    workers: Sequence[SimWorker],
    servers: Sequence[Replica],
    watch: Callable[[Record], None],
    *,
    cluster: Cluster = SLOW,
    seed: int = 0,
    scenario: str = "",
) -> Simulation:
    faults = parse_scenario(scenario)
    return Simulation(
        strategy,
        workers,
        server_replicas=servers,
        cluster=cluster,
        seed=seed,
        observers=[watch],
        faults=Director(faults, seed),
        absent=faults.absent,
    )


def with_values(call: str, watch: Callable[[Record], None], **options: Any) -> int:
    """Real replicas and gradients; how long it took."""
    strategy, replicas = strategy_from(call), []
    for _ in range(WORKERS):
        model = network()
        replicas.append(TorchReplica(model, optimizer_of(model)))

    def computing(replica: TorchReplica) -> Callable[[int], None]:
        def compute(samples: int) -> None:
            replica.samples = samples
            x, y = torch.randn(samples, 64), torch.randint(0, 10, (samples,))
            replica.compute(lambda: nn.functional.cross_entropy(replica.model(x), y))

        return compute

    first = replicas[0]
    simulation = simulation_of(
        strategy,
        [SimWorker(replica, itertools.repeat(BATCH, STEPS), computing(replica)) for replica in replicas],
        server_replicas(first, strategy.servers(WORKERS), sharded=strategy.sharded),
        watch,
        **options,
    )
    simulation.run()
    return simulation.now_ns


def without_values(call: str, watch: Callable[[Record], None], **options: Any) -> int:
    strategy, sizes = strategy_from(call), known_sizes()
    counted = options.get("cluster", SLOW).work.counts
    replicas = [sizes.replica(counted=counted) for _ in range(WORKERS)]
    workers = [SimWorker(replica, itertools.repeat(BATCH, STEPS), replica.compute) for replica in replicas]
    servers = sizes.servers(strategy, WORKERS, counted=counted)
    simulation = simulation_of(strategy, workers, servers, watch, **options)
    simulation.run()
    return simulation.now_ns


def assert_same_events(call: str, **options: Any) -> None:
    real, bare = TraceHash(), TraceHash()
    ended_ns = with_values(call, real, **options)
    assert without_values(call, bare, **options) == ended_ns > 0
    assert (bare.records, bare.hexdigest()) == (real.records, real.hexdigest())
    assert real.records > WORKERS * STEPS


# The same events

CALLS = (
    "local_sgd(tau=3)",
    "ssp(0)",
    "ssp(inf, codec=int8())",
    "ssp(2, codec=error_feedback(top_k(0.01)), bucket_mb=0.001)",
    "torus(send='merged', codec=dgc(0.01))",
    "torus(codec=chain(top_k(0.05), int8()), bucket_mb=0.001)",
    "gossip(p=0.5)",
    "dpsgd(topology=exponential(one_peer=True))",
    "choco(codec=sampled_top_k(0.1))",
    "allreduce(bucket_mb=0.001)",
    "allreduce(algorithm='ring')",
    "allreduce(algorithm='rabenseifner')",
    "allreduce(codec=fp16())",
    "allreduce(codec=int8())",
    "allreduce(codec=top_k(0.1))",
    "allreduce(codec=random_k(0.1))",
    "allreduce(codec=power_sgd(2))",
    "allreduce(codec=chain(clip(1.0), low_rank(1)))",
    "allreduce(codec=dgc(0.01, warm_up=4))",
)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("call", catalogue())
def test_every_preset_has_the_same_events_with_sizes_alone(call: str, seed: int) -> None:
    assert_same_events(call, seed=seed, cluster=ONE_HOST if strategy_from(call).one_host else SLOW)


@pytest.mark.parametrize("call", CALLS)
def test_codecs_buckets_and_algorithms_too(call: str) -> None:
    assert_same_events(call)


@pytest.mark.parametrize("call", ["allreduce", "local_sgd(tau=2)", "dpsgd", "torus", "gossip(p=0.5)", "ssp"])
def test_under_faults_too(call: str) -> None:
    scenario = "worker 3 dies at 60ms; deaths are noticed after 20ms; letters take up to 2ms longer"
    assert_same_events(call, scenario=scenario)


@pytest.mark.parametrize("call", ["allreduce", "dpsgd", "torus", "gossip(p=0.5)", "ssp"])
def test_where_local_work_takes_time_too(call: str) -> None:
    assert_same_events(call, cluster=Cluster.of(SLOW, work=WORK))


def test_it_would_be_seen_if_sizes_were_wrong() -> None:
    """One value more in a letter, and the trace is another one."""
    real, other = TraceHash(), TraceHash()
    with_values("dpsgd", real)
    layout = Layout.of(
        [*((s.name, s.shape) for s in known_sizes().layout.segments), ("more", (1,))], torch.float32
    )
    sizes = Sizes("larger", layout, BATCH)
    replicas = [sizes.replica() for _ in range(WORKERS)]
    workers = [SimWorker(replica, itertools.repeat(BATCH, STEPS), replica.compute) for replica in replicas]
    simulation_of(strategy_from("dpsgd"), workers, [], other).run()
    assert other.hexdigest() != real.hexdigest()


# Codecs

FIXED = (
    "fp16()", "bf16()", "scaled_fp16()", "int8()", "block_int8()", "qsgd()", "terngrad()", "two_bit()", "sign()",
    "scaled_sign()", "column_means()", "top_k(0.03)", "random_k(0.03)", "random_k(0.03, shared=False)", "low_rank(2)",
    "one_bit_sgd()", "ef_sign()", "mxnet_two_bit()", "power_sgd(1)", "error_feedback(top_k(0.02))",
    "chain(top_k(0.1), int8())", "chain(clip(1.0), qsgd())",
)  # fmt: skip


def codec_of(text: str) -> Codec:
    found = strategy_from(f"torus(codec={text})").tags[0].codec
    assert found is not None
    return found


@pytest.mark.parametrize("text", FIXED)
@pytest.mark.parametrize("shapes", [((64, 64), (64,), (10, 64)), ((7,),), ((33, 5, 2), (300,))])
def test_bytes_without_values_are_as_many_as_with_them(text: str, shapes: Sequence[tuple[int, ...]]) -> None:
    layout = Layout.of([(f"p{number}", shape) for number, shape in enumerate(shapes)], torch.float32)
    codec, values = codec_of(text), torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
    for device in ("cpu", "meta"):
        coder = Coder(codec, layout, 0, device)
        packed = [coder.encode(values if device == "cpu" else sized(layout.size)) for _ in range(2)]
        assert {each.numel() for each in packed} == {codec.nbytes(layout)}
        assert coder.decode(packed[0]).shape == values.shape


def test_where_the_number_depends_on_values_it_is_what_is_aimed_at() -> None:
    layout = Layout.of([("w", (400, 100)), ("b", (400,))], torch.float32)

    def expected(text: str, step: int = 0) -> int:
        return codec_of(text).expected(layout, step)

    assert expected("sampled_top_k(0.01)") == 404 * 8  # ceil(0.01 * 40,400)
    assert expected("chain(sampled_top_k(0.01), fp16())") == 404 * (4 + 2)
    assert expected("dgc(0.001)") == 40 * 8 + 400 * 4
    # in the first quarter of the warm-up 25 % are sent, in the second 6.25 %
    assert [expected("dgc(0.001, warm_up=8)", step) for step in (0, 1, 2)] == [81_600, 81_600, 21_600]


@pytest.mark.parametrize("text", ["threshold(0.1)", "strom(0.1)", "chain(clip(1.0), threshold(0.1))"])
def test_thresholds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="as many values as lie beyond its threshold"):
        simulate_sizes(known_sizes(), strategy_from(f"torus(codec={text})"), workers=4, steps=2)


def test_merged_streams_are_refused() -> None:
    with pytest.raises(UsageError, match="depends on the values, and this run has sizes only"):
        simulate_sizes(
            known_sizes(), strategy_from("allreduce(codec=top_k(0.1), order='any')"), workers=4, steps=2
        )


# Tensors without values

PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + 2 * b,
    "in place": lambda a, b: a.add_(b, alpha=0.3).sub_(b).mul_(2).div_(3).lerp_(b, 0.1).copy_(b).zero_(),
    "augmented": lambda a, b: operator_in_place(a, b),
    "lerp": lambda a, b: a.lerp(b, 0.5),
    "clone": lambda a, b: (-a).clone().detach().contiguous(),
    "scaled": lambda a, b: (a - b) / 3,
    "reduced": lambda a, b: (a * b).sum(),
    "wider": lambda a, b: a * torch.ones(5, dtype=torch.float64, device=a.device),
    "broadcast": lambda a, b: a - b.view(5, 1),
    "slice": lambda a, b: a[1:3] + b[2:4],
    "view": lambda a, b: a.view(-1).reshape(5, 1).view(torch.uint8),
    "new": lambda a, b: a.new_empty((3,), dtype=torch.uint8),
}


def operator_in_place(a: Tensor, b: Tensor) -> Tensor:
    a += b
    a -= 1
    a *= b
    a /= 2
    return a


@pytest.mark.parametrize("name", PLAIN)
def test_operations_give_the_sizes_that_torch_gives(name: str) -> None:
    real = PLAIN[name](torch.ones(5), torch.ones(5))
    bare = PLAIN[name](sized(5), sized(5))
    assert (bare.shape, bare.dtype, bare.device.type) == (real.shape, real.dtype, "meta")


def test_sizes_that_do_not_fit_are_refused_like_others() -> None:
    for verb in (
        lambda a, b: a.add_(b),
        lambda a, b: a.copy_(b),
        lambda a, b: a + b,
        lambda a, b: a.lerp(b, 0.1),
    ):
        with pytest.raises(RuntimeError):
            verb(sized(5), sized(3))


@pytest.mark.parametrize("verb", [float, int, bool, Tensor.item, Tensor.tolist, lambda x: x.numpy()])
def test_values_are_refused_in_our_own_words(verb: Callable[[Tensor], object]) -> None:
    tensor = sized(1)
    asked = verb if not hasattr(verb, "__objclass__") else (lambda x: getattr(x, verb.__name__)())
    with pytest.raises(UsageError, match="this run has sizes only"):
        asked(tensor)


def test_copies_are_objects_of_their_own() -> None:
    """Who compares tensors by identity (is this my gradient?) must not take a copy for it."""
    weights = sized(5)
    assert weights.clone() is not weights and isinstance(weights.clone(), Sized)


class ReadsWeights(Strategy):
    """Decides by a norm."""

    async def step(self, me: Me) -> None:
        if float(torch.linalg.vector_norm(me.weights)) > 1:
            me.apply(me.gradient)


class Computes(Strategy):
    computes_gradient = True

    async def step(self, me: Me) -> None:
        me.backward(me.weights.sum())


@pytest.mark.parametrize("strategy", [ReadsWeights(), Computes()])
def test_a_strategy_that_needs_values_is_told_so(strategy: Strategy) -> None:
    with pytest.raises(UsageError, match="needs the values of a tensor, and this run has sizes only"):
        simulate_sizes(known_sizes(), strategy, workers=2, steps=1)


class Breaks(Strategy):
    async def step(self, me: Me) -> None:
        raise RuntimeError("something else")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"):
        simulate_sizes(known_sizes(), Breaks(), workers=2, steps=1)


# Models


@given(st.integers(1, 10**9))
def test_a_number_of_parameters_becomes_layers_of_one_size(count: int) -> None:
    layout = layout_of_parameters(count)
    assert sum(segment.size for segment in layout.segments) == count
    assert 1 <= len(layout.segments) <= PIECES
    assert count <= layout.size < count + 16
    assert (
        max(s.size for s in layout.segments) - min(s.size for s in layout.segments[:-1] or layout.segments)
        == 0
    )


@pytest.mark.parametrize("count", [0, -1, 1.5, float("nan"), float("inf")])
def test_no_other_numbers_of_parameters(count: float) -> None:
    with pytest.raises(UsageError, match="a whole number of parameters"):
        Sizes.of_parameters(count)


def test_sizes_of_a_task_are_those_of_its_model() -> None:
    task = load_task("digits")
    sizes, model = Sizes.of_task("digits", task, with_rows=True), task.model()
    assert sizes.layout == TorchReplica(model, task.optimizer(model)).layout
    assert (sizes.samples, list(sizes.rates)) == (task.batch_size, [0.5])
    assert (sizes.parameters, sizes.rows) == (64 * 64 + 64 + 64 * 10 + 10, {"0.weight": 1, "2.weight": 1})


class Sequences(Task):
    """Linear layers that see five rows of each sample, and one that is used twice."""

    name, target, batch_size = "sequences", 0.5, 4

    def model(self) -> nn.Module:
        return nn.ModuleDict({"each": nn.Linear(3, 3), "last": nn.Linear(3, 1)})

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return optimizer_of(model)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return model["last"](model["each"](model["each"](batch)).sum(1)).mean()

    def train(self) -> Sequence[int]:
        return range(20)

    def test(self) -> Tensor:
        return self.batch(range(2))

    def batch(self, indices: Sequence[int]) -> Tensor:
        return torch.ones(len(indices), 5, 3)

    def score(self, model: nn.Module, batch: Any) -> float:
        return 0.0


def test_rows_are_counted_per_sample_and_use() -> None:
    assert rows_of(Sequences()) == {"each.weight": 10, "last.weight": 1}


@pytest.mark.parametrize("call", ["sfb", "allreduce(codec=power_sgd(2))"])
def test_what_needs_matrices_needs_a_task(call: str) -> None:
    with pytest.raises(UsageError, match="depends on the shapes of the model's matrices"):
        simulate_sizes(Sizes.of_parameters(1000), strategy_from(call), workers=2, steps=1)


def test_rounds_over_letters_of_thousands_are_refused() -> None:
    with pytest.raises(UsageError, match="99,990,000 in each step of 10,000 workers"):
        simulate_sizes(
            Sizes.of_parameters(1000), strategy_from("allreduce(algorithm='ring')"), workers=10_000, steps=1
        )


# What is counted


@pytest.mark.parametrize("call", ["allreduce(bucket_mb=0.001)", "dpsgd", "torus", "ssp", "gossip(p=0.5)"])
def test_the_tally_is_the_sum_of_meters(call: str) -> None:
    tally, meters, ends = Tally(WORKERS), [Meter() for _ in range(WORKERS + 1)], []

    def watch(record: Record) -> None:
        tally(record)
        meters[record.who](record)
        if isinstance(record, Stepped):
            ends.append(record.at_ns)

    without_values(call, watch, cluster=Cluster.of(SLOW, work=WORK))
    workers, (server,) = meters[:WORKERS], meters[WORKERS:]

    def total(name: str) -> int:
        return sum(getattr(meter, name) for meter in workers)

    assert (tally.steps, tally.bytes_sent, tally.server_bytes) == (
        WORKERS * STEPS, total("bytes_sent"), server.bytes_sent,
    )  # fmt: skip
    assert (tally.computed_ns, tally.waited_ns, tally.exchanged_ns, tally.merged_ns) == (
        total("computed_ns"), total("waited_ns"), total("sent_ns"), total("merged_ns"),
    )  # fmt: skip
    assert tally.last_step_ns == max(ends) and tally.time_ns > 0
    late = sorted(x for meter in meters for x, count in meter.staleness.items() for _ in range(count))
    if late:
        assert (tally.median_staleness, tally.largest_staleness) == (late[(len(late) - 1) // 2], late[-1])
    else:
        assert tally.median_staleness is tally.largest_staleness is None


@pytest.mark.long
def test_two_thousand_workers() -> None:
    """allreduce against a formula; the others in what must hold for any number."""
    workers, steps, sizes = 2000, 3, Sizes.of_parameters(5000)
    nbytes = sizes.layout.nbytes
    mean = simulate_sizes(sizes, strategy_from("allreduce"), workers=workers, steps=steps)
    # Each host sends 2 (P - 1) / P of the tensor in 2 (P - 1) letters at 1 Gbit/s, in two hops.
    moving_s = 2 * (workers - 1) / workers * nbytes / 125e6 + 2 * (workers - 1) * 5e-6 + 2 * 100e-6
    assert mean.step_s == pytest.approx(0.020 + moving_s, abs=1e-8)
    assert mean.virtual_s == pytest.approx(steps * mean.step_s)
    assert mean.steps_per_s == pytest.approx(workers / mean.step_s)
    assert mean.step_bytes == pytest.approx(2 * (workers - 1) / workers * nbytes, abs=1)
    assert mean.shares["exchange"] == pytest.approx(moving_s / (0.020 + moving_s))
    ring = simulate_sizes(sizes, strategy_from("dpsgd"), workers=workers, steps=steps)
    assert ring.tally.steps == workers * steps and ring.tally.largest_staleness == 0
    assert ring.step_bytes == pytest.approx((steps + 1) / steps * 2 * (nbytes + 256))
    rare = simulate_sizes(sizes, strategy_from("gossip"), workers=workers, steps=steps)
    assert rare.step_bytes == pytest.approx(0.02 * (nbytes + 256), rel=0.5)
    assert rare.shares["computing"] == 1.0 and rare.events > workers * steps


def test_checkers_and_scenarios_are_heeded() -> None:
    world = Simulated(network="1gbit", step="20ms", check=True, scenario="worker 1 dies at 50ms")
    found = simulate_sizes(known_sizes(), strategy_from("gossip(p=0.5)"), workers=4, steps=6, world=world)
    assert found.tally.steps == 3 * 6 + 2


# The command


def command(*words: str) -> tuple[str, str]:
    outcome = CliRunner().invoke(make_app(), ["simulate", *words], catch_exceptions=False)
    return outcome.stdout, outcome.stderr


def test_the_table_and_the_json(tmp_path: Path) -> None:
    words = (
        "digits",
        "--sizes-only",
        "-w",
        "20",
        "--steps",
        "4",
        "-s",
        "allreduce,ssp,gossip",
        "--straggler",
        "4x",
    )
    file = tmp_path / "out.json"
    shown, _ = command(*words, "--json", str(file))
    assert "20 simulated workers, sizes only, 4 steps each, 1gbit, step 20ms, straggler 4x" in shown
    assert "worker 19 is always 4 times slower" in shown
    assert "servers of each: ssp has 1, the others have none" in shown
    assert max(map(len, shown[shown.index("strategy") :].splitlines())) <= 100
    data = json.loads(file.read_text())
    assert (data["schema"], data["kind"], data["workers"], data["model"]["parameters"]) == (
        1,
        "sizes",
        20,
        4810,
    )
    rows = {row["strategy"].partition("(")[0]: row for row in data["results"]}
    assert rows["allreduce"]["virtual_s"] > 4 * 0.080 and rows["allreduce"]["staleness"]["max"] is None
    assert rows["ssp"]["servers"] == 1 and rows["ssp"]["staleness"]["max"] > 0
    assert sum(rows["ssp"]["shares"].values()) == pytest.approx(1.0)
    again, _ = command(*words, "--json", "-")
    timeless = [{**row, "real_s": 0} for row in json.loads(again)["results"]]
    assert timeless == [{**row, "real_s": 0} for row in data["results"]]


def test_a_model_is_a_number() -> None:
    shown, _ = command(
        "--parameters", "25e6", "-w", "8", "--steps", "2", "--step", "0.2s", "-s", "allreduce,dpsgd"
    )
    assert "25,000,000 parameters, 100.0 MB: 8 simulated workers" in shown and "a step takes 200 ms" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits", "--sizes-only", "--target", "0.9"), "nothing for --target to say"),
        (("digits", "--sizes-only", "--epochs", "2"), "nothing for --epochs to say"),
        (("digits", "--sizes-only", "--gradients", "exact"), "nothing for --gradients to say"),
        (("digits", "--sizes-only", "--resume", "x"), "nothing for --resume to say"),
        (("digits", "--sizes-only", "--runs", "runs"), "nothing for --runs to say"),
        (("digits", "--sizes-only", "--fuzz", "3"), "nothing for --fuzz to say"),
        (("digits", "--parameters", "100"), "takes the place of a task"),
        (("--sizes-only",), "sizes of what"),
        (("digits", "--steps", "3"), "--steps belongs to --sizes-only"),
        (("--parameters", "100", "--steps", "0"), "at least 1 of both"),
        (("--parameters", "100", "-s", "sfb"), "depends on the shapes"),
    ],
)
def test_what_means_nothing_is_refused(words: Sequence[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command(*words)


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is written but what was asked for."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "runs").exists()
