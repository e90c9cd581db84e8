"""Sums and means of plain tensors, by whatever algorithm."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from fast.collectives.agreement import Company, agree
from fast.collectives.canonical import Rule, Scaling, wide
from fast.collectives.mail import Entry, Mail
from fast.collectives.sums import SUMS, AnyOrder, Canonical, Choice


@final
class Dense:
    """The sums that one round is made of. Who takes part is found out once."""

    def __init__(self, mail: Mail, among: tuple[int, ...], entry: Entry, choice: Choice) -> None:
        self._mail, self._members, self._entry, self._choice = mail, among, entry, choice
        self._company: Company | None = None
        self._made = 0

    async def meet(self) -> Company:
        """Who takes part."""
        if self._company is None:
            self._met(await agree(self._mail, self._members, self._entry))
        assert self._company is not None
        return self._company

    async def total(self, values: Tensor, rule: Rule) -> Tensor:
        """The scaled sum of everybody's flat tensors, in memory that no other sum of this round uses.

        16-bit floats are added in float32 and cast back once. `direct` and `exchange` send them as
        they are; the others send what they have added so far, in float32.
        """
        self._made += 1
        name = self._choice.of(len(self._members), values.numel() * values.element_size())
        entry = replace(self._entry, what=f"{self._entry.what} by {name}")
        match SUMS[name]:
            case Canonical(run=add_up):
                out = self._memory(values, values.dtype)
                self._met(await add_up(self._mail, values, self._members, entry, rule, out))
                return out
            case AnyOrder(run=add_in_place):
                self._entry = entry
                company = await self.meet()
                scaling = rule(company.weights)
                sums = self._terms(values, scaling, company.members.index(self._mail.id))
                await add_in_place(self._mail, sums, company.members)
                return self._scaled_down(sums, scaling, values.dtype)

    def _met(self, company: Company) -> None:
        self._company, self._members = company, company.members

    def _terms(self, values: Tensor, scaling: Scaling, at: int) -> Tensor:
        """A copy to work on."""
        terms = self._memory(values, wide(values.dtype)).copy_(values)
        return terms if scaling.factors is None else terms.mul_(scaling.factors[at])

    def _scaled_down(self, sums: Tensor, scaling: Scaling, dtype: torch.dtype) -> Tensor:
        if scaling.divisor is not None:
            sums.div_(scaling.divisor)
        return sums if sums.dtype == dtype else self._memory(sums, dtype).copy_(sums)

    def _memory(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        return self._mail.memory(f"sum {self._made} {dtype}", like.numel(), dtype, like.device)
