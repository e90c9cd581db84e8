"""A server's life: it takes model and optimizer from worker 0 and serves until all have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from fast.core import Me, Replica, Strategy, drive, serve_turn, start
from fast.runtime.rendezvous import meet_as_server
from fast.runtime.worker import FINAL
from fast.runtime.world import RealWorld
from fast.trace import Observer
from fast.transport import Phase, Transport
from fast.view import Layout, View

MakeReplica = Callable[[dict[str, Any], Layout, Tensor], Replica]
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
) -> None:
    """Serve until every worker has left. `after_turn` may look at the server before its
    first turn and after each."""
    world = RealWorld(
        transport, view, strategy.tags, seed=seed, deadline_s=deadline_s, observers=observers, say=say
    )
    hello, layout, weights = meet_as_server(world)
    me = Me(world, make_replica(hello.optimizer or {}, layout, weights), strategy)
    drive(start(me))
    after_turn(me, transport)
    transport.set_phase(Phase.READY)
    me.account.begin()
    while any(transport.phase(worker) < Phase.DONE for worker in view.workers):
        _serve(me, transport)
        after_turn(me, transport)
    unread = world.unread()
    while unread:  # what was still on its way; letters that no turn reads end it too
        _serve(me, transport)
        unread, before = world.unread(), unread
        if unread >= before:
            break
    after_turn(me, transport)
    transport.publish(FINAL, me.weights)
    transport.set_phase(Phase.LEFT)
    world.close()


def _serve(me: Me, transport: Transport) -> None:
    drive(serve_turn(me))
    transport.set_progress(me.version, 0)
    me.account.turned()
