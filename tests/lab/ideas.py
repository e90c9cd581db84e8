"""Strategies that tests load from this file, as a user's own."""

from __future__ import annotations

from fast import Me, Strategy


class Broken(Strategy):
    """Fails in its third step."""

    async def step(self, me: Me) -> None:
        if me.steps == 2:
            raise ValueError("an idea that doesn't work")
        me.apply(me.gradient)


class Diverging(Strategy):
    """Ends with weights that are no numbers."""

    async def step(self, me: Me) -> None:
        me.weights.fill_(float("nan"))
