"""A worker that is told to stop from outside: SIGTERM, as whoever ends processes sends it first."""

from __future__ import annotations

import os
import signal
import threading

from fast.runtime import WorkerRuntime


def stop_when_told(runtime: WorkerRuntime) -> None:
    """From now on SIGTERM means: finish the step, leave the others, end well. A second one ends it at once.

    A script that has a handler of its own keeps it, and so do participants that are threads of one process.
    """
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()

    def told(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == process:
            runtime.tell_to_stop()
        else:  # a process that the script has forked, which trains nothing
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, told)
