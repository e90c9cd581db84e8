"""What a run leaves behind: copies of the weights along the way, and what each participant measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import torch
from torch import Tensor, nn

from fast.core.seeds import stream_seed
from fast.lab.notebook import Notebook
from fast.lab.recording import Excerpt
from fast.runtime.gathering import mean_of
from fast.trace import Meter

Kept = TypeVar("Kept")
State = dict[str, Tensor]
"""A model's parameters and buffers by name."""
REPLICA_TICKS = 5
"""At so many ticks the single replicas are kept too, to be scored beside the consolidated model."""

REPLICAS_KEPT = 64
"""Of more workers than these so many replicas, spread evenly over them, are kept and scored."""


class Report(msgspec.Struct):
    """One participant's own figures, as plain numbers that can cross a process boundary."""

    name: str
    started_ns: int = 0
    ended_ns: int = 0
    """When its own loop ended, before it waited for the others."""
    steps: int = 0
    samples: int = 0
    bytes_sent: int = 0
    computed_ns: int = 0
    sent_ns: int = 0
    waited_ns: int = 0
    merged_ns: int = 0
    staleness: dict[int, int] = {}
    links: list[tuple[int, int, int]] = []
    """Letters and bytes that it sent to each peer: (peer, letters, bytes)."""
    means: list[tuple[list[int], int, int]] = []
    """Collectives that it took part in: (members, how often, bytes)."""
    tick_ns: list[int] = []
    """When it copied its weights, tick by tick; what it had seen and sent by then follows."""
    tick_samples: list[int] = []
    tick_bytes: list[int] = []
    owns_weights: bool = False
    """Whether this is a server whose copies, rather than the workers', are the model."""
    owns_shard: bool = False
    """Whether they are only its slice of it."""
    peak_memory_bytes: int | None = None
    paced_steps: int = 0
    """Steps that took longer than the pace they should have had."""
    excerpt: Excerpt | None = None

    def take(self, notebook: Notebook) -> None:
        """Take over what was written down."""
        notebook.work_out()
        meter, self.excerpt = notebook.meter, notebook.recorder.excerpt()
        self.tick_bytes = notebook.tick_bytes
        self.bytes_sent, self.staleness = meter.bytes_sent, dict(meter.staleness)
        self.computed_ns, self.sent_ns = meter.computed_ns, meter.sent_ns
        self.waited_ns, self.merged_ns = meter.waited_ns, meter.merged_ns
        self.links = [(peer, letters, nbytes) for peer, (letters, nbytes) in sorted(meter.links.items())]
        self.means = [
            (list(members), count, nbytes) for members, (count, nbytes) in sorted(meter.means.items())
        ]

    @property
    def waiting_share(self) -> float:
        return self.waited_ns / max(1, self.ended_ns - self.started_ns)

    @property
    def computing_share(self) -> float:
        return self.computed_ns / max(1, self.ended_ns - self.started_ns)


@dataclass(frozen=True)
class Tick:
    """All copies of one tick, and when the last of them was made."""

    at_s: float
    state: State
    """The consolidated model: the mean of the workers' copies, or the servers' weights."""
    samples: int = 0
    """Of all workers together; likewise the bytes, to which servers add theirs."""
    nbytes: int = 0
    distance: float = 0.0
    replicas: Sequence[State] = ()
    """The single replicas, at some ticks."""


@dataclass(frozen=True)
class Run:
    """A training that has ended, in either world."""

    ticks: Sequence[Tick]
    final: State
    """The consolidated model."""
    weights: Sequence[Tensor]
    """Each worker's own flat weights after its last exchange, before consolidation."""
    workers: Sequence[Report]
    servers: Sequence[Report] = ()
    replicas: Mapping[int, State] = field(default_factory=dict)
    """By worker: all values of the replicas behind `weights`; of very many workers some."""

    @property
    def participants(self) -> list[Report]:
        return [*self.workers, *self.servers]

    @property
    def began_ns(self) -> int:
        return min((report.started_ns for report in self.workers), default=0)

    @property
    def duration_ns(self) -> int:
        """From the first worker's first step to the last worker's last."""
        return max((report.ended_ns for report in self.workers), default=0) - self.began_ns

    @property
    def staleness(self) -> Meter:
        """Of all updates that anybody included, wherever that was."""
        meter = Meter()
        for report in self.participants:
            for staleness, count in report.staleness.items():
                meter.staleness[staleness] = meter.staleness.get(staleness, 0) + count
        return meter

    @property
    def consensus_distance(self) -> float:
        return distance_of(self.weights)


def distance_of(weights: Sequence[Tensor]) -> float:
    """sqrt(mean_i |w_i - m|^2) / |m|, where m is the mean of the replicas' own weights w_i."""
    first = weights[0]
    if all(torch.equal(first, other) for other in weights[1:]):
        return 0.0
    mean = torch.zeros_like(first, dtype=torch.float64)
    for each in weights:  # one after another: a thousand replicas in double precision would not fit
        mean += each
    mean /= len(weights)
    spread = sum(float((each.double() - mean).square().sum()) for each in weights) / len(weights)
    return float(spread**0.5 / mean.norm())


def replica_ticks(ticks: int) -> frozenset[int]:
    """The ticks at which single replicas are kept; the last one is always among them."""
    kept = min(REPLICA_TICKS, ticks)
    return frozenset((number + 1) * ticks // kept - 1 for number in range(kept))


def replicas_kept(replicas: Sequence[Kept]) -> Sequence[Kept]:
    """Those that are kept at such a tick: scoring a thousand would take longer than their training."""
    count = min(len(replicas), REPLICAS_KEPT)
    return [replicas[number * len(replicas) // count] for number in range(count)]


# Models and their values


def seed_model(seed: int) -> None:
    """Before a task builds its model: the same initial weights for every strategy."""
    torch.default_generator.manual_seed(stream_seed(seed, "model"))


def scale_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Multiply every learning rate of a task's optimizer, as a search over rates asks for."""
    if rate != 1.0:
        for group in optimizer.param_groups:
            group["lr"] *= rate


def live_state(model: nn.Module) -> State:
    """The model's own tensors by name: they change as it trains."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def mean_state(states: Iterable[State]) -> State:
    """One model out of many: floating point numbers are averaged, counters take the largest."""
    copies = list(states)
    return {name: mean_of([copy[name] for copy in copies]) for name in copies[0]}


def state_of_shards(shards: Sequence[State], like: State) -> State:
    """One model out of its servers' slices, in their order: a parameter may lie on several of them."""
    return {
        name: torch.cat([shard[name].reshape(-1) for shard in shards if name in shard]).view(value.shape)
        for name, value in like.items()
        if any(name in shard for shard in shards)
    }


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters one after another, in memory of their own."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def flat_state(state: Mapping[str, Tensor], parameters: Iterable[str]) -> Tensor:
    """The values of these parameters one after another."""
    return torch.cat([state[name].reshape(-1) for name in parameters])


def parameter_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


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
