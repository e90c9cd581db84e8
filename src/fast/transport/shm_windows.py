"""What a participant lets its peers read: copies that stay as they are, and windows into live memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from fast.core.framing import DTYPES, copied_into, dtype_name, nbytes_of, typed
from fast.errors import UsageError, WireError
from fast.transport.arena import Arena, room_for
from fast.transport.control import WINDOW_NAME_BYTES, WINDOWS, Control, Fence, Window
from fast.wire import ITEM_BYTES, fault_of_shape

_KINDS = tuple(DTYPES)


class Windows:
    """Those of one participant, and its look through those of the others."""

    def __init__(self, id: int, arenas: Sequence[Arena], controls: Sequence[Control], fence: Fence) -> None:
        self._id, self._arenas, self._controls, self._fence = id, arenas, controls, fence
        self._told: dict[str, Window] = {}
        self._copies: dict[str, tuple[int, Tensor]] = {}
        """Memory for what lay elsewhere, by name; used again while it is large enough."""

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of these values; returns where peers read it."""
        kind = self._checked_kind(name, tensor)
        nbytes, (offset, memory) = nbytes_of(tensor), self._copies.get(name, (0, None))
        if memory is None or memory.numel() < nbytes:
            offset, memory = self._copies[name] = self._arenas[self._id].allocate(room_for(nbytes))
        copy = copied_into(memory[:nbytes], tensor)
        self._tell(name, Window(offset, kind, tuple(tensor.shape)))
        return copy

    def window(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself where it lies in memory that peers can read; else as `publish`."""
        offset = self._arenas[self._id].where(tensor)
        if offset is None:
            return self.publish(name, tensor)
        self._tell(name, Window(offset, self._checked_kind(name, tensor), tuple(tensor.shape)))
        return tensor

    def _checked_kind(self, name: str, tensor: Tensor) -> int:
        if len(name.encode()) > WINDOW_NAME_BYTES:
            raise UsageError(
                f"{name!r} is too long a name to publish under; {WINDOW_NAME_BYTES} bytes is the limit"
            )
        if name not in self._told and len(self._told) >= WINDOWS:
            raise UsageError(f"participant {self._id} can't publish {name!r}: {WINDOWS} names are taken")
        kind = dtype_name(tensor)
        fault = fault_of_shape(kind, tensor.shape)
        if fault:
            raise UsageError(f"participant {self._id} can't publish {name!r}: {fault}")
        return _KINDS.index(kind)

    def _tell(self, name: str, window: Window) -> None:
        """An entry that says so already stays as it is, so that nobody finds it half written."""
        self._fence()
        if self._told.get(name) != window:
            self._told[name] = window
            self._controls[self._id].set_window(list(self._told).index(name), name, window, self._fence)

    def peek(self, peer: int, name: str) -> Tensor | None:
        window = self._controls[peer].window(name)
        if window is None:
            return None
        kind = _KINDS[window.dtype] if window.dtype < len(_KINDS) else "unknown"
        fault = fault_of_shape(kind, window.shape)
        if fault or window.offset % ITEM_BYTES[kind]:
            raise WireError(
                f"participant {peer} publishes {name!r} at {window.offset} of its shared memory: "
                f"{fault or 'a place where none can lie'}"
            )
        nbytes = math.prod(window.shape) * ITEM_BYTES[kind]
        return typed(self._arenas[peer].read(window.offset, nbytes), DTYPES[kind], window.shape)
