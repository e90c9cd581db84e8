"""Gradients that are computed together: the same events as one by one, the same gradients up to rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fast.adapters import TorchReplica
from fast.adapters.rows import Rows
from fast.adapters.server_replica import server_replicas
from fast.core import Me, Strategy
from fast.loop.loading import strategy_from
from fast.sim import Compute, Gradients, Simulation, SimWorker, Straggler, TraceHash, parse_network
from fast.sim.gradients import Begun, OneByOne, Together

from .problem import RandomCompute

WORKERS, STEPS, SIZE = 6, 5, 8
Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def data(worker: int, steps: int = STEPS) -> list[Batch]:
    generator = torch.Generator().manual_seed(worker)
    return [
        (torch.randn(SIZE, 5, generator=generator), torch.randint(0, 3, (SIZE,), generator=generator))
        for _ in range(steps)
    ]


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def simulate(
    strategy: Strategy, gradients: Gradients | None, replicas: Sequence[Any], **options: Any
) -> Simulation:
    def worker(number: int, replica: Any) -> SimWorker:
        def compute(batch: Batch) -> None:
            replica.samples = SIZE
            replica.compute(lambda: loss(replica.model, batch))

        return SimWorker(replica, iter(data(number)), compute)

    first = replicas[0]
    servers = server_replicas(first, strategy.servers(len(replicas)), sharded=strategy.sharded)
    options = {"network": parse_network("1gbit"), "compute": Compute(), **options}
    workers = [worker(number, replica) for number, replica in enumerate(replicas)]
    return Simulation(strategy, workers, server_replicas=servers, gradients=gradients, **options)


def run_exact(strategy: Strategy, **options: Any) -> tuple[Tensor, str]:
    nets = [model() for _ in range(WORKERS)]
    seen = TraceHash()
    replicas = [TorchReplica(net, optimizer(net)) for net in nets]
    simulation = simulate(strategy, None, replicas, observers=[seen], **options)
    simulation.run()
    return torch.stack([p.me.weights for p in simulation.participants]), seen.hexdigest()


def run_together(
    strategy: Strategy, calls: list[list[int]] | None = None, **options: Any
) -> tuple[Tensor, str]:
    net = model()
    rows = Rows(net, optimizer(net), loss, WORKERS)
    seen = TraceHash()

    def evaluate(begun: Sequence[Begun]) -> None:
        if calls is not None:
            calls.append([each.worker for each in begun])
        for each in begun:
            rows.replicas[each.worker].samples = SIZE
        rows.evaluate([each.worker for each in begun], [each.batch for each in begun])

    simulation = simulate(strategy, Together(evaluate), rows.replicas, observers=[seen], **options)
    simulation.run()
    return torch.stack([p.me.weights for p in simulation.participants]), seen.hexdigest()


CLOCKS: dict[str, Any] = {
    "in step": Compute(),
    "a straggler": Compute(straggler=Straggler(3.0)),
    "each its own time": RandomCompute(),
}
PRESETS = [
    "allreduce",
    "dpsgd",
    "gossip(p=0.5)",
    "torus",
    "ssp(bound=2)",
    "local_sgd(tau=2)",
    "allreduce(bucket_mb=0.0001)",
]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("call", PRESETS)
def test_the_same_events_and_nearly_the_same_weights(call: str, clock: str) -> None:
    options = {"compute": CLOCKS[clock], "seed": 3}
    exact, exact_trace = run_exact(strategy_from(call), **options)
    together, trace = run_together(strategy_from(call), **options)
    assert trace == exact_trace
    assert torch.linalg.vector_norm(exact - together) <= 1e-6 * torch.linalg.vector_norm(exact)
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    assert torch.linalg.vector_norm(exact[0]) != pytest.approx(
        float(torch.linalg.vector_norm(start)), rel=1e-3
    )


def test_together_is_the_same_every_time() -> None:
    one, other = (run_together(strategy_from("gossip(p=0.5)"), compute=RandomCompute()) for _ in range(2))
    assert torch.equal(one[0], other[0]) and one[1] == other[1]


def test_all_that_are_under_way_are_computed_at_once_and_in_order() -> None:
    calls: list[list[int]] = []
    run_together(strategy_from("dpsgd"), calls)
    assert calls == [list(range(WORKERS))] * STEPS


def test_each_gradient_is_computed_once() -> None:
    calls: list[list[int]] = []
    run_together(strategy_from("torus"), calls, compute=RandomCompute())
    assert all(call == sorted(call) for call in calls)
    assert sorted(worker for call in calls for worker in call) == sorted(list(range(WORKERS)) * STEPS)
    assert len(calls) < WORKERS * STEPS / 2  # most of them in company


# The pieces


def test_the_weights_are_those_of_the_beginning() -> None:
    """Worker 1 ends its turn and begins a step before worker 0 needs a gradient that was begun earlier."""
    weights = {0: 1.0, 1: 1.0}
    found: dict[int, float] = {}

    def evaluate(begun: Sequence[Begun]) -> None:
        found.update({each.worker: weights[each.worker] * each.batch for each in begun})

    together = Together(evaluate)
    together.begin(0, 0, 10.0)
    together.begin(1, 0, 20.0)
    together.finish(1)
    assert found == {0: 10.0, 1: 20.0}
    weights[1] = 5.0
    together.begin(1, 1, 30.0)
    together.finish(0)  # is there already: nothing is computed again
    assert found == {0: 10.0, 1: 20.0}
    together.finish(1)
    assert found == {0: 10.0, 1: 150.0}


def test_what_is_dropped_is_not_computed() -> None:
    calls: list[list[int]] = []
    together = Together(lambda begun: calls.append([each.worker for each in begun]))
    for worker in (2, 0, 1):
        together.begin(worker, 0, None)
    together.drop(0)
    together.finish(2)
    assert calls == [[1, 2]]
    together.drop(1)  # computed, and nobody asks for it any more
    together.begin(1, 1, None)
    together.finish(1)
    assert calls == [[1, 2], [1]]


def test_one_by_one_computes_when_it_is_needed_and_drops() -> None:
    computed: list[str] = []
    net = model()
    replica = TorchReplica(net, optimizer(net))
    exact = OneByOne([SimWorker(replica, iter(()), computed.append)], 0)
    exact.begin(0, 0, "first")
    exact.drop(0)
    exact.begin(0, 1, "second")
    exact.finish(0)
    assert computed == ["second"]


class Restless(Strategy):
    """Local steps."""

    survives_death = True

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)


def test_a_death_does_not_disturb_the_others() -> None:
    net = model()
    rows = Rows(net, optimizer(net), loss, WORKERS)

    def evaluate(begun: Sequence[Begun]) -> None:
        for each in begun:
            rows.replicas[each.worker].samples = SIZE
        rows.evaluate([each.worker for each in begun], [each.batch for each in begun])

    simulation = simulate(Restless(), Together(evaluate), rows.replicas, compute=RandomCompute())
    simulation.at_step(2, 2, lambda: simulation.kill(2))
    simulation.run()
    exact, _ = run_exact(Restless(), compute=RandomCompute())
    others = [worker for worker in range(WORKERS) if worker != 2]
    assert simulation.workers[2].dead
    assert torch.allclose(rows.weights[others], exact[others], rtol=1e-5, atol=1e-7)
