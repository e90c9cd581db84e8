"""The transport of a replay: letters through memory, means among those whom the record names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from sys import maxsize
from typing import final

from torch import Tensor

from fast.collectives.canonical import canonical_mean, parts_of
from fast.core.letter import Letter, union
from fast.core.world import Reduction, Round
from fast.engine.baton import Baton
from fast.runtime.prompting import Halt, Prompter
from fast.transport import MemoryHub, MemoryTransport
from fast.transport.base import BETWEEN_HOSTS, Patience, Reducing, Status
from fast.view import Groups

_Key = tuple[tuple[int, ...], int, tuple[int, int, int] | None, int]
"""Members, lane, slice of a flat tensor, and which round of those."""


@dataclass
class _Contribution:
    """What one member brought to a mean."""

    tensor: Tensor
    weight: float
    present: int | None


@dataclass
class Table:
    """Where the means of one replay are made."""

    groups: Groups = ()
    rounds: dict[_Key, dict[int, _Contribution]] = field(default_factory=dict)
    taken: Counter[_Key] = field(default_factory=Counter)

    def result(self, key: _Key, members: tuple[int, ...]) -> Reduction:
        """For one of the members; the last one clears the table."""
        brought = [self.rounds[key][member] for member in members]
        tensors, weights = [each.tensor for each in brought], [each.weight for each in brought]
        mean = canonical_mean(tensors, weights, parts=parts_of(members, self.groups))
        self.taken[key] += 1
        if self.taken[key] == len(members):
            del self.rounds[key], self.taken[key]
        return Reduction(mean, members, reduce(union, (each.present for each in brought)))


@final
class ReplayTransport(MemoryTransport):
    """One participant's end. Who sleeps hands the baton on; time and room don't matter."""

    def __init__(
        self,
        id: int,
        hub: MemoryHub,
        table: Table,
        baton: Baton,
        prompter: Prompter,
        near: frozenset[int] | None = None,
    ) -> None:
        """`near` are those who shared a host with this participant when it was recorded; None for all."""
        super().__init__(id, hub)
        self._near = near
        if near is not None:
            self.link = BETWEEN_HOSTS
        self._table, self._baton, self._prompter = table, baton, prompter
        self._rounds: Counter[tuple[object, ...]] = Counter()

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        """Who had no room, the record says; here there always is."""
        return super().post(to, letter, maxsize)

    def sleep(self, token: int, seconds: float) -> None:
        self._baton.sleep(self.id, token)

    def status(self, peer: int) -> Status:
        """Nobody is ever silent: who waits here waits for its turn."""
        return super().status(peer)._replace(alive_ns=0)

    def set_waits(self, waits: str) -> None:
        """Nobody asks."""

    def set_looks(self, looks: int) -> None:
        """Nor this."""

    def can_reduce(self, round_: Round) -> bool:
        """As it was recorded: in memory on one host, with letters between several."""
        return self._near is None or self._near.issuperset(round_.among)

    def reduce(self, round_: Round) -> Reducing:
        place = (round_.among, round_.lane, round_.part)
        self._rounds[place] += 1
        key = (*place, self._rounds[place])
        mine = _Contribution(round_.tensor.detach().clone(), round_.weight, round_.present)
        self._table.rounds.setdefault(key, {})[self.id] = mine
        with self._hub.changed:
            self._hub.touch()
        if not self._prompter.members:
            raise Halt
        return _Mean(self, self._table, key, self._prompter.members)


@final
class _Mean(Reducing):
    """A mean that is there when all whom the record names have come."""

    def __init__(self, transport: ReplayTransport, table: Table, key: _Key, members: tuple[int, ...]) -> None:
        self._transport, self._table, self._key, self._members = transport, table, key, members
        self._done = False

    def poll(self) -> bool:
        if not self._done and self._table.rounds[self._key].keys() >= set(self._members):
            self.reduction = self._table.result(self._key, self._members)
            self._done = True
        return self._done

    def finish(self, patience: Patience) -> None:
        while not self.poll():
            token = self._transport.listen()
            patience.check(self._members, "round")
            if not self.poll():
                self._transport.sleep(token, 0.1)
