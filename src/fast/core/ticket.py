"""Tickets: something that is under way while its owner goes on."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, final

from fast.core.world import Pause, World

Result = TypeVar("Result")


@final
class Ticket(Generic[Result]):
    """A program that has been started and goes on whenever it is looked at. Await it for its result.

    It is driven by hand: as long as it can go on without waiting it does, in `poll`; where it
    would wait it pauses. Only who awaits the ticket waits. So the same program, a collective say,
    runs in both ways, and nothing runs in the background that could come at a wrong moment.
    """

    def __init__(self, world: World, program: Coroutine[Any, Any, Result]) -> None:
        self._world, self._program = world, program
        self._pause: Pause | None = None
        self._results: list[Result] = []
        self.poll()

    def poll(self) -> bool:
        """Go on as far as possible without waiting. Is it done?"""
        while not self._results and (self._pause is None or self._pause.ready()):
            self._world.polled, before = True, self._world.polled
            try:
                self._pause = self._program.send(None)
            except StopIteration as stop:
                self._results.append(stop.value)
            finally:
                self._world.polled = before
        return bool(self._results)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def _wait(self) -> Result:
        while not self.poll():
            assert self._pause is not None
            if self._world.polled:  # inside another ticket's program
                await self._pause
            else:
                await self._pause.block()
        return self._results[0]
