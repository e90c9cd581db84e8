"""Threads of one process: for tests, and for trying things out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.transport.base import Phase, Status, Transport


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

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        hub, refused = self._hub, []
        copy = replace(letter, tensor=letter.tensor.clone())
        with hub.changed:
            for peer in to:
                unread = hub.unread.get((self.id, peer, letter.tag), 0)
                if unread >= limit:
                    refused.append(peer)
                    continue
                hub.unread[self.id, peer, letter.tag] = unread + 1
                delivered = replace(copy)
                hub.open[id(delivered)] = delivered
                hub.queues[peer].append(delivered)
            hub.touch()
        return tuple(refused)

    def arrivals(self) -> list[Letter]:
        with self._hub.changed:
            letters, self._hub.queues[self.id] = self._hub.queues[self.id], []
        return letters

    def release(self, letters: Iterable[Letter]) -> None:
        with self._hub.changed:
            for letter in letters:
                if self._hub.open.pop(id(letter), None) is not None:
                    self._hub.unread[letter.sender, self.id, letter.tag] -= 1

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

    def beat(self) -> None:
        with self._hub.changed:
            self._set(self.status(self.id)._replace(alive_ns=time.monotonic_ns()))

    def allocate(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def publish(self, name: str, tensor: Tensor) -> None:
        data = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8)
        with self._hub.changed:
            self._hub.windows[self.id, name] = data
            self._hub.touch()

    def peek(self, peer: int, name: str) -> Tensor | None:
        return self._hub.windows.get((peer, name))

    def close(self) -> None:
        """Nothing is held."""
