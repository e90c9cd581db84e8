"""Letters over TCP, in one process: the kit, and what is special about connections."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from functools import partial

import pytest
import torch

from fast.core import Letter
from fast.errors import PeerLost
from fast.testing import check_transport
from fast.testing.reducing import together
from fast.testing.showing import eventually
from fast.transport import Phase
from fast.transport.tcp import issue, new_secret
from fast.transport.tcp.connection import address_of, listen
from fast.transport.tcp.transport import Job, TcpTransport

SESSION = "test"


def job_of(listeners, **changes) -> Job:
    known = {
        "session": SESSION,
        "size": len(listeners),
        "release": "1",
        "directory": {id: address_of(sock) for id, sock in enumerate(listeners)},
        "deadline_s": 30.0,
    }
    return Job(**(known | changes))


def make_tcp(size: int, *, tls: bool = True, **changes) -> list[TcpTransport]:
    listeners = [listen("127.0.0.1") for _ in range(size)]
    job, secret = job_of(listeners, **changes), new_secret()
    return [
        TcpTransport(id, job, sock, issue(secret, SESSION, id) if tls else None)
        for id, sock in enumerate(listeners)
    ]


def leave(ends) -> None:
    for end in ends:
        end.set_phase(Phase.LEFT)
    together([end.close for end in ends])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tls_passes_the_kit(size):
    check_transport(make_tcp, [size])


@pytest.mark.parametrize("size", [2, 3])
def test_plain_tcp_passes_the_kit(size):
    check_transport(lambda size: make_tcp(size, tls=False), [size])


@pytest.mark.parametrize("tls", [True, False])
def test_connections_that_break_lose_nothing(tls):
    """While both sides send, sockets are shut down again and again in the middle of whatever they write."""
    ends = make_tcp(2, tls=tls)
    count, got = 150, ([], [])
    stop = threading.Event()

    def vandalise() -> None:
        while not stop.wait(0.02):
            for end in ends:
                for way in list(end.ways.values()):
                    if way.connection is not None:
                        with contextlib.suppress(OSError):
                            way.connection.sock.shutdown(socket.SHUT_RD)

    def play(end: TcpTransport) -> None:
        mine, sent = got[end.id], 0
        while len(mine) < count or sent < count:
            token = end.listen()
            tensor = torch.full((1 + 40_000 * (sent % 3),), float(sent))
            if sent < count and not end.post(
                [1 - end.id], Letter(end.id, f"tag {sent % 2}", tensor, (sent,)), 8
            ):
                sent += 1
            for letter in end.arrivals():
                assert letter.tensor.eq(float(letter.steps[0])).all()
                mine.append((letter.tag, letter.steps[0]))
                end.release([letter])
            end.sleep(token, 0.01)

    vandal = threading.Thread(target=vandalise)
    vandal.start()
    together([lambda: play(ends[0]), lambda: play(ends[1])])
    stop.set()
    vandal.join()
    for mine in got:
        for kind in range(2):
            assert [number for tag, number in mine if tag == f"tag {kind}"] == list(range(kind, count, 2))
    leave(ends)


def all_ready(end: TcpTransport) -> bool:
    return all(end.phase(peer) == Phase.READY for peer in range(end.size))


def test_news_reach_those_who_are_not_connected():
    """Sixteen participants, each with a few neighbours: everybody learns everybody's phase."""
    ends = make_tcp(16)
    for end in ends:
        end.set_phase(Phase.READY)
    for end in ends:
        eventually(end, partial(all_ready, end), "everybody is ready")
    connected = [sum(way.connection is not None for way in end.ways.values()) for end in ends]
    assert max(connected) <= 8, f"connections of each: {connected}"
    leave(ends)


def test_nobody_counts_as_done_before_its_letters_have_come():
    ends = make_tcp(2)
    for number in range(8):
        ends[0].post([1], Letter(0, "tag", torch.zeros(200_000), (number,)), 64)
    ends[0].set_phase(Phase.DONE)
    seen = []

    def done() -> bool:
        phase = ends[1].phase(0)
        seen.extend(ends[1].arrivals())
        assert phase < Phase.DONE or len(seen) == 8
        return phase >= Phase.DONE

    eventually(ends[1], done, "participant 0 is done")
    leave(ends)


def test_a_process_that_ends_is_missed_by_all():
    """Its address answers no more: whoever notices tells the others, in words that name it."""
    ends = make_tcp(4, deadline_s=2.0)
    for end in ends:
        end.set_phase(Phase.READY)
    eventually(ends[0], lambda: all(ends[0].phase(peer) == Phase.READY for peer in range(4)), "all are ready")
    ends[2]._driver.stop()
    for end in (ends[0], ends[1], ends[3]):
        eventually(end, lambda: end.ended is not None, "the loss is known")  # noqa: B023
        assert isinstance(end.ended, PeerLost) and "participant 2" in str(end.ended)
    together([end.close for end in ends if end.id != 2])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"session": "another"}, "(session|another).*"),
        ({"release": "2"}, "FAST 1.*install the same version"),
        ({"size": 5}, "room for"),
    ],
)
@pytest.mark.parametrize("tls", [True, False])
def test_somebody_of_another_job_is_told_why(tls, changes, why):
    listeners, secret = [listen("127.0.0.1") for _ in range(2)], new_secret()
    jobs = job_of(listeners), job_of(listeners, **changes)
    ends = [
        TcpTransport(id, job, sock, issue(secret, job.session, id) if tls else None)
        for id, (job, sock) in enumerate(zip(jobs, listeners, strict=True))
    ]
    eventually(ends[1], lambda: ends[1].ended is not None, "the refusal has come")
    assert re.search(why, str(ends[1].ended)), str(ends[1].ended)
    assert ends[0].phase(1) == Phase.STARTING
    for end in ends:
        end._driver.stop()


def test_without_the_secret_nobody_is_heard():
    listeners = [listen("127.0.0.1") for _ in range(2)]
    job = job_of(listeners)
    ends = [
        TcpTransport(id, job, sock, issue(new_secret(), SESSION, id)) for id, sock in enumerate(listeners)
    ]
    ends[1].post([0], Letter(1, "tag", torch.zeros(1), (0,)), 4)
    eventually(ends[1], lambda: ends[1].ended is not None, "the refusal has come")
    assert "same secret" in str(ends[1].ended)
    assert ends[0].arrivals() == [] and ends[0].phase(1) == Phase.STARTING
    for end in ends:
        end._driver.stop()


def test_a_window_is_shown_as_it_is_when_somebody_looks():
    ends = make_tcp(2)
    memory = ends[0].window("live", torch.zeros(3))
    assert ends[1].peek(0, "live").tolist() == [0, 0, 0]
    memory.fill_(2)
    assert ends[1].peek(0, "live").tolist() == [2, 2, 2]
    leave(ends)


def test_garbage_and_silence_at_the_door_disturb_nobody():
    """Strangers who say nothing, something else, or too much, more of them than there is room for."""
    ends = make_tcp(2)
    host, port = ends[0].job.directory[0].split(":")
    strangers = []
    for number in range(80):
        stranger = socket.create_connection((host, int(port)))
        if number % 3:
            stranger.sendall((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 2000)[number % 2])
        strangers.append(stranger)
    ends[1].post([0], Letter(1, "tag", torch.ones(3), (0,)), 4)
    eventually(ends[0], lambda: bool(ends[0].arrivals()), "a letter among all that")
    for stranger in strangers:
        stranger.close()
    leave(ends)


def test_whoever_closes_stays_until_all_have_left():
    """What it has published can be looked at until then."""
    ends = make_tcp(2)
    ends[0].publish("final", torch.ones(2))
    ends[0].set_phase(Phase.LEFT)
    closing = threading.Thread(target=ends[0].close)
    closing.start()
    eventually(ends[1], lambda: ends[1].phase(0) == Phase.LEFT, "participant 0 has left")
    assert ends[1].peek(0, "final").tolist() == [1, 1] and closing.is_alive()
    ends[1].set_phase(Phase.LEFT)
    ends[1].close()
    closing.join(30)
    assert not closing.is_alive()


def test_what_somebody_has_left_behind_is_shown_to_who_was_never_connected_with_it():
    """Of six, 0 and 3 exchange no news with each other. The one that has left stays until all others have."""
    ends = make_tcp(6)
    ends[3].publish("final", torch.arange(3))
    ends[3].set_phase(Phase.LEFT)
    closing = threading.Thread(target=ends[3].close)
    closing.start()
    eventually(ends[0], lambda: ends[0].phase(3) is Phase.LEFT, "0 hears that 3 has left")
    assert ends[0].peek(3, "final").tolist() == [0, 1, 2]
    assert closing.is_alive()
    leave([end for end in ends if end.id != 3])
    closing.join()
