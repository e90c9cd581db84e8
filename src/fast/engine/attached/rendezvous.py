"""How workers that were started apart exchange a few bytes before they are connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import final

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from fast.errors import PeerSilent


class Rendezvous(ABC):
    """One worker's end. Whoever offers it is needed until all have met, and not afterwards."""

    private = False
    """Whether only those who have the job's secret can read what is exchanged."""

    @abstractmethod
    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        """What each worker brings under this topic, by worker. PeerSilent names those who bring nothing in time."""


@final
class StoreRendezvous(Rendezvous):
    """Over a store of torch.distributed, such as the one that torchrun keeps. It is neither encrypted nor
    protected by a password."""

    def __init__(self, store: Store, worker: int, workers: int, prefix: str) -> None:
        self._store = PrefixStore(prefix, store)
        self._worker, self._workers = worker, workers

    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        self._store.set(f"{topic}/{self._worker}", mine.hex())
        keys = [f"{topic}/{worker}" for worker in range(self._workers)]
        try:
            self._store.wait(keys, timedelta(seconds=deadline_s or 3600.0))
        except DistError:
            raise PeerSilent(self._missing(keys, deadline_s), peers=self._absent(keys)) from None
        return [bytes.fromhex(self._store.get(key).decode()) for key in keys]

    def _absent(self, keys: list[str]) -> list[int]:
        return [worker for worker, key in enumerate(keys) if not self._store.check([key])]

    def _missing(self, keys: list[str], deadline_s: float) -> str:
        return missing_in_words(self._absent(keys), self._workers, deadline_s)


def missing_in_words(absent: list[int], workers: int, deadline_s: float) -> str:
    """Who has not come to the rendezvous."""
    some = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    return (
        f"of {workers} workers {workers - len(absent)} have come to fast.join within {deadline_s:.0f} s, and these "
        f"have not: {some}. Does every worker run the whole script, and were all of them started? A longer "
        "deadline (FAST_DEADLINE) waits longer."
    )


def open_store(host: str, port: int, *, serves: bool, deadline_s: float) -> TCPStore:
    """torch's key-value store at this address."""
    return TCPStore(
        host, port, is_master=serves, timeout=timedelta(seconds=deadline_s or 3600.0), wait_for_workers=False
    )
