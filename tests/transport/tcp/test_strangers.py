"""Strangers at the door of a participant, and peers that break the rules: what they get, and what others notice."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

from fast.core import Letter
from fast.testing.reducing import together
from fast.testing.showing import eventually
from fast.transport import Phase
from fast.transport.tcp import Secret, client_context, issue, new_secret
from fast.transport.tcp.connection import address_of, listen, split_address
from fast.transport.tcp.driver import _STRANGERS
from fast.transport.tcp.records import (
    PREFIX,
    Greeting,
    Kind,
    greeting_record,
    prefix_of,
    read_greeting,
    record,
)
from fast.transport.tcp.transport import Job, TcpTransport, number_of
from fast.wire import Header, encode_header

SESSION, SIZE = "door", 3


@contextmanager
def job() -> Iterator[tuple[Secret, list[TcpTransport]]]:
    """Participants 0 and 1 of a job with room for three."""
    listeners, secret = [listen("127.0.0.1") for _ in range(2)], new_secret()
    known = Job(SESSION, SIZE, "1", {id: address_of(sock) for id, sock in enumerate(listeners)}, 30.0)
    ends = [TcpTransport(id, known, sock, issue(secret, SESSION, id)) for id, sock in enumerate(listeners)]
    try:
        yield secret, ends
        check_talk(ends)
    finally:
        for end in ends:
            end.set_phase(Phase.LEFT)
        together([end.close for end in ends])


def check_talk(ends: list[TcpTransport]) -> None:
    """The two go on as if nothing had happened."""
    assert ends[1].post([0], Letter(1, "talk", torch.ones(3), (0,)), 64) == ()
    eventually(ends[0], lambda: bool(ends[0].arrivals()), "a letter among honest participants")
    assert all(end.ended is None for end in ends)


def knock(end: TcpTransport) -> socket.socket:
    made = socket.create_connection(split_address(end.job.directory[0]), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def enter(end: TcpTransport, secret: Secret, participant: int, session: str = SESSION) -> ssl.SSLSocket:
    """Up to the end of the handshake, which only the accepting side may still refuse."""
    return client_context(issue(secret, session, participant)).wrap_socket(knock(end))


def greeting(participant: int, **changes: object) -> bytes:
    said = {
        "release": "1",
        "session": SESSION,
        "participant": participant,
        "life": 0,
        "size": SIZE,
        "received": {},
    }
    return greeting_record(Greeting(**(said | changes)))  # type: ignore[arg-type]


def answer(made: socket.socket) -> tuple[Kind, bytes]:
    """The first record that comes back."""
    head = b""
    while len(head) < PREFIX.size:
        more = made.recv(PREFIX.size - len(head))
        if not more:
            raise EOFError
        head += more
    kind, _, length = prefix_of(head)
    body = b""
    while len(body) < length:
        body += made.recv(length - len(body))
    return Kind(kind), body


def is_hung_up(made: socket.socket) -> bool:
    """Whether the other end closes without a word that is of use."""
    try:
        while made.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", os.urandom(5000), bytes(100_000)]
)
def test_whoever_says_anything_but_tls_learns_nothing(said):
    with job() as (_, ends), knock(ends[0]) as stranger:
        with suppress(OSError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
        assert is_hung_up(stranger)


def test_a_flood_of_silent_connections_takes_bounded_room():
    """The oldest strangers have to go; friends come in all the same."""
    with job() as (secret, ends):
        flood = [knock(ends[0]) for _ in range(300)]
        with enter(ends[0], secret, 2) as friend:
            friend.sendall(greeting(2))
            assert answer(friend)[0] is Kind.GREETING
        assert len(ends[0]._driver._young) <= _STRANGERS + 2 * SIZE + 1
        for each in flood:
            each.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_without_a_certificate_nobody_comes_in(version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version

    def come_in(end: TcpTransport) -> Kind:
        with context.wrap_socket(knock(end)) as inside:
            inside.sendall(greeting(2))
            return answer(inside)[0]

    with job() as (_, ends), pytest.raises((OSError, EOFError)):
        come_in(ends[0])


def test_the_secret_of_another_job_opens_no_door():
    with job() as (_, ends), suppress(ssl.SSLError):
        with enter(ends[0], new_secret(), 2) as stranger:
            stranger.sendall(greeting(2))
            with pytest.raises((OSError, EOFError)):
                answer(stranger)
        assert ends[0].phase(2) == Phase.STARTING


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"participant": 1}, "participant 2 says that it is 1"),
        ({"participant": 77}, "participant 77 calls"),
        ({"session": "another"}, "two jobs using one port"),
        ({"release": "2"}, "install the same version"),
        ({"size": 9}, "room for"),
        ({"life": 3}, "says that it is"),
    ],
)
def test_who_lies_in_its_greeting_is_told_so_and_refused(changes, why):
    with job() as (secret, ends), enter(ends[0], secret, 2) as liar:
        liar.sendall(greeting(**({"participant": 2} | changes)))
        kind, body = answer(liar)
        assert kind is Kind.REFUSED and why in body.decode()
        assert is_hung_up(liar)


@pytest.mark.parametrize(
    "said",
    [
        PREFIX.pack(Kind.GREETING, 0, 0, 1 << 20),
        PREFIX.pack(Kind.GREETING, 0, 0, 0xFFFFFFFF),
        PREFIX.pack(Kind.LETTER, 0, 0, 256),
        PREFIX.pack(200, 0, 0, 1),
        greeting(2)[:-3] + b"\xc1\xc1\xc1",
    ],
)
def test_garbage_in_the_place_of_a_greeting_ends_the_connection(said):
    """Also from somebody who has the secret. A length that is announced takes no memory."""
    with job() as (secret, ends):
        with enter(ends[0], secret, 2) as stranger:
            stranger.sendall(said)
        eventually(ends[0], lambda: not ends[0]._driver._young, "nobody is at the door any more")
        assert 2 not in ends[0].ways


def test_garbage_after_the_greeting_ends_the_connection_and_nothing_else():
    with job() as (secret, ends), enter(ends[0], secret, 2) as insider:
        insider.sendall(greeting(2))
        kind, body = answer(insider)
        assert kind is Kind.GREETING and read_greeting(body).participant == 0
        with suppress(OSError):  # it may be hung up before everything is written
            insider.sendall(bytes(range(255, -1, -1)) * 256)
        assert is_hung_up(insider)


@pytest.mark.parametrize("session", [0, 1, number_of("another")])
def test_a_letter_of_another_job_is_not_delivered(session):
    with job() as (secret, ends), enter(ends[0], secret, 2) as insider:
        insider.sendall(greeting(2))
        answer(insider)
        header = Header(2, "tag", "uint8", (0,), [(0, 1)], checksum=0, session=session)
        insider.sendall(record(Kind.TAG, b"tag", 0) + record(Kind.LETTER, encode_header(header), 0))
        assert is_hung_up(insider)
        assert ends[0].arrivals() == []


def test_a_large_letter_that_is_announced_takes_no_memory_until_it_comes():
    with job() as (secret, ends), enter(ends[0], secret, 2) as insider:
        insider.sendall(greeting(2))
        answer(insider)
        before = resident_bytes()
        insider.sendall(record(Kind.TAG, b"tag", 0))
        header = Header(2, "tag", "uint8", (1 << 33,), [(0, 1)], checksum=0)
        insider.sendall(record(Kind.LETTER, encode_header(header), 0))
        insider.sendall(record(Kind.DATA, bytes(1000), 0))
        eventually(
            ends[0], lambda: 2 in ends[0].ways and bool(ends[0].ways[2].link._in), "the letter has begun"
        )
        check_talk(ends)
        assert resident_bytes() - before < 256 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
