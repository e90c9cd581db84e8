"""What a simulation is made of: workers as its caller gives them, participants as it keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fast.core import Me, Replica
from fast.sim.programs import Program
from fast.sim.world import SimWorld


@dataclass
class SimWorker:
    """A worker to simulate: its model, its data, and how its gradient is computed.

    `compute(batch)` writes the gradient of the replica's weights into `replica.gradient` and the
    number of samples into `replica.samples`, as a real worker's backward pass does.
    """

    replica: Replica
    batches: Iterator[Any]
    compute: Callable[[Any], None]


class Standing(Enum):
    """Where a participant is in its life, or between two of them."""

    ABSENT = "absent"
    """Not there yet."""
    THERE = "there"
    LEFT = "left"
    """In order, after its last step."""
    DEAD = "dead"


@dataclass
class Participant:
    """A worker or a server inside a simulation."""

    me: Me
    world: SimWorld
    worker: SimWorker | None
    """None for a server."""
    ready_shares: Sequence[float] = (1.0,)
    """When each bucket of its gradient is ready, as a share of a step's computing."""
    standing: Standing = Standing.THERE
    started: bool = False
    leaving: bool = False
    """Asked to stop before its next step."""
    batches_taken: int = 0
    program: Program | None = None
    """Its life, while a run is under way."""
    frozen_until_ns: int = 0
    """Before this time it doesn't go on."""
    silent_since_ns: int = 0
    silent_until_ns: int = 0
    lost_ns: int = 0
    """Computing time that a freeze has taken from the step under way."""

    @property
    def alive(self) -> bool:
        return self.standing is Standing.THERE

    @property
    def absent(self) -> bool:
        return self.standing is Standing.ABSENT

    @property
    def left(self) -> bool:
        return self.standing is Standing.LEFT

    @property
    def dead(self) -> bool:
        return self.standing is Standing.DEAD

    @property
    def gone(self) -> bool:
        return self.left or self.dead

    @property
    def name(self) -> str:
        return f"{'server' if self.worker is None else 'worker'} {self.me.id}"
