"""A server's life: it takes model and optimizer from worker 0 and serves until all have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from torch import Tensor

from fast.core import Me, Replica, Strategy, drive, serve_turn, start
from fast.runtime.gathering import FINAL, LIVE
from fast.runtime.journal import Done, Journal
from fast.runtime.rendezvous import meet_as_server
from fast.runtime.world import RealWorld
from fast.trace import Observer
from fast.transport import Phase, Transport
from fast.view import Layout, View

MakeReplica = Callable[
    [dict[str, Any], Layout, Tensor, tuple[int, int] | None, Callable[[int], Tensor]], Replica
]
"""Makes a server's replica of the optimizer as data, the whole model's layout and its weights, which it copies. Then
which shard of how many it owns, None for all of them; and where the memory for its weights comes from."""
AfterTurn = Callable[[Me, Transport], None]


def run_server(
    transport: Transport,
    view: View,
    strategy: Strategy,
    make_replica: MakeReplica,
    *,
    seed: int = 0,
    deadline_s: float = 60.0,
    observers: Iterable[Observer] = (),
    after_turn: AfterTurn = lambda me, transport: None,
    say: Callable[[str], None] = lambda line: None,
    journal: Journal | None = None,
) -> None:
    """Serve until every worker has left. `after_turn` may look at the server before its
    first turn and after each."""
    world = RealWorld(
        transport,
        view,
        strategy.tags,
        seed=seed,
        deadline_s=deadline_s,
        observers=observers,
        say=say,
        journal=journal,
    )
    if journal is not None:
        journal.joined(strategy)
    hello, layout, weights = meet_as_server(world)
    place = (view.servers.index(transport.id), len(view.servers)) if strategy.sharded else None
    replica = make_replica(hello.optimizer or {}, layout, weights, place, transport.allocate)
    transport.window(LIVE, replica.weights)
    me = Me(world, replica, strategy)
    drive(start(me))
    after_turn(me, transport)
    transport.set_phase(Phase.READY)
    me.account.begin()
    turns, going_on = 0, True
    while going_on:  # one turn is taken after all have left: other servers may have something to say then
        going_on = world.goes_on(any(transport.phase(worker) < Phase.DONE for worker in view.workers))
        turns += 1
        _serve(me, world, turns)
        after_turn(me, transport)
    unread, before = world.unread(), inf
    while world.goes_on(0 < unread < before):  # what was still on its way; what no turn reads ends it too
        turns += 1
        _serve(me, world, turns)
        unread, before = world.unread(), unread
    after_turn(me, transport)
    transport.publish(FINAL, me.weights)
    if journal is not None:
        journal.ended(turns, lambda: me.weights)
    transport.set_phase(Phase.LEFT)
    world.close()


def _serve(me: Me, world: RealWorld, turns: int) -> None:
    drive(serve_turn(me))
    world.transport.set_progress(me.version, 0)
    if world.journal is not None:
        world.journal.stepped(Done(turns, 0, me.view, lambda: me.weights))
    me.account.turned()
