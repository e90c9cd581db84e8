"""How workers that were started apart exchange a few bytes before they are connected."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import final

from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    DistNetworkError,
    PrefixStore,
    TCPStore,
)

from fast.errors import PeerLost, PeerSilent, UsageError

_ENDLESS_S = 3600.0
"""A deadline of 0 is none."""
_SHORT = timedelta(seconds=0.5)
_FAILED = "failed"
"""Where somebody says why the workers can't meet."""


class Rendezvous(ABC):
    """One worker's end. Whoever offers it is needed until all have met, and not afterwards."""

    private = False
    """Whether only those who have the job's secret can read what is exchanged."""

    @abstractmethod
    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        """What each worker brings under this topic, by worker. PeerSilent names those who bring nothing in time."""

    @abstractmethod
    def leave(self, deadline_s: float) -> None:
        """This worker has exchanged all it had to. It stays as long as the others need it for theirs."""


@final
class StoreRendezvous(Rendezvous):
    """Over a store of torch.distributed, such as the one that torchrun keeps. It is neither encrypted nor
    protected by a password. Worker 0 may be the one that `serves` it."""

    def __init__(self, store: TCPStore, worker: int, workers: int, prefix: str, *, serves: bool) -> None:
        self._place = f"{store.host}:{store.port}"
        self._store = PrefixStore(prefix, store)
        self._worker, self._workers, self._serves = worker, workers, serves

    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        try:
            self._store.set(f"{topic}/{self._worker}", mine.hex())
            keys = self._keys(topic)
            self._wait(keys, deadline_s)
            return [bytes.fromhex(self._store.get(key).decode()) for key in keys]
        except DistNetworkError as error:
            raise PeerLost(
                f"worker {self._worker} has lost the store at {self._place}, where the workers meet: the launcher or "
                "the worker that keeps it has ended"
            ) from error

    def leave(self, deadline_s: float) -> None:
        """Whoever serves the store keeps it until the others have read all that is in it."""
        with suppress(DistError):  # it may be gone already
            self._store.set(f"left/{self._worker}", "")
            if self._serves:
                self._store.wait(self._keys("left"), timedelta(seconds=deadline_s or _ENDLESS_S))

    def _keys(self, topic: str) -> list[str]:
        return [f"{topic}/{worker}" for worker in range(self._workers)]

    def _wait(self, keys: list[str], deadline_s: float) -> None:
        """In short waits, because torch hears of no signal during one."""
        until = time.monotonic() + (deadline_s or _ENDLESS_S)
        while True:
            try:
                self._store.wait(keys, _SHORT)
                return
            except DistNetworkError:
                raise
            except DistError:
                if self._store.check([_FAILED]):
                    raise PeerSilent(self._store.get(_FAILED).decode()) from None
                if time.monotonic() < until:
                    continue
                absent = [worker for worker, key in enumerate(keys) if not self._store.check([key])]
                why = missing_in_words(absent, self._workers, deadline_s)
                self._store.set(_FAILED, why)  # it is the same for all, and the store may go with us
                raise PeerSilent(why, peers=absent) from None


def missing_in_words(absent: Sequence[int], workers: int, deadline_s: float) -> str:
    """The sentence that names the workers missing at the rendezvous."""
    some = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    return (
        f"of {workers} workers {workers - len(absent)} have come to fast.join within {deadline_s:.0f} s, and these "
        f"have not: {some}. Does every worker run the whole script, and were all of them started? A longer "
        "deadline (FAST_DEADLINE) waits longer."
    )


def open_store(host: str, port: int, *, serves: bool, deadline_s: float) -> TCPStore:
    """torch's key-value store at this address."""
    timeout = timedelta(seconds=deadline_s or _ENDLESS_S)
    try:
        return TCPStore(host, port, is_master=serves, timeout=timeout, wait_for_workers=False)
    except DistNetworkError as error:
        if serves:
            raise UsageError(
                f"worker 0 can't open port {port}, where the workers meet: another program has it. Take another port "
                "(torchrun: --master_port)."
            ) from error
        raise PeerSilent(
            f"nothing answers at {host}:{port} within {deadline_s:.0f} s, where worker 0 or the launcher keeps the "
            "place where the workers meet. Was worker 0 started, and can this host reach it? A longer deadline "
            "(FAST_DEADLINE) waits longer.",
            peers=(0,),
        ) from error
