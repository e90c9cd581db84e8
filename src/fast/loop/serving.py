"""A server's program."""

from __future__ import annotations

from collections.abc import Iterable

from fast.adapters.server_replica import server_replica
from fast.core import Strategy
from fast.engine import current_seat
from fast.loop.joining import DEFAULT_SEED, view_of
from fast.loop.loading import strategy_from
from fast.runtime import run_server
from fast.runtime.server import AfterTurn
from fast.trace import Observer


def serve(
    strategy: str | Strategy,
    number: int,
    observers: Iterable[Observer] = (),
    after_turn: AfterTurn = lambda me, transport: None,
) -> None:
    """Serve as server `number` of this strategy until every worker has left."""
    seat, chosen = current_seat(), strategy_from(strategy)
    transport = seat.connect()
    run_server(
        transport,
        view_of(seat.workers, chosen.servers(seat.workers), seat.groups or transport.groups),
        chosen,
        server_replica,
        seed=DEFAULT_SEED if seat.seed is None else seat.seed,
        deadline_s=seat.deadline_s,
        observers=(*observers, *seat.observers),
        after_turn=after_turn,
        say=seat.say,
        journal=seat.journal,
    )
