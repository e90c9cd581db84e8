"""Letters through shared memory: the slots of those that go out, and reading those that come in.

A participant writes only into its own arena, and may write anything there: what its descriptors
and headers say is checked before it is followed. A letter that is refused counts as released, so
its sender goes on; a sender whose counter is wrong has no next letter, and isn't read any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fast.core.framing import copied_into, header_of, letter_of, nbytes_of
from fast.core.letter import Letter
from fast.errors import WireError
from fast.transport.arena import Arena, flat
from fast.transport.control import RING, Control, Fence
from fast.transport.slots import Slot, Slots
from fast.wire import HEADER_LIMIT_BYTES, decode_header, encode_header


class Outgoing:
    """What one participant has posted."""

    def __init__(self, id: int, arena: Arena, controls: Sequence[Control], fence: Fence) -> None:
        self._id, self._controls, self._fence = id, controls, fence
        self._mine = controls[id]
        self._slots = Slots(arena, self._is_free)
        self._unread: list[dict[int, str]] = [{} for _ in controls]
        """For each peer, the tags of the letters that it has not released: RING of them at most."""

    def has_room(self, peer: int, tag: str, limit: int) -> bool:
        """By tag, so that kinds of letters don't block each other; and for all of them together,
        because the next letter's place in the ring must be free."""
        control, unread = self._controls[peer], self._unread[peer]
        if not unread:
            return limit > 0
        for number in [n for n in unread if control.released(self._id, n)]:
            del unread[number]
        if self._mine.posted(peer) + 1 - RING in unread:
            return False
        return sum(other == tag for other in unread.values()) < limit

    def post(self, to: Iterable[int], letter: Letter) -> None:
        """To those who have room."""
        header, nbytes = encode_header(header_of(letter)), nbytes_of(letter.tensor)
        slot = self._slots.take(HEADER_LIMIT_BYTES + nbytes)
        slot.bytes[: len(header)] = header
        copied_into(slot.memory[HEADER_LIMIT_BYTES : HEADER_LIMIT_BYTES + nbytes], letter.tensor)
        self._fence()
        for peer in to:
            number = self._mine.posted(peer) + 1
            self._mine.set_descriptor(peer, number, slot.offset, len(header), nbytes)
            slot.readers.append((peer, number))
            self._unread[peer][number] = letter.tag
            self._fence()
            self._mine.set_posted(peer, number)

    def _is_free(self, slot: Slot) -> bool:
        return all(self._controls[peer].released(self._id, number) for peer, number in slot.readers)


class Incoming:
    """What the others have posted to one participant."""

    def __init__(self, id: int, arenas: Sequence[Arena], controls: Sequence[Control]) -> None:
        self._id, self._arenas, self._controls = id, arenas, controls
        self._mine = controls[id]
        self._read = [0] * len(controls)
        self._tickets: dict[int, tuple[Letter, int, int]] = {}
        self._lost: set[int] = set()
        """Those whose counter was wrong, or who say something else that nobody can go by."""
        self._refusals: list[tuple[int, WireError]] = []

    def arrivals(self) -> list[Letter]:
        letters: list[Letter] = []
        for sender, control in enumerate(self._controls):
            posted = control.posted(self._id)
            if posted != self._read[sender] and sender not in self._lost:
                self._collect(sender, posted, letters)
        return letters

    def _collect(self, sender: int, posted: int, letters: list[Letter]) -> None:
        """Whoever keeps to the rules posts a letter only when the one RING before it was released."""
        read = self._read[sender]
        if not read < posted <= read + RING:
            self.lose(sender, f"says that it has posted {posted} letters; {read} were read")
            return
        for number in range(read + 1, posted + 1):
            if number > RING and not self._mine.released(sender, number - RING):
                self.lose(sender, f"has posted letter {number} over one that is still read")
                return
            self._read[sender] = number
            try:
                letters.append(self._open(sender, number))
            except WireError as error:
                self._mine.set_released(sender, number)
                self._refuse(sender, f"letter {number} of participant {sender} is refused: {error}")

    def _open(self, sender: int, number: int) -> Letter:
        offset, header_bytes, nbytes = self._controls[sender].descriptor(self._id, number)
        if not 0 < header_bytes <= HEADER_LIMIT_BYTES:
            raise WireError(f"it announces a header of {header_bytes} bytes")
        memory = self._arenas[sender].map(offset, HEADER_LIMIT_BYTES + nbytes)
        header = decode_header(memory[:header_bytes])
        letter = letter_of(header, flat(memory[HEADER_LIMIT_BYTES:]), sender)
        self._tickets[id(letter)] = (letter, sender, number)
        return letter

    def release(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            ticket = self._tickets.pop(id(letter), None)
            if ticket is not None:
                self._mine.set_released(*ticket[1:])

    def lose(self, sender: int, why: str) -> None:
        """Nothing that comes from this participant is believed any more; said once."""
        if sender not in self._lost:
            self._lost.add(sender)
            self._refuse(sender, f"participant {sender} {why}. Nothing more of it is read.")

    def _refuse(self, sender: int, why: str) -> None:
        if len(self._refusals) < RING * len(self._controls):
            self._refusals.append((sender, WireError(why)))

    def refusals(self) -> list[tuple[int, WireError]]:
        refused, self._refusals = self._refusals, []
        return refused
