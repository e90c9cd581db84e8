"""The fingerprint of a trace."""

from __future__ import annotations

import hashlib
from typing import final

from fast.trace import Record


@final
class TraceHash:
    """A fingerprint of all that was reported, in order. Equal traces have equal fingerprints."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.records = 0

    def __call__(self, record: Record) -> None:
        self._hash.update(repr(record).encode())
        self.records += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
