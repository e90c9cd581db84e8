"""The program of a server that a worker has started; see `servers`."""

from __future__ import annotations

import sys
import traceback

import msgspec
import torch

from fast.engine.attached.servers import Description
from fast.engine.process import die_with_parent, find, name_process
from fast.engine.seat import Seat, say, seated
from fast.errors import FastError
from fast.transport.tcp import issue, parse_secret
from fast.transport.tcp.connection import listen, split_address
from fast.transport.tcp.transport import Job, TcpTransport

_SERVE = "fast.loop.serving:serve"
"""What a server does, by its name: it belongs to a room above."""


def main() -> None:
    described = msgspec.json.decode(sys.stdin.buffer.read(), type=Description)
    die_with_parent(described.parent)
    name_process(f"fast server {described.number}")
    torch.set_num_threads(described.worker_threads)
    transport = _connect(described)
    try:
        with seated(_seat(described, transport)):
            find(_SERVE)(described.call, described.number)
    except Exception as error:
        summary = traceback.format_exception_only(error)[-1].strip()
        if not isinstance(error, FastError):
            traceback.print_exc()
        transport.fail(f"server {described.number} failed: {summary}")
        transport.close()
        sys.exit(1)
    transport.close()


def _connect(described: Description) -> TcpTransport:
    job = Job(
        described.session,
        described.size,
        described.release,
        described.directory,
        described.deadline_s,
        described.groups,
    )
    identity = None
    if described.secret is not None:
        identity = issue(parse_secret(described.secret), job.session, described.id)
    host = split_address(described.directory[0])[0]  # on worker 0's host
    return TcpTransport(described.id, job, listen(host), identity)


def _seat(described: Description, transport: TcpTransport) -> Seat:
    return Seat(
        id=described.id,
        workers=described.workers,
        connect=lambda: transport,
        start_servers=lambda strategy, count: None,
        say=say,
        seed=described.seed,
        deadline_s=described.deadline_s,
    )


if __name__ == "__main__":
    main()
