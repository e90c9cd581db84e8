"""Shards: servers that each own a slice of the weights, and the verbs of `me` that reach all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fast.core.buckets import Bucket, Cutting
from fast.core.letter import Letter
from fast.core.mail import Mail, Whose
from fast.errors import PeerLost, UsageError
from fast.parts.codecs.base import Codec


class Shards(Mail):
    """The part of `Me` that is about several servers at once."""

    @cached_property
    def shards(self) -> Mapping[int, slice]:
        """Which slice of the flat tensor each server owns: all of it where the strategy isn't sharded."""
        servers = self.world.start_view.servers
        if not self.strategy.sharded:
            return MappingProxyType(dict.fromkeys(servers, slice(0, self.replica.weights.numel())))
        cuts = self.replica.shards(len(servers))
        return MappingProxyType(dict(zip(servers, cuts, strict=True)))

    def push(
        self,
        tensor: Tensor,
        tag: str,
        *,
        codec: Codec | None = None,
        present: int | Whose | None = Whose.MINE,
        weight: float | None = None,
        **note: Any,
    ) -> None:
        """Send every server its slice of a flat tensor like `me.gradient`. Never waits.

        The letter's `version` is that of the server's weights which were read last, so that a server
        knows the staleness of what it gets: `me.version - letter.version`. `present` and `weight` as for
        `send`.
        """
        self._check_flat("push", tensor)
        if not self.strategy.sharded:
            self.send(self.shards, tensor, tag, codec=codec, present=present, weight=weight, **note)
            return
        if isinstance(present, Whose):
            present = self.present_for(tensor, tag)
        for server in self.in_turn(tuple(self.shards)):
            cut = self.shards[server]
            piece = Cutting(tensor[cut], cut.start, self._present_in(cut, present))
            self.send(server, piece, tag, codec=codec, weight=weight, **note)

    async def pull(self, tag: str, into: Tensor) -> None:
        """The next letter of every server, each copied into its slice of `into`: `me.weights`, say."""
        self._check_flat("pull", into)
        shards = self.shards
        if len(shards) > 1 and not self.strategy.sharded:
            raise UsageError(
                f"{self.strategy!r} pulls from {len(shards)} servers that each have all of the weights, and only one "
                "can be copied. Set `sharded = True`, or receive from the one that is meant."
            )
        letters, gone = await self.gather(tag, shards)
        if gone:
            raise PeerLost(
                f"participant {self.id} waits for letter {tag!r} of servers {gone}, who are gone",
                peers=gone,
                view=self.view.number,
            )
        for server, cut in shards.items():
            _copy(letters[server], into[cut])

    async def stream(
        self, to: int | Iterable[int], tag: str, *, codec: Codec | None = None, **note: Any
    ) -> None:
        """Send this step's gradient, bucket by bucket as they become ready; it arrives as one letter.
        A server that owns a slice gets that slice."""
        targets = self.in_turn((to,) if isinstance(to, int) else tuple(to))
        cut = self.strategy.sharded and self.world.start_view.owners.issuperset(targets)
        async for bucket in self.buckets():
            if not cut:
                whole = self.replica.gradient if bucket.part is None else bucket
                self.send(targets, whole, tag, codec=codec, **note)
                continue
            for server in targets:
                for piece in self._pieces(bucket, self.shards[server]):
                    self.send(server, piece, tag, codec=codec, **note)

    def in_turn(self, targets: tuple[int, ...]) -> tuple[int, ...]:
        """The same receivers, beginning with another one than the others do: if all wrote to the first of
        them first, its link would be crowded and those of the rest idle."""
        if len(targets) < 2 or not self.strategy.sharded:
            return targets
        number, count = self._among_alike
        first = number * len(targets) // count
        return targets[first:] + targets[:first]

    @cached_property
    def _among_alike(self) -> tuple[int, int]:
        """My place among the workers or servers of the start, and how many they were."""
        view = self.world.start_view
        alike = view.servers if self.is_server else view.workers
        return alike.index(self.id), len(alike)

    def _pieces(self, bucket: Bucket, shard: slice) -> Iterator[Cutting]:
        """What of this bucket lies in a shard. An empty shard gets its empty letter with the last bucket."""
        start, size = max(bucket.start, shard.start), shard.stop - shard.start
        stop = max(start, min(bucket.stop, shard.stop))
        if start == stop and (size or bucket.start):
            return
        whole = stop - start == size
        present = self.replica.present if whole else self.present_in(bucket)
        part = None if whole else (start - shard.start, stop - shard.start, size)
        values = bucket.values[start - bucket.start : stop - bucket.start]
        yield Cutting(values, start, self._present_in(shard, present), part)

    def _present_in(self, shard: slice, present: int | None) -> int | None:
        """A bitmap of the whole model's parameters as one of those that a server has; None for all of them."""
        if present is None:
            return None
        own = self.replica.layout.within(shard.start, shard.stop)
        everything = (1 << len(own)) - 1
        found = present >> own.start & everything
        return None if found == everything else found

    def _check_flat(self, verb: str, tensor: Tensor) -> None:
        if self.is_server:
            raise UsageError(
                f"server {self.id} calls me.{verb}, which workers do with their servers. It has letters: "
                "me.gather, me.news and me.send."
            )
        if tensor.shape != self.replica.weights.shape:
            raise UsageError(
                f"me.{verb} got a tensor of shape {tuple(tensor.shape)}; it takes a flat one like me.weights, of shape "
                f"{tuple(self.replica.weights.shape)}."
            )


def _copy(letter: Letter, into: Tensor) -> None:
    if letter.tensor.numel() != into.numel():
        raise UsageError(
            f"server {letter.sender} sent {letter.tensor.numel()} values under {letter.tag!r}, and it owns "
            f"{into.numel()}. What is pulled is all of the server's me.weights, or as much."
        )
    into.copy_(letter.tensor.view(into.shape))
