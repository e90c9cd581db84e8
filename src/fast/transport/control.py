"""A participant's control block: the first pages of its arena, laid out in words.

Each word has one writer, its owner, except two: into the bell any peer writes a value that nobody
writes twice, and the sign of life comes from the host until a participant has joined. Readers see a
word as it is; where several words belong together, the one that announces them is written last (x86
keeps that order; elsewhere `fence` asks for it). A peer may have written anything there: nothing that
is read here can raise, or lead out of the block.

    per participant   bell, phase, steps, samples, sign of life, what it waits for, how often it has looked for it
    per peer          how many letters were posted to it, and the descriptors of the last RING
                      which of its letters were released
    windows           name, place, dtype and shape of what is published
    groups            the state of the collectives this participant takes part in
"""

from __future__ import annotations

import platform
import struct
import threading
import time
from typing import NamedTuple

from torch import Tensor

from fast.transport.base import Phase, Status
from fast.transport.futex import yield_core
from fast.wire import DIMENSIONS

RING = 64
"""Letters from one participant to one other that may wait unread."""
WINDOWS = 32
WINDOW_NAME_BYTES = 40
GROUPS = 64
"""Groups of collectives that a participant may be in; each lane of one counts."""
_TEXT_BYTES = 240
_HEAD_BYTES = 512
_WINDOW = struct.Struct(f"<QHH4x{DIMENSIONS}Q")
_WINDOW_TURN_AT = WINDOW_NAME_BYTES
_WINDOW_ENTRY_AT = WINDOW_NAME_BYTES + 8
_WINDOW_BYTES = _WINDOW_ENTRY_AT + _WINDOW.size
_TRIES, _PATIENT_TRIES = 20, 20
"""Looks at an entry that is being written, until it is whole: at once, and then a millisecond apart."""
_DESCRIPTOR = struct.Struct("<QQQ")
_DESCRIPTOR_BYTES = 32
_GROUP_WORDS = 16

_BELL, _PHASE = 0, 1  # 32-bit words
_STEPS, _SAMPLES, _ALIVE, _WAITS, _LOOKS = 1, 2, 3, 4, 5  # 64-bit words
_TEXT_AT = 64
_PHASES = tuple(Phase)  # indexing is several times faster than Phase(...)


class Fence:
    """Keeps earlier writes before later ones where the processor would not."""

    def __init__(self) -> None:
        self._lock = None if platform.machine() in ("x86_64", "AMD64") else threading.Lock()

    def __call__(self) -> None:
        if self._lock is not None:
            with self._lock:
                pass


def control_bytes(size: int) -> int:
    """How large the control block is among `size` participants."""
    return _groups_at(size) + GROUPS * _GROUP_WORDS * 8


def _posted_at(size: int) -> int:
    return _HEAD_BYTES


def _descriptors_at(size: int) -> int:
    return _posted_at(size) + size * 8


def _released_at(size: int) -> int:
    return _descriptors_at(size) + size * RING * _DESCRIPTOR_BYTES


def _windows_at(size: int) -> int:
    return _released_at(size) + size * RING * 8


def _groups_at(size: int) -> int:
    return _windows_at(size) + WINDOWS * _WINDOW_BYTES


class Window(NamedTuple):
    """What an entry says about something that peers can read."""

    offset: int
    dtype: int
    """Its number among those that travel."""
    shape: tuple[int, ...]


class Control:
    """The control block of one participant, ours or a peer's."""

    def __init__(self, block: Tensor, size: int) -> None:
        self._bytes = memoryview(block.numpy())  # type: ignore[arg-type]
        self.words32 = self._bytes.cast("I")
        self.words64 = self._bytes.cast("Q")
        self.doubles = self._bytes.cast("d")
        self._size = size
        self._address = block.data_ptr()
        self._posted = _posted_at(size) // 8
        self._descriptors = _descriptors_at(size)
        self._released = _released_at(size) // 8
        self._windows = _windows_at(size)
        self._groups = _groups_at(size) // 8
        self._texts = 0

    # The participant itself

    @property
    def bell(self) -> int:
        return self.words32[_BELL]

    @bell.setter
    def bell(self, value: int) -> None:
        self.words32[_BELL] = value

    @property
    def bell_address(self) -> int:
        return self._address + 4 * _BELL

    @property
    def phase(self) -> Phase:
        """Whoever says something that isn't a phase can't be counted on: it has left."""
        number = self.words32[_PHASE]
        return _PHASES[number] if number < len(_PHASES) else Phase.LEFT

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.words32[_PHASE] = phase

    @property
    def has_phase(self) -> bool:
        """Whether it says one."""
        return self.words32[_PHASE] < len(_PHASES)

    def set_progress(self, steps: int, samples: int) -> None:
        self.words64[_STEPS] = steps
        self.words64[_SAMPLES] = samples

    def beat(self) -> None:
        self.words64[_ALIVE] = time.monotonic_ns()

    def set_waits(self, text: str) -> None:
        data = text.encode()[:_TEXT_BYTES]
        self._bytes[_TEXT_AT : _TEXT_AT + len(data)] = data
        self._texts += 1
        self.words64[_WAITS] = self._texts << 16 | len(data)

    def set_looks(self, looks: int) -> None:
        self.words64[_LOOKS] = looks

    def status(self) -> Status:
        waits = self.words64[_WAITS]
        length = min(waits & 0xFFFF, _TEXT_BYTES)
        text = bytes(self._bytes[_TEXT_AT : _TEXT_AT + length]).decode(errors="replace")
        words = self.words64
        return Status(
            self.phase, words[_STEPS], words[_SAMPLES], words[_ALIVE], text, waits >> 16, words[_LOOKS]
        )

    # Letters

    def posted(self, to: int) -> int:
        return self.words64[self._posted + to]

    def set_posted(self, to: int, number: int) -> None:
        self.words64[self._posted + to] = number

    def descriptor(self, to: int, number: int) -> tuple[int, int, int]:
        """Offset of the slot, bytes of its header, bytes of its payload."""
        at = self._descriptors + (to * RING + number % RING) * _DESCRIPTOR_BYTES
        return _DESCRIPTOR.unpack_from(self._bytes, at)

    def set_descriptor(self, to: int, number: int, offset: int, header: int, payload: int) -> None:
        at = self._descriptors + (to * RING + number % RING) * _DESCRIPTOR_BYTES
        _DESCRIPTOR.pack_into(self._bytes, at, offset, header, payload)

    def released(self, sender: int, number: int) -> bool:
        """Whether letter `number` of `sender` isn't needed here any more (numbers start at 1)."""
        return self.words64[self._released + sender * RING + number % RING] >= number

    def set_released(self, sender: int, number: int) -> None:
        self.words64[self._released + sender * RING + number % RING] = number

    # What is published

    def window(self, name: str) -> Window | None:
        """What is published under this name."""
        wanted = name.encode().ljust(WINDOW_NAME_BYTES, b"\0")
        for place in range(WINDOWS):
            at = self._windows + place * _WINDOW_BYTES
            if self._bytes[at : at + WINDOW_NAME_BYTES] == wanted:
                return self._entry(at)
        return None

    def _entry(self, at: int) -> Window | None:
        """An entry's turn is 0 while it is being written, and another one afterwards."""
        turn_at = (at + _WINDOW_TURN_AT) // 8
        for attempt in range(_TRIES + _PATIENT_TRIES):
            turn = self.words64[turn_at]
            offset, dtype, dimensions, *shape = _WINDOW.unpack_from(self._bytes, at + _WINDOW_ENTRY_AT)
            if turn and turn == self.words64[turn_at]:
                return Window(offset, dtype, tuple(shape[:dimensions]))
            yield_core() if attempt < _TRIES else time.sleep(0.001)
        return None

    def set_window(self, place: int, name: str, window: Window, fence: Fence) -> None:
        at = self._windows + place * _WINDOW_BYTES
        turn_at = (at + _WINDOW_TURN_AT) // 8
        turn = self.words64[turn_at] + 1
        self.words64[turn_at] = 0
        fence()
        self._bytes[at : at + WINDOW_NAME_BYTES] = name.encode().ljust(WINDOW_NAME_BYTES, b"\0")
        shape = window.shape + (0,) * (DIMENSIONS - len(window.shape))
        _WINDOW.pack_into(
            self._bytes, at + _WINDOW_ENTRY_AT, window.offset, window.dtype, len(window.shape), *shape
        )
        fence()
        self.words64[turn_at] = turn

    # Collectives: see shm_reduce

    def group_words(self, place: int) -> int:
        """The index, in 64-bit words, of the first word of a group's entry."""
        return self._groups + place * _GROUP_WORDS

    def address_of(self, word64: int) -> int:
        return self._address + 8 * word64
