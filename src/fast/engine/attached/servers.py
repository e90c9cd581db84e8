"""Servers where a launcher has fixed the number of processes: worker 0 starts them as programs of their own.

    python -m fast.engine.attached.serve < description

They are never forked from a worker, which has threads, a model and perhaps a device. The description, with the
job's secret in it, comes through a pipe: neither the command line nor the environment shows it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import torch

from fast.core import Strategy
from fast.errors import UsageError
from fast.transport.tcp import Secret
from fast.transport.tcp.transport import Job
from fast.view import Groups

_PROGRAM = "fast.engine.attached.serve"


class Description(msgspec.Struct):
    """All that a server has to know."""

    parent: int
    worker_threads: int
    workers: int
    number: int
    call: str
    """The strategy, as it is written."""
    session: str
    size: int
    release: str
    directory: dict[int, str]
    deadline_s: float
    seed: int | None
    secret: str | None
    groups: Groups = ()

    @property
    def id(self) -> int:
        return self.workers + self.number


def start_servers(
    strategy: Strategy, count: int, job: Job, secret: Secret | None, seed: int | None
) -> list[subprocess.Popen[bytes]]:
    """Start them on this host. They end when all workers have left, or with the process that calls this."""
    if not strategy.call:
        raise UsageError(
            f"{strategy!r} has servers, which run in processes of their own and are built there from a call such as "
            "'ssp(bound=3)'. Give the strategy as text: a preset, or 'file.py:Name(arguments)'."
        )
    started = []
    for number in range(count):
        description = Description(
            parent=os.getpid(),
            worker_threads=torch.get_num_threads(),
            workers=len(job.directory),
            number=number,
            call=strategy.call,
            session=job.session,
            size=job.size,
            release=job.release,
            directory=dict(job.directory),
            deadline_s=job.deadline_s,
            seed=seed,
            secret=None if secret is None else secret.text(),
            groups=job.groups,
        )
        # In a session of its own: a launcher that tells its workers to stop tells their whole group.
        process = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(description))
        process.stdin.close()
        started.append(process)
    return started
