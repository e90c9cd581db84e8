"""One server, several shards, a shard beside every worker, all-reduce: the same training, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from fast.errors import UsageError
from fast.sim import NETWORKS, Compute, Network
from fast.strategies.presets import ssp
from fast.trace import Included, Sent
from running import Runner
from shard_bodies import OPTIMIZERS, own_weights, simulation

from .problem import LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
SHARDED = (
    "ssp(0)",
    "ssp(0, servers=2)",
    "ssp(0, servers=3)",
    "ssp(0, servers=11)",
    "ssp(0, servers='workers')",
    "bigdl",
    "caffeonspark",
    "mxnet",
    "parameter_server(0)",
    "petuum(0)",
)
"""With eleven servers some have nothing: 128 values are cut at multiples of 16."""
STEPS = (6, 6, 3, 6)


def trained(call: str, optimizer: str, **options: Any) -> list[str]:
    simulated = simulation(call, optimizer, STEPS, **options)
    simulated.run()
    return own_weights(simulated)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shards_are_one_server_are_allreduce_bit_for_bit(optimizer: str):
    """Also with unequal batches, and when one leaves early (B5)."""
    expected = trained("allreduce", optimizer)
    assert len(set(expected)) == 2  # the last three are equal, and worker 2 has left before
    for call in SHARDED:
        assert trained(call, optimizer, compute=RandomCompute(), network=NETWORKS["1gbit"]) == expected, call


@pytest.mark.parametrize("servers", [1, 2, 3, "workers"])
def test_buckets_change_no_bit_whatever_the_shards(servers: int | str):
    expected = trained("allreduce", "Adam")
    for bucket_mb in (0.0001, 0.0003, 1):
        call = f"ssp(0, servers={servers!r}, bucket_mb={bucket_mb})"
        assert trained(call, "Adam", compute=Compute(0.02), network=NETWORKS["1gbit"]) == expected, call


def test_what_a_codec_remembers_belongs_to_the_coordinates_of_each_shard():
    """A codec that looks at one value at a time, with its residual, gives the same bits in every cut; one
    that selects the largest of all doesn't."""
    for codec, ways in (("error_feedback(bf16)", 1), ("error_feedback(top_k(0.2))", 2)):
        calls = (f"ssp(0, codec={codec})", f"ssp(0, servers=2, codec={codec})")
        ends = {tuple(trained(call, "momentum")) for call in calls}
        assert len(ends) == ways, codec


def one_by_one(servers: int | str, seed: int, bound: float = inf) -> tuple[Tensor, list[list[int]]]:
    """Without a network all shards see the same pushes in the same order: the staleness at each of them."""
    size = 3
    found: dict[int, list[int]] = {}

    def note(record: object) -> None:
        if isinstance(record, Included):
            found.setdefault(record.who, []).append(record.staleness)

    simulated = PROBLEM.simulation(
        ssp(bound, servers=servers), PROBLEM.batches(size, 10), momentum=0.5, compute=RandomCompute(),
        seed=seed, observers=[note],
    )  # fmt: skip
    simulated.run()
    return weights(simulated), [staleness for _, staleness in sorted(found.items())]


@pytest.mark.parametrize("bound", [1, inf])
def test_an_asynchronous_training_is_the_same_on_shards_if_all_see_the_same_order(bound: float):
    for seed in range(4):
        whole, (staleness,) = one_by_one(1, seed, bound)
        for servers in (2, 3):
            cut, shards = one_by_one(servers, seed, bound)
            assert equal(whole, cut)
            assert shards == [staleness] * servers
            assert max(staleness) > 0


def test_each_shard_counts_staleness_by_its_own_versions():
    """Where links to the shards differ, pushes arrive in another order at each of them; every one of them is
    applied once at every shard, and its staleness there is what that shard did in between."""
    included: dict[int, list[tuple[int, int, int]]] = {}

    def note(record: object) -> None:
        if isinstance(record, Included):
            included.setdefault(record.who, []).append((record.sender, record.step, record.staleness))

    simulated = PROBLEM.simulation(
        ssp(inf, servers=2), PROBLEM.batches(3, 10), lr=0.01, compute=RandomCompute(), seed=5,
        network=random_network(3, 5, participants=5), observers=[note],
    )  # fmt: skip
    simulated.run()
    one, other = included[3], included[4]
    assert sorted(update[:2] for update in one) == sorted(update[:2] for update in other)
    assert [update[2] for update in one] != [update[2] for update in other]
    for updates in (one, other):
        for sender in range(3):
            own = [number for number, update in enumerate(updates) if update[0] == sender]
            between = [now - before - 1 for before, now in pairwise(own)]
            # It reads after its own push, and perhaps after some that were applied in the same turn.
            found = [updates[number][2] for number in own[1:]]
            assert all(stale <= most for stale, most in zip(found, between, strict=True))


def test_what_a_worker_sends_is_the_gradient_once_and_a_header_for_every_shard():
    for servers, headers in ((1, 1), (4, 4), ("workers", 3)):
        sent: dict[int, int] = {}

        def note(record: object, sent: dict[int, int] = sent) -> None:
            if isinstance(record, Sent):
                sent[record.who] = sent.get(record.who, 0) + record.nbytes

        simulated = PROBLEM.simulation(ssp(2, servers=servers), PROBLEM.batches(3, 7), observers=[note])
        simulated.run(pause_after=6)
        for worker in range(3):
            assert sent[worker] == 6 * (8 * 20 + 256 * headers)
        assert sum(sent[who] for who in sent if who >= 3) == 3 * 6 * (8 * 20 + 256 * headers)


def test_a_shard_in_every_worker_spreads_the_load_of_one_server():
    """A link carries 1 MB/s: four workers' gradients of 160 bytes and their headers queue at one server."""
    times = {}
    for servers in (1, "workers"):
        simulated = PROBLEM.simulation(
            ssp(0, servers=servers), PROBLEM.batches(4, 5), compute=Compute(0.001),
            network=Network(1e5, 1e-6, shared=True),
        )  # fmt: skip
        simulated.run()
        times[servers] = simulated.now_ns
    assert times["workers"] < times[1]


def test_a_rule_that_needs_whole_updates_is_refused_with_shards():
    class Whole:
        whole = True

        def __call__(self, own: Tensor, weight: float, arrived: object) -> Tensor:
            return own

        def __repr__(self) -> str:
            return "whole()"

    with pytest.raises(UsageError, match=r"whole\(\) compares whole updates, and each of the 3 servers"):
        PROBLEM.simulation(ssp(0, servers=3, rule=Whole()), PROBLEM.batches(2, 2))
    PROBLEM.simulation(ssp(0, rule=Whole()), PROBLEM.batches(2, 2))


def test_the_weights_of_all_shards_together_are_the_model():
    simulated = PROBLEM.simulation(ssp(0, servers=3), PROBLEM.batches(2, 4))
    simulated.run()
    together = torch.cat([server.me.weights for server in simulated.servers])
    assert equal(together, weights(simulated)[0])
    assert not close(together, PROBLEM.start, 1e-3)


@pytest.mark.real
@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
def test_real_shards_are_simulated_ones_are_allreduce(optimizer: str, runner: Runner):
    calls = ("allreduce", "ssp(0, servers=2)", "bigdl")
    ends = [
        runner.results("shard_bodies:train", strategy=call, optimizer=optimizer, steps=6) for call in calls
    ]
    simulated = simulation("allreduce", optimizer, (6, 6, 6))
    simulated.run()
    assert ends == [own_weights(simulated)] * len(calls)
