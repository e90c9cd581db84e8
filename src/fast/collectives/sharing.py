"""The rounds that are no sums for everybody: one's own slice of a mean, everybody's tensors, one's tensor for all."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fast.collectives import cost
from fast.collectives.agreement import Company, agree
from fast.collectives.canonical import mean_of, wide
from fast.collectives.cutting import cut_evenly
from fast.collectives.direct import all_to_all, scatter_mean
from fast.collectives.mail import Entry, Mail
from fast.collectives.ring import ring_gather, ring_scatter
from fast.collectives.sums import AUTO, Choice, check_algorithm
from fast.collectives.tree import hand_down
from fast.errors import PeerLost, UsageError


async def reduce_scatter(
    mail: Mail, values: Tensor, among: tuple[int, ...], entry: Entry, choice: Choice
) -> tuple[Company, Tensor]:
    """The mean of this member's slice, as `cut_evenly` cuts it for those who take part."""
    name = check_algorithm(choice.algorithm, ("direct", "ring"), "a reduce-scatter")
    entry = replace(entry, what=f"{entry.what} by {name}")
    if name != "ring":  # direct letters move as much in one hop
        return await scatter_mean(mail, values, among, entry)
    company = await agree(mail, among, entry)
    at, scaling = company.members.index(mail.id), mean_of(company.weights)
    terms = mail.memory("terms", values.numel(), wide(values.dtype), values.device).copy_(values)
    if scaling.factors is not None:
        terms.mul_(scaling.factors[at])
    cuts = cut_evenly(len(company.members), values.numel(), values.element_size())
    await ring_scatter(mail, terms, company.members, cuts)
    own = terms[cuts[at]]
    if scaling.divisor is not None:
        own.div_(scaling.divisor)
    return company, own.to(values.dtype)


async def all_gather(
    mail: Mail, tensor: Tensor, among: tuple[int, ...], entry: Entry, choice: Choice
) -> tuple[Company, Tensor]:
    """Everybody's tensor, one row for each who takes part."""
    name = check_algorithm(choice.algorithm, ("direct", "exchange", "ring"), "gathering")
    values = tensor.contiguous().view(-1)
    if name == AUTO:
        around = cost.ring_gather(len(among), values.nbytes, choice.link)
        name = "ring" if around < cost.exchange(len(among), values.nbytes, choice.link) else "direct"
    entry = replace(entry, what=f"{entry.what} by {name}")
    if name == "ring":
        company = await agree(mail, among, entry)
        rows = _rows(mail, tensor, company)
        rows[company.members.index(mail.id)] = values
        cuts = [slice(k * values.numel(), (k + 1) * values.numel()) for k in range(len(rows))]
        await ring_gather(mail, rows.view(-1), company.members, cuts)
    else:
        company, terms = await all_to_all(mail, values, among, entry)
        rows = _rows(mail, tensor, company)
        for row, term in zip(rows, terms, strict=True):
            row.copy_(term)
    return company, rows.view(len(company.members), *tensor.shape)


def _rows(mail: Mail, tensor: Tensor, company: Company) -> Tensor:
    size = len(company.members)
    return mail.memory("rows", size * tensor.numel(), tensor.dtype, tensor.device).view(size, tensor.numel())


async def broadcast(
    mail: Mail, values: Tensor, source: int, among: tuple[int, ...], entry: Entry, choice: Choice
) -> tuple[Company, Tensor]:
    """The values of `source`, handed down a binomial tree."""
    check_algorithm(choice.algorithm, ("tree",), "a broadcast")
    if source not in among:
        raise UsageError(f"a broadcast from {source} among {among}: the source must be one of them")
    company = await agree(mail, among, replace(entry, what=f"{entry.what} from {source}"))
    if source not in company.members:
        raise PeerLost(
            f"peer {source} has left, so participant {mail.id} can't get its tensor. Choose a source that is "
            "still there: the first of me.workers, for example.",
            peers=(source,),
        )
    result = mail.memory("copy", values.numel(), values.dtype, values.device).copy_(values)
    at = company.members.index(source)
    await hand_down(mail, result, company.members[at:] + company.members[:at])
    return company, result
