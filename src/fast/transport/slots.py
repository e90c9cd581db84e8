"""Memory for letters that are under way, as much as that takes and not more.

A letter lies in a slot of the next power of two, so that slots fit again although sizes vary. All
that is kept beside the letters that are still read is at most as much as these, and SPARE_BYTES:
the pages of other slots go back to the system, those first that were used longest ago. That is
looked after whenever a slot needs pages that it didn't have, and now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor

from fast.transport.arena import Arena, room_for

SPARE_BYTES = 1 << 20
"""Memory that free slots may keep although hardly anything is under way."""
_LOOK_EVERY = 1024
"""Letters from one look at what could go back to the next, if no slot grows."""


@final
class Slot:
    """Memory for one letter, and for whom it still waits."""

    def __init__(self, offset: int, memory: Tensor) -> None:
        self.offset, self.memory = offset, memory
        self.bytes = memoryview(memory.numpy())  # type: ignore[arg-type]
        self.readers: list[tuple[int, int]] = []
        self.touched_bytes = 0
        """So far it has been written to; as much memory it takes."""
        self.turn = 0
        """When it was taken last, counted in slots taken."""


@final
class Slots:
    """Those of one participant."""

    def __init__(self, arena: Arena, is_free: Callable[[Slot], bool]) -> None:
        self._arena, self._is_free = arena, is_free
        self._by_room: dict[int, list[Slot]] = {}
        self._turn = 0

    def take(self, nbytes: int) -> Slot:
        """A slot that nobody reads any more, for this many bytes."""
        slot = self._one_with(room_for(nbytes))
        slot.readers.clear()
        self._turn += 1
        slot.turn = self._turn
        if nbytes > slot.touched_bytes or self._turn % _LOOK_EVERY == 0:
            slot.touched_bytes = max(slot.touched_bytes, nbytes)
            self._give_back()
        return slot

    def _one_with(self, room: int) -> Slot:
        slots = self._by_room.setdefault(room, [])
        for slot in slots:
            if self._is_free(slot):
                return slot
        slots.append(Slot(*self._arena.allocate(room)))
        return slots[-1]

    def _give_back(self) -> None:
        touched = [slot for slots in self._by_room.values() for slot in slots if slot.touched_bytes]
        free = [slot for slot in touched if slot.turn != self._turn and self._is_free(slot)]
        total = sum(slot.touched_bytes for slot in touched)
        spare = SPARE_BYTES + total - sum(slot.touched_bytes for slot in free)
        for slot in sorted(free, key=lambda slot: -slot.turn):
            if slot.touched_bytes <= spare:
                spare -= slot.touched_bytes
            else:
                self._arena.give_back(slot.offset, slot.touched_bytes)
                slot.touched_bytes = 0
