"""Turns: how a world calls a strategy's programs. Both worlds use exactly this."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from fast.core.me import Me
from fast.errors import FastError
from fast.trace import Left, Stepped

Result = TypeVar("Result")


def drive(program: Coroutine[Any, Any, Result]) -> Result:
    """Run a program whose world blocks instead of yielding (the real world's do)."""
    try:
        request = program.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    program.close()
    raise foreign_request(request)


def foreign_request(request: object) -> FastError:
    """What to say to a program that waited for something that no world knows."""
    return FastError(
        f"the program waited for {request!r}, which is not a request of this world. "
        "Inside a strategy, await only what `me` offers; never asyncio."
    )


async def start(me: Me) -> None:
    """Before the first step: make the state, then the first `begin`."""
    me.state = me.strategy.state(me)
    if not me.is_server:
        await begin_turn(me)


async def begin_turn(me: Me) -> None:
    me.open_turn("begin")
    await me.strategy.begin(me)
    me.close_turn()


async def step_turn(me: Me) -> None:
    """One step, then the next step's `begin`, so that its sends overlap the computation."""
    me.open_turn("step")
    await me.strategy.step(me)
    me.steps += 1
    if me.world.observed:
        me.world.emit(Stepped(me.id, me.world.now(), me.steps, me.samples))
    me.close_turn()
    me.world.stepped(me.steps)
    await begin_turn(me)


async def serve_turn(me: Me) -> None:
    me.open_turn("serve")
    await me.strategy.serve(me)
    me.close_turn()


async def end_turn(me: Me) -> None:
    """After everybody's last step, when all that was sent has arrived."""
    me.open_turn("end")
    me.ending = True
    await me.strategy.end(me)
    if me.world.observed:
        me.world.emit(Left(me.id, me.world.now(), me.steps))
    me.close_turn()
