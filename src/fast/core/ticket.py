"""Tickets: something that is under way while its owner goes on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast, final

from fast.core.world import Pause, World

Result = TypeVar("Result")


@final
class Ticket(Generic[Result]):
    """A program that has been started and goes on whenever it is looked at. Await it for its result.

    It is driven by hand: as long as it can go on without waiting it does, in `poll`; where it
    would wait it pauses. Only who awaits the ticket waits. So the same program, a collective say,
    runs in both ways, and nothing runs in the background that could come at a wrong moment.
    What was given to it must not be changed before it has been awaited.
    """

    def __init__(
        self,
        world: World,
        program: Coroutine[Any, Any, Result],
        lane: int = 1,
        awaited: Callable[[], None] = lambda: None,
    ) -> None:
        self._world, self._program, self._lane, self._awaited = world, program, lane, awaited
        self._pause: Pause | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.done = False
        self._running = False
        """Whether it is the one that asks: a program may let all others go on."""
        self.waited_for = False
        """Whether its owner waits for it at this moment."""
        self.poll()

    def poll(self) -> bool:
        """Go on as far as possible without waiting. Is it done?"""
        while not self.done and not self._running and (self._pause is None or self._pause.ready()):
            self._world.lane, before, self._running = self._lane, self._world.lane, True
            try:
                self._pause = self._program.send(None)
            except StopIteration as stop:
                self._result, self.done = stop.value, True
            except Exception as error:  # raised where the ticket is awaited
                self._error, self.done = error, True
            finally:
                self._world.lane, self._running = before, False
        return self.done

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def _wait(self) -> Result:
        self.waited_for = True
        try:
            while not self.poll():
                assert self._pause is not None
                if self._world.polled:  # inside another ticket's program
                    await self._pause
                else:
                    await self._pause.block()
        finally:
            self.waited_for = False
        self._awaited()
        return self.result()

    def result(self) -> Result:
        """What came of it, once it is done."""
        if self._error is not None:
            raise self._error
        return cast(Result, self._result)
