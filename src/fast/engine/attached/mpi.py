"""How workers that mpiexec has started meet: over MPI itself, which is needed for nothing else."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from typing import Any, final

from fast.engine.attached.rendezvous import Rendezvous, missing_in_words
from fast.engine.seat import say
from fast.errors import PeerSilent, UsageError

_NAP_S, _ENDLESS_S = 0.01, 3600.0
_FIRST_TAG = 4400
"""Tags from here on are ours; a script that uses MPI itself has lower ones."""


def open_mpi(deadline_s: float) -> MpiRendezvous:
    """Start MPI, unless the script has done so."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # not installed; or there is no library of MPI
        raise UsageError(
            f"mpiexec has started this script, and mpi4py can't be used ({error}). Install it with: "
            "pip install 'fast-training[mpi]'"
        ) from error
    if not MPI.Is_initialized():
        _start(MPI, deadline_s)
        atexit.register(MPI.Finalize)
    return MpiRendezvous(MPI)


def _start(mpi: Any, deadline_s: float) -> None:
    """MPI waits here for all processes, for ever, and mpi4py lets no other thread run meanwhile. So it is called
    directly, and a process whose deadline has passed ends: nothing else can be done with it."""

    def give_up() -> None:
        say(
            f"not all workers that mpiexec has started have come to fast.join within {deadline_s:.0f} s. Does every "
            "worker run the whole script? A longer deadline (FAST_DEADLINE) waits longer."
        )
        os._exit(1)

    watch = threading.Timer(deadline_s or _ENDLESS_S, give_up)
    watch.daemon = True
    watch.start()
    try:
        library, provided = ctypes.CDLL(mpi.__file__), ctypes.c_int()
        library.MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided))
    finally:
        watch.cancel()


@final
class MpiRendezvous(Rendezvous):
    """Letters from each to each instead of one collective call: so those that don't come can be named."""

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self._worker, self._workers = self._world.Get_rank(), self._world.Get_size()
        self._sent: list[Any] = []
        self._tag = _FIRST_TAG

    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        self._tag += 1
        others = [worker for worker in range(self._workers) if worker != self._worker]
        for worker in others:
            self._sent.append(self._world.Isend([mine, self._mpi.BYTE], dest=worker, tag=self._tag))
        came = {self._worker: mine}
        began = time.monotonic()
        while absent := [worker for worker in others if worker not in came]:
            came |= {worker: self._receive(worker) for worker in absent if self._has_come(worker)}
            if deadline_s and time.monotonic() - began > deadline_s:
                raise PeerSilent(missing_in_words(absent, self._workers, deadline_s), peers=absent)
            time.sleep(_NAP_S)
        return [came[worker] for worker in range(self._workers)]

    def _has_come(self, worker: int) -> bool:
        return bool(self._world.Iprobe(source=worker, tag=self._tag))

    def _receive(self, worker: int) -> bytes:
        status = self._mpi.Status()
        self._world.Probe(source=worker, tag=self._tag, status=status)
        buffer = bytearray(status.Get_count(self._mpi.BYTE))
        self._world.Recv([buffer, self._mpi.BYTE], source=worker, tag=self._tag)
        return bytes(buffer)

    def leave(self, deadline_s: float) -> None:
        """MPI goes on with what it has sent only while it is called."""
        until = time.monotonic() + deadline_s
        while not self._mpi.Request.Testall(self._sent) and (not deadline_s or time.monotonic() < until):
            time.sleep(_NAP_S)
