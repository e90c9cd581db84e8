"""Letters and means over TCP on the loopback: ours against bare sockets, bare TLS sockets and Gloo.

A letter is sent one way, with the values copied, checked and put together at the other end; the next
one goes when the receiver has used it up. The peers write the same bytes from one place of memory into
another. A mean is that of `allreduce.py`, among workers that share no memory.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import harness
from fast.core import Letter, drive
from fast.core.world import Round
from fast.engine import LocalEngine, current_seat
from fast.runtime import RealWorld
from fast.transport import Phase
from fast.transport.tcp import (
    Identity,
    Secret,
    client_context,
    issue,
    new_secret,
    parse_secret,
    server_context,
)
from fast.transport.tcp.connection import address_of, listen
from fast.transport.tcp.transport import Job, TcpTransport
from fast.view import View
from harness import Row, Times

LETTERS = {"4 kB": 4_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
MEANS = {"4 kB": 4_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
ROUNDS = {"4 kB": 100, "1 MB": 20, "10 MB": 5}
PLAIN, TLS, RAW, RAW_TLS, GLOO = "plain", "TLS", "bare socket", "bare TLS socket", "Gloo"
SESSION = "benchmark"


def exchange(folder: str, topic: str, mine: str) -> list[str]:
    """What each worker says, by way of files that are renamed when they are whole."""
    seat = current_seat()
    path = Path(folder, f"{topic}-{seat.id}")
    path.with_suffix(".new").write_text(mine)
    path.with_suffix(".new").rename(path)
    dist.barrier()
    return [Path(folder, f"{topic}-{worker}").read_text() for worker in range(seat.workers)]


def connect(folder: str, *, tls: bool) -> TcpTransport:
    """A transport of ours among all workers of the benchmark."""
    seat, listener = current_seat(), listen("127.0.0.1")
    topic = TLS if tls else PLAIN
    said = exchange(folder, topic, f"{address_of(listener)} {new_secret().text()}")
    directory = {worker: each.split()[0] for worker, each in enumerate(said)}
    job = Job(SESSION + topic.replace(" ", "-"), seat.workers, "benchmark", directory)
    identity = issue(parse_secret(said[0].split()[1]), job.session, seat.id) if tls else None
    return TcpTransport(seat.id, job, listener, identity)


def sockets(folder: str, *, tls: bool) -> socket.socket:
    """The peer: a blocking socket between workers 0 and 1."""
    seat, listener = current_seat(), listen("127.0.0.1")
    listener.setblocking(True)
    said = exchange(folder, RAW_TLS if tls else RAW, f"{listener.getsockname()[1]} {new_secret().text()}")
    port, secret = int(said[0].split()[0]), parse_secret(said[0].split()[1])
    made = listener.accept()[0] if seat.id == 0 else socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _with_tls(made, secret, seat.id) if tls else made


def _with_tls(made: socket.socket, secret: Secret, worker: int) -> ssl.SSLSocket:
    identity: Identity = issue(secret, SESSION, worker)
    context = server_context(identity) if worker == 0 else client_context(identity)
    return context.wrap_socket(made, server_side=worker == 0)


# Letters


def letters(repetitions: int, folder: str) -> Times:
    """Worker 0 sends, worker 1 uses up and answers with a byte."""
    times: Times = {}
    with harness.gloo(folder):
        ours = {name: connect(folder, tls=name == TLS) for name in (PLAIN, TLS)}
        peers = {name: sockets(folder, tls=name == RAW_TLS) for name in (RAW, RAW_TLS)}
        for size, nbytes in LETTERS.items():
            contestants: dict[str, harness.Contestant] = {}
            for name, transport in ours.items():
                contestants[f"{size}, {name}"] = letter_of_ours(transport, nbytes)
            for name, peer in peers.items():
                contestants[f"{size}, {name}"] = letter_of_peer(peer, nbytes)
            times |= harness.take_turns(
                contestants, repetitions=repetitions, rounds=ROUNDS[size], meet=dist.barrier
            )
        for transport in ours.values():
            leave(transport)
    return times


def leave(transport: TcpTransport) -> None:
    transport.set_phase(Phase.LEFT)
    transport.close()


def letter_of_ours(transport: TcpTransport, nbytes: int) -> Callable[[], None]:
    """One way; the sender waits until its letter has been released."""
    tensor = torch.ones(nbytes // 4)

    def send() -> None:
        assert transport.post([1], Letter(0, "letter", tensor, (0,)), 1) == ()
        while transport.way(1).link.unread("letter"):
            token = transport.listen()
            if transport.way(1).link.unread("letter"):
                transport.sleep(token, 1.0)

    def receive() -> None:
        while True:
            token = transport.listen()
            arrived = transport.arrivals()
            if arrived:
                transport.release(arrived)
                return
            transport.sleep(token, 1.0)

    return send if transport.id == 0 else receive


def letter_of_peer(peer: socket.socket, nbytes: int) -> Callable[[], None]:
    memory = memoryview(torch.ones(nbytes // 4).numpy()).cast("B")

    def send() -> None:
        peer.sendall(memory)
        peer.recv(1)

    def receive() -> None:
        missing = memory
        while missing:
            missing = missing[peer.recv_into(missing) :]
        peer.send(b"!")

    return send if current_seat().id == 0 else receive


# Means


def means(repetitions: int, folder: str) -> Times:
    """Our mean over TCP, and Gloo's sum."""
    times: Times = {}
    seat = current_seat()
    with harness.gloo(folder):
        ours = {name: connect(folder, tls=name == TLS) for name in (PLAIN, TLS)}
        worlds = {
            name: RealWorld(each, View(0, tuple(range(seat.workers))), ()) for name, each in ours.items()
        }
        for size, nbytes in MEANS.items():
            contestants: dict[str, harness.Contestant] = {
                f"{size}, {name}": mean_of_ours(world, nbytes) for name, world in worlds.items()
            }
            contestants[f"{size}, {GLOO}"] = partial(dist.all_reduce, torch.zeros(nbytes // 4))
            times |= harness.take_turns(
                contestants, repetitions=repetitions, rounds=ROUNDS[size], meet=dist.barrier
            )
        for world in worlds.values():
            world.close()
        for transport in ours.values():
            leave(transport)
    return times


def mean_of_ours(world: RealWorld, nbytes: int) -> harness.Contestant:
    tensor, members = torch.full((nbytes // 4,), world.id + 1.0), world.start_view.workers

    def mean() -> torch.Tensor:
        return drive(world.collective(Round(tensor, members))).tensor

    return mean


# In the process that is started


def rows_of(found: Times, ours: str, peer: str, sizes: dict[str, int], what: str) -> list[Row]:
    return [
        harness.compare(f"{what} of {size}, {ours}", found[f"{size}, {ours}"], found[f"{size}, {peer}"], peer)
        for size in sizes
    ]


def measure(engine: LocalEngine, *, quick: bool) -> list[Row]:
    repetitions = 5 if quick else 15
    sent = harness.run(engine, 2, "tcp:letters", repetitions=repetitions)
    rows = rows_of(sent, PLAIN, RAW, LETTERS, "letter") + rows_of(sent, TLS, RAW_TLS, LETTERS, "letter")
    for workers in (2,) if quick else (2, 4):
        reduced = harness.run(engine, workers, "tcp:means", repetitions=repetitions)
        for name in (PLAIN, TLS):
            rows += rows_of(reduced, name, GLOO, MEANS, f"{workers} workers, mean")
    return rows


def main() -> None:
    chosen = harness.options(__doc__)
    with harness.engine() as engine:
        harness.report(measure(engine, quick=chosen.quick), chosen.json)


if __name__ == "__main__":
    main()
