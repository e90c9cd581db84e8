"""Shared memory among workers of one host that nobody of ours has forked: they hand each other descriptors.

Each worker listens on a Unix socket without a place in the file system, whose name contains the job's, and gives
the descriptor of its arena to processes of the same user. The kernel says which user that is, to both ends. A few
bytes may go along, such as a secret.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import final

from fast.errors import PeerSilent, WireError
from fast.transport.arena import create_arena
from fast.transport.control import control_bytes

_CREDENTIALS = struct.Struct("3i")
_NAP_S = 0.05
_MARK, _WORD_BYTES = b"a", 256


def can_share() -> bool:
    """Whether this system has what it takes; elsewhere workers of one host talk over TCP like all others."""
    return all(hasattr(socket, name) for name in ("AF_UNIX", "SO_PEERCRED", "send_fds"))


@final
class Arenas:
    """One worker's part: its own arena, and those of the others of its group once they have been fetched."""

    def __init__(self, session: str, worker: int, group: Sequence[int], size: int, word: bytes = b"") -> None:
        self._session, self._worker, self._size, self._word = session, worker, size, word
        self._others = [peer for peer in group if peer != worker]
        self._own = create_arena(f"fast-{worker}", control_bytes(size))
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(self._name(worker))
        self._door.listen(len(group))
        threading.Thread(target=self._give, name="fast-arenas", daemon=True).start()

    def _name(self, worker: int) -> str:
        return f"\0fast-{self._session}-{worker}"

    def _give(self) -> None:
        """To each of the others, once."""
        given = 0
        while given < len(self._others):
            try:
                visitor, _ = self._door.accept()
            except OSError:
                return
            with visitor:
                if _user_of(visitor) == os.getuid():
                    socket.send_fds(visitor, [_MARK + self._word], [self._own])
                    given += 1
        self._door.close()

    def fetch(self, deadline_s: float) -> tuple[list[int], dict[int, bytes]]:
        """A descriptor for each participant of the job, those of other hosts get that of an empty arena; and the
        words that came along, by worker."""
        empty = create_arena("fast-empty", control_bytes(self._size))
        arenas = [empty] * self._size
        arenas[self._worker], words = self._own, {self._worker: self._word}
        until = time.monotonic() + (deadline_s or 3600.0)
        for peer in self._others:
            arenas[peer], words[peer] = self._fetch(peer, until)
        return arenas, words

    def _fetch(self, peer: int, until: float) -> tuple[int, bytes]:
        while time.monotonic() < until:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visit:
                try:
                    visit.settimeout(max(_NAP_S, until - time.monotonic()))
                    visit.connect(self._name(peer))
                    if _user_of(visit) != os.getuid():
                        raise WireError(f"another user of this host pretends to be worker {peer}")
                    word, descriptors, _, _ = socket.recv_fds(visit, _WORD_BYTES, 1)
                except OSError:
                    word, descriptors = b"", []
            if descriptors:
                return int(descriptors[0]), word.removeprefix(_MARK)
            time.sleep(_NAP_S)
        raise PeerSilent(f"worker {peer} of this host hasn't handed over its shared memory", peers=(peer,))


def _user_of(visitor: socket.socket) -> int:
    raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
