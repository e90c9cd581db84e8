"""`me`: a participant's handle on itself and its world. All that a strategy ever touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fast.core.account import Account
from fast.core.buckets import bucket_cuts, buckets_of
from fast.core.coding import Coding, Opener
from fast.core.letter import GRADIENT, Letter
from fast.core.replica import Replica, Tapped
from fast.core.rounds import Rounds
from fast.core.shards import Shards
from fast.core.together import Together
from fast.core.world import World
from fast.errors import UsageError
from fast.parts.topology import Topology
from fast.view import View

if TYPE_CHECKING:
    from fast.core.strategy import Strategy


@final
class Me(Shards, Together):
    """One participant. Worlds make it; a strategy's programs are called with it."""

    def __init__(self, world: World, replica: Replica, strategy: Strategy) -> None:
        self.world = world
        self.replica = replica
        self.strategy = strategy
        self.account = Account(world)
        self.id = world.id
        """Workers count from 0, and servers go on after them. An id never changes, and nobody else ever gets it."""
        self.is_server = world.id in world.start_view.owners
        self.state: Any = None
        self.steps = 0
        self.version = 0
        """On a server: updates applied so far. On a worker: the server's version it last adopted."""
        self.versions: dict[int, int] = {}
        """On a worker: the version of each server's weights that was read last."""
        self.view = world.start_view
        self.ending = False
        """Whether this is the last turn, when nobody is there any more to talk to."""
        self.fresh = False
        """Whether this participant has come while others were training already."""
        self._everybody = self.view.everybody
        self._changes = 0
        self._ties: dict[str, Any] = {}
        """What the topology says, as long as the view stays the same."""
        self._scratch: dict[str, Tensor] = {}
        self._codecs = {tag.name: tag.codec for tag in strategy.tags}
        self._of_gradients = frozenset(tag.name for tag in strategy.tags if tag.carries == GRADIENT)
        """Tags whose letters carry gradients."""
        self._unused: list[Letter] = []
        self._rounds = Rounds(self)
        self._device = replica.weights.device
        self.coding = Coding(world.seed, self.id, replica.layout, self._device)
        self._opener = Opener()
        self.turn = ""
        """Which program is under way: begin, step, serve or end."""
        world.layout = replica.layout
        self._several = len(world.start_view.servers) > 1 and not self.is_server
        if strategy.sharded and not self.is_server:
            world.shards = self.shards
        if strategy.uses_factors and isinstance(replica, Tapped):
            replica.tap_factors()
        self._nbytes = replica.layout.nbytes
        self._buckets = buckets_of(replica.gradient, bucket_cuts(replica.layout, strategy.bucket_bytes))
        world.pieces = len(self._buckets)

    # Who I am and who is there

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that are in now, by ascending id."""
        return self.view.workers

    @property
    def servers(self) -> tuple[int, ...]:
        """The servers that are in now."""
        return self.view.servers

    @property
    def all_workers(self) -> tuple[int, ...]:
        """The workers of this run: also those that have left, and those that haven't come yet. For what goes by number:
        slots, places, addresses. The workers that are in now are `me.workers`."""
        return self.world.start_view.workers

    @property
    def all_servers(self) -> tuple[int, ...]:
        """The servers of this run, also those that have left."""
        return self.world.start_view.servers

    @property
    def alone(self) -> bool:
        """Whether the run has one worker only, so that training is what it would be without FAST. A worker that is the
        last one left of several isn't alone in this sense; it has no `me.peers`."""
        return len(self.world.start_view.workers) == 1

    @property
    def departed(self) -> Mapping[int, int]:
        """The participants that have left, each with the number of steps it had done. Their last letters may still be
        on their way."""
        return self.world.departures()

    @property
    def index(self) -> int:
        """My place in the view; for topologies only."""
        return self.view.index(self.id)

    @property
    def edges(self) -> Mapping[int, float]:
        """Whom I hear in this round, with the mixing weight of each."""
        return self._ties.get("neighbours") or self._tie("neighbours")  # type: ignore[no-any-return]

    @property
    def _topology(self) -> Topology:
        if self.strategy.topology is None:
            raise UsageError(
                f"{self.strategy!r} has no topology, so its workers have no neighbours. Set `topology`."
            )
        return self.strategy.topology

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Whom I hear in this round."""
        return self._ties.get("heard") or self._tie("heard")  # type: ignore[no-any-return]

    @property
    def audience(self) -> Mapping[int, float]:
        """Who hears me in this round, with the share of a push-sum that each gets; the rest is mine."""
        return self._ties.get("audience") or self._tie("audience")  # type: ignore[no-any-return]

    def _tie(self, kind: str) -> Any:
        """Asked several times in each step: kept where the links don't change from round to round."""
        topology = self._topology
        tie = getattr(topology, kind)(self.index, self.view, self.steps)
        if not topology.changing:
            self._ties[kind] = tie
        return tie

    @property
    def peers(self) -> tuple[int, ...]:
        """All other workers."""
        return tuple(w for w in self.view.workers if w != self.id)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The workers to send an update to that must not be lost: those that hear me in this round (without a
        topology, all peers), and those that have taken their last step and still receive. These include it in `end`."""
        there = self.peers if self.strategy.topology is None else tuple(self.audience)
        if self.view.number == self.world.start_view.number:
            return there
        listening = self.world.listening()
        finished = [peer for peer in self._first_audience() if peer in listening] if listening else []
        return tuple(dict.fromkeys((*there, *finished)))

    def _first_audience(self) -> Iterable[int]:
        """The workers that would hear me in this round if nobody had left."""
        everybody, topology = self.world.start_view, self.strategy.topology
        if topology is None:
            return (worker for worker in everybody.workers if worker != self.id)
        return topology.audience(everybody.index(self.id), everybody, self.steps)

    # Randomness

    @property
    def seed(self) -> int:
        """The seed of the run, for random choices that all participants must make alike."""
        return self.world.seed

    def random(self) -> float:
        """A random number in [0, 1), from this participant's own stream."""
        return self.world.draw()

    def pick_peer(self, among: Sequence[int] | None = None) -> int:
        """One of the other workers (or of `among`), each as likely as the next."""
        count = self._others if among is None else len(among)
        if not count:
            raise UsageError("there is no other worker to pick; check `me.peers` first")
        chosen = int(self.random() * count)
        if among is not None:
            return among[chosen]
        return self.workers[chosen + (not self.is_server and chosen >= self.index)]

    @property
    def _others(self) -> int:
        """How many `peers` there are, without making a list of them."""
        return len(self.workers) - (not self.is_server)

    # Turns, called by core.turns

    def _look_around(self) -> None:
        """See which view holds now."""
        known = len(self.world.changes())
        if not known:
            return
        step = self.steps if self.strategy.synchronous else None
        if step is None and known == self._changes:
            return
        self._changes = known
        topology, size = self.strategy.topology, len(self.world.start_view.workers)
        view = self.world.view_at(step, 1 if topology is None else topology.period(size))
        if view.number != self.view.number:
            self.view = view
            self._ties.clear()

    def retire(self) -> None:
        """After its last step it is alone: ten thousand who have left don't each keep the view they had."""
        workers, servers = ((), (self.id,)) if self.is_server else ((self.id,), ())
        self.view = View(self.view.number, workers, servers)
        self._ties.clear()

    def open_turn(self, turn: str) -> None:
        self.turn = turn
        # A server's view changes in `news`, so that no departure passes it by. At the end nobody is there.
        if turn != "end" and not self.is_server:
            self._look_around()
        if self._unused:
            self._unused = []
        if self._rounds.used:
            self._rounds.open()

    def close_turn(self) -> None:
        if self._rounds.used:
            self._rounds.close()
        if self._opener.lent:
            self._opener.recycle()
        self.world.turn_ended()
