"""Shared memory between the processes of one host.

A letter is copied once, into a slot of its sender's arena; every receiver gets a descriptor of
the slot and reads it in place until its turn ends. The slot is used again when all of them have
released it. Nothing is sent through the kernel but a wake-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from fast.core.letter import Letter
from fast.core.world import Round
from fast.errors import WireError
from fast.transport.arena import Arena, create_arena
from fast.transport.base import Phase, Reducing, Sharing, Status, Transport
from fast.transport.control import Control, Fence, control_bytes
from fast.transport.futex import Futex
from fast.transport.shm_letters import Incoming, Outgoing
from fast.transport.shm_reduce import ShmReducer
from fast.transport.shm_windows import Windows


def create_arenas(size: int) -> list[int]:
    """One arena per participant; whoever starts them makes these and hands all of them to each."""
    return [create_arena(f"fast-{peer}", control_bytes(size)) for peer in range(size)]


class ShmTransport(Transport):
    """One participant's end. `arenas` are the inherited descriptors, one per participant.

    If only some participants share this host, `near` are those, and the descriptors of the others may be of any
    empty arena: nothing is ever found there.
    """

    def __init__(self, id: int, arenas: Sequence[int], near: Iterable[int] | None = None) -> None:
        self.id, self.size = id, len(arenas)
        self._near = frozenset(range(self.size) if near is None else near)
        self._arenas = [Arena(fd, peer) for peer, fd in enumerate(arenas)]
        block = control_bytes(self.size)
        self._controls = [Control(arena.read(0, block), self.size) for arena in self._arenas]
        self._mine, self._arena = self._controls[id], self._arenas[id]
        self._futex, self._fence = Futex(), Fence()
        self._outgoing = Outgoing(id, self._arena, self._controls, self._fence)
        self._incoming = Incoming(id, self._arenas, self._controls)
        self._windows = Windows(id, self._arenas, self._controls, self._fence)
        self._rings = self._calls = 0
        self._reducer = ShmReducer(id, self._arenas, self._controls, self._futex, self._fence)
        self.beat()

    # Letters

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        self._check_own(letter)
        targets = tuple(to)
        open_to = [peer for peer in targets if self._outgoing.has_room(peer, letter.tag, limit)]
        if open_to:
            self._outgoing.post(open_to, letter)
            for peer in open_to:
                self._ring(peer)
        return tuple(peer for peer in targets if peer not in open_to)

    def _ring(self, peer: int) -> None:
        self._rings = (self._rings + 1) % (1 << 20)
        self._fence()
        control = self._controls[peer]
        control.bell = self.id << 20 | self._rings
        self._futex.wake(control.bell_address)

    def arrivals(self) -> list[Letter]:
        return self._incoming.arrivals()

    def release(self, letters: Iterable[Letter]) -> None:
        self._incoming.release(letters)

    def refusals(self) -> list[tuple[int, WireError]]:
        return self._incoming.refusals()

    # Sleeping and waking

    def listen(self) -> int:
        return self._mine.bell

    def sleep(self, token: int, seconds: float) -> None:
        self._futex.sleep(self._mine.words32, 0, self._mine.bell_address, token, seconds)

    def wake(self) -> None:
        """Another thread of this participant has something for it. Calls must not overlap."""
        self._calls = (self._calls + 1) % (1 << 20)
        self._mine.bell = self.id << 20 | self._calls
        self._futex.wake(self._mine.bell_address)

    def _ring_everybody(self) -> None:
        for peer in range(self.size):
            if peer != self.id:
                self._ring(peer)
        self._reducer.wake_waiters()

    # Who is there

    def phase(self, peer: int) -> Phase:
        control = self._controls[peer]
        if not control.has_phase:
            self._incoming.lose(peer, "is in a phase that doesn't exist")
        return control.phase

    def status(self, peer: int) -> Status:
        return self._controls[peer].status()

    def set_phase(self, phase: Phase) -> None:
        self._fence()
        self._mine.phase = phase
        self._ring_everybody()

    def set_progress(self, steps: int, samples: int) -> None:
        self._mine.set_progress(steps, samples)

    def set_waits(self, waits: str) -> None:
        self._mine.set_waits(waits)

    def set_looks(self, looks: int) -> None:
        self._mine.set_looks(looks)

    def beat(self) -> None:
        self._mine.beat()

    def vouch(self, peer: int) -> None:
        """Say that a peer is alive. The host of the participants does so until they say it themselves."""
        self._controls[peer].beat()

    # Memory

    def allocate(self, nbytes: int) -> Tensor:
        return self._arena.allocate(nbytes)[1]

    def publish(self, name: str, tensor: Tensor) -> None:
        self._windows.publish(name, tensor)

    def window(self, name: str, tensor: Tensor) -> Tensor:
        return self._windows.window(name, tensor)

    def peek(self, peer: int, name: str) -> Tensor | None:
        return self._windows.peek(peer, name)

    # Collectives

    def can_reduce(self, round_: Round) -> bool:
        return self._near.issuperset(round_.among)

    @property
    def shared_with(self) -> frozenset[int]:
        return self._near

    def reduce(self, round_: Round) -> Reducing:
        return self._reducer.reduce(round_)

    def share(self, round_: Round, among: tuple[int, ...]) -> Sharing:
        return self._reducer.share(round_, among)

    def take_waited_ns(self) -> dict[int, int]:
        return self._reducer.take_waited_ns()

    def close(self) -> None:
        """Mappings go with the process; descriptors are closed by whoever opened them."""
