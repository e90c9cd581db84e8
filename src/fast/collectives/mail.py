"""One member's letters of one round, and the memory it works in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.core.world import Need, World
from fast.errors import PeerLost, WireError
from fast.parts.codecs.base import Workspace
from fast.view import Groups
from fast.wire import HEADER_BYTES


@dataclass(frozen=True)
class Entry:
    """What a member says with its first letter of a round, beside its values."""

    what: str
    """The round that it takes part in, in words, so that two who mean different ones notice."""
    weight: float = 1.0
    present: int | None = None
    sizes: tuple[int, ...] = ()
    """What the others must know of it to choose the same algorithm."""


@final
class Mail:
    """Sends, receives and counts.

    Letters are ordered per pair and tag, so all phases of a round share one tag. What was received
    is read only, and is used up before the next letter of the same sender is taken: from then on its
    memory may be given back.
    """

    def __init__(self, world: World, tag: str, work: Workspace | None = None, groups: Groups = ()) -> None:
        self.id, self.tag = world.id, tag
        self.groups = groups
        """In which order canonical sums are made."""
        self.nbytes = 0
        """What was sent so far: payload and header, for each receiver."""
        self._world, self._work = world, work or Workspace()

    def send(self, to: Iterable[int], values: Tensor, entry: Entry | None = None) -> None:
        """Hand one letter over for each of these peers."""
        targets = tuple(to)
        if not targets:
            return
        self.nbytes += len(targets) * (values.numel() * values.element_size() + HEADER_BYTES)
        self._world.send(targets, Letter(self.id, self.tag, values, steps=(0,), **_about(entry)))

    def send_about(
        self,
        to: Iterable[int],
        words: str,
        members: Sequence[int],
        weights: Sequence[float],
        present: int | None,
    ) -> None:
        """Tell these peers who of a group takes part in a round."""
        targets = tuple(to)
        if not targets:
            return
        note = {"round": words, "members": list(members), "weights": list(weights)}
        self.nbytes += len(targets) * HEADER_BYTES
        empty = torch.empty(0, dtype=torch.uint8)
        self._world.send(targets, Letter(self.id, self.tag, empty, steps=(0,), present=present, note=note))

    async def collect(self, peers: Iterable[int]) -> dict[int, Letter]:
        """The next letter of each of these peers; those who are missing have left."""
        wanted = tuple(peers)
        await self._world.wait(self.tag, wanted, Need.ALL)
        letters = {peer: self._world.take_one(self.tag, peer) for peer in wanted}
        return {peer: letter for peer, letter in letters.items() if letter is not None}

    async def tensors(self, peers: Iterable[int]) -> dict[int, Tensor]:
        """The same of members, who can't leave in the middle of a round."""
        wanted = tuple(peers)
        letters = await self.collect(wanted)
        for peer in wanted:
            if peer not in letters:
                raise PeerLost(
                    f"peer {peer} left in the middle of a round, after it had begun to take part in it; "
                    f"participant {self.id} can't finish it",
                    peers=(peer,),
                )
        return {peer: letters[peer].tensor for peer in wanted}

    async def receive(self, peer: int, like: Tensor) -> Tensor:
        """The next values of one member: as many as in `like`, and of its dtype."""
        return check_like((await self.tensors((peer,)))[peer], like, peer)

    def memory(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """To compute in. Rounds of one tag follow each other, so the next one may have it again."""
        return self._work.take(f"{self.tag} {name}", count, dtype, device)


def _about(entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    note: dict[str, Any] = {"round": entry.what}
    if entry.sizes:
        note["sizes"] = list(entry.sizes)
    return {"weight": entry.weight, "present": entry.present, "note": note}


def check_like(found: Tensor, like: Tensor, peer: int) -> Tensor:
    """Refuse values that don't fit where they are to be added or copied."""
    if found.numel() != like.numel() or found.dtype != like.dtype:
        raise WireError(
            f"peer {peer} sent {found.numel()} values of {found.dtype} in a round, and {like.numel()} of "
            f"{like.dtype} are due. All members bring tensors of one size and dtype."
        )
    return found
