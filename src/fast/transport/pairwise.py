"""Shared memory with the participants of this host, TCP with all others: one transport made of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from torch import Tensor

from fast.core.letter import Letter
from fast.core.world import Round
from fast.errors import PeerLost, WireError
from fast.transport.base import Phase, Reducing, Sharing, Status, Transport, Trouble
from fast.transport.shm import ShmTransport
from fast.transport.tcp.transport import TcpTransport


@final
class PairwiseTransport(Transport):
    """One participant's end. Each pair of participants uses one of the two, always the same.

    `far` is made by a function that is given what to call when something has come: it wakes the
    participant where it sleeps, on a word of shared memory.
    """

    def __init__(self, near: ShmTransport, far: Callable[[Callable[[], None]], TcpTransport]) -> None:
        self.id, self.size, self._near = near.id, near.size, near
        self._far = far(near.wake)
        self.link, self.groups = self._far.link, self._far.groups
        self.shared = near.shared_with

    def _to(self, peer: int) -> Transport:
        return self._near if peer in self.shared else self._far

    @property
    def shared_with(self) -> frozenset[int]:
        return self.shared

    # Letters

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        targets = tuple(to)
        near = [peer for peer in targets if peer in self.shared]
        far = [peer for peer in targets if peer not in self.shared]
        full = self._near.post(near, letter, limit) if near else ()
        return full + self._far.post(far, letter, limit) if far else full

    def arrivals(self) -> list[Letter]:
        return self._near.arrivals() + self._far.arrivals()

    def release(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            self._to(letter.sender).release((letter,))

    def refusals(self) -> list[tuple[int, WireError]]:
        return self._near.refusals() + self._far.refusals()

    def listen(self) -> int:
        return self._near.listen()

    def sleep(self, token: int, seconds: float) -> None:
        self._near.sleep(token, seconds)

    # Who is there

    def phase(self, peer: int) -> Phase:
        return self._to(peer).phase(peer)

    def status(self, peer: int) -> Status:
        return self._to(peer).status(peer)

    @property
    def ended(self) -> PeerLost | None:
        return self._far.ended

    def trouble(self, peer: int) -> Trouble | None:
        return self._to(peer).trouble(peer)

    def fail(self, why: str) -> None:
        self._far.fail(why)

    def set_phase(self, phase: Phase) -> None:
        self._near.set_phase(phase)
        self._far.set_phase(phase)

    def set_progress(self, steps: int, samples: int) -> None:
        self._near.set_progress(steps, samples)
        self._far.set_progress(steps, samples)

    def set_waits(self, waits: str) -> None:
        self._near.set_waits(waits)
        self._far.set_waits(waits)

    def set_looks(self, looks: int) -> None:
        self._near.set_looks(looks)
        self._far.set_looks(looks)

    def beat(self) -> None:
        self._near.beat()

    # What is published: near peers read it in place, far ones ask for it

    def allocate(self, nbytes: int) -> Tensor:
        return self._near.allocate(nbytes)

    def publish(self, name: str, tensor: Tensor) -> None:
        self._near.publish(name, tensor)
        self._far.publish(name, tensor)

    def window(self, name: str, tensor: Tensor) -> Tensor:
        return self._far.window(name, self._near.window(name, tensor))

    def peek(self, peer: int, name: str) -> Tensor | None:
        return self._to(peer).peek(peer, name)

    # Collectives

    def can_reduce(self, round_: Round) -> bool:
        return self._near.can_reduce(round_)

    def reduce(self, round_: Round) -> Reducing:
        return self._near.reduce(round_)

    def share(self, round_: Round, among: tuple[int, ...]) -> Sharing:
        return self._near.share(round_, among)

    def take_waited_ns(self) -> dict[int, int]:
        return self._near.take_waited_ns()

    def close(self) -> None:
        self._far.close()
        self._near.close()
