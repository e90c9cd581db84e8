"""Where hosts and workers meet: everybody's bytes for everybody, sentences for what is wrong, nothing for strangers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from fast.engine.attached.asking import ASK_BYTES, LENGTH, Ask, CoordinatorRendezvous, Door, ask
from fast.engine.attached.coordinator import COME, HOSTS, WHERE, Coordinator
from fast.engine.attached.plan import Plan, spread
from fast.errors import FastError, PeerLost, PeerSilent, RunEnded, UsageError
from fast.transport.tcp import Secret, new_secret

RELEASE = "1"


def plan_of(hosts: str = "a,b", workers: int = 2, deadline_s: float = 30.0) -> Plan:
    names, counts = spread(hosts, workers)
    return Plan(
        names, counts, "train.py", ["--lr", "1"], False, "/there", "digest", None, 3, deadline_s, None, None
    )


class Here:
    """A coordinator on loopback."""

    def __init__(self, coordinator: Coordinator, secret: Secret | None, plan: Plan) -> None:
        self.coordinator, self.secret, self.plan = coordinator, secret, plan
        host, port = coordinator.address
        self.place, self.address = (host, port), f"{host}:{port}"

    def door(self, number: int = 0, secret: Secret | None = None) -> Door:
        return Door(self.address, secret or self.secret, number)

    def bring(self, number: int, topic: str, value: bytes = b"", release: str = RELEASE) -> list[bytes]:
        return ask(self.door(number), Ask(release, "bring", number, topic, value), self.plan.deadline_s)

    def look(self, number: int, topic: str) -> list[bytes]:
        return ask(self.door(number), Ask(RELEASE, "look", number, topic), self.plan.deadline_s)


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Here]]:
    with contextlib.ExitStack() as stack:

        def made(stranger_s: float = 60.0, **about) -> Here:
            plan, secret = plan_of(**about), new_secret() if request.param else None
            coordinator = Coordinator(plan, secret, RELEASE, ("127.0.0.1", 0), stranger_s)
            coordinator.start()
            stack.callback(coordinator.close)
            return Here(coordinator, secret, plan)

        yield made


def together(*calls: Callable[[], object]) -> list[object]:
    """What each returned or raised."""
    found: list[object] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except FastError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_everybody_learns_what_everybody_brings_and_then_it_ends(make):
    here = make(workers=3)
    plans = together(*(lambda host=host: here.bring(host, HOSTS) for host in range(2)))
    assert [msgspec.msgpack.decode(each[0], type=Plan) for each in plans] == [here.plan] * 2
    for topic in (COME, WHERE):
        workers = [
            lambda n=n, topic=topic: CoordinatorRendezvous(here.door(n), RELEASE).exchange(
                topic, b"of %d" % n, 30
            )
            for n in range(3)
        ]
        watchers = [lambda host=host, topic=topic: here.look(host, topic) for host in range(2)]
        assert together(*workers, *watchers) == [[b"of 0", b"of 1", b"of 2"]] * 5
    here.coordinator.join()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(here.place)


def test_after_the_deadline_all_learn_who_is_missing(make):
    here = make(hosts="a:1,b:2", workers=None, deadline_s=0.5)
    first, watcher = together(lambda: here.bring(0, COME), lambda: here.look(0, COME))
    assert isinstance(first, PeerSilent) and isinstance(watcher, PeerSilent)
    assert first.peers == (1, 2)
    assert "of 3 workers 1 have come to fast.join" in str(first)
    assert "worker 1 on b, worker 2 on b" in str(first) and str(first) == str(watcher)


@pytest.mark.parametrize(
    ("ask_it", "sentence"),
    [
        (lambda here: here.bring(2, HOSTS), "there is no host 2: this run has hosts 0 to 1, on a, b"),
        (lambda here: here.bring(9, COME), "there is no worker 9"),
        (lambda here: here.bring(0, HOSTS, release="2"), "FAST 1 is on a and 2 on 127.0.0.1"),
    ],
)
def test_wrong_numbers_and_versions_are_refused_at_once(make, ask_it, sentence):
    with pytest.raises(UsageError, match=sentence):
        ask_it(make())


def test_a_failure_before_the_start_reaches_all_who_wait_and_who_come(make):
    here = make()
    ending = Ask(RELEASE, "end", 1, "", b"worker 1 on b failed: no data")
    with contextlib.closing(socket.create_connection(here.place)):  # a stranger in between
        waiting, told = together(lambda: here.bring(0, COME), lambda: ask(here.door(1), ending, 30))
    late = together(lambda: here.bring(0, HOSTS))
    assert told == []
    for heard in (waiting, *late):
        assert isinstance(heard, RunEnded) and str(heard) == "worker 1 on b failed: no data"


def test_who_goes_before_an_answer_has_not_come(make):
    here = make(deadline_s=1.0)
    with contextlib.closing(socket.create_connection(here.place)) as gone:
        if here.secret is None:
            body = msgspec.msgpack.encode(Ask(RELEASE, "bring", 0, HOSTS))
            gone.sendall(LENGTH.pack(len(body)) + body)
    both = together(lambda: here.bring(0, HOSTS), lambda: here.bring(1, HOSTS))
    assert all(isinstance(each, list) for each in both), both


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0" * 4096,
    b"\xff" * 4096,
    LENGTH.pack(ASK_BYTES + 1),
    LENGTH.pack(3) + b"\x93\x01\x02",
    LENGTH.pack(0) * 9,
    b"\x16\x03\x01\x02\x00" + b"\x01" * 600,
]


def test_strangers_garbage_and_slow_visitors_harm_nobody(make):
    """A hundred connections that say nothing, garbage on a few: those of the run meet all the same, and the number of
    connections stays bounded."""
    here = make()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(here.place)) for _ in range(100)]
        for garbage in GARBAGE:
            stranger = stack.enter_context(socket.create_connection(here.place))
            stranger.sendall(garbage)
        both = together(lambda: here.bring(0, HOSTS), lambda: here.bring(1, HOSTS))
        assert [len(each) for each in both] == [1, 1]
        dropped = 0
        for each in silent:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                dropped += each.recv(1) == b""
        assert dropped >= 50


def test_who_takes_too_long_is_dropped(make):
    here = make(stranger_s=0.2)
    with socket.create_connection(here.place) as slow:
        slow.sendall(b"\x16")
        slow.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_without_the_secret_nobody_is_let_in():
    plan, secret = plan_of(), new_secret()
    coordinator = Coordinator(plan, secret, RELEASE, ("127.0.0.1", 0))
    coordinator.start()
    here = Here(coordinator, secret, plan)
    try:
        with pytest.raises(PeerLost, match="give all hosts the same secret"):
            ask(here.door(1, new_secret()), Ask(RELEASE, "look", 1, HOSTS), 30)
        with pytest.raises(PeerSilent, match="--plain-tcp"):
            ask(Door(here.address, None, 1), Ask(RELEASE, "look", 1, HOSTS), 0.0)
    finally:
        coordinator.close()


def test_a_name_that_nobody_knows():
    with pytest.raises(UsageError, match=r"'no\.such\.host\.invalid' can't be resolved"):
        ask(Door("no.such.host.invalid:7077", None, 0), Ask(RELEASE, "look", 0, HOSTS), 1.0)


@pytest.mark.parametrize(
    ("hosts", "workers", "sentence"),
    [
        ("a,a", None, "the same host stands there twice"),
        ("a:2,b", None, "every host its number of workers, or none"),
        ("a:2,b:4", 5, "has 6 workers and --workers says 5"),
        ("a,b,c", 2, "3 hosts need at least 3 workers"),
        ("a,,b", None, "'' isn't a host"),
        ("a:x", None, "'a:x' isn't a host"),
    ],
)
def test_wrong_hosts_are_refused(hosts, workers, sentence):
    with pytest.raises(UsageError, match=sentence):
        spread(hosts, workers)
