"""The contract of a transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from fast.collectives.across import Share
from fast.core.letter import Letter
from fast.core.world import Link, Reduction, Round
from fast.errors import PeerLost, UsageError, WireError
from fast.view import Groups


class Phase(IntEnum):
    """How far a participant has come. It only ever grows."""

    STARTING = 0
    JOINED = 1
    """It has published its layout and first weights."""
    READY = 2
    """It has adopted everybody's common start and trains."""
    DONE = 3
    """Its loop has ended, and all that it sent has been handed over. It may still receive."""
    SETTLED = 4
    """It has included what arrived after its last step and published its final weights."""
    LEFT = 5
    """It is not there any more."""


class Status(NamedTuple):
    """What a peer says about itself."""

    phase: Phase
    steps: int
    samples: int
    alive_ns: int
    """When it gave its last sign of life, on this host's monotonic clock."""
    waits: str
    """What it waits for, in words; empty while it doesn't."""
    wait_number: int
    """Counts its waits, so that one long wait can be told from many short ones."""
    looks: int = 0
    """Counts how often it has looked for what it waits for, in all its waits that lasted."""


BETWEEN_HOSTS = Link(latency_s=100e-6, rate_bytes_per_s=1e9)
"""How fast the way to a participant of another host is, for cost models: an order of magnitude."""


class Trouble(NamedTuple):
    """Nothing gets through to a peer."""

    since_ns: int
    why: str


class Transport(ABC):
    """One participant's way to the others. Ids run from 0 to `size` - 1.

    Every verb returns at once, but `sleep`, `close`, and `peek` at a peer on another host. What a network can do is
    abstract here. What only participants of one host can do for each other has a default that says no:
    `shared_with`, `can_reduce`, `reduce` and `share`.
    """

    id: int
    size: int
    link: Link = Link(latency_s=15e-6, rate_bytes_per_s=3e9)
    """How fast the way to a peer is, for cost models: an order of magnitude."""
    groups: Groups = ()
    """Which workers share memory, for all workers of the job alike; () if all do, or none."""

    @abstractmethod
    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        """Hand over a letter; its values are copied before this returns. Returns the peers for
        whom there was no room because `limit` of our letters with its tag wait there unread."""

    @abstractmethod
    def arrivals(self) -> list[Letter]:
        """Letters that have come in since, in order per sender and tag."""

    @abstractmethod
    def release(self, letters: Iterable[Letter]) -> None:
        """These letters' memory may be used again."""

    def refusals(self) -> list[tuple[int, WireError]]:
        """Letters that were not taken since the last call: whose, and what is wrong with them.

        They count as released, and nobody else's letters are touched by it.
        """
        return []

    @abstractmethod
    def listen(self) -> int:
        """A token for `sleep`. Take it before looking, so that nothing is missed in between."""

    @abstractmethod
    def sleep(self, token: int, seconds: float) -> None:
        """Wait until something may have changed since `token`, at most this long."""

    @abstractmethod
    def phase(self, peer: int) -> Phase: ...

    @abstractmethod
    def status(self, peer: int) -> Status: ...

    @abstractmethod
    def set_phase(self, phase: Phase) -> None:
        """Tell everybody, and wake whoever sleeps."""

    @abstractmethod
    def set_progress(self, steps: int, samples: int) -> None: ...

    @abstractmethod
    def set_waits(self, waits: str) -> None: ...

    @abstractmethod
    def set_looks(self, looks: int) -> None: ...

    @abstractmethod
    def beat(self) -> None:
        """A sign of life, from the background thread."""

    @property
    def ended(self) -> PeerLost | None:
        """Why the run can't go on, if this participant has been told or has found it out by itself. Where a parent
        process watches everybody it says so in another way: it ends them."""
        return None

    def trouble(self, peer: int) -> Trouble | None:
        """What is wrong with the way to this peer; None if nothing is, or if none is needed."""
        return None

    def fail(self, why: str) -> None:  # noqa: B027
        """Tell everybody that the run can't go on."""

    @property
    def shared_with(self) -> frozenset[int]:
        """The peers whose memory is this participant's too: what they publish is read in place, and can be amended."""
        return frozenset()

    def allocate(self, nbytes: int) -> Tensor:
        """Zeroed bytes, 64-byte aligned, which the peers in `shared_with` can read in place."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    @abstractmethod
    def publish(self, name: str, tensor: Tensor) -> None:
        """Let peers read a copy of these values under this name."""

    @abstractmethod
    def window(self, name: str, tensor: Tensor) -> Tensor:
        """Let peers read this tensor under this name: as it is whenever they look. Those in `shared_with` look
        once and see every change.

        Returns the memory to write into from now on. That is the tensor itself if it lies in memory
        of `allocate`; if not, its values are copied once into memory that peers can read.
        """

    @abstractmethod
    def peek(self, peer: int, name: str) -> Tensor | None:
        """What a peer has published, with its dtype and shape: in place, or from another host a copy of how it is
        now. Who changes a window's memory changes it for everybody, so only `World.amend` does. WireError if the
        peer says that it lies where it can't."""

    def can_reduce(self, round_: Round) -> bool:
        """Whether `reduce` does this round."""
        return False

    def reduce(self, round_: Round) -> Reducing:
        """The canonical mean; its result is shared and read-only until the next one in its lane."""
        raise NotImplementedError

    def share(self, round_: Round, among: tuple[int, ...]) -> Sharing:
        """The part of a round that `among`, its members on this host, do in shared memory."""
        raise NotImplementedError

    def take_waited_ns(self) -> dict[int, int]:
        """How long `reduce` waited for each peer since the last call."""
        return {}

    @abstractmethod
    def close(self) -> None: ...

    def _check_own(self, letter: Letter) -> None:
        """Nobody writes in another's name; a receiver would refuse it."""
        if letter.sender != self.id:
            raise UsageError(f"participant {self.id} posts a letter that says it is from {letter.sender}")


class UnderWay(ABC):
    """Something that participants of one host do together."""

    @abstractmethod
    def poll(self) -> bool:
        """Go on as far as possible without waiting. Is it done?"""

    @abstractmethod
    def finish(self, patience: Patience) -> None:
        """Wait until it is done."""


class Reducing(UnderWay):
    """A collective of the transport's own that is under way."""

    reduction: Reduction
    """Once it is done."""


class Sharing(UnderWay):
    """A collective with other hosts: the participants of this host are about to share its memory."""

    share: Share
    """Once it is done. The inputs may be read, and the result written, until `close` is called."""

    @abstractmethod
    def close(self) -> UnderWay:
        """This participant has written all its slices of the result; once it is done everybody has."""


class Patience(ABC):
    """Decides how long to wait for a peer. The runtime hands it in."""

    @abstractmethod
    def check(self, peers: tuple[int, ...], why: str) -> None:
        """Called again and again during a wait; raises when it is no use."""
