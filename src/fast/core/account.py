"""Where a participant's time goes: computing and turns follow each other without a gap.

The worlds call this, between a strategy's turns; strategies don't.
"""

from __future__ import annotations

from typing import final

from fast.core.world import World
from fast.trace import Computed, Turned


@final
class Account:
    """Each piece begins where the one before it ended, so that together they are all the time there was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since_ns = 0

    def begin(self) -> None:
        """From here on all time is either computing or a turn."""
        self._since_ns = self._world.now()

    def computed(self) -> None:
        """This step's gradient is ready."""
        if self._world.observed:
            began_ns, self._since_ns = self._since_ns, self._world.now()
            self._world.emit(Computed(self._world.id, self._since_ns, began_ns))

    def computed_inside(self) -> None:
        """A program has computed its gradient in its own turn; where time stands still there, it
        has passed before, and was reported then."""
        if self._world.now() > self._since_ns:
            self.computed()

    def turned(self) -> None:
        """The turn is over, with all that the world does around it."""
        if self._world.observed:
            began_ns, self._since_ns = self._since_ns, self._world.now()
            self._world.emit(Turned(self._world.id, self._since_ns, began_ns))
