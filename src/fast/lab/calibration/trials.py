"""Trials: what a worker does to find out how long something takes, each many times in a row.

Everything is measured where it happens in a training: in the turn after a gradient was computed. The
same code in a loop of its own, with all it needs in the nearest cache, is up to six times as fast.

All workers of a job go through the same trials in the same order and meet before each, so that
those who take part in one begin together and the others sleep. Times are in nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fast.core import Me, Need, Replica, Strategy, Tag, Task

LETTER = "probe"
REST_S = 0.002
"""How long a worker sleeps between computing and its turn where it is told to."""
SETTLE_S = 0.3
"""How long workers compute before anything is timed."""
TRIPS = 3
"""Round trips in one turn; the first of them brings both ends into step."""
NAPS_S = (0.0, 0.0005, 0.002, 0.008, 0.03)
"""How long workers sleep before a step, to find out how cold their caches get."""
PASSES = ((1, "zero_"), (2, "add_"), (1, "mul_"), (2, "copy_"))
"""Operations that are timed together, with the number of tensors that each touches."""
_SPIN_S = 0.15
_GAP_NS = 200_000
"""A process that looks at the clock all the time and misses so much of it was not running."""
Times = dict[str, list[int]]
Act = Callable[[Me], Coroutine[Any, Any, None]]


class Probe(Strategy):
    """Turns that do what the trial under way asks for, and nothing else."""

    synchronous = True
    tags = (Tag(LETTER),)

    def __init__(self) -> None:
        self.act: Act | None = None

    async def step(self, me: Me) -> None:
        if self.act is not None:
            await self.act(me)


class Echo(Strategy):
    """A server that answers every letter at once, and workers that ask it in every step."""

    synchronous = True
    tags = (Tag(LETTER),)

    def servers(self, workers: int) -> int:
        return 1

    async def step(self, me: Me) -> None:
        (server,) = me.servers
        await me.ask(server, me.gradient, LETTER)

    async def serve(self, me: Me) -> None:
        for letter in await me.news(LETTER):
            me.send(letter.sender, me.weights, LETTER)


@dataclass(frozen=True)
class Bench:
    """One worker, joined to the others, and what trials need of it."""

    me: Me
    probe: Probe
    optimizer: torch.optim.Optimizer
    task: Task
    batches: Iterator[Any]
    memory: Tensor
    """Floats that the others can read in place, as many as the largest trial needs, three times."""
    rounds: int

    def step(self, act: Act | None = None) -> None:
        """One step of a training, with this in its turn."""
        self.probe.act = act
        self.compute()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def compute(self) -> None:
        self.task.loss(self.me.model, next(self.batches)).backward()  # type: ignore[no-untyped-call]

    def meet(self) -> None:
        """Everybody has come."""

        async def mean(me: Me) -> None:
            await me.mean(self.memory[:1], read_only=True)

        self.step(mean)

    def third(self, number: int, nbytes: int) -> Tensor:
        """So many bytes of one third of the memory."""
        start = number * (self.memory.numel() // 3)
        return self.memory[start : start + nbytes // self.memory.element_size()]


# A step


def settle(bench: Bench) -> None:
    """Compute without a pause until each worker has a core to itself. Workers that wake up find themselves on the
    core of whoever was awake, and it takes the system a while to see that another one is free: what is measured
    until then is how two share a core."""
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until:
        bench.compute()
        bench.optimizer.zero_grad()


def steps(bench: Bench, *, rest_s: float = 0.0) -> Times:
    """A step whose turn does nothing: `computing` and `turn` by the clock, and what of them this
    process really ran. With a rest in between, as workers have it that are paced."""
    times: Times = {"computing": [], "computing, run": [], "turn": [], "turn, run": [], "rest": []}
    bench.probe.act = None
    for _ in range(bench.rounds):
        began = _clocks()
        bench.compute()
        computed = _clocks()
        if rest_s:
            time.sleep(rest_s)
        rested = _clocks()
        bench.optimizer.step()
        turned = _clocks()
        bench.optimizer.zero_grad()
        ended = _clocks()
        for clock, name in enumerate(("", ", run")):
            computing = computed[clock] - began[clock] + ended[clock] - turned[clock]
            times[f"computing{name}"].append(computing)
            times[f"turn{name}"].append(turned[clock] - rested[clock])
        times["rest"].append(rested[0] - computed[0])
    return times


def waking(bench: Bench, nap_s: float) -> Times:
    """A step with its turn and the optimizer, after a sleep."""
    times = Times(step=[])

    async def apply(me: Me) -> None:
        me.apply(me.gradient)

    for _ in range(bench.rounds):
        if nap_s:
            time.sleep(nap_s)
        times["step"].append(_timed(lambda: bench.step(apply)))
    return times


def serving(bench: Bench, replica: Replica) -> Times:
    """The same on a server's replica."""
    times = Times(applying=[])

    async def apply(me: Me) -> None:
        times["applying"].append(_timed(lambda: replica.apply(me.gradient, None, None)))

    _repeat(bench, apply)
    return times


def operations(bench: Bench, nbytes: int) -> Times:
    """A strategy's own arithmetic on tensors of this size: `PASSES`, one after another."""
    times = Times(operations=[])
    into, other, third = (bench.third(number, nbytes) for number in range(3))

    def pass_over() -> None:
        into.zero_()
        into.add_(other, alpha=0.5)
        third.mul_(0.5)
        other.copy_(third)

    async def operate(me: Me) -> None:
        me.apply(me.gradient)
        times["operations"].append(_timed(pass_over))

    _repeat(bench, operate)
    return times


# Letters


def round_trips(bench: Bench, peer: int, nbytes: int, *, first: bool) -> Times:
    """One end of a ping-pong with a peer, over whatever lies between the two; the other end is the
    same with `first` the other way round. Only this end's own clock is read."""
    tensor, times = bench.third(0, nbytes), Times(trip=[], way=[])

    async def receive(me: Me) -> int:
        """Returns what taking the letter cost, once it was there."""
        await me.world.wait(LETTER, (peer,), Need.ALL)
        began = time.perf_counter_ns()
        await me.receive(LETTER, peer)
        return time.perf_counter_ns() - began

    async def trips(me: Me) -> None:
        for number in range(TRIPS):
            began = time.perf_counter_ns()
            if not first:
                await receive(me)
            sending = time.perf_counter_ns()
            me.send(peer, tensor, LETTER)
            own_ns = time.perf_counter_ns() - sending
            if first:
                own_ns += await receive(me)
                trip_ns = time.perf_counter_ns() - began
                if number:
                    times["trip"].append(trip_ns)
                    times["way"].append(max(0, trip_ns // 2 - own_ns))

    _repeat(bench, trips)
    return times


def exchanging(bench: Bench, nbytes: int) -> Times:
    """A step as decentralized training takes it: letters go round in a circle, and in each turn one that
    arrived while the gradient was computed is taken (`reading`) and merged (`merging`: a first operation
    with values that another core has written), the optimizer runs (`applying`), and the next one is sent
    (`sending`). Everything in one turn, because each part finds caches that the others have used."""
    me, tensor, into = bench.me, bench.third(0, nbytes), bench.third(1, nbytes)
    workers = len(me.workers)
    before, after = (me.id - 1) % workers, (me.id + 1) % workers
    times = Times(computing=[], turn=[], reading=[], merging=[], applying=[], sending=[])

    async def send(me: Me) -> None:
        me.send(after, tensor, LETTER)

    async def exchange(me: Me) -> None:
        began = time.thread_time_ns()
        letter = await me.receive(LETTER, before)
        times["reading"].append(time.thread_time_ns() - began)
        times["merging"].append(_timed(lambda: into.add_(letter.tensor, alpha=0.5)))
        times["applying"].append(_timed(lambda: me.apply(me.gradient)))
        times["sending"].append(_timed(lambda: me.send(after, tensor, LETTER)))

    async def receive(me: Me) -> None:
        await me.receive(LETTER, before)

    bench.step(send)
    bench.probe.act = exchange
    for _ in range(bench.rounds):
        computing, turn = _step_in_parts(bench)
        parts = sum(times[part][-1] for part in ("reading", "merging", "applying", "sending"))
        times["computing"].append(computing)
        times["turn"].append(turn - parts)
    bench.step(receive)
    return times


def _step_in_parts(bench: Bench) -> tuple[int, int]:
    """What computing and the turn of one step ran."""
    began = time.thread_time_ns()
    bench.compute()
    computed = time.thread_time_ns()
    bench.optimizer.step()
    turned = time.thread_time_ns()
    bench.optimizer.zero_grad()
    return computed - began + time.thread_time_ns() - turned, turned - computed


def fanning(bench: Bench, nbytes: int) -> Times:
    """One letter from the first worker to all others at once."""
    tensor, times = bench.third(0, nbytes), Times(all=[])

    async def fan(me: Me) -> None:
        if me.id:
            await me.receive(LETTER, 0)
            me.send(0, tensor[:1], LETTER)
            return
        times["all"].append(_timed(lambda: me.send(me.peers, tensor, LETTER)))
        await me.gather(LETTER, me.peers)

    _repeat(bench, fan)
    return times


# Rounds and cores


def means(bench: Bench, nbytes: int, *, rest_s: float) -> Times:
    """Means, one in each turn: when this worker came to each, and when it had the result. A rest after each
    is for more workers than cores, so that nobody computes yet while others still wake up."""
    tensor, times = bench.third(0, nbytes), Times(came=[], left=[])

    async def mean(me: Me) -> None:
        times["came"].append(time.monotonic_ns())
        await me.mean(tensor, read_only=True)
        times["left"].append(time.monotonic_ns())
        if rest_s:
            time.sleep(rest_s)

    _repeat(bench, mean)
    return times


def spinning() -> Times:
    """How long this process runs until another one gets its core; nothing if that never happens."""
    runs = list[int]()
    began = since = last = time.perf_counter_ns()
    while last < began + _SPIN_S * 1e9:
        now = time.perf_counter_ns()
        if now - last > _GAP_NS:
            runs.append(last - since)
            since = now
        last = now
    return {"run": runs[1:]}


def _repeat(bench: Bench, act: Act) -> None:
    for _ in range(bench.rounds):
        bench.step(act)


def _clocks() -> tuple[int, int]:
    """The clock on the wall, and that of what this thread has run."""
    return time.perf_counter_ns(), time.thread_time_ns()


def _timed(act: Callable[[], object]) -> int:
    """What this thread ran for it: another process that takes the core away doesn't count."""
    began = time.thread_time_ns()
    act()
    return time.thread_time_ns() - began
