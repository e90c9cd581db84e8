"""Shared memory between the processes of one host.

A letter is copied once, into a slot of its sender's arena; every receiver gets a descriptor of
the slot and reads it in place until its turn ends. The slot is used again when all of them have
released it. Nothing is sent through the kernel but a wake-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fast.core.framing import header_of, letter_of
from fast.core.letter import Letter
from fast.core.world import Reduction
from fast.errors import UsageError
from fast.transport.arena import Arena, create_arena
from fast.transport.base import Patience, Phase, Status, Transport
from fast.transport.control import RING, WINDOWS, Control, Fence, control_bytes
from fast.transport.futex import Futex
from fast.transport.shm_reduce import ShmReducer
from fast.wire import HEADER_LIMIT_BYTES, decode_header, encode_header


def create_arenas(size: int) -> list[int]:
    """One arena per participant; whoever starts them makes these and hands all of them to each."""
    return [create_arena(f"fast-{peer}", control_bytes(size)) for peer in range(size)]


class _Slot:
    """Memory for one letter, and for whom it still waits."""

    def __init__(self, offset: int, memory: Tensor) -> None:
        self.offset, self.memory = offset, memory
        self.readers: list[tuple[int, int]] = []


class ShmTransport(Transport):
    """One participant's end. `arenas` are the inherited descriptors, one per participant."""

    def __init__(self, id: int, arenas: Sequence[int]) -> None:
        self.id, self.size = id, len(arenas)
        self._arenas = [Arena(fd) for fd in arenas]
        block = control_bytes(self.size)
        self._controls = [Control(arena.map(0, block), self.size) for arena in self._arenas]
        self._mine, self._arena = self._controls[id], self._arenas[id]
        self._futex, self._fence = Futex(), Fence()
        self._slots: list[_Slot] = []
        self._unread: dict[tuple[int, str], list[int]] = {}
        self._windows: dict[str, tuple[int, Tensor]] = {}
        self._read = [0] * self.size
        self._tickets: dict[int, tuple[Letter, int, int]] = {}
        self._rings = 0
        self._reducer = ShmReducer(id, self._arenas, self._controls, self._futex, self._fence)
        self.beat()

    # Letters

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        targets = tuple(to)
        open_to = [peer for peer in targets if self._has_room(peer, letter.tag, limit)]
        if open_to:
            tensor = letter.tensor
            header = encode_header(header_of(letter))
            nbytes = tensor.numel() * tensor.element_size()
            slot = self._free_slot(HEADER_LIMIT_BYTES + nbytes)
            slot.memory[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
            body = slot.memory[HEADER_LIMIT_BYTES : HEADER_LIMIT_BYTES + nbytes]
            body.view(tensor.dtype).copy_(tensor.reshape(-1))
            self._fence()
            for peer in open_to:
                number = self._mine.posted(peer) + 1
                self._mine.set_descriptor(peer, number, slot.offset, len(header), nbytes)
                slot.readers.append((peer, number))
                self._unread.setdefault((peer, letter.tag), []).append(number)
                self._fence()
                self._mine.set_posted(peer, number)
                self._ring(peer)
        return tuple(peer for peer in targets if peer not in open_to)

    def _has_room(self, peer: int, tag: str, limit: int) -> bool:
        """By tag, so that kinds of letters don't block each other; and for all of them together,
        because the next letter's place in the ring must be free."""
        control, overwritten = self._controls[peer], self._mine.posted(peer) + 1 - RING
        if overwritten > 0 and not control.released(self.id, overwritten):
            return False
        unread = [n for n in self._unread.get((peer, tag), ()) if not control.released(self.id, n)]
        self._unread[peer, tag] = unread
        return len(unread) < limit

    def _free_slot(self, nbytes: int) -> _Slot:
        for slot in self._slots:
            if slot.memory.numel() >= nbytes and self._is_free(slot):
                slot.readers.clear()
                return slot
        slot = _Slot(*self._arena.allocate(nbytes))
        self._slots.append(slot)
        return slot

    def _is_free(self, slot: _Slot) -> bool:
        return all(self._controls[peer].released(self.id, number) for peer, number in slot.readers)

    def _ring(self, peer: int) -> None:
        self._rings = (self._rings + 1) % (1 << 20)
        self._fence()
        control = self._controls[peer]
        control.bell = self.id << 20 | self._rings
        self._futex.wake(control.bell_address)

    def arrivals(self) -> list[Letter]:
        letters = []
        for sender, control in enumerate(self._controls):
            posted = control.posted(self.id)
            while self._read[sender] < posted:
                self._read[sender] += 1
                letters.append(self._open(sender, self._read[sender]))
        return letters

    def _open(self, sender: int, number: int) -> Letter:
        offset, header_bytes, nbytes = self._controls[sender].descriptor(self.id, number)
        memory = self._arenas[sender].map(offset, HEADER_LIMIT_BYTES + nbytes)
        header = decode_header(bytes(memory[:header_bytes].numpy()))
        payload = memory[HEADER_LIMIT_BYTES : HEADER_LIMIT_BYTES + nbytes]
        letter = letter_of(header, payload)
        self._tickets[id(letter)] = (letter, sender, number)
        return letter

    def release(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            ticket = self._tickets.pop(id(letter), None)
            if ticket is not None:
                self._mine.set_released(*ticket[1:])

    # Sleeping and waking

    def listen(self) -> int:
        return self._mine.bell

    def sleep(self, token: int, seconds: float) -> None:
        self._futex.sleep(self._mine.words32, 0, self._mine.bell_address, token, seconds)

    def _ring_everybody(self) -> None:
        for peer in range(self.size):
            if peer != self.id:
                self._ring(peer)
        self._reducer.wake_waiters()

    # Who is there

    def phase(self, peer: int) -> Phase:
        return self._controls[peer].phase

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

    def beat(self) -> None:
        self._mine.beat()

    # Memory

    def allocate(self, nbytes: int) -> Tensor:
        return self._arena.allocate(nbytes)[1]

    def publish(self, name: str, tensor: Tensor) -> None:
        data = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        if name not in self._windows or self._windows[name][1].numel() != data.numel():
            if len(self._windows) >= WINDOWS:
                raise UsageError(f"participant {self.id} can't publish {name!r}: {WINDOWS} names are taken")
            self._windows[name] = self._arena.allocate(data.numel())
        offset, memory = self._windows[name]
        memory.copy_(data)
        self._fence()
        self._mine.set_window(list(self._windows).index(name), name, offset, data.numel())

    def peek(self, peer: int, name: str) -> Tensor | None:
        window = self._controls[peer].window(name)
        return None if window is None else self._arenas[peer].map(*window)

    # Collectives

    def can_reduce(self, tensor: Tensor) -> bool:
        return True

    def reduce(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, patience: Patience
    ) -> Reduction:
        return self._reducer.reduce(tensor, among, weight, present, patience)

    def take_waited_ns(self) -> dict[int, int]:
        return self._reducer.take_waited_ns()

    def close(self) -> None:
        """Mappings go with the process; descriptors are closed by whoever opened them."""
