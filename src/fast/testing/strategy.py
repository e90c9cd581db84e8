"""The kit for strategies: a problem whose optimum is known, in the simulator, on several workers.

Least squares without noise: worker i's batch of step t has rows a and targets a·w*, so that the
gradient mean_a a (a·(w - w*)) vanishes at w* for every batch. Whatever the workers exchange, and
however late it arrives, a strategy that works brings the mean of the replicas to w*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from fast.core import Strategy
from fast.errors import UsageError
from fast.sim import Compute, Network, Simulation, SimWorker, TraceHash
from fast.view import Layout

_VALUES = 8
_SAMPLES = 16
_LAYOUT = Layout.of([("w", (_VALUES,))], torch.float64)
_OPTIMUM = tuple(1.0 + 0.25 * place for place in range(_VALUES))


def check_strategy(
    build: Callable[[], Strategy],
    workers: Iterable[int] = (1, 2, 3, 5),
    *,
    steps: int = 200,
    rate: float = 0.05,
    within: float = 0.1,
) -> None:
    """Fail with AssertionError where a strategy breaks what every strategy promises.

    For each number of workers: the mean of the replicas comes closer to the optimum than `within`
    times the distance at the start; the same seed gives the same trace, also when one object is used twice
    (state belongs into `me.state`); workers whose data end early leave, and the others finish.
    Alone, a strategy that says `identity_alone` gives exactly the bits of plain SGD.

    >>> from fast.strategies.presets import allreduce
    >>> check_strategy(allreduce, workers=[2], steps=100)
    """
    for size in workers:
        strategy = build()
        run = Run.of(strategy, [steps] * size, rate)
        run.check_converged(within)
        for again in (strategy, build()):
            repeated = Run.of(again, [steps] * size, rate)
            assert repeated.trace == run.trace, (
                f"{strategy!r} on {size} workers: the same seed gave two different traces. "
                "Keep what changes in me.state, and draw only with me.random()."
            )
        Run.of(build(), [steps // 2 + 7 * worker for worker in range(size)], rate).check_ended()
        if size == 1 and strategy.identity_alone:
            run.check_identity(steps, rate)


@final
class LeastSquares:
    """A replica of the kit's model: one vector of weights and plain SGD."""

    def __init__(self, rate: float, shard: slice = slice(0, _VALUES)) -> None:
        self.layout = _LAYOUT.part(shard.start, shard.stop)
        self.weights = torch.zeros(self.layout.size, dtype=torch.float64)
        self.gradient = torch.zeros_like(self.weights)
        self.present: int | None = None
        self.model: Any = None
        self.samples = _SAMPLES
        self._rate = rate

    @property
    def rates(self) -> list[float]:
        return [self._rate]

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        self.weights.sub_(gradient * (rates or self.rates)[0])

    def backward(self, loss: Tensor) -> None:
        raise UsageError("this replica knows its gradient in closed form; call compute(rows) instead")

    def compute(self, rows: Tensor) -> None:
        """The gradient on these rows, at the weights as they are."""
        residual = rows @ (self.weights - _optimum())
        self.gradient.copy_(rows.T @ residual / len(rows))

    def shards(self, count: int) -> list[slice]:
        return _LAYOUT.shards(count, whole_parameters=False)

    def moments(self) -> dict[str, Tensor]:
        return {}

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Plain SGD remembers nothing."""

    def forget_moments(self) -> None:
        """Plain SGD remembers nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])


def servers_of(strategy: Strategy, workers: int, rate: float) -> list[LeastSquares]:
    """One replica for each server of a strategy: of its shard, or of all."""
    count = strategy.servers(workers)
    if not strategy.sharded:
        return [LeastSquares(rate) for _ in range(count)]
    return [LeastSquares(rate, shard) for shard in LeastSquares(rate).shards(count)]


@dataclass(frozen=True)
class Run:
    """One simulation, finished."""

    strategy: Strategy
    simulation: Simulation
    planned: tuple[int, ...]
    trace: str

    @staticmethod
    def of(strategy: Strategy, steps: list[int], rate: float) -> Run:
        """Worker i takes `steps[i]` steps. Each is somewhat slower than the one before it."""
        replicas = [LeastSquares(rate) for _ in steps]
        trace = TraceHash()
        simulation = Simulation(
            strategy,
            [
                SimWorker(replica, batches(worker, steps[worker]), replica.compute)
                for worker, replica in enumerate(replicas)
            ],
            server_replicas=servers_of(strategy, len(steps), rate),
            network=Network(1e9, 1e-3),
            compute=Compute(workers_s={worker: 0.02 + 0.003 * worker for worker in range(len(steps))}),
            observers=[trace],
            seed_torch=False,
        )
        simulation.run()
        return Run(strategy, simulation, tuple(steps), trace.hexdigest())

    @property
    def where(self) -> str:
        return f"{self.strategy!r} on {len(self.planned)} workers"

    def check_converged(self, within: float) -> None:
        """The result of training is the mean of the replicas; some strategies let these drift apart."""
        final = torch.stack([worker.me.weights for worker in self.simulation.workers]).mean(0)
        start, distance = float(_optimum().norm()), float((final - _optimum()).norm())
        assert distance < within * start, (
            f"{self.where}: after {self.planned[0]} steps the mean of the replicas is {distance:.3g} away "
            f"from the optimum, and it was {start:.3g} at the start; needed is less than {within * start:.3g}"
        )

    def check_ended(self) -> None:
        done = tuple(worker.me.steps for worker in self.simulation.workers)
        assert done == self.planned, (
            f"{self.where}: {done} steps were done, and {self.planned} batches were there"
        )
        for worker in self.simulation.workers:
            assert bool(worker.me.weights.isfinite().all()), (
                f"{self.where}: worker {worker.me.id} ended with {worker.me.weights.tolist()}"
            )

    def check_identity(self, steps: int, rate: float) -> None:
        plain = LeastSquares(rate)
        for rows in batches(0, steps):
            plain.compute(rows)
            plain.apply(plain.gradient, None)
        assert torch.equal(plain.weights, self.simulation.me(0).weights), (
            f"{self.where} says identity_alone, and its weights differ from those of plain SGD"
        )


def batches(worker: int, steps: int) -> Iterator[Tensor]:
    """This worker's data, the same in every run."""
    generator = torch.Generator().manual_seed(1000 + worker)
    for _ in range(steps):
        yield torch.randn(_SAMPLES, _VALUES, generator=generator, dtype=torch.float64)


def _optimum() -> Tensor:
    return torch.tensor(_OPTIMUM, dtype=torch.float64)
