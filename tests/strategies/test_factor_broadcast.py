"""Factor broadcast: the steps of one worker with the batches of all, whatever is offered or falls back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from torch import Tensor, nn

from factor_bodies import Batch, batches, loss_of, make_model, make_optimizer, make_single_model, simulation
from fast.adapters import TorchReplica
from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.parts.factors import places
from fast.sim import Compute, Network, Simulation, SimWorker, TraceHash
from fast.strategies.factors import FactorBroadcast
from fast.strategies.presets import allreduce
from fast.testing import check_strategy
from fast.trace import Included, Record, Reduced, Sent
from running import Runner, as_text, parameters_of

Sizes = Sequence[Sequence[int]]
LARGE = (40 + 50, 50 + 30)
"""Inputs and outputs of the layers that go by factors."""
SMALL = 30 + 3
REST = 56 + 56 + 96 + 8
"""The norm and the small layer, in values with their padding."""


def run(strategy: Strategy, sizes: Sizes, **options: object) -> Simulation:
    built = simulation(strategy, sizes, **options)  # type: ignore[arg-type]
    built.run()
    return built


def weights(run_: Simulation) -> list[Tensor]:
    return [parameters_of(worker.me.model) for worker in run_.workers]


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-12 * max(1.0, float(b.abs().max())))


def check_like_allreduce(sizes: Sizes, **options: object) -> Simulation:
    """Every worker ends where allreduce ends, up to rounding; and equal bits where both have as many steps."""
    by_factors, dense = run(FactorBroadcast(), sizes, **options), run(allreduce(), sizes, **options)
    found, expected = weights(by_factors), weights(dense)
    for a, b in zip(found, expected, strict=True):
        assert close(a, b)
    longest = max(map(len, sizes))
    last = [each for each, own in zip(found, sizes, strict=True) if len(own) == longest]
    assert all(torch.equal(each, last[0]) for each in last)
    return by_factors


def alone(sizes: Sizes) -> Tensor:
    """Plain torch on one worker, step by step with the samples of all who are still there."""
    model = make_model()
    optimizer = make_optimizer(model)
    streams = [batches(worker, own) for worker, own in enumerate(sizes)]
    for step in range(max(map(len, sizes))):
        present = [next(stream) for stream, own in zip(streams, sizes, strict=True) if step < len(own)]
        counted = [batch for batch in present if batch[2] > 0]
        if not counted:
            continue
        x, y = (torch.cat([batch[part] for batch in counted]) for part in (0, 1))  # type: ignore[misc]
        optimizer.zero_grad()
        loss_of(model, (x, y, len(x))).backward()
        optimizer.step()
    return parameters_of(model)


# The same steps


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_is_one_worker_with_the_batches_of_all(size: int) -> None:
    sizes = [[4] * 6] * size
    for each in weights(check_like_allreduce(sizes)):
        assert close(each, alone(sizes))


UNEQUAL = [
    [[4, 4, 3], [4, 4, 2], [4, 4, 2]],  # a short last step, cut nearly evenly
    [[4, 4, 1], [4, 4, 0], [4, 4, 0]],  # fewer samples than workers
    [[1, 2, 4], [4, 1, 2], [2, 4, 1]],
    [[4, 0, 4], [4, 0, 4], [4, 0, 4]],  # a step that counts for nobody
    [[1, 1, 1], [1, 1, 1], [1, 1, 1]],  # the small layer pays as well
    [[4, 40, 4], [4, 4, 4], [40, 4, 4]],  # somebody has too many rows now and then
]


@pytest.mark.parametrize("sizes", UNEQUAL, ids=repr)
def test_contributions_are_weighted_by_samples(sizes: Sizes) -> None:
    for each in weights(check_like_allreduce(sizes)):
        assert close(each, alone(sizes))


@pytest.mark.parametrize("steps", [(6, 3, 6), (6, 6, 1), (2, 6, 4), (1, 6, 1), (3, 7, 5, 7, 2)], ids=repr)
def test_workers_that_leave_early(steps: tuple[int, ...]) -> None:
    sizes = [[4] * count for count in steps]
    ended = check_like_allreduce(sizes)
    assert [worker.me.steps for worker in ended.workers] == list(steps)
    assert close(weights(ended)[steps.index(max(steps))], alone(sizes))


def test_a_worker_without_any_step() -> None:
    check_like_allreduce([[4] * 4, [], [4] * 4])


class Wild:
    """Every step of every worker takes its own random time."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        return 1 + int(Random(stream_seed(seed, "test", worker, step)).expovariate(1e-7))


def test_times_change_no_bit() -> None:
    sizes = [[4, 3, 4, 1, 4, 4], [4, 4, 2], [4, 4, 4, 1, 3, 4]]
    calm, wild = (run(FactorBroadcast(), sizes, compute=compute) for compute in (Compute(0.02), Wild()))
    for a, b in zip(weights(calm), weights(wild), strict=True):
        assert torch.equal(a, b)


# Bytes


def traffic(sizes: Sizes, **options: object) -> tuple[list[Sent], list[Reduced]]:
    records: list[Record] = []
    check = simulation(FactorBroadcast(), sizes, observers=[records.append], **options)  # type: ignore[arg-type]
    check.run()
    letters = [record for record in records if isinstance(record, Sent)]
    return letters, [record for record in records if isinstance(record, Reduced)]


def test_the_bytes_are_the_formula() -> None:
    """N (Cin + Cout) values for each large layer to each other worker, 4 bytes for each of three
    places, and a header; the rest of the gradient goes through a mean."""
    letters, means = traffic([[4] * 5, [4] * 5, [4] * 5])
    assert len(letters) == len(means) == 3 * 5
    assert {letter.nbytes for letter in letters} == {2 * (256 + 4 * sum(LARGE) * 8 + 3 * 4)}
    assert {mean.nbytes for mean in means} == {2 * 2 * REST * 8 // 3}


def test_a_place_that_cannot_pay_among_so_many_is_not_in_the_table() -> None:
    letters, _ = traffic([[1]] * 6)
    assert {letter.nbytes for letter in letters} == {5 * (256 + sum(LARGE) * 8 + 2 * 4)}


def test_a_shorter_batch_has_fewer_bytes_and_only_what_all_offer_leaves_the_mean() -> None:
    """The small layer pays among three workers for one row, and not for two."""
    letters, means = traffic([[1, 1], [1, 2], [1, 1]])
    small = [256 + sum(LARGE) * 8 + SMALL * 8 + 12, 256 + 2 * sum(LARGE) * 8 + 12]
    assert [letter.nbytes for letter in letters if letter.who != 1] == [2 * small[0]] * 4
    assert [letter.nbytes for letter in letters if letter.who == 1] == [2 * small[0], 2 * small[1]]
    norm = 56 + 56
    assert sorted({mean.nbytes for mean in means}) == [2 * 2 * n * 8 // 3 for n in (norm, REST)]


def test_when_workers_leave_more_layers_go_by_factors() -> None:
    """The small layer pays among two workers for two rows, and not among three. Worker 2 leaves after its first step,
    and is out of everybody's view P steps later."""
    sizes = [[2] * 8, [2] * 8, [2]]
    letters, _ = traffic(sizes)
    large, all_layers = 256 + 2 * sum(LARGE) * 8 + 12, 256 + 2 * (sum(LARGE) + SMALL) * 8 + 12
    for worker in (0, 1):
        sent = [letter.nbytes for letter in letters if letter.who == worker]
        assert sent == [2 * large] * 4 + [all_layers] * 4
    check_like_allreduce(sizes)


def test_it_sends_less_than_a_mean_of_all() -> None:
    letters, means = traffic([[4] * 2, [4] * 2, [4] * 2])
    by_factors = sum(each.nbytes for each in (*letters, *means))
    records: list[Record] = []
    run(allreduce(), [[4] * 2] * 3, observers=[records.append])
    dense = sum(record.nbytes for record in records if isinstance(record, Reduced))
    assert by_factors < 0.6 * dense


def test_every_contribution_is_reported_without_staleness() -> None:
    records: list[Record] = []
    run(FactorBroadcast(), [[4, 4], [4, 0], [4, 4]], observers=[records.append])
    included = [r for r in records if isinstance(r, Included)]
    assert {r.staleness for r in included} == {0}
    assert len(included) == 3 * 2 + 4, "worker 1's second step doesn't count"


# Shapes of the rest


def one_run() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 60)).double()


def no_rest() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 60, bias=False)).double()


def no_factors() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 1)).double()


def first_of(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0])[:, :1] - batch[1][:, :1]).square().mean()


@pytest.mark.parametrize(
    ("make", "values"), [(one_run, 40 + 40), (no_rest, None), (no_factors, 40 + 40 + 40 + 8)]
)
def test_what_is_left_for_the_mean(make: Callable[[], nn.Module], values: int | None) -> None:
    sizes = [[4] * 3] * 3
    check_like_allreduce(sizes, make=make, loss=first_of)
    letters, means = traffic(sizes, make=make, loss=first_of)
    assert bool(letters) == (make is not no_factors)
    assert {mean.nbytes for mean in means} == (set() if values is None else {2 * 2 * values * 8 // 3})


def test_without_a_layer_that_can_pay_it_is_allreduce_bit_for_bit() -> None:
    sizes = [[4, 3, 2]] * 3
    both = [run(s, sizes, make=no_factors, loss=first_of) for s in (FactorBroadcast(), allreduce())]
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, both), strict=True))


# Falling back


def test_a_penalty_in_the_loss_is_not_lost() -> None:
    def penalised(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        return loss_of(model, batch) + 1e-3 * model[0].weight.square().sum()

    check_like_allreduce([[4] * 3] * 3, loss=penalised)
    letters, means = traffic([[4] * 3] * 3, loss=penalised)
    assert {letter.nbytes for letter in letters} == {2 * (256 + 4 * LARGE[1] * 8 + 12)}
    assert {mean.nbytes for mean in means} == {2 * 2 * (REST + 2000 + 56) * 8 // 3}


def test_one_worker_whose_gradient_is_no_product_makes_it_dense_for_all() -> None:
    def sometimes_penalised(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        plain = loss_of(model, batch)
        return plain if len(batch[0]) != 3 else plain + model[0].weight.square().sum()

    sizes = [[4, 4, 4], [4, 3, 4], [4, 4, 4]]
    check_like_allreduce(sizes, loss=sometimes_penalised)
    _, means = traffic(sizes, loss=sometimes_penalised)
    dense = 2 * 2 * (REST + 2000 + 56) * 8 // 3
    assert [mean.nbytes == dense for mean in means] == [False] * 3 + [True] * 3 + [False] * 3


class Untapped(FactorBroadcast):
    """Nobody told the replicas to keep what factors are made of."""

    uses_factors = False


def test_replicas_without_a_tap_are_allreduce_bit_for_bit() -> None:
    sizes = [[4, 3, 4]] * 3
    models = [make_model() for _ in sizes]
    replicas = [TorchReplica(model, make_optimizer(model)) for model in models]

    def worker(number: int) -> SimWorker:
        def compute(batch: Batch) -> None:
            replicas[number].samples = batch[2]
            replicas[number].compute(lambda: loss_of(models[number], batch))

        return SimWorker(replicas[number], batches(number, sizes[number]), compute)

    Simulation(Untapped(), [worker(n) for n in range(3)], network=Network(1e7, 2e-3), compute=Compute()).run()
    expected = weights(run(allreduce(), sizes))
    assert all(torch.equal(parameters_of(a), b) for a, b in zip(models, expected, strict=True))


class Branches(nn.Module):
    """Which of the two layers is used depends on the batch; `never` is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.even, self.odd, self.never = (nn.Linear(40, 50).double() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        layer = self.even if len(x) % 2 == 0 else self.odd
        result: Tensor = layer(x)[:, :3]
        return result


@pytest.mark.parametrize("sizes", [[[4, 4], [3, 4], [4, 4]], [[4, 3], [3, 3], [4, 3]]], ids=repr)
def test_layers_that_some_or_all_workers_leave_out(sizes: Sizes) -> None:
    """A parameter without a gradient on any worker isn't moved, not even by its momentum."""
    ended = check_like_allreduce(sizes, make=Branches)
    never = Branches().never.weight
    assert all(torch.equal(worker.me.model.never.weight, never) for worker in ended.workers)
    letters, means = traffic(sizes, make=Branches)
    assert letters and not means


# What every strategy promises


def test_it_passes_the_kit() -> None:
    check_strategy(FactorBroadcast, workers=(1, 2, 3))


def test_resumed_equals_continued() -> None:
    sizes = [[4] * 8, [4] * 5, [4, 3, 4, 4, 2, 4, 4, 1]]

    def second_half(resume: dict[str, object] | None) -> tuple[object, dict[str, object]]:
        trace = TraceHash()
        built = simulation(FactorBroadcast(), sizes, observers=[trace])
        if resume is None:
            built.run(pause_after=4)
        else:
            built.restore(resume)
        saved = built.checkpoint()
        trace.__init__()  # type: ignore[misc]
        built.run()
        return (trace.hexdigest(), built.now_ns, [as_text(each) for each in weights(built)]), saved

    continued, saved = second_half(None)
    assert second_half(saved)[0] == continued


def test_nothing_of_a_step_is_kept_in_the_state() -> None:
    ended = run(FactorBroadcast(), [[4] * 3] * 3)
    for worker in ended.workers:
        assert worker.me.state == places(worker.me.replica.layout, 3)
        assert len(worker.me.state) == 3


# Real workers


@pytest.mark.real
@pytest.mark.parametrize(
    ("sizes", "single"),
    [
        ([[4, 4, 4, 2, 1], [4, 4, 4, 2, 0], [4, 4, 4, 1, 0]], False),
        ([[4] * 6, [4, 4, 3], [4] * 6], False),
        ([[1, 40, 4], [1, 4, 4], [1, 4, 40]], True),
    ],
    ids=["short", "leaving", "falling back"],
)
def test_real_equals_simulated_bit_for_bit_and_byte_for_byte(
    runner: Runner, sizes: Sizes, single: bool
) -> None:
    results = runner.results("factor_bodies:train", 3, sizes=sizes, single=single)
    make = make_single_model if single else make_model
    simulated = run(FactorBroadcast(), sizes, make=make)
    assert [result["weights"] for result in results] == [as_text(each) for each in weights(simulated)]
    if len({len(own) for own in sizes}) == 1:
        letters, _ = traffic(sizes, make=make)
        per_peer = [sum(each.nbytes for each in letters if each.who == who) // 2 for who in range(3)]
        counted = [[nbytes for _, nbytes in result["links"]] for result in results]
        assert counted == [[nbytes] * 2 for nbytes in per_peer]
