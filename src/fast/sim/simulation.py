"""The simulation: participants, the events of their lives, and what can be done to them from outside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, final

from fast.core import Letter, Me, Replica, Strategy, end_turn
from fast.core.buckets import bucket_cuts, ready_shares
from fast.errors import FastError, UsageError
from fast.membership import Why
from fast.sim import checkpoint
from fast.sim.cluster import Cluster, ComputeModel, Network, Traffic
from fast.sim.cores import Cores
from fast.sim.events import Action, Events
from fast.sim.gradients import Gradients, OneByOne
from fast.sim.inbox import Inbox
from fast.sim.interference import Interference
from fast.sim.lives import Lives, Until
from fast.sim.newcomers import Newcomers
from fast.sim.participant import Participant, SimWorker, Standing
from fast.sim.post import Post
from fast.sim.rounds import Rounds
from fast.sim.stage import Stage
from fast.sim.world import SimWorld, Surroundings
from fast.trace import Observer
from fast.view import Groups, View

FORWARD_SHARE = 1 / 3
"""Of a step's computing: backward makes about twice as many multiplications as forward."""
NOTICE_NS = 1_000_000_000
"""How long it takes until a death is noticed, unless told."""

LetterSeen = Callable[[Letter, int], None]
"""Told of a letter and its receiver."""


@final
class Simulation:
    """One strategy on simulated workers: the same programs as in the real world, in virtual time.

    Workers have the ids 0 to P-1, servers follow. A worker's life is: take a batch, let the time
    of the computation pass, compute the real gradient, take the strategy's turn. It leaves when
    its batches end or when `stop` says so. Same arguments and same seed: same trace.

    `cluster` is the model of machines and links (`network` and `compute` are a shorthand for one
    without anything else), `gradients` says when gradients are computed, `faults` what goes wrong,
    `absent` who is not there at the start. `deadline_s` is how long somebody may be frozen until who
    waits for it gives up.
    """

    def __init__(
        self,
        strategy: Strategy,
        workers: Sequence[SimWorker],
        *,
        server_replicas: Sequence[Replica] = (),
        cluster: Cluster | None = None,
        network: Network | None = None,
        compute: ComputeModel | None = None,
        seed: int = 0,
        observers: Sequence[Observer] = (),
        seed_torch: bool = True,
        gradients: Gradients | None = None,
        faults: Interference | None = None,
        absent: Collection[int] = (),
        spoil_letters: bool = False,
        deadline_s: float = 60.0,
        groups: Groups | None = None,
    ) -> None:
        """`groups`: in which order sums are made; None for the workers of each host as a group."""
        size = len(workers)
        _check(strategy, size, len(server_replicas), absent)
        _check_layers(workers)
        check_hosts(strategy, cluster or _plain(network, compute), size)
        cluster = (cluster or _plain(network, compute)).placed(
            size, len(server_replicas), colocated=strategy.colocated
        )
        servers = tuple(range(size, size + len(server_replicas)))
        if groups is None:
            groups = cluster.network.hosts.groups(size)
        self.view = View(0, tuple(range(size)), servers, groups)
        self.strategy, self.seed, self.cluster = strategy, seed, cluster
        self.on_dropped: LetterSeen | None = None
        """Told of every letter that nobody will read; for checkers."""
        self.on_doubled: LetterSeen | None = None
        """Told of every further copy of a letter that a fault makes."""
        self._deadline_ns = round(deadline_s * 1e9)
        self._faults = faults
        self.events = Events()
        self._inboxes = {who: Inbox(self.events, strategy.tags) for who in sorted(self.view.everybody)}
        traffic = Traffic(cluster.network, self.events, cluster.work)
        self.post = Post(
            self.events,
            traffic,
            self._inboxes,
            self.view,
            strategy.tags,
            absent=absent,
            faults=faults,
            report=self._drop,
            doubled=self._double,
        )
        self._rounds = Rounds(self.events, traffic, self.view.workers, self.post.departures, faults)
        self._around = Surroundings(
            self.view,
            seed,
            self.events,
            self.post,
            self._rounds,
            tuple(observers),
            work=None if cluster.work.free else cluster.work,
            cores=None if cluster.work.cores is None else Cores(cluster.work, cluster.network, self.events),
            faults=faults,
            spoil_letters=spoil_letters,
        )
        _check_shards(strategy, workers[0].replica, server_replicas)
        self._newcomers = Newcomers(self)
        replicas = [*(worker.replica for worker in workers), *server_replicas]
        makers = [*workers, *(None for _ in server_replicas)]
        self.participants = tuple(
            self._participant(who, replicas[who], makers[who], absent=who in absent) for who in self._inboxes
        )
        self.workers, self.servers = self.participants[:size], self.participants[size:]
        self.gradients = gradients or OneByOne(workers, seed, seed_torch=seed_torch)
        self.lives = Lives(self, self._around.cores)
        self._stage = Stage(self.events, self.participants, self.view)
        self._until = Until()
        self._ended = self._prepared = False

    def _participant(
        self, who: int, replica: Replica, worker: SimWorker | None, *, absent: bool
    ) -> Participant:
        me, world = self.embody(who, replica)
        cuts = bucket_cuts(replica.layout, self.strategy.bucket_bytes)
        standing = Standing.ABSENT if absent else Standing.THERE
        return Participant(me, world, worker, ready_shares(replica.layout, cuts, FORWARD_SHARE), standing)

    def embody(self, who: int, replica: Replica, *, life: int = 0) -> tuple[Me, SimWorld]:
        """A participant's handle and its world, with its inbox as it is."""
        inbox = self._inboxes[who]
        world = SimWorld(who, self._around, inbox, life=life)
        me = Me(world, replica, self.strategy)
        inbox.layout_of = world.layout_of
        world.gradient_computed = me.account.computed
        world.on_step = partial(self._newcomers.reached, who)
        return me, world

    # What can be seen from outside

    @property
    def now_ns(self) -> int:
        return self.events.now_ns

    @property
    def total_samples(self) -> int:
        return self.lives.total_samples

    def me(self, who: int) -> Me:
        return self.participants[who].me

    def on_the_way(self) -> Iterator[tuple[int, Letter]]:
        """Letters that have not arrived yet, with their receivers; for checkers."""
        return self.post.on_the_way()

    def unread(self, who: int) -> list[Letter]:
        """Letters that have arrived at this participant and wait to be read; for checkers."""
        return self.participants[who].world.inbox.mailbox.letters()

    # Running

    def run(
        self,
        *,
        stop: Callable[[Simulation], bool] | None = None,
        on_step: Callable[[Me, int], None] | None = None,
        pause_after: int | None = None,
        after_event: Callable[[Simulation], None] | None = None,
    ) -> None:
        """Until every worker has left, or (`pause_after`) until each has done that many steps.

        `stop` is asked at every step boundary; the worker that hears True leaves. `after_event`
        is called after every event, for checkers. After a pause all letters have arrived and
        nobody is inside a turn: then `checkpoint` may be taken, and `run` goes on.
        """
        self._check_idle()
        self._until = Until(stop, on_step, pause_after)
        for p in self.participants:
            if p.alive and not self._ended:
                self.play_on(p)
        if self._faults is not None and not self._prepared:
            self._prepared = True
            self._faults.prepare(self)
        self._play(after_event)
        if not self._ended and not any(p.alive for p in self.workers):
            self._ended = True
            for p in self.workers:
                if p.left:
                    p.world.over = True
                    self._stage.enter(p, end_turn(p.me))
            self._play(after_event)
            self._report_unread()

    def _play(self, after_event: Callable[[Simulation], None] | None) -> None:
        self._stage.play(
            lambda p: p.alive and not self._until.paused(p.me.steps),
            None if after_event is None else lambda: after_event(self),
        )

    def play_on(self, p: Participant) -> None:
        """Begin the life of one who has come while others are training."""
        self._stage.enter(p, self.lives.life(p, self._until))

    def _report_unread(self) -> None:
        for p in self.participants:
            if not p.dead:
                for letter in self.unread(p.me.id):
                    self._drop(p.me.id, letter, p.me.id, "unread at the end")

    def _drop(self, by: int, letter: Letter, to: int, why: str) -> None:
        self.participants[by].world.drop(letter, to, why)
        if self.on_dropped is not None and letter.whole:
            self.on_dropped(letter, to)

    def _double(self, letter: Letter, to: int) -> None:
        if self.on_doubled is not None and letter.whole:
            self.on_doubled(letter, to)

    # What can be done to participants: faults use these

    def at(self, time_ns: int, action: Action) -> None:
        """Let this happen at a time, as long as somebody is there."""
        self.events.at(time_ns, action, background=True)

    def at_step(self, worker: int, step: int, action: Action) -> None:
        """Let this happen when a worker has done so many steps."""
        self.lives.at_step(worker, step, action)

    def stop(self, worker: int) -> None:
        """It leaves in order, before its next step."""
        self._newcomers.withdraw(self.participants[worker])
        self.participants[worker].leaving = True

    def kill(self, worker: int, *, notice_ns: int = NOTICE_NS) -> None:
        """It is gone at once; what it had sent still arrives. The others hear of it `notice_ns` later."""
        p = self.participants[worker]
        self._newcomers.withdraw(p)
        if not p.alive:
            return
        p.standing = Standing.DEAD
        if p.program is not None:
            p.program.close()
        self.gradients.drop(worker)
        self.post.bury(worker)
        for window in [each for each in self._around.windows if each[0] == worker]:
            del self._around.windows[window]
        self.events.at(self.now_ns + notice_ns, lambda: self._notice(p), background=True)

    def _notice(self, p: Participant) -> None:
        self.post.leave(p.me.id, p.me.steps)
        self._rounds.leave(p.me.id)
        self._newcomers.reconsider()

    def freeze(self, who: int, for_ns: int) -> None:
        """It does nothing for so long; what it was computing takes that much longer."""
        p = self.participants[who]
        if p.alive:
            self._stage.freeze(p, for_ns, self._deadline_ns)

    def admit(self, worker: int) -> None:
        """One who was absent or is dead comes (back), with the state of a live peer."""
        self._newcomers.admit(self.participants[worker])

    def leave(self, p: Participant) -> None:
        """A worker's last step was its last."""
        p.standing = Standing.LEFT
        p.me.retire()
        self.post.leave(p.me.id, p.me.steps, listens=self.strategy.listens)
        self._rounds.leave(p.me.id)
        self._newcomers.reconsider()

    def welcome(self, who: int) -> None:
        """An empty mailbox for one who comes (back)."""
        self.post.welcome(who, Inbox(self.events, self.strategy.tags))

    # Save and resume

    def checkpoint(self) -> dict[str, Any]:
        """Everything that the future depends on, as of a pause."""
        self._check_idle()
        if self.strategy.racy:
            raise UsageError(
                f"{self.strategy!r} reads peers' memory as it is, which can't be saved: no checkpoint can be taken"
            )
        if self._faults is not None or self.events or any(c.why is not Why.LEFT for c in self.post.changes):
            raise UsageError(
                "a simulation with faults, or in which workers come, can't be saved: what is still to happen "
                "isn't in a checkpoint"
            )
        return {
            "now_ns": self.now_ns,
            "total_samples": self.total_samples,
            "departures": dict(self.post.departures),
            "left_ns": dict(self.post.left_ns),
            "listening": set(self.post.listening),
            "changes": list(self.post.changes),
            "participants": [checkpoint.save(p) for p in self.participants],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint, in a simulation that was built like the saved one and hasn't run."""
        self._check_idle()
        if any(p.started for p in self.participants):
            raise UsageError("restore() needs a simulation that hasn't run yet; build a new one")
        if len(saved["participants"]) != len(self.participants):
            raise UsageError(
                f"the checkpoint has {len(saved['participants'])} participants and this simulation "
                f"{len(self.participants)}. Build it with the same strategy and number of workers."
            )
        self.events.now_ns, self.lives.total_samples = saved["now_ns"], saved["total_samples"]
        self.post.departures.update(saved["departures"])
        self.post.left_ns.update(saved["left_ns"])
        self.post.listening.update(saved["listening"])
        self.post.changes[:] = saved["changes"]
        for participant, state in zip(self.participants, saved["participants"], strict=True):
            checkpoint.load(participant, state)

    def _check_idle(self) -> None:
        if self._stage.busy:
            raise FastError(
                "this simulation is under way or ended in an error. Pause it with run(pause_after=...), "
                "or build a new one."
            )


def _plain(network: Network | None, compute: ComputeModel | None) -> Cluster:
    usual = Cluster()
    return Cluster(compute or usual.compute, network or usual.network)


def _check(strategy: Strategy, workers: int, servers: int, absent: Collection[int]) -> None:
    if workers < 1:
        raise UsageError("a simulation without workers; give at least one")
    if not all(0 <= who < workers for who in absent) or len(set(absent)) >= workers:
        raise UsageError(
            f"absent at the start are {sorted(absent)}, of {workers} workers; at least one must be there"
        )
    if absent and not strategy.admits:
        raise UsageError(
            f"{strategy!r} can't take in workers while others train, so no worker may be absent at first"
        )
    strategy.check(workers)
    needed = strategy.servers(workers)
    if servers != needed:
        raise UsageError(
            f"{strategy!r} on {workers} workers needs {needed} server replicas and got {servers}. "
            "Give one for each server, each with a copy of worker 0's weights."
        )


def check_hosts(strategy: Strategy, cluster: Cluster, workers: int) -> None:
    """Refuse a strategy whose workers change each other's memory where they stand on several hosts. A network
    that is nothing but links between pairs says nothing about hosts."""
    network = cluster.network.placed(workers)
    hosts = len({network.host(worker) for worker in range(workers)})
    if strategy.one_host and hosts > 1 and (network.shared or not network.plain):
        raise UsageError(
            f"{strategy!r} needs workers that share one host's memory, and {workers} of them are on {hosts} hosts. "
            "Put them on one with --hosts all (in Python: Hosts(each=None)), or take another strategy."
        )


def _check_shards(strategy: Strategy, first: Replica, servers: Sequence[Replica]) -> None:
    if not strategy.sharded or not servers:
        return
    needed = [cut.stop - cut.start for cut in first.shards(len(servers))]
    found = [server.weights.numel() for server in servers]
    if found != needed:
        raise UsageError(
            f"{strategy!r} is sharded, so its {len(servers)} servers own {needed} values and got replicas of {found}. "
            "Give each the slice that replica.shards(count) says; adapters.server_replicas makes them."
        )


def _check_layers(workers: Sequence[SimWorker]) -> None:
    """Simulated gradients are computed one by one, or all at once from weights alone: no layer can wait for others."""
    modules = getattr(workers[0].replica.model, "modules", tuple)
    needy = [module for module in modules() if getattr(module, "needs_everybody", False)]
    if needy and len(workers) > 1:
        raise UsageError(
            f"the model has {len(needy)} layers of type {type(needy[0]).__name__}, which need the batches of all "
            f"{len(workers)} workers at once, and simulated workers compute one after another. Simulate torch's "
            "BatchNorm, or train on real workers."
        )
