"""A run whose participants are forked from the caller's own process: they inherit a function that can't be imported.

The fork is made in a thread of its own, which has never computed anything. GNU OpenMP keeps a pool of threads for every
thread that has computed in parallel. A child has a copy of the forking thread only, so a pool of that thread would
be waited for and never answer. A new thread has no pool, and its child makes one when it needs it.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from fast.engine.local import Listener, follow, host_died
from fast.engine.messages import Channel, Job, Outcome


def run_forked(job: Job, body: Callable[[], Any], listen: Listener = lambda message: None) -> Outcome:
    """Run a job whose workers call `body` instead of its entry. When this returns or raises, all have ended."""
    from fast.engine.host import Host  # run with -m for other runs, so the package must not import it

    ours, theirs = socket.socketpair()
    channel, parent = Channel(ours), os.getpid()

    def become_host() -> None:
        ours.close()
        _forget_the_caller()
        if os.getppid() != parent:
            os._exit(1)
        Host(Channel(theirs), body).run()

    pid = _fork(become_host)
    theirs.close()
    try:
        channel.send({"do": "run", "job": msgspec.to_builtins(job)})
        return follow(channel, listen) or host_died()
    finally:
        channel.close()
        os.waitpid(pid, 0)


def _fork(become: Callable[[], None]) -> int:
    """Fork in a new thread, which is the only one in the child."""
    pids: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                become()
            finally:
                os._exit(1)
        pids.append(pid)

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():  # newer Pythons warn of threads that wait for nothing but us
        warnings.simplefilter("ignore", DeprecationWarning)
        thread = threading.Thread(target=fork, name="fast-fork")
        thread.start()
        thread.join()
    return pids[0]


def _forget_the_caller() -> None:
    """Leave its terminal, its exit handlers and its signal handlers."""
    os.setsid()
    atexit._clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
