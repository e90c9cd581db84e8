"""How closely replicas should agree: what a strategy's topology promises, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fast.core import WEIGHTS, Strategy
from fast.errors import UsageError
from fast.lab.report.reading import Entry, Reading
from fast.lab.report.words import PLAIN
from fast.parts.topology.spectrum import Spectrum, spectrum_of
from fast.strategies.decentral.neighbours import CompressedGossip
from fast.strategies.decentral.pushsum import PushSum
from fast.strategies.expression import parse_strategy

LARGEST = 512
"""With more workers nothing is predicted: a report must not take minutes."""
STEPS = 10
"""After so many steps it is said what is left of a disagreement."""


@dataclass(frozen=True)
class Promise:
    """What a topology promises with so many workers."""

    graph: str
    """The topology in words."""
    spectrum: Spectrum
    left_out: str
    """Why nothing is predicted for this strategy's weights, if so."""


@dataclass(frozen=True)
class Mixing:
    """One strategy with a topology."""

    entry: Entry
    promise: Promise

    @property
    def factor(self) -> str:
        return f"{self.promise.spectrum.factor:.4f}"

    @property
    def gap(self) -> str:
        return f"{self.promise.spectrum.gap:.4f}"

    @property
    def left(self) -> str:
        """Of a disagreement, after so many steps in which everybody only mixes."""
        return self.promise.left_out or f"{self.promise.spectrum.after(STEPS):.2g}"

    @property
    def measured(self) -> str:
        """The distance of the replicas at the end."""
        return PLAIN.write(self.entry.mean("consensus_distance"))


def mixing_of(reading: Reading) -> list[Mixing]:
    """Every strategy that trained and has a topology; one from a file can't be read here, and has none."""
    promises = {entry: promise_of(entry.call, reading.data["workers"]) for entry in reading.trained}
    return [Mixing(entry, promise) for entry, promise in promises.items() if promise is not None]


@lru_cache(maxsize=64)
def promise_of(call: str, workers: int) -> Promise | None:
    """What the topology of this strategy promises, if it has any and the workers aren't too many to say."""
    try:
        strategy = parse_strategy(call)
    except UsageError:
        return None
    topology = strategy.topology
    if topology is None or not 1 < workers <= LARGEST:
        return None
    gamma = strategy.gamma if isinstance(strategy, CompressedGossip) else 1.0
    spectrum = spectrum_of(topology, workers, gamma=gamma, push=isinstance(strategy, PushSum))
    return Promise(topology.describe(workers), spectrum, _left_out(strategy))


def _left_out(strategy: Strategy) -> str:
    if all(tag.carries != WEIGHTS for tag in strategy.tags):
        return "only gradients are exchanged"
    if strategy.late:
        return "letters are mixed in some steps later"
    return "" if strategy.synchronous else "everybody mixes at its own pace"
