"""What a run leaves behind: copies of the weights along the way, and what each worker measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from fast.core.seeds import stream_seed
from fast.runtime.worker import mean_of
from fast.trace import Meter

State = dict[str, Tensor]
"""A model's parameters and buffers by name."""


class Report(msgspec.Struct):
    """One worker's own figures, as plain numbers."""

    started_ns: int
    ended_ns: int
    """When its own loop ended, before it waited for the others."""
    steps: int
    samples: int
    bytes_sent: int
    waited_ns: int
    staleness: dict[int, int]
    tick_ns: list[int] = []
    """When it copied its weights, tick by tick."""

    @property
    def waiting_share(self) -> float:
        return self.waited_ns / max(1, self.ended_ns - self.started_ns)


class ServerReport(msgspec.Struct):
    """What is measured at a server: how stale the updates were that it applied."""

    staleness: dict[int, int]


@dataclass(frozen=True)
class Tick:
    """The mean of all workers' copies of one tick, and when the last of them was made."""

    at_s: float
    state: State


@dataclass(frozen=True)
class Run:
    """A training that has ended, in either world."""

    ticks: Sequence[Tick]
    final: State
    """The consolidated model."""
    weights: Sequence[Tensor]
    """Each worker's own flat weights after its last exchange, before consolidation."""
    workers: Sequence[Report]
    servers: Sequence[ServerReport] = ()

    @property
    def staleness(self) -> Meter:
        """Of all updates that anybody included, wherever that was."""
        meter = Meter()
        everywhere = [report.staleness for report in self.workers] + [
            report.staleness for report in self.servers
        ]
        for counts in everywhere:
            for staleness, count in counts.items():
                meter.staleness[staleness] = meter.staleness.get(staleness, 0) + count
        return meter

    @property
    def consensus_distance(self) -> float:
        """sqrt(mean_i |w_i - m|^2) / |m|, where m is the mean of the replicas' own weights w_i."""
        replicas = torch.stack(list(self.weights)).double()
        mean = replicas.mean(0)
        spread = (replicas - mean).square().sum(1).mean().sqrt()
        return float(spread / mean.norm())


def seed_model(seed: int) -> None:
    """Before a task builds its model: the same initial weights for every strategy."""
    torch.default_generator.manual_seed(stream_seed(seed, "model"))


def live_state(model: nn.Module) -> State:
    """The model's own tensors by name: they change as it trains."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def mean_state(states: Iterable[State]) -> State:
    """One model out of many: floating point numbers are averaged, counters take the largest."""
    copies = list(states)
    return {name: mean_of([copy[name] for copy in copies]) for name in copies[0]}


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters one after another, in memory of their own."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread, as real workers do: more of them would give other bits, and
    on cores that others use too they wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
