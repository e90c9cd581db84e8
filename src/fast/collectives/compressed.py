"""The compressed all-reduce: a reduce-scatter of encoded slices, and an all-gather of encoded sums.

Slice k is cut by the codec's own layout and belongs to the k-th member. Its owner decodes everybody's
bytes in ascending order, averages, encodes the mean with a state of its own (what the codec left out
of a sum is remembered by who made the sum) and sends the bytes to everybody. All members, the
owner too, decode the same bytes: equal bits everywhere.

F. Seide et al., 1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs (2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from torch import Tensor

from fast.collectives.agreement import Company, company_of, others
from fast.collectives.canonical import add_each, mean_of
from fast.collectives.mail import Entry, Mail
from fast.parts.codecs.base import Coder


async def compressed_mean(
    mail: Mail, values: Tensor, slices: Slices, among: tuple[int, ...], entry: Entry, out: Tensor
) -> Company:
    """The mean of what each member's codec makes of its values, encoded once more, into `out`."""
    packed = slices.encode(values)
    company, firsts = await _enter(mail, packed, among, entry)
    rest, size = company.others(mail.id), len(company.members)
    owners = [company.members[k % size] for k in range(len(packed))]
    for k in range(size, len(packed)):  # there are more slices than members: some have left
        if owners[k] != mail.id:
            mail.send((owners[k],), packed[k])
    heard = firsts
    for k in (k for k, owner in enumerate(owners) if owner == mail.id):
        if k >= size:
            heard = await mail.tensors(rest)
        mean = slices.mean(k, {**heard, mail.id: packed[k]}, company, mail)
        mail.send(rest, slices.encode_mean(k, mean))
        slices.decode_own(k, out)
    for k, owner in enumerate(owners):
        if owner != mail.id:
            slices.decode(k, (await mail.tensors((owner,)))[owner], out)
    return company


async def _enter(
    mail: Mail, packed: list[Tensor], among: tuple[int, ...], entry: Entry
) -> tuple[Company, Mapping[int, Tensor]]:
    """The first slice of each member to its owner; again, if fewer are there than were thought."""
    members = among
    while True:
        places, rest = {peer: k for k, peer in enumerate(members)}, others(members, mail.id)
        for peer in rest:
            mail.send((peer,), packed[places[peer]], entry)
        letters = await mail.collect(rest)
        company = company_of(mail, members, entry, letters)
        if company.members == members:
            return company, {peer: letter.tensor for peer, letter in letters.items()}
        members = company.members


@final
class Slices:
    """One coder for each slice of a tensor, for one's own values and for the sums that one owns."""

    def __init__(self, coder: Coder, count: int) -> None:
        self.cuts = coder.layout.cuts(count)
        self._coders, self._owners = coder.pieces(count), coder.pieces(count, "owner")
        self._sums: dict[int, Tensor] = {}
        """The bytes of the means that this member has encoded."""

    def encode(self, values: Tensor) -> list[Tensor]:
        """Each slice as bytes, valid until the next call: each coder has memory of its own."""
        return [coder.encode(values[cut]) for coder, cut in zip(self._coders, self.cuts, strict=True)]

    def mean(self, k: int, packed: Mapping[int, Tensor], company: Company, mail: Mail) -> Tensor:
        """Of everybody's bytes for slice k."""
        coder = self._coders[k]
        layout, device = coder.layout, packed[mail.id].device
        decoded, mean = (mail.memory(name, layout.size, layout.dtype, device) for name in ("decoded", "mean"))

        def terms() -> Iterator[Tensor]:
            for peer in company.members:
                yield coder.decode(packed[peer], decoded)

        add_each(terms(), mean_of(company.weights), mean)
        return mean

    def encode_mean(self, k: int, mean: Tensor) -> Tensor:
        self._sums[k] = self._owners[k].encode(mean)
        return self._sums[k]

    def decode_own(self, k: int, out: Tensor) -> None:
        self.decode(k, self._sums[k], out)

    def decode(self, k: int, packed: Tensor, out: Tensor) -> None:
        """The sum of slice k, as everybody has it."""
        self._coders[k].decode(packed, out[self.cuts[k]])
