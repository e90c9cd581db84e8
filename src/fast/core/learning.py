"""Learning: the part of `me` that is about the model: weights, gradient, and the optimizer that moves them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fast.core.account import Account
from fast.core.buckets import Bucket
from fast.core.letter import Letter, union
from fast.core.replica import Described, Grouped, Replica, Tapped
from fast.core.rounds import Rounds
from fast.core.world import Labour, World
from fast.errors import UsageError
from fast.parts.factors import Factors, Place
from fast.trace import Applied
from fast.view import Layout, View

if TYPE_CHECKING:
    from fast.core.strategy import Strategy


class Learning(ABC):
    """The part of `Me` that is about the model."""

    id: int
    is_server: bool
    version: int
    world: World
    replica: Replica
    strategy: Strategy
    account: Account
    view: View
    _buckets: list[Bucket]
    _nbytes: int
    _rounds: Rounds
    _scratch: dict[str, Tensor]
    _unused: list[Letter]
    """Letters with gradients that were read in this turn, and that no update was made of yet."""

    @abstractmethod
    def include(self, letters: Sequence[Letter]) -> None:
        """Say that the updates of these letters are in what is passed on from here."""

    @property
    def weights(self) -> Tensor:
        """The model's weights in one flat tensor; on a server that owns a slice, that slice."""
        return self.replica.weights

    @property
    def gradient(self) -> Tensor:
        """This step's gradient, laid out like the weights."""
        return self.replica.gradient

    @property
    def present(self) -> int | None:
        """Which parameters have a gradient in this step, one bit each; None for all."""
        return self.replica.present

    @property
    def layout(self) -> Layout:
        """Which parameter lies where in a flat tensor such as `me.weights`."""
        return self.replica.layout

    def factors(self, places: Sequence[Place], *, workers: int | None = None) -> list[Factors | None]:
        """For each of these linear layers the activations and errors whose product is this step's
        gradient, where that is less to send; for strategies with `uses_factors`. They are compared with a
        mean among the workers who are in now, or among so many: 2 for one letter to a server."""
        if not isinstance(self.replica, Tapped):
            return [None] * len(places)
        return self.replica.factors(places, workers or len(self.view.workers))

    @property
    def samples(self) -> int:
        """How many samples this step's gradient stands for."""
        return self.replica.samples

    @property
    def rates(self) -> list[float]:
        """The learning rates, one per parameter group."""
        return self.replica.rates

    @property
    def model(self) -> Any:
        """The framework's own model, for programs that compute their gradient themselves."""
        return self.replica.model

    def backward(self, loss: Tensor) -> None:
        """Compute this step's gradient from a loss, for programs that do that themselves."""
        self.replica.backward(loss)
        if self.strategy.computes_gradient:
            self.account.computed_inside()

    def scratch(self, name: str) -> Tensor:
        """A flat tensor to compute in, made once. What is in it doesn't survive the turn."""
        if name not in self._scratch:
            self._scratch[name] = self.weights.new_empty(self.weights.shape)
        return self._scratch[name]

    def apply(
        self, gradient: Tensor, *, of: Sequence[Letter] | None = None, rates: list[float] | None = None
    ) -> None:
        """The user's optimizer, on this replica, with this gradient.

        `of` names the letters whose updates are inside; left out, it is every gradient that was
        read in this turn. From them come the staleness that is reported and which parameters
        have a gradient at all.
        """
        if self._rounds.used:
            self._rounds.check_guards()
        included = self._unused if of is None else of
        present = self._present_for_update(gradient, included)
        self.include(included)
        if of is None:
            self._unused = []
        self.world.working()
        self.replica.apply(gradient, present, rates)
        self.world.worked(Labour.APPLY, self._nbytes)
        if self.is_server:
            self.version += 1
        if self.world.observed:
            self.world.emit(Applied(self.id, self.world.now(), self.version))

    @contextmanager
    def dry_run(
        self, gradient: Tensor, *, of: Sequence[Letter], rates: list[float] | None = None
    ) -> Iterator[None]:
        """What `apply` would do: inside the `with` block `me.weights` are as they would be then. After it weights and
        optimizer are as before, nothing is reported, and no update has been made of the letters."""
        before = deepcopy(self.replica.state_dict())
        try:
            self.replica.apply(gradient, self._present_for_update(gradient, of), rates)
            yield
        finally:
            self.replica.load_state_dict(before)

    def _present_for_update(self, gradient: Tensor, included: Sequence[Letter]) -> int | None:
        """Which parameters an update with this gradient, of these letters, moves."""
        merged = self._rounds.merged
        if merged is not None and gradient is merged.tensor:
            return merged.present
        present = None if self.is_server and not included else self._present_with(included)
        return (
            present if merged is None else union(present, merged.present)
        )  # made of a mean over all of theirs

    def present_in(self, bucket: Bucket | None) -> int | None:
        """Which parameters have a gradient: of all, or of those in this bucket."""
        if bucket is None or bucket.part is None:
            return self.replica.present
        present = self.replica.present
        return bucket.segments if present is None else present & bucket.segments

    async def buckets(self) -> AsyncIterator[Bucket]:
        """This step's gradient in slices, each as soon as backward has computed it: the last
        parameters first. All in one where the strategy has no `bucket_bytes`."""
        for bucket in self._buckets:
            await self.world.gradient_ready(bucket.number)
            yield bucket

    def _present_with(self, included: Sequence[Letter]) -> int | None:
        present = 0 if self.is_server else self.replica.present
        for letter in included:
            present = union(present, letter.present)
        return present

    # My optimizer

    def optimizer_spec(self) -> dict[str, Any] | None:
        """The worker's optimizer as plain data: `name`, and `groups`, each with its `options` as they are now and the
        names of its `segments` in `me.layout`. None where there are sizes and no values; UsageError if it is none of
        torch's own."""
        return self.replica.optimizer_spec() if isinstance(self.replica, Described) else None

    def groups(self) -> list[list[str]]:
        """The names of the segments in each parameter group, whatever the optimizer is."""
        if not isinstance(self.replica, Grouped):
            raise UsageError(
                f"{self.strategy!r} calls me.groups on participant {self.id}, which can't say what is in its parameter "
                "groups. Workers with values can; servers and simulations of sizes only can't."
            )
        return self.replica.groups()

    def moments(self) -> dict[str, Tensor]:
        """What the optimizer remembers of earlier gradients (momentum, Adam's moments), by its own names: a flat
        copy of each. All workers have the same names; one that had no gradient yet has zeros."""
        return self.replica.moments()

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Let the optimizer go on with these."""
        self.replica.set_moments(moments)

    def forget_moments(self) -> None:
        """Let the optimizer go on as if it had never taken a step; the weights stay."""
        self.replica.forget_moments()
