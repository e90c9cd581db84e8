"""Means of what sparse codecs send.

`exchange`: everybody's bytes to everybody, who adds them in ascending order. One hop, canonical.
`sparse_doubling`: recursive doubling that merges streams, so a hop carries what was merged so far.
`sparse_split`: slice k of the index space belongs to member k, who adds all pairs that fall into it and
sends their sum to everybody. It happens to add in ascending order, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from torch import Tensor

from fast.collectives.agreement import Company, agree, company_of, others
from fast.collectives.butterfly import core_of, distances
from fast.collectives.canonical import Scaling, mean_of, wide
from fast.collectives.cost import Sparsity, choose_sparse
from fast.collectives.cutting import cut_exactly
from fast.collectives.mail import Entry, Mail
from fast.collectives.stream import (
    Partial,
    Stream,
    add_into,
    added,
    from_letter,
    index_dtype,
    shorter,
    to_letter,
)
from fast.collectives.sums import AUTO, SPARSE, Choice, check_algorithm
from fast.errors import UsageError
from fast.parts.codecs.base import Coder
from fast.parts.codecs.sparse import Sparse


async def sparse_mean(
    mail: Mail,
    values: Tensor,
    coder: Coder,
    among: tuple[int, ...],
    entry: Entry,
    choice: Choice,
    out: Tensor,
) -> Company:
    """The mean of what each member's codec sends of its values, into `out`."""
    name = check_algorithm(choice.algorithm, SPARSE, f"{coder.codec!r}, which sends indices and values")
    packed = coder.encode(values)
    if name == "exchange" or (name == AUTO and not choice.any_order):
        return await _exchange(
            mail, packed, coder, among, replace(entry, what=f"{entry.what} by exchange"), out
        )
    if packed.is_meta:
        raise UsageError(
            f"how many values are in merged streams of {coder.codec!r} depends on the values, and this run has sizes "
            "only. Ask for algorithm='exchange', or leave out order='any'."
        )
    own = stream_of(packed, coder)
    first = replace(entry, what=f"{entry.what} by {name}", sizes=(packed.numel(), len(own)))
    company = await agree(mail, among, first)
    if name == AUTO:
        name = choose_sparse(len(company.members), _sparsity(company, out), choice.link)
    if name == "exchange":
        return await _exchange(mail, packed, coder, company.members, first, out)
    await _add_streams(mail, own, company, name, out)
    return company


def stream_of(packed: Tensor, coder: Coder) -> Stream:
    """What a sparse codec's bytes say: views of them, or of the coder's memory."""
    decoder = coder.codec.decoder
    if not isinstance(decoder, Sparse):
        return Stream.of(coder.decode(packed))
    return Stream(*decoder.stream(packed, coder.layout, coder.work), coder.layout.size)


def _sparsity(company: Company, out: Tensor) -> Sparsity:
    """From what everybody has said with its first letter, so that all come to the same."""
    packed_bytes, sent = (max(sizes) for sizes in zip(*(e.sizes for e in company.entries), strict=True))
    value_bytes, index_bytes = wide(out.dtype).itemsize, index_dtype(out.numel()).itemsize
    return Sparsity(packed_bytes, sent, out.numel(), value_bytes, index_bytes)


async def _exchange(
    mail: Mail, packed: Tensor, coder: Coder, among: tuple[int, ...], entry: Entry, out: Tensor
) -> Company:
    mail.send(others(among, mail.id), packed, entry)
    letters = await mail.collect(others(among, mail.id))
    company = company_of(mail, among, entry, letters)
    if packed.is_meta:
        return company
    scaling, total = mean_of(company.weights), _zeros(mail, out)
    for place, peer in enumerate(company.members):
        stream = stream_of(packed if peer == mail.id else letters[peer].tensor, coder)
        add_into(total, stream.scaled(total.dtype, _factor(scaling, place)))
    _finish(total, scaling, out)
    return company


async def _add_streams(mail: Mail, own: Stream, company: Company, name: str, out: Tensor) -> None:
    scaling, total = mean_of(company.weights), _zeros(mail, out)
    own = own.scaled(total.dtype, _factor(scaling, company.members.index(mail.id)))
    if name == "sparse_doubling":
        add_into(total, await sparse_doubling(mail, shorter(own), company.members, total))
    else:
        await sparse_split(mail, own, company.members, total)
    _finish(total, scaling, out)


async def sparse_doubling(mail: Mail, mine: Partial, members: tuple[int, ...], like: Tensor) -> Partial:
    """The sum over all members: log2 P hops, each with what was merged so far."""
    core, partner = core_of(members, mail.id)

    async def hear(peer: int) -> Partial:
        return from_letter((await mail.tensors((peer,)))[peer], like, peer)

    if mail.id not in core:
        assert partner is not None, "the surplus has a partner in the core"
        mail.send((partner,), to_letter(mine))
        return await hear(partner)
    if partner is not None:
        mine = added(mine, await hear(partner))
    at = core.index(mail.id)
    for distance in distances(len(core)):
        mail.send((core[at ^ distance],), to_letter(mine))
        theirs = await hear(core[at ^ distance])
        mine = added(theirs, mine) if at & distance else added(mine, theirs)
    if partner is not None:
        mail.send((partner,), to_letter(mine))
    return mine


async def sparse_split(mail: Mail, own: Stream, members: tuple[int, ...], total: Tensor) -> None:
    """Add the sum over all members to `total`: slices to their owners, their sums to everybody."""
    cuts = dict(zip(members, cut_exactly(len(members), own.size), strict=True))
    rest = others(members, mail.id)
    for peer in rest:
        mail.send((peer,), to_letter(shorter(own.part(cuts[peer]))))
    mine = total[cuts[mail.id]]
    heard = {peer: from_letter(each, mine, peer) for peer, each in (await mail.tensors(rest)).items()}
    terms = [heard[peer] if peer != mail.id else shorter(own.part(cuts[peer])) for peer in members]
    sums = reduce(added, terms)
    mail.send(rest, to_letter(sums))
    add_into(mine, sums)
    for peer, each in (await mail.tensors(rest)).items():
        theirs = total[cuts[peer]]
        add_into(theirs, from_letter(each, theirs, peer))


def _zeros(mail: Mail, out: Tensor) -> Tensor:
    """Where the sum of sparse tensors is made: `out` itself, or memory in a wider dtype."""
    if wide(out.dtype) == out.dtype:
        return out.zero_()
    return mail.memory("sparse", out.numel(), wide(out.dtype), out.device).zero_()


def _factor(scaling: Scaling, place: int) -> float | None:
    return None if scaling.factors is None else scaling.factors[place]


def _finish(total: Tensor, scaling: Scaling, out: Tensor) -> None:
    if scaling.divisor is not None:
        total.div_(scaling.divisor)
    if total is not out:
        out.copy_(total)
