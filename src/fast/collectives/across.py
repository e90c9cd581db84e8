"""A sum over groups that each share memory: within a group in place, between groups by letters.

    the members of a group meet; each group tells the others who takes part
    the tensor is cut into K slices, for the K members of the largest group; each slice into one piece per group
    member l of each group adds up slice l of its group, and sends piece h of it to member l of group h
    that one adds up what it got in the order of the groups, divides, and sends the piece to its counterparts
    each writes the pieces that it has into the result that its group shares

So N bytes of a mean among H groups make 2 N (H - 1) / H leave each group, however many members it has, and
all of them carry their part of it. A member of a smaller group stands for several slices. Sums of a group
travel in the dtype in which they are added: float32 for 16-bit floats. The bits are those of `canonical_mean`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import final

from torch import Tensor

from fast.collectives.canonical import Rule, Scaling, add_scaled, wide
from fast.collectives.cutting import cut_evenly
from fast.collectives.mail import Mail, check_like
from fast.core.letter import Letter, union
from fast.errors import UsageError, WireError
from fast.view import Groups

_CHUNK_BYTES = 256 * 1024
"""Small enough that a piece of a sum stays in the second-level cache while it is added up."""


@dataclass(frozen=True)
class Share:
    """What the members of one group have in common during a round."""

    members: tuple[int, ...]
    """Those who take part, ascending."""
    weights: tuple[float, ...]
    present: int | None
    inputs: Sequence[Tensor]
    """The flat tensor of each of them, to read only."""
    output: Tensor
    """A flat tensor for the result. Each member writes its own slices."""
    whole: Tensor | None = None
    """If the result is a slice of a flat one in one piece: that."""
    apart: bool = False
    """Whether inputs and result never lie in the same memory."""


@dataclass(frozen=True)
class Party:
    """Those of one group who take part in a round."""

    members: tuple[int, ...]
    weights: tuple[float, ...]
    present: int | None


@dataclass(frozen=True)
class Parties:
    """All groups that take part in a round, in the order of their sum."""

    each: tuple[Party, ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(chain.from_iterable(party.members for party in self.each)))

    @property
    def weights(self) -> tuple[float, ...]:
        """By member, ascending."""
        found = dict(chain.from_iterable(zip(p.members, p.weights, strict=True) for p in self.each))
        return tuple(found[member] for member in self.members)

    @property
    def present(self) -> int | None:
        return reduce(union, (party.present for party in self.each))


async def sum_across(mail: Mail, among: Groups, words: str, share: Share, rule: Rule) -> Parties:
    """The scaled sum over all members of these groups, as far as this member's slices go: all others of its group
    write theirs. `among` are those of each group who may take part."""
    parties = await _meet(mail, among, words, share)
    work = _Work(mail, parties, share, rule(parties.weights))
    work.send_sums()
    await work.add_up()
    await work.take_results()
    return parties


# Who takes part


async def _meet(mail: Mail, among: Groups, words: str, share: Share) -> Parties:
    """All members of a group know who of it takes part. So one of them tells each member of another group: for its
    place, the first one from that place on who is there. Who asks in that order whether a letter has come or its
    sender has left finds the same one."""
    mine = next(group for group in among if mail.id in group)
    place = mine.index(mail.id)
    others = [group for group in among if group is not mine]
    for group in others:
        told = [peer for k, peer in enumerate(group) if _speaker(mine, k, share.members) == mail.id]
        mail.send_about(told, words, share.members, share.weights, share.present)
    found = [Party(share.members, share.weights, share.present)]
    for group in others:
        letter = await _hear(mail, group, place)
        if letter is not None:
            found.append(_party(letter, group, words, mail.id))
    return Parties(tuple(sorted(found, key=lambda party: party.members[0])))


def _from(group: tuple[int, ...], place: int) -> tuple[int, ...]:
    """A group in the order in which its members are asked by who has this place in another one."""
    first = place % len(group)
    return group[first:] + group[:first]


def _speaker(group: tuple[int, ...], place: int, there: tuple[int, ...]) -> int:
    return next(member for member in _from(group, place) if member in there)


async def _hear(mail: Mail, group: tuple[int, ...], place: int) -> Letter | None:
    """What is told of this group; None if nobody of it is there any more."""
    for peer in _from(group, place):
        letters = await mail.collect((peer,))
        if letters:
            return letters[peer]
    return None


def _party(letter: Letter, group: tuple[int, ...], words: str, me: int) -> Party:
    note = letter.note
    if note.get("round") != words:
        raise UsageError(
            f"participant {me} takes part in a round ({words}), and {letter.sender} in another one "
            f"({note.get('round')}). All members ask for the same, with tensors of one size and dtype."
        )
    members = tuple(int(each) for each in note.get("members", ()))
    weights = tuple(float(each) for each in note.get("weights", ()))
    if not members or list(members) != sorted(set(members) & set(group)) or len(weights) != len(members):
        raise WireError(
            f"peer {letter.sender} says that {members} of {group} take part, with weights {weights}; refused"
        )
    return Party(members, weights, letter.present)


# The sum


@final
class _Work:
    """One member's slices, from the sums of its group to the result."""

    def __init__(self, mail: Mail, parties: Parties, share: Share, scaling: Scaling) -> None:
        self._mail, self._share, self._scaling = mail, share, scaling
        self._groups = tuple(party.members for party in parties.each)
        self._own = next(number for number, group in enumerate(self._groups) if mail.id in group)
        places = {member: place for place, member in enumerate(parties.members)}
        self._partial = scaling.of([places[member] for member in share.members])
        slices, size = max(map(len, self._groups)), share.output.numel()
        self._cuts = cut_evenly(slices * len(self._groups), size, share.output.element_size())
        self._slices = [k for k in range(slices) if self._holder(self._own, k) == mail.id]
        self._first = self._cut(self._slices[0], 0).start
        last = self._cut(self._slices[-1], len(self._groups) - 1).stop
        self._memory = mail.memory("sums", last - self._first, wide(share.output.dtype), share.output.device)

    def _holder(self, group: int, slice_: int) -> int:
        """The member of a group that has this slice."""
        members, slices = self._groups[group], max(map(len, self._groups))
        return members[slice_ * len(members) // slices]

    def _cut(self, slice_: int, group: int) -> slice:
        """The piece of a slice that is added up in this group."""
        return self._cuts[slice_ * len(self._groups) + group]

    def _others(self) -> Iterator[int]:
        """Beginning with the one behind the own, so that not all write to the same one first."""
        count = len(self._groups)
        return ((self._own + k) % count for k in range(1, count))

    def _pieces(self, groups: Sequence[int]) -> Iterator[tuple[int, int, slice]]:
        """Slice, group and place of the own pieces that are not empty."""
        for slice_ in self._slices:
            for group in groups:
                cut = self._cut(slice_, group)
                if cut.stop > cut.start:
                    yield slice_, group, cut

    def send_sums(self) -> None:
        """To each other group the own group's sum of its pieces, as soon as it is made."""
        for slice_, group, cut in self._pieces(tuple(self._others())):
            self._mail.send((self._holder(group, slice_),), self._sum(cut))

    def _sum(self, cut: slice) -> Tensor:
        """The own group's sum; of a member that is alone its tensor itself, if nothing has to be done to it."""
        plain = self._partial.factors is None and self._memory.dtype == self._share.output.dtype
        if plain and len(self._share.inputs) == 1 and self._share.apart:
            return self._share.inputs[0][cut]
        out = self._memory[cut.start - self._first : cut.stop - self._first]
        step = _CHUNK_BYTES // out.element_size()
        for at in range(cut.start, cut.stop, step):
            end = min(at + step, cut.stop)
            terms = [each[at:end] for each in self._share.inputs]
            add_scaled(terms, self._partial, out[at - cut.start : end - cut.start])
        return out

    async def add_up(self) -> None:
        """The total of the pieces that are this group's, for everybody."""
        division = Scaling(divisor=self._scaling.divisor)
        for slice_, _, cut in self._pieces((self._own,)):
            own = self._sum(cut)
            peers = {group: self._holder(group, slice_) for group in self._others()}
            heard = await self._mail.tensors(peers.values())
            terms = [
                own if group == self._own else check_like(heard[peers[group]], own, peers[group])
                for group in range(len(self._groups))
            ]
            add_scaled(terms, division, self._share.output[cut])
            self._mail.send(peers.values(), self._share.output[cut])

    async def take_results(self) -> None:
        """The totals of the other groups' pieces."""
        for slice_, group, cut in self._pieces(tuple(self._others())):
            part = self._share.output[cut]
            part.copy_(await self._mail.receive(self._holder(group, slice_), part))


def alone(tensor: Tensor, weight: float, present: int | None, mail: Mail) -> Share:
    """The share of a member that has nobody to share memory with."""
    flat = tensor.detach().contiguous().view(-1)
    out = mail.memory("result", flat.numel(), flat.dtype, flat.device)
    return Share((mail.id,), (weight,), present, (flat,), out, apart=True)
