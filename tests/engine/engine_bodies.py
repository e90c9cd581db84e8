"""What real workers do in the tests of the engine: fail, vanish, wait for ever, and talk."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fast
from fast.engine import current_seat
from fast.errors import FastError
from fast.loop.session import close_sessions
from fast.runtime import patience


def _for_ever() -> None:
    threading.Event().wait()


def _joined(strategy: str | fast.Strategy = "allreduce") -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def return_ids() -> list[int]:
    seat = current_seat()
    return [seat.id, seat.workers, torch.get_num_threads()]


def return_much(size: int) -> str:
    return "x" * size


def fail(who: int, joined: bool) -> None:
    """One worker raises; the others wait for it."""
    if joined:
        model, optimizer = _joined()
        _step(model, optimizer)
    if current_seat().id == who:
        raise ValueError("worker's own mistake")
    if joined:
        _step(model, optimizer)
    _for_ever()


def fail_all() -> None:
    raise ValueError(f"mistake of {current_seat().id}")


def train_for_ever(strategy: str) -> None:
    """Says "ready" after its first step; the rest is up to whoever reads that."""
    model, optimizer = _joined(strategy)
    _step(model, optimizer)
    print("ready", os.getpid())
    while True:
        _step(model, optimizer)


def freeze(who: int) -> None:
    """One worker stops like one whose machine hangs; SIGSTOP also stops its heartbeats."""
    model, optimizer = _joined()
    _step(model, optimizer)
    if current_seat().id == who:
        os.kill(os.getpid(), signal.SIGSTOP)
    _step(model, optimizer)


def exit_with(code: Any, who: int) -> None:
    model, optimizer = _joined()
    _step(model, optimizer)
    if current_seat().id == who:
        sys.exit(code)
    _step(model, optimizer)


def vanish(who: int) -> None:
    """Ends without a word, in the middle."""
    model, optimizer = _joined()
    _step(model, optimizer)
    if current_seat().id == who:
        os._exit(0)
    _step(model, optimizer)


def talk() -> None:
    """Lines in pieces, on both streams, from Python and from below it."""
    print("one", end="", flush=True)
    print(" line")
    print("a complaint", file=sys.stderr)
    sys.stdout.write("50 %\r100 %\n")
    os.write(1, b"raw \xff bytes\n")
    os.write(2, b"raw complaint\n")
    print("no newline at the end", end="")


def leave_a_child() -> int:
    """Starts a process that would outlive it; returns its id."""
    child = os.fork()
    if child == 0:
        _for_ever()
    return child


class WaitForEachOther(fast.Strategy):
    """Everybody waits for a letter that nobody sends."""

    async def step(self, me: fast.Me) -> None:
        await me.receive("never", me.pick_peer())


def deadlock() -> None:
    patience._SETTLE_NS = 300_000_000  # this process alone is in such a hurry
    patience._ANNOUNCE_NS = 20_000_000
    model, optimizer = _joined(WaitForEachOther())
    _step(model, optimizer)


class UnequalMeans(fast.Strategy):
    async def step(self, me: fast.Me) -> None:
        await me.mean(torch.zeros(3 + me.id, dtype=torch.float32))


class MeanOfWhole(fast.Strategy):
    async def step(self, me: fast.Me) -> None:
        await me.mean(torch.zeros(3, dtype=torch.int64))


class MeanOfOthers(fast.Strategy):
    async def step(self, me: fast.Me) -> None:
        await me.mean(torch.zeros(3), among=me.peers)


def wrong_mean(kind: str) -> None:
    strategies = {"sizes": UnequalMeans, "whole": MeanOfWhole, "others": MeanOfOthers}
    model, optimizer = _joined(strategies[kind]())
    _step(model, optimizer)


def catch_a_failure() -> str:
    """A worker whose peer has left gets an error that it can catch."""

    class Impatient(fast.Strategy):
        async def step(self, me: fast.Me) -> None:
            if me.id == 0:
                await me.receive("never", 1)

    model, optimizer = _joined(Impatient())
    seat = current_seat()
    if seat.id == 1:
        close_sessions(seat)
        return "left"
    try:
        _step(model, optimizer)
    except FastError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        close_sessions(seat)  # the other one receives until then
    return "nothing"


def before_join(who: int, how: str, folder: str = "") -> str:
    """One worker doesn't come to fast.join, or comes late, and the others wait for it there."""
    if current_seat().id == who:
        match how:
            case "exits":
                os._exit(0)
            case "exits late":
                _await(Path(folder, "go on"))
                os._exit(0)
            case "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "comes late":
                _await(Path(folder, "go on"))
    model, optimizer = _joined()
    _step(model, optimizer)
    return "done"


def _await(path: Path) -> None:
    """Whoever reads what the others say makes this file."""
    while not path.exists():
        threading.Event().wait(0.05)


def never_joins(ends: str) -> str:
    if ends == "os._exit":
        os._exit(0)
    return "ended"


def kill_oneself(number: int) -> None:
    os.kill(os.getpid(), number)


def flood() -> None:
    """Writes for ever."""
    while True:
        os.write(1, b"x" * 4000 + b"\n")


def train_slowly(strategy: str) -> None:
    """For ever; says "ready" after its first step, and "cleaned up" at its end."""
    model, optimizer = _joined(strategy)
    try:
        _step(model, optimizer)
        print("ready")
        while True:
            _step(model, optimizer)
            threading.Event().wait(0.01)
    finally:
        print("cleaned up")


def wait_for_ever() -> None:
    print("ready")
    _for_ever()
