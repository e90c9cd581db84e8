"""The relay: all bytes arrive in order and late; stalls, resets, and a bound on what it holds."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fast.engine.namespaces import Cluster, Relay, Weather
from fast.engine.namespaces.relay import Lane, Way
from fast.errors import UsageError

Connect = Callable[[Weather], tuple[Relay, socket.socket, socket.socket]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A relay, and both ends of a connection through it."""
    with ExitStack() as stack:

        def connected(weather: Weather) -> tuple[Relay, socket.socket, socket.socket]:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                relay = stack.enter_context(Relay(listener.getsockname(), weather))
                near = stack.enter_context(socket.create_connection(relay.address, timeout=60))
                far = stack.enter_context(listener.accept()[0])
            far.settimeout(60)
            return relay, near, far

        yield connected


def received(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:
        return file.read()


def wait_until_held(relay: Relay, nbytes: int) -> None:
    while relay.held_bytes() < nbytes:
        time.sleep(0)


WEATHERS = {
    "clear": Weather(),
    "late": Weather(delay_s=0.005, jitter_s=0.005, seed=3),
    "slow": Weather(rate=50e6),
    "narrow": Weather(window_bytes=1000),
    "stalls": Weather(stall_every_s=0.001, stall_s=0.001),
}


@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_all_bytes_arrive_in_order_in_both_directions(connect: Connect, weather: Weather) -> None:
    """Each direction ends by itself: the answer is sent when the question has ended."""
    _, near, far = connect(weather)
    question = random.Random(1).randbytes(200_000)

    def ask() -> None:
        near.sendall(question)
        near.shutdown(socket.SHUT_WR)

    asking = threading.Thread(target=ask)
    asking.start()
    assert received(far) == question
    asking.join()
    far.sendall(question[::-1])
    far.shutdown(socket.SHUT_WR)
    assert received(near) == question[::-1]


def test_a_round_trip_takes_both_delays(connect: Connect) -> None:
    """A lower bound holds on every machine; how much more it was is printed."""
    _, near, far = connect(Weather(delay_s=0.02))
    begun = time.perf_counter()
    near.sendall(b"x")
    far.sendall(far.recv(1))
    assert near.recv(1) == b"x"
    took_s = time.perf_counter() - begun
    assert took_s >= 0.04
    print(f"\na round trip of 40 ms took {took_s * 1e3:.1f} ms")


# When a piece is due


def due(weather: Weather, *pieces: tuple[float, int], lane: Lane | None = None) -> list[float]:
    way = Way(lane or Lane(weather), random.Random(0))
    for now_s, nbytes in pieces:
        way.put(now_s, bytes(nbytes))
    return [when_s for when_s, _ in way.pieces]


def test_a_piece_is_due_after_the_line_and_the_delay() -> None:
    weather = Weather(delay_s=1.0, rate=100.0)
    assert due(weather, (0.0, 100), (0.5, 50), (9.0, 100)) == [2.0, 2.5, 11.0]
    assert due(Weather(delay_s=1.0), (0.0, 100), (0.5, 50)) == [1.0, 1.5]


def test_connections_share_the_line() -> None:
    weather = Weather(rate=100.0)
    lane = Lane(weather)
    assert due(weather, (0.0, 100), lane=lane) == [1.0]
    assert due(weather, (0.0, 100), lane=lane) == [2.0]


def test_jitter_lets_nothing_overtake_and_follows_the_seed() -> None:
    weather = Weather(delay_s=1.0, jitter_s=5.0)
    times = due(weather, *((n / 10, 1) for n in range(50)))
    assert times == sorted(times) == due(weather, *((n / 10, 1) for n in range(50)))
    assert all(n / 10 + 1 <= when for n, when in enumerate(times)) and max(times) <= 4.9 + 6
    assert len({*times}) > 1


@pytest.mark.parametrize(
    "wrong", [{"delay_s": -1}, {"jitter_s": -1}, {"rate": 0}, {"stall_every_s": 0}, {"reset_every_s": -1},
              {"window_bytes": 0}, {"delay_s": float("nan")}],
)  # fmt: skip
def test_impossible_weather_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must"):
        Weather(**wrong)  # type: ignore[arg-type]


# Stalls and resets


def test_while_it_stalls_nothing_arrives_and_nobody_is_told(connect: Connect) -> None:
    relay, near, far = connect(Weather())
    relay.stall()
    near.sendall(b"held")
    far.sendall(b"back")
    wait_until_held(relay, 8)
    for side in (near, far):
        side.setblocking(False)
        with pytest.raises(BlockingIOError):
            side.recv(100)
        side.settimeout(60)
    relay.resume()
    assert (far.recv(100), near.recv(100)) == (b"held", b"back")


def test_what_it_holds_is_bounded(connect: Connect) -> None:
    """A sender that never stops fills the window and the buffers of TCP, and no more."""
    relay, near, far = connect(Weather(window_bytes=10_000))
    relay.stall()
    sent = fill(near)
    wait_until_held(relay, 10_000)
    assert relay.held_bytes() == 10_000
    near.shutdown(socket.SHUT_WR)
    relay.resume()
    assert len(received(far)) == sent


def fill(connection: socket.socket) -> int:
    """Write until nothing more is taken; how much it was."""
    connection.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < 1 << 30:
            sent += connection.send(bytes(1 << 16))
    assert sent < 1 << 30
    return sent


def test_a_reset_reaches_both_sides(connect: Connect) -> None:
    relay, near, far = connect(Weather())
    relay.reset()
    for side in (near, far):
        with pytest.raises(ConnectionResetError):
            side.recv(1)


def test_resets_come_by_chance(connect: Connect) -> None:
    _, near, far = connect(Weather(reset_every_s=1e-6))
    for side in (near, far):
        with pytest.raises(ConnectionResetError):
            side.recv(1)


def test_one_side_that_breaks_off_resets_the_other(connect: Connect) -> None:
    _, near, far = connect(Weather())
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    with pytest.raises(ConnectionResetError):
        near.recv(1)


def test_nobody_at_the_target_is_a_reset(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        target = closed.getsockname()
    with Relay(target) as relay, socket.create_connection(relay.address, timeout=60) as near:
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        with (
            socket.create_server(target) as listener,
            socket.create_connection(relay.address, timeout=60) as again,
        ):
            again.sendall(b"now")
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(3) == b"now"


def test_closing_it_ends_its_connections(connect: Connect) -> None:
    relay, near, _ = connect(Weather())
    relay.close()
    relay.close()
    with pytest.raises(ConnectionResetError):
        near.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(relay.address)


# Between hosts


def test_it_stands_between_two_hosts(make_cluster: Callable[..., Cluster]) -> None:
    """Host 0 speaks to host 2 by way of host 1, which is the only one that host 2 sees."""
    cluster = make_cluster(3)
    with cluster.inside(2):
        listener = socket.create_server((cluster.address(2), 0))
    with cluster.inside(1):
        relay = Relay(listener.getsockname(), Weather(delay_s=0.001), listen=(cluster.address(1), 0))
    with listener, relay, cluster.inside(0), socket.create_connection(relay.address, timeout=60) as near:
        near.sendall(b"hello")
        far, peer = listener.accept()
        with far:
            assert far.recv(5) == b"hello" and peer[0] == cluster.address(1)
