"""Synchronous training that doesn't wait for the last ones: the first gradients of a step make its update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil
from types import MappingProxyType

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag, fold_newest
from fast.errors import UsageError
from fast.parts import Rule, mean
from fast.parts.codecs import Codec
from fast.strategies.central.base import Central
from fast.strategies.merging import merged
from fast.view import View

LATE = "late: computed on weights that have been replaced"
REPLACED = "replaced by a newer one of the same worker on the same weights"


@dataclass
class Collected:
    """What a server has of the gradients on its present weights: one of each worker at most."""

    pushes: dict[int, Letter] = field(default_factory=dict)
    empty: list[int] = field(default_factory=list)
    """Whose gradient on the present weights counts no samples: it is answered, and that is all."""

    def is_complete(self, needed: int, view: View) -> bool:
        """Whether n have come, or as many as can. If nobody has samples, that is none."""
        able = len(view.workers) - sum(worker in view.everybody for worker in self.empty)
        return bool(self.pushes or self.empty) and len(self.pushes) >= min(needed, able)

    def close(self) -> list[Letter]:
        """All of them by ascending worker; the next collection begins."""
        found = [self.pushes[worker] for worker in sorted(self.pushes)]
        self.pushes, self.empty = {}, []
        return found

    def keep(self, letters: Iterable[Letter]) -> None:
        """What waits for others must outlive the turn in which it came, and a letter's memory doesn't."""
        for push in letters:
            if self.pushes.get(push.sender) is push:
                self.pushes[push.sender] = replace(push, tensor=push.tensor.clone())


class Quorum(Central):
    """w <- optimizer(w, rule of the first n gradients on w); those on older weights are thrown away.

    n is a number or a share of all workers of the run. When some of them leave, those who were backups take their
    places: an update stays one of n gradients, for which the learning rate was chosen, as long as n workers are there.

    Each gradient is stamped with the version of the weights that it was computed on. Once n of P
    with the present stamp have come, they make an update in worker order, and the new weights go to
    *all* workers. Who isn't done by then is late. Its gradient is thrown away when it comes, or,
    with `cancel`, isn't even sent: it gives its step up as soon as it sees the newer weights.
    """

    knobs = MappingProxyType({"backups": (2, 3)})
    never_stale = True

    def __init__(
        self,
        *,
        backups: int | None = None,
        quorum: float = 1.0,
        cancel: bool = False,
        rule: Rule = mean,
        servers: int | str = 1,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(servers=servers)
        self.backups, self.quorum, self.cancel, self.rule = backups, quorum, cancel, rule
        if backups is None:  # a share of the workers was asked for, and both can't be
            self.knobs = MappingProxyType({})
        self.synchronous = backups == 0 or (backups is None and quorum == 1)
        self.overtaken_by = "read" if cancel else ""
        self.identity_alone = codec is None or not codec.has_momentum
        self.tags = (
            Tag("push", carries=GRADIENT, codec=codec),
            Tag("read", carries=WEIGHTS, fold=fold_newest),
        )

    def contributors(self, workers: int) -> int:
        """Of so many gradients one update is made."""
        fraction = ceil(self.quorum * workers - 1e-9)
        return max(1, fraction if self.backups is None else workers - self.backups)

    def check(self, workers: int) -> None:
        super().check(workers)
        if self.backups is not None and 1 < workers <= self.backups:
            raise UsageError(
                f"{self!r} on {workers} workers: if {self.backups} are backups, none is left. Take fewer backups, or "
                "more workers."
            )

    def state(self, me: Me) -> Collected | None:
        return Collected() if me.is_server else None

    async def step(self, me: Me) -> None:
        newer = me.letters("read") if self.cancel else []
        if newer:  # the others have gone on without this gradient
            me.weights.copy_(newer[-1].tensor)
            return
        me.push(me.gradient, "push", rates=me.rates)
        await me.pull("read", me.weights)

    async def serve(self, me: Me) -> None:
        letters = await (self._all(me) if self.synchronous else self._first(me))
        if letters is None:
            return
        update = merged(me, self.rule, letters) if letters else None
        if update is not None:
            me.apply(update, of=letters, rates=letters[0].note["rates"])
        me.send([each.sender for each in letters] if self.synchronous else me.workers, me.weights, tag="read")

    async def _all(self, me: Me) -> list[Letter]:
        """Without backups: of everybody who is still there."""
        pushes, _ = await me.gather("push", me.all_workers)
        return list(pushes.values())

    async def _first(self, me: Me) -> list[Letter] | None:
        """The first n on the present weights that count; None as long as there are fewer."""
        collected: Collected = me.state
        pushes, needed = await me.news("push"), self.contributors(len(me.all_workers))
        for push in pushes:
            if push.version != me.version or len(collected.pushes) >= needed:
                me.discard(push, LATE)
            elif push.weight:
                self._collect(me, push)
            else:
                collected.empty.append(push.sender)
        if collected.is_complete(needed, me.view):
            return collected.close()
        collected.keep(pushes)
        return None

    def _collect(self, me: Me, push: Letter) -> None:
        """Where a rule had too few, workers go on from the same weights, and may come with two gradients."""
        collected: Collected = me.state
        earlier = collected.pushes.get(push.sender)
        if earlier is not None:
            me.discard(earlier, REPLACED)
        collected.pushes[push.sender] = push
