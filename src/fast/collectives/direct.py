"""Letters straight to whom they are for: the canonical order on any transport.

`direct`: each member sends slice k of its tensor to member k; member k adds what it got in ascending
order and sends the sum of its slice to everybody. 2 (P - 1) / P of the tensor per member, like a
ring, but in two hops, and the order of the sum is ours. Parameter servers that are spread over
the workers move the same letters (scatter-reduce with broadcast).

`exchange`: everybody sends everything to everybody and adds for itself, in ascending order. One hop,
for tensors so small that only the latency counts.
"""

from __future__ import annotations

from torch import Tensor

from fast.collectives.agreement import Company, company_of, others
from fast.collectives.canonical import Rule, add_scaled, mean_of, parts_of
from fast.collectives.cutting import cut_evenly
from fast.collectives.mail import Entry, Mail, check_like


async def direct(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry, rule: Rule, out: Tensor
) -> Company:
    """The scaled sum of the values of those of `among` who are there, into `out`."""
    company, cuts, terms = await _scatter(mail, values, among, entry)
    places = dict(zip(company.members, cuts, strict=True))
    mine = out[places[mail.id]]
    add_scaled(terms, rule(company.weights), mine, parts_of(company.members, mail.groups))
    rest = company.others(mail.id)
    mail.send(rest, mine)
    for peer, theirs in (await mail.tensors(rest)).items():
        part = out[places[peer]]
        part.copy_(check_like(theirs, part, peer))
    return company


async def exchange(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry, rule: Rule, out: Tensor
) -> Company:
    """The same in one hop."""
    company, terms = await all_to_all(mail, values, among, entry)
    add_scaled(terms, rule(company.weights), out, parts_of(company.members, mail.groups))
    return company


async def scatter_mean(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry
) -> tuple[Company, Tensor]:
    """This member's slice of the mean: the first half of `direct`."""
    company, cuts, terms = await _scatter(mail, values, among, entry)
    own = cuts[company.members.index(mail.id)]
    mine = mail.memory("slice", own.stop - own.start, values.dtype, values.device)
    add_scaled(terms, mean_of(company.weights), mine, parts_of(company.members, mail.groups))
    return company, mine


async def all_to_all(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry
) -> tuple[Company, list[Tensor]]:
    """Everybody's values, in ascending order of the members."""
    mail.send(others(among, mail.id), values, entry)
    letters = await mail.collect(others(among, mail.id))
    company = company_of(mail, among, entry, letters)
    return company, [
        values if peer == mail.id else check_like(letters[peer].tensor, values, peer)
        for peer in company.members
    ]


async def _scatter(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry
) -> tuple[Company, list[slice], list[Tensor]]:
    """Everybody's values for this member's slice. If somebody is missing, the others cut anew."""
    members = among
    while True:
        cuts = cut_evenly(len(members), values.numel(), values.element_size())
        places, rest = dict(zip(members, cuts, strict=True)), others(members, mail.id)
        for peer in rest:
            mail.send((peer,), values[places[peer]], entry)
        letters = await mail.collect(rest)
        company = company_of(mail, members, entry, letters)
        if company.members == members:
            break
        members = company.members
    own = values[cuts[members.index(mail.id)]]
    terms = [own if peer == mail.id else check_like(letters[peer].tensor, own, peer) for peer in members]
    return company, cuts, terms
