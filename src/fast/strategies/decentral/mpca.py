"""A reconstruction of MPCA-SGD: workers follow a master that they hear of late, and never wait for it.

The authors' pseudo-code isn't public. What is here follows the description in a survey of the same authors: a
penalty for the distance to the master, which is extrapolated while it is stale, and snapshots that are summed up a
binomial tree to the master and come back down as its new state, whenever the last exchange is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from fast.core import WEIGHTS, Letter, Me, Strategy, Tag, fold_newest
from fast.strategies.central.tree import children

UP, DOWN = "snapshots", "master"


@dataclass
class Sum:
    """Snapshots of one round that were added up on their way."""

    round: int
    count: int
    total: Tensor


class Vertex(Protocol):
    """What everybody in the tree has."""

    round: int
    """Which exchange is under way, or the next one."""
    sums: dict[int, Sum]
    """The last one of each sender below."""


@dataclass
class Master:
    """The server's state; its weights are the master's."""

    velocity: Tensor
    round: int = 0
    sums: dict[int, Sum] = field(default_factory=dict)


@dataclass
class Follower:
    """A worker's state: what it knows of the master, and how far the exchange under way is."""

    master: Tensor
    before: Tensor
    """The master's state that came before this one."""
    came: int = 0
    """After so many steps of this worker the master's state came."""
    period: int = 1
    """So many steps lay between the last two."""
    taken: int = 0
    """After so many steps the last snapshot was taken."""
    round: int = 0
    """Who has come while others train doesn't know it, and begins with -1."""
    snapshot: Tensor | None = None
    """None while the network is free: what was sent has been answered."""
    told: tuple[int, int] | None = None
    """Whom the sum with this snapshot was sent to, and in which view: who has come back since then has lost it."""
    gone: set[int] = field(default_factory=set)
    """Who was found to have left in this turn; from the next one on the view says so."""
    sums: dict[int, Sum] = field(default_factory=dict)

    def adopt(self, master: Tensor, round_: int, step: int) -> None:
        """The master's state after this round has come, after so many steps."""
        self.before.copy_(self.master)
        self.master.copy_(master)
        self.period, self.came = max(1, step - self.came), step
        self.round, self.snapshot, self.told = round_ + 1, None, None
        self.sums = {peer: sum_ for peer, sum_ in self.sums.items() if sum_.round > round_}


class FollowMaster(Strategy):
    """w <- optimizer(w, g_i + rho (w - p)),  p = m + kappa age / period (m - m_before);  the master, on the mean s of
    n snapshots:  v <- mu v + n / P (s - m);  m <- m + rate v.

    A worker takes a snapshot `tau` steps after its last one, or later: when the last one has been answered. It
    looks for letters once in each step. Place 0 of the tree is the server's, place i + 1 that of worker i. Who has
    left is passed by, and its children turn to its parent, with the same sum once more: rounds have numbers, of
    each sender one sum counts, and whose round is over already gets the master's state.

    Who isn't there counts as if it were where the master is: else the last one to leave would be the model.
    With `replace` workers wait for the answer and go on from it.
    """

    identity_alone = True
    servers_optimize = False
    tags = (Tag(UP, carries=WEIGHTS, fold=fold_newest), Tag(DOWN, carries=WEIGHTS, fold=fold_newest))
    knobs = MappingProxyType({"rho": (0.03, 0.3), "tau": (4, 25)})

    def __init__(
        self,
        *,
        tau: int,
        rho: float,
        kappa: float,
        rate: float = 1.0,
        momentum: float = 0.0,
        replace: bool = False,
    ) -> None:
        self.tau, self.rho, self.kappa = tau, rho, kappa
        self.rate, self.momentum, self.replace = rate, momentum, replace
        self.admits = not replace

    def servers(self, workers: int) -> int:
        return int(workers > 1)

    def state(self, me: Me) -> Follower | Master:
        if me.is_server:
            return Master(me.weights.new_zeros(me.weights.shape))
        master, now = me.weights.clone(), me.steps
        if me.fresh:  # it asks at once, and gets the master's state and the round
            return Follower(master, master.clone(), came=now, taken=now - self.tau, round=-1)
        return Follower(master, master.clone(), came=now, taken=now)

    # Workers

    async def step(self, me: Me) -> None:
        if not me.servers:
            me.apply(me.gradient)
            return
        follower: Follower = me.state
        follower.gone.clear()
        self._hear(me, me.letters(DOWN), me.letters(UP))
        me.apply(self._penalised(me))
        if follower.snapshot is None and me.steps + 1 - follower.taken >= self.tau:
            follower.snapshot, follower.taken = me.weights.clone(), me.steps + 1
        self._pass_up(me)
        while self.replace and follower.snapshot is not None:
            await self._wait(me)

    def _penalised(self, me: Me) -> Tensor:
        """The gradient of the worker's cost with rho / 2 |w - p|^2, p where the master should be by now: at most as far
        ahead as it went in one period."""
        follower: Follower = me.state
        if not self.rho:
            return me.gradient
        ahead = self.kappa * min(1.0, (me.steps - follower.came) / follower.period)
        pull = me.scratch("pull").copy_(me.weights).sub_(follower.master, alpha=1.0 + ahead)
        return pull.add_(follower.before, alpha=ahead).mul_(self.rho).add_(me.gradient)

    def _hear(self, me: Me, down: list[Letter], up: list[Letter]) -> None:
        follower: Follower = me.state
        for letter in sorted(down, key=lambda letter: int(letter.note["round"])):
            if letter.note["round"] >= follower.round:
                me.version = letter.version
                follower.adopt(letter.tensor, letter.note["round"], me.steps)
                me.send([*_below(me)], follower.master, tag=DOWN, round=follower.round - 1)
                if self.replace:
                    me.weights.copy_(follower.master)
        _file(me, up, follower.master)

    def _pass_up(self, me: Me) -> None:
        """The own snapshot and all that came from below, once it is complete; once more in another view, where
        who got it may have left, or have come anew."""
        follower: Follower = me.state
        parent, sums = _parent(me), list[Sum]()
        if follower.snapshot is None or follower.told == (parent, me.view.number):
            return
        if follower.round < 0 or not _collect(me, sums):
            total = follower.snapshot.clone()
            for sum_ in sums:
                total.add_(sum_.total)
            count = 1 + sum(sum_.count for sum_ in sums)
            me.send(parent, total, tag=UP, round=follower.round, count=count)
            follower.told = parent, me.view.number

    async def _wait(self, me: Me) -> None:
        """For what the exchange needs next: sums from below, then the master's state."""
        follower: Follower = me.state
        missing = _collect(me, [])
        if missing and follower.told != (_parent(me), me.view.number):
            letters, gone = await me.gather(UP, missing)
            self._hear(me, [], list(letters.values()))
        else:
            letters, gone = await me.gather(DOWN, [_parent(me)])
            self._hear(me, list(letters.values()), me.letters(UP))
        follower.gone.update(gone)
        self._pass_up(me)

    # The master

    async def serve(self, me: Me) -> None:
        master: Master = me.state
        _file(me, await me.news(UP), me.weights)
        sums = list[Sum]()
        if not _collect(me, sums) and sums:
            total, count = sums[0].total, sum(sum_.count for sum_ in sums)
            for sum_ in sums[1:]:
                total.add_(sum_.total)
            apart = total.div_(count).sub_(me.weights)
            share = count / len(me.all_workers)
            master.velocity.mul_(self.momentum).add_(apart, alpha=share)
            me.weights.add_(master.velocity, alpha=self.rate)
            master.round, master.sums = master.round + 1, {}
            me.version += 1
            me.send([*_below(me)], me.weights, tag=DOWN, round=master.round - 1)


# The tree


def _place(me: Me) -> int:
    return 0 if me.is_server else me.id + 1


def _is_there(me: Me, peer: int) -> bool:
    return peer in me.workers and (me.is_server or peer not in me.state.gone)


def _children(me: Me, place: int) -> list[int]:
    """The places right below this one, whoever is there."""
    return children(place, len(me.all_workers) + 1)


def _below(me: Me, place: int | None = None) -> Iterator[int]:
    """The workers right below; in the place of one who has left, those below it."""
    for child in _children(me, _place(me) if place is None else place):
        yield from (child - 1,) if _is_there(me, child - 1) else _below(me, child)


def _parent(me: Me) -> int:
    place = _place(me) & (_place(me) - 1)
    while place and not _is_there(me, place - 1):
        place &= place - 1
    return place - 1 if place else me.servers[0]


def _collect(me: Me, found: list[Sum], place: int | None = None) -> list[int]:
    """Put the sums of this round from below into `found`, and say whose is still missing. What somebody sent before
    it left counts for all below it."""
    vertex: Vertex = me.state
    missing = []
    for child in _children(me, _place(me) if place is None else place):
        sum_ = vertex.sums.get(child - 1)
        if sum_ is not None and sum_.round == vertex.round:
            found.append(sum_)
        elif _is_there(me, child - 1):
            missing.append(child - 1)
        else:
            missing += _collect(me, found, child)
    return missing


def _file(me: Me, letters: list[Letter], master: Tensor) -> None:
    """Keep these sums; who is late for its round has missed the answer to it, and gets the newest."""
    vertex: Vertex = me.state
    late = [letter.sender for letter in letters if letter.note["round"] < vertex.round]
    me.send(late, master, tag=DOWN, round=vertex.round - 1)
    for letter in letters:
        if letter.note["round"] >= vertex.round:
            sum_ = Sum(letter.note["round"], letter.note["count"], letter.tensor.clone())
            vertex.sums[letter.sender] = sum_
