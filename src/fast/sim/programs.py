"""Programs: coroutines that yield what they wait for, resumed by events. No asyncio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Generator
from typing import Any, final

from fast.errors import FastError


class Request:
    """What a program waits for. Awaiting it hands it to the program's driver.

    Whoever fulfils it makes `resume` an event: a program never runs inside another's turn.
    """

    program: Program | None = None
    """Whose it is, once it waits."""
    fulfilled = False

    def __await__(self) -> Generator[Request, None, None]:
        if not self.fulfilled:
            yield self

    def resume(self) -> None:
        self.fulfilled = True
        if self.program is not None:  # else whoever asked has not come back for it yet
            self.program.resume()

    def whom(self) -> tuple[int, ...]:
        """Who could end this wait, as far as that is known."""
        return ()

    def is_hopeless(self, silent: Callable[[int], bool]) -> bool:
        """Whether it can't end as long as these are silent."""
        return any(silent(peer) for peer in self.whom())

    def describe(self) -> str:
        """What is waited for, for the message about a deadlock."""
        return "something"


class Computing(Request):
    """A gradient on its way."""

    def describe(self) -> str:
        return "its own gradient"


@final
class Overtakable(Computing):
    """A gradient on its way that is given up when a letter with this tag comes."""

    over = True
    """It wants to hear of nobody's leaving."""
    missing: Collection[int] = ()

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def end(self) -> None:
        """It is ready, or nobody wants it any more: whichever is first."""
        if not self.fulfilled:
            self.resume()


@final
class Program:
    """One coroutine of one participant, and what it waits for at the moment.

    `postpone`, if there is one, is asked before it goes on: a participant that is frozen goes on later.
    """

    def __init__(self, who: int, coroutine: Coroutine[Any, Any, None]) -> None:
        self.who = who
        self.waits_for: Request | None = None
        self.finished = False
        self.postpone: Callable[[Program], bool] | None = None
        self._coroutine = coroutine

    def resume(self) -> None:
        """Run until the next request or the end."""
        if not self.finished and (self.postpone is None or not self.postpone(self)):
            self._advance(self._coroutine.send)

    def fail(self, error: Exception) -> None:
        """Let what it waits for end in this error, which it may catch."""
        self._advance(self._coroutine.throw, error)

    def _advance(self, go_on: Callable[[Any], Any], with_: Exception | None = None) -> None:
        self.waits_for = None
        try:
            request = go_on(with_)
        except StopIteration:
            self.finished = True
            return
        if not isinstance(request, Request):
            raise FastError(
                f"the program of participant {self.who} waited for {request!r}, which is not a request of "
                "this world. Inside a strategy, await only what `me` offers; never asyncio."
            )
        self.waits_for = request
        request.program = self

    def close(self) -> None:
        """Give it up where it stands."""
        self.finished = True
        self._coroutine.close()
