"""Threads of one process: for tests, and for trying things out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from fast.core.framing import dtype_name, flat_copy, header_of, letter_of, lies_flat, typed
from fast.core.letter import Letter
from fast.transport.base import Phase, Status, Transport
from fast.wire import decode_header, encode_header


class MemoryHub:
    """What the participants of one process share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.changes = 0
        self.queues: list[list[Letter]] = [[] for _ in range(size)]
        self.unread: dict[tuple[int, int, str], int] = {}
        self.open: dict[int, Letter] = {}
        self.windows: dict[tuple[int, str], Tensor] = {}
        self.statuses = [Status(Phase.STARTING, 0, 0, time.monotonic_ns(), "", 0) for _ in range(size)]

    def touch(self) -> None:
        """Wake everybody; the caller holds `changed`."""
        self.changes += 1
        self.changed.notify_all()


class MemoryTransport(Transport):
    """One participant's end."""

    def __init__(self, id: int, hub: MemoryHub) -> None:
        self.id, self.size, self._hub = id, hub.size, hub
        self._regions: list[Tensor] = []

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        """Headers go through their bytes, as they do between processes: no two participants ever
        hold the same list, and what can't be sent is refused here too."""
        self._check_own(letter)
        hub, refused = self._hub, []
        header, payload = encode_header(header_of(letter)), flat_copy(letter.tensor)
        with hub.changed:
            for peer in to:
                key = (self.id, peer, letter.tag)
                if hub.unread.get(key, 0) >= limit:
                    refused.append(peer)
                    continue
                hub.unread[key] = hub.unread.get(key, 0) + 1
                delivered = letter_of(decode_header(header), payload, self.id)
                hub.open[id(delivered)] = delivered
                hub.queues[peer].append(delivered)
            hub.touch()
        return tuple(refused)

    def arrivals(self) -> list[Letter]:
        with self._hub.changed:
            letters, self._hub.queues[self.id] = self._hub.queues[self.id], []
        return letters

    def release(self, letters: Iterable[Letter]) -> None:
        unread = self._hub.unread
        with self._hub.changed:
            for letter in letters:
                if self._hub.open.pop(id(letter), None) is not None:
                    key = (letter.sender, self.id, letter.tag)
                    unread[key] -= 1
                    if not unread[key]:
                        del unread[key]

    def listen(self) -> int:
        return self._hub.changes

    def sleep(self, token: int, seconds: float) -> None:
        with self._hub.changed:
            self._hub.changed.wait_for(lambda: self._hub.changes != token, seconds)

    def phase(self, peer: int) -> Phase:
        return self._hub.statuses[peer].phase

    def status(self, peer: int) -> Status:
        return self._hub.statuses[peer]

    def _set(self, status: Status) -> None:
        self._hub.statuses[self.id] = status

    def set_phase(self, phase: Phase) -> None:
        with self._hub.changed:
            self._set(self.status(self.id)._replace(phase=phase))
            self._hub.touch()

    def set_progress(self, steps: int, samples: int) -> None:
        with self._hub.changed:  # the background thread writes too
            self._set(self.status(self.id)._replace(steps=steps, samples=samples))

    def set_waits(self, waits: str) -> None:
        with self._hub.changed:
            mine = self.status(self.id)
            self._set(mine._replace(waits=waits, wait_number=mine.wait_number + 1))

    def set_looks(self, looks: int) -> None:
        with self._hub.changed:
            self._set(self.status(self.id)._replace(looks=looks))

    def beat(self) -> None:
        with self._hub.changed:
            self._set(self.status(self.id)._replace(alive_ns=time.monotonic_ns()))

    @property
    def shared_with(self) -> frozenset[int]:
        return frozenset(range(self.size))

    def allocate(self, nbytes: int) -> Tensor:
        region = torch.zeros(nbytes, dtype=torch.uint8)
        self._regions.append(region)
        return region

    def publish(self, name: str, tensor: Tensor) -> None:
        self._show(name, _copied(tensor))

    def window(self, name: str, tensor: Tensor) -> Tensor:
        """What lies elsewhere is copied, as it is between processes."""
        if not self._is_ours(tensor):
            tensor = _copied(tensor)
        self._show(name, tensor)
        return tensor

    def _is_ours(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage().data_ptr()
        return lies_flat(tensor) and any(
            region.untyped_storage().data_ptr() == storage for region in self._regions if region.numel()
        )

    def _show(self, name: str, tensor: Tensor) -> None:
        with self._hub.changed:
            self._hub.windows[self.id, name] = tensor
            self._hub.touch()

    def peek(self, peer: int, name: str) -> Tensor | None:
        return self._hub.windows.get((peer, name))

    def close(self) -> None:
        """Nothing is held."""


def _copied(tensor: Tensor) -> Tensor:
    dtype_name(tensor)  # refuses what can't be shown between processes either
    return typed(flat_copy(tensor), tensor.dtype, tensor.shape)
