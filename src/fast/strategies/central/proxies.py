"""Proxies: servers that are write-back caches for groups of workers, in front of one root server."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag
from fast.core.letter import union
from fast.strategies.central.clocks import Shares
from fast.strategies.central.sums import opened, summed

PUSH, READ, FLUSH, FRESH = "push", "read", "flush", "fresh"


@dataclass
class Cache:
    """A proxy's books: what its group has changed since the last write-back."""

    dirty: Tensor
    """The sum of these updates, each with its share of a mean over all workers."""
    updates: int = 0
    present: int | None = 0
    rates: list[float] = field(default_factory=list)
    shares: Shares = field(default_factory=Shares)
    closed: bool = False

    def add(self, update: Tensor, push: Letter) -> None:
        self.dirty.add_(update)
        self.updates += 1
        self.present = union(self.present, push.present)
        self.rates = push.note["rates"]

    def clean(self) -> None:
        self.dirty.zero_()
        self.updates, self.present = 0, 0


@dataclass
class Root:
    """The root's books: the proxies that may still write something back."""

    open: list[int]
    sizes: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By proxy: the samples of its group's last pushes, and how many these were."""

    def others(self, proxy: int) -> list[float]:
        """The same of all other groups together."""
        rest = [size for who, size in self.sizes.items() if who != proxy]
        return [sum(samples for samples, _ in rest), sum(workers for _, workers in rest)]


class Proxies(Strategy):
    """A worker pushes to its proxy and reads from it; a proxy writes back to the root and is refreshed by it.

    flush = 1, synchronous:  D_j = sum of its group's g_i when their round is complete;  root, when all D_j are
    there:  w <- optimizer(w, sum_j D_j / P);  w_j <- w.

    flush > 1, on arrival of g_i at proxy j:  w_j <- optimizer_j(w_j, g_i / P);  D_j <- D_j + g_i / P;  after
    `flush` rounds of its group:  root: w <- optimizer(w, D_j);  w_j <- w;  D_j <- 0.

    Server 0 is the root, and the others are the proxies in the order of their groups. A proxy whose group has left
    writes back what it still has, and is refreshed for the last time when all proxies have done so: then all servers
    hold the same weights.
    """

    tags = (
        Tag(PUSH, carries=GRADIENT),
        Tag(READ, carries=WEIGHTS),
        Tag(FLUSH, carries=GRADIENT),
        Tag(FRESH, carries=WEIGHTS),
    )
    identity_alone = True
    knobs = MappingProxyType({"flush": (2, 8)})

    def __init__(self, *, group: int, flush: int) -> None:
        self.group, self.flush = group, flush
        self.synchronous = flush == 1
        if self.synchronous:
            self.lead = 1

    def servers(self, workers: int) -> int:
        return 1 + ceil(workers / self.group)

    def state(self, me: Me) -> Cache | Root | None:
        if not me.is_server:
            return None
        root, *proxies = me.all_servers
        return Root(proxies) if me.id == root else Cache(me.weights.new_zeros(me.weights.shape))

    async def step(self, me: Me) -> None:
        proxy = me.all_servers[1 + me.id // self.group]
        me.send(proxy, me.gradient, tag=PUSH, rates=me.rates)
        me.weights.copy_((await me.receive(READ, proxy)).tensor)

    async def serve(self, me: Me) -> None:
        if isinstance(me.state, Root):
            await (self._own_together(me) if self.synchronous else self._own_each(me))
        elif not me.state.closed:
            await (self._cache_together(me) if self.synchronous else self._cache_each(me))

    # Proxies

    async def _cache_together(self, me: Me) -> None:
        """The round of a group: all that it pushes goes up as one sum."""
        pushes, _ = await me.gather(PUSH, self._group_of(me))
        if not pushes:
            await self._close(me)
            return
        letters = list(pushes.values())
        me.include(letters)
        total, rates = summed(letters), letters[0].note["rates"]
        self._flush(me, total.tensor, updates=total.count, samples=total.weight, rates=rates)
        await self._refresh(me)
        me.send(pushes, me.weights, tag=READ)

    async def _cache_each(self, me: Me) -> None:
        """Pushes change the cached copy on arrival; when all members have left, nothing more can come."""
        for push in await me.news(PUSH) if self._members(me) else ():
            await self._take(me, push)
        if not self._members(me):
            while pushes := (await me.gather(PUSH, self._group_of(me)))[0]:
                for push in pushes.values():
                    await self._take(me, push)
            await self._close(me)

    async def _take(self, me: Me, push: Letter) -> None:
        cache: Cache = me.state
        share = cache.shares.take_in(me.view, push.sender, push.weight)
        if push.weight:
            update = push.tensor * share
            me.apply(update, of=[push], rates=push.note["rates"])
            cache.add(update, push)
        # Alone it is training without FAST, to the bit.
        if cache.updates and (me.alone or cache.updates >= self.flush * self._members(me)):
            self._flush_dirty(me)
            await self._refresh(me)
        me.send(push.sender, me.weights, tag=READ)

    async def _close(self, me: Me) -> None:
        cache: Cache = me.state
        if cache.updates:
            self._flush_dirty(me, last=True)
        else:
            me.request(me.all_servers[0], tag=FLUSH, updates=0, samples=0.0, workers=0, last=True)
        await self._refresh(me)
        cache.closed = True

    def _flush_dirty(self, me: Me, **note: float) -> None:
        """With the size of the group's pushes, so that the other groups learn it from the root."""
        cache: Cache = me.state
        note |= {"samples": cache.shares.total, "workers": len(cache.shares.samples)}
        self._flush(me, cache.dirty, present=cache.present, updates=cache.updates, rates=cache.rates, **note)
        cache.clean()

    def _flush(self, me: Me, tensor: Tensor, **options: Any) -> None:
        """With the version of the root's weights that it builds on: a proxy's own version counts its own."""
        root, mine = me.all_servers[0], me.version
        me.version = me.versions.get(root, 0)
        me.send(root, tensor, tag=FLUSH, **options)
        me.version = mine

    async def _refresh(self, me: Me) -> None:
        mine, fresh = me.version, await me.receive(FRESH, me.all_servers[0])
        me.weights.copy_(fresh.tensor)
        me.version, me.state.shares.others = mine + 1, tuple(fresh.note.get("others", (0.0, 0)))

    def _group_of(self, me: Me) -> range:
        first = (me.all_servers.index(me.id) - 1) * self.group
        return range(first, min(first + self.group, len(me.all_workers)))

    def _members(self, me: Me) -> int:
        """How many of its group are still there."""
        group = self._group_of(me)
        return bisect_left(me.workers, group.stop) - bisect_left(me.workers, group.start)

    # The root

    async def _own_together(self, me: Me) -> None:
        """All groups' sums of one round become one mean."""
        root: Root = me.state
        letters, _ = await me.gather(FLUSH, root.open)
        full = [letter for letter in letters.values() if letter.note["updates"]]
        if full:
            total = summed(map(opened, full))
            me.apply(total.tensor / total.count, of=full, rates=full[0].note["rates"])
            me.send([letter.sender for letter in full], me.weights, tag=FRESH)
        for letter in letters.values():
            self._let_go(me, letter)

    async def _own_each(self, me: Me) -> None:
        """Each write-back is applied on arrival."""
        root: Root = me.state
        for letter in await me.news(FLUSH) if root.open else ():
            self._own(me, letter)
        while root.open and not me.workers:  # all proxies are about to write back for the last time
            for letter in (await me.gather(FLUSH, root.open))[0].values():
                self._own(me, letter)

    def _own(self, me: Me, letter: Letter) -> None:
        root: Root = me.state
        root.sizes[letter.sender] = (letter.note["samples"], letter.note["workers"])
        if letter.note["updates"]:
            me.apply(letter.tensor, of=[letter], rates=letter.note["rates"])
        if not letter.note.get("last"):
            me.send(letter.sender, me.weights, tag=FRESH, others=root.others(letter.sender))
        self._let_go(me, letter)

    def _let_go(self, me: Me, letter: Letter) -> None:
        """When the last proxy has written back for the last time, all get the final weights."""
        root: Root = me.state
        if letter.note.get("last"):
            root.open.remove(letter.sender)
            if not root.open:
                me.send(me.all_servers[1:], me.weights, tag=FRESH)
