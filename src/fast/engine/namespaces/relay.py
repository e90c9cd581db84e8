"""A TCP connection with weather: delay, jitter, a rate, stalls and resets, made in user space.

    relay = Relay(("10.77.0.2", 7000), Weather(delay_s=0.02))
    socket.create_connection(relay.address)     # speaks to 10.77.0.2:7000, 20 ms away each way

Kernels without `netem` can limit rates but not delay packets. A relay stands between two sides of a TCP connection,
reads what one writes and hands it to the other later.

What it can't do: **lose packets.** TCP has repaired a loss before a relay sees the bytes, so all that a loss does
to the two sides is that bytes come late. A loss is therefore emulated as a stall, and a broken path as a reset.
Neither shows what congestion control does after a loss. Nor is the handshake delayed: `connect` returns at once,
and what is written afterwards is late.

At most `Weather.window_bytes` wait in each direction of a connection; then the relay stops reading, and its sender
fills the buffers of its own TCP and waits. A window smaller than rate times delay limits the rate, as TCP's own does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

from fast.errors import UsageError

_PIECE_BYTES = 64 * 1024
T = TypeVar("T")
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing sends RST."""


@dataclass(frozen=True)
class Weather:
    """What happens to bytes on their way. Random times are drawn from the seed and the number of the connection."""

    delay_s: float = 0.0
    """One way, in each direction."""
    jitter_s: float = 0.0
    """At most so much is added to the delay of a piece, uniformly. Nothing overtakes."""
    rate: float | None = None
    """Bytes per second in each direction, shared by all connections."""
    stall_every_s: float | None = None
    """Mean time between stalls of a connection, both directions at once; times are exponential."""
    stall_s: float = 0.2
    """How long a stall lasts; the default is TCP's shortest time-out before it repeats a packet."""
    reset_every_s: float | None = None
    """Mean time after which a connection is reset (RST to both sides)."""
    window_bytes: int = 4 << 20
    """Bytes on the way in each direction of a connection."""
    seed: int = 0

    def __post_init__(self) -> None:
        lengths = (self.delay_s, self.jitter_s, self.stall_s)
        means = [mean for mean in (self.rate, self.stall_every_s, self.reset_every_s) if mean is not None]
        if any(not length >= 0 for length in lengths) or any(not mean > 0 for mean in means):
            raise UsageError(f"times must not be negative; a rate and mean times must be positive: {self}")
        if self.window_bytes < 1:
            raise UsageError(f"window_bytes must be at least 1, and is {self.window_bytes}")


@dataclass
class Lane:
    """One direction of the line: when it is free again. Shared by all connections."""

    weather: Weather
    free_s: float = 0.0

    def passed(self, now_s: float, nbytes: int) -> float:
        """When the last byte of a piece that enters now is through."""
        if self.weather.rate is None:
            return now_s
        self.free_s = max(now_s, self.free_s) + nbytes / self.weather.rate
        return self.free_s


class Way:
    """One direction of a connection: pieces that have been read, and when each is due. An empty piece is the end."""

    def __init__(self, lane: Lane, draw: random.Random) -> None:
        self._lane, self._draw = lane, draw
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.held_bytes = 0
        self._last_s = 0.0
        self.changed = asyncio.Event()

    def put(self, now_s: float, piece: bytes) -> None:
        weather = self._lane.weather
        due_s = (
            self._lane.passed(now_s, len(piece)) + weather.delay_s + weather.jitter_s * self._draw.random()
        )
        self._last_s = max(self._last_s, due_s)
        self.pieces.append((self._last_s, piece))
        self.held_bytes += len(piece)
        self.changed.set()

    def pop(self) -> None:
        _, piece = self.pieces.popleft()
        self.held_bytes -= len(piece)
        self.changed.set()

    @property
    def room(self) -> int:
        return self._lane.weather.window_bytes - self.held_bytes

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.changed.clear()
            await self.changed.wait()


class Link:
    """One connection, from the side that came (`near`) to the target (`far`), until both have ended it or one fails."""

    def __init__(
        self, near: socket.socket, far: socket.socket, ways: tuple[Way, Way], clear: asyncio.Event
    ) -> None:
        self._near, self._far, self.ways = near, far, ways
        self._clear = clear
        self._stalled_until_s = 0.0
        self._loop = asyncio.get_running_loop()

    async def carry(self, weather: Weather, draw: random.Random) -> None:
        """Returns when both directions have ended; raises when one side, or chance, resets the connection."""
        there, back = self.ways
        chance = [self._loop.create_task(each) for each in self._chances(weather, draw)]
        ends = ((self._near, there, self._far), (self._far, back, self._near))
        carrying = [
            self._loop.create_task(each)
            for source, way, sink in ends
            for each in (self._read(source, way), self._write(way, sink))
        ]
        try:
            waiting = {*carrying, *chance}
            while not all(task.done() for task in carrying):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*carrying, *chance):
                task.cancel()
            await asyncio.gather(*carrying, *chance, return_exceptions=True)

    def _chances(self, weather: Weather, draw: random.Random) -> Iterator[Coroutine[None, None, None]]:
        if weather.stall_every_s is not None:
            yield self._stall_at_random(weather.stall_every_s, weather.stall_s, random.Random(draw.random()))
        if weather.reset_every_s is not None:
            yield self._reset_at_random(weather.reset_every_s, random.Random(draw.random()))

    async def _read(self, source: socket.socket, way: Way) -> None:
        piece = b"first"
        while piece:
            await way.until(lambda: way.room > 0)
            piece = await self._loop.sock_recv(source, min(way.room, _PIECE_BYTES))
            way.put(self._loop.time(), piece)

    async def _write(self, way: Way, sink: socket.socket) -> None:
        piece = b"first"
        while piece:
            await way.until(lambda: bool(way.pieces))
            due_s, piece = way.pieces[0]
            while (wait_s := max(due_s, self._stalled_until_s) - self._loop.time()) > 0:
                await asyncio.sleep(wait_s)
            await self._clear.wait()
            if piece:
                await self._loop.sock_sendall(sink, piece)
            else:
                sink.shutdown(socket.SHUT_WR)
            way.pop()

    async def _stall_at_random(self, every_s: float, length_s: float, draw: random.Random) -> None:
        while True:
            await asyncio.sleep(draw.expovariate(1 / every_s))
            self._stalled_until_s = self._loop.time() + length_s

    async def _reset_at_random(self, every_s: float, draw: random.Random) -> None:
        await asyncio.sleep(draw.expovariate(1 / every_s))
        raise ConnectionResetError("reset by chance")


class Relay:
    """Listens, and connects everybody who comes with the target. It runs in a thread of its own until `close`.

    Made on a host of a cluster (`with cluster.inside(host): relay = Relay(...)`), it listens and connects there.
    """

    def __init__(
        self,
        target: tuple[str, int],
        weather: Weather | None = None,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self._target = target
        self._weather = weather or Weather()
        self._listener = socket.create_server(listen)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._lanes = Lane(self._weather), Lane(self._weather)
        self._links: dict[asyncio.Task[None], Link | None] = {}
        self._clear = asyncio.Event()
        self._clear.set()
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stall(self) -> None:
        """From now on nothing arrives, in both directions of all connections, and nobody is told, until `resume`."""
        self._ask(self._clear.clear)

    def resume(self) -> None:
        """What has waited goes on."""
        self._ask(self._clear.set)

    def reset(self) -> None:
        """Reset all connections that there are now: both sides get RST, and what was on the way is lost."""
        self._ask(lambda: [task.cancel() for task in self._links])

    def held_bytes(self) -> int:
        """All that is on the way now."""
        return self._ask(
            lambda: sum(way.held_bytes for link in self._links.values() if link for way in link.ways)
        )

    def close(self) -> None:
        """Reset what is still connected and stop listening."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def _ask(self, what: Callable[[], T]) -> T:
        """Let the relay's thread do something, and wait for its answer."""

        async def answer() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    # In the relay's thread

    def _run(self) -> None:
        with contextlib.closing(self._loop), self._listener:
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        accepting = self._loop.create_task(self._accept())
        await self._ended.wait()
        ending = [accepting, *self._links]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _accept(self) -> None:
        for number in itertools.count():
            near, _ = await self._loop.sock_accept(self._listener)
            task = self._loop.create_task(
                self._connect(near, random.Random(f"{self._weather.seed}/{number}"))
            )
            self._links[task] = None
            task.add_done_callback(self._links.pop)

    async def _connect(self, near: socket.socket, draw: random.Random) -> None:
        """Both sides end as the connection did: in order, or by a reset."""
        with near, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as far:
            far.setblocking(False)
            try:
                await self._loop.sock_connect(far, self._target)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                there, back = (Way(lane, random.Random(draw.random())) for lane in self._lanes)
                link = Link(near, far, (there, back), self._clear)
                self._links[self._own_task()] = link
                await link.carry(self._weather, draw)
            except (OSError, asyncio.CancelledError):
                for each in (near, far):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    @staticmethod
    def _own_task() -> asyncio.Task[None]:
        task = asyncio.current_task()
        assert task is not None
        return task
