"""A least-squares problem, a replica written as plainly as possible, and worlds to try them in.

    f_batch(w) = |A w - b|^2 / (2 n) over the n rows of the batch;   gradient  A^T (A w - b) / n

Gradients are affine in w and everything is float64, so that independent loops can be compared
to about 1e-12 or bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from fast.core import Replica, Strategy
from fast.core.seeds import stream_seed
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.view import Layout

INSTANT = Network(float("inf"), 0.0)
"""No network at all: letters arrive at the time at which they are sent."""
DIM, ROWS = 20, 32

Batch = tuple[int, ...]


class PlainReplica:
    """SGD with momentum, in three lines:  v <- mu v + g;  w <- w - lr v."""

    def __init__(
        self, weights: Tensor, *, lr: float = 0.05, momentum: float = 0.0, shard: slice | None = None
    ) -> None:
        """`weights` are the whole model's; a server with a shard keeps that slice of them."""
        self._whole = Layout.of([("w", tuple(weights.shape))], weights.dtype)
        self.layout = self._whole if shard is None else self._whole.part(shard.start, shard.stop)
        self.weights = weights.clone() if shard is None else weights[shard].clone()
        self.gradient = torch.zeros_like(self.weights)
        self.velocity = torch.zeros_like(self.weights)
        self.lr, self.momentum = lr, momentum
        self.present: int | None = None
        self.model = None
        self.samples = 0

    @property
    def rates(self) -> list[float]:
        return [self.lr]

    def backward(self, loss: Tensor) -> None:
        raise NotImplementedError("the gradient comes from LeastSquares.gradient, not from autograd")

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        self.velocity = self.momentum * self.velocity + gradient
        self.weights -= (self.lr if rates is None else rates[0]) * self.velocity

    def shards(self, count: int) -> list[slice]:
        """Eight values (64 bytes) at a time; the tensor itself has no padding at its end."""
        size = self._whole.segments[0].size
        cuts = self._whole.shards(count, whole_parameters=False)
        return [slice(min(cut.start, size), min(cut.stop, size)) for cut in cuts]

    def moments(self) -> dict[str, Tensor]:
        return {"momentum_buffer": self.velocity.clone()} if self.momentum else {}

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        self.velocity = moments["momentum_buffer"].clone()

    def forget_moments(self) -> None:
        self.velocity = torch.zeros_like(self.weights)

    def optimizer_spec(self) -> dict[str, Any]:
        groups = [{"options": {"lr": self.lr, "momentum": self.momentum}, "segments": ["w"]}]
        return {"name": "SGD", "groups": groups}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "velocity": self.velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self.velocity = state["velocity"]


class LeastSquares:
    """The data, everybody's batches, and the gradient of any batch at any weights."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.a = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
        self.b = torch.randn(ROWS, generator=generator, dtype=torch.float64)
        self.start = torch.randn(DIM, generator=generator, dtype=torch.float64)

    def gradient(self, weights: Tensor, batch: Batch) -> Tensor:
        rows = list(batch)
        return self.a[rows].T @ (self.a[rows] @ weights - self.b[rows]) / len(rows)

    def batches(self, workers: int, steps: int | Sequence[int], *, size: int = 2) -> list[list[Batch]]:
        """Worker i's batches: rows drawn without repetition inside a step, the same every time."""
        counts = [steps] * workers if isinstance(steps, int) else list(steps)
        drawn: list[list[Batch]] = [[] for _ in range(workers)]
        for step in range(max(counts)):
            rows = Random(stream_seed(0, "rows", step)).sample(range(ROWS), workers * size)
            for worker in range(workers):
                if step < counts[worker]:
                    drawn[worker].append(tuple(rows[worker * size : (worker + 1) * size]))
        return drawn

    def worker(
        self, replica: PlainReplica, batches: Sequence[Batch], log: list[Tensor] | None = None
    ) -> SimWorker:
        """A simulated worker on these batches. Its gradients are also put into `log`."""

        def compute(batch: Batch) -> None:
            replica.gradient.copy_(self.gradient(replica.weights, batch))
            replica.samples = len(batch)
            if log is not None:
                log.append(replica.gradient.clone())

        return SimWorker(replica, iter(batches), compute)

    def simulation(
        self,
        strategy: Strategy,
        batches: Sequence[Sequence[Batch]],
        *,
        lr: float = 0.05,
        momentum: float = 0.0,
        log: list[Tensor] | None = None,
        starts: Sequence[Tensor] | None = None,
        **options: Any,
    ) -> Simulation:
        """This strategy on one worker per list of batches, all from `self.start` unless told."""
        size = len(batches)
        origins = [self.start] * size if starts is None else list(starts)
        replicas = [PlainReplica(origin, lr=lr, momentum=momentum) for origin in origins]
        count = strategy.servers(size)
        shards = replicas[0].shards(count) if strategy.sharded else [None] * count
        servers: list[Replica] = [
            PlainReplica(origins[0], lr=lr, momentum=momentum, shard=shard) for shard in shards
        ]
        options = {"network": INSTANT, "compute": Compute(), **options}
        workers = [self.worker(r, own, log) for r, own in zip(replicas, batches, strict=True)]
        return Simulation(strategy, workers, server_replicas=servers, **options)


class RandomCompute:
    """Every step of every worker takes its own random time; none for ever."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        return 1 + int(Random(stream_seed(seed, "test", worker, step)).expovariate(1e-6))


class RoundRobin:
    """Workers are done in turns, 0, 1, 2, ..., with equal distances and never two at once."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        return 1_000_000 * (workers if step else worker + 1)


def random_network(workers: int, seed: int, participants: int | None = None) -> Network:
    """Every link has its own latency and rate, some very slow compared with a step."""
    random = Random(stream_seed(seed, "network"))
    ids = range(participants or workers)
    links = {
        (a, b): Network(10 ** random.uniform(5, 9), random.expovariate(1e3))
        for a in ids
        for b in ids
        if a != b
    }
    return Network(1e8, 1e-4, links)


def weights(simulation: Simulation) -> Tensor:
    """The workers' weights, one row each."""
    return torch.stack([p.me.weights for p in simulation.workers])


def equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(a, b)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))
