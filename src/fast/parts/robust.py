"""Rules that stand hostile workers: whatever a few of them send, the merge stays with the others.

How votes are counted, and what becomes of NaN and infinity, is said in `voting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.arguments import check_whole
from fast.parts.columns import middle_mean, squared_distances
from fast.parts.merge import Rule, check_rule_given, mean
from fast.parts.voting import Robust, merge_votes

# Coordinate by coordinate


@dataclass(frozen=True, repr=False)
class Median(Robust):
    """In each coordinate the middle value; of an even number the mean of the two in the middle.

    Stands any minority, (n - 1) // 2 hostile ones of n, and needs 3: the middle of two is their mean. Votes with NaN or
    infinity are left out. Of Yin et al., Byzantine-Robust Distributed Learning, ICML 2018.

    >>> Median().merge([torch.tensor([1.0, 9.0]), torch.tensor([2.0, 8.0]), torch.tensor([1e30, 7.0])])
    tensor([2., 8.])
    """

    @property
    def needs(self) -> int:
        return 3

    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        return middle_mean(votes, drop=(len(votes) - 1) // 2)


@dataclass(frozen=True, repr=False)
class TrimmedMean(Robust):
    """In each coordinate the mean without the f = `hostile` smallest and the f largest values.

    Needs 2 f + 1 votes; the more there are, the closer it is to the plain mean. Votes with NaN or infinity are left
    out, and f is smaller by their number. Of Yin et al., Byzantine-Robust Distributed Learning, ICML 2018.

    >>> TrimmedMean(hostile=1).merge([torch.tensor([x]) for x in (1.0, 3.0, -1e30, 2.0)])
    tensor([1.5000])
    """

    hostile: int

    def __post_init__(self) -> None:
        check_whole(self.name, "hostile", self.hostile, 0)

    @property
    def needs(self) -> int:
        return 2 * self.hostile + 1

    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        return middle_mean(votes, drop=max(0, self.hostile - left_out))


# By the distances of whole updates


@dataclass(frozen=True, repr=False)
class Krum(Robust):
    """The one update that is closest to those nearest to it, as it was sent.

    score(i) = sum of |u_i - u_j|^2 over the n - f - 2 nearest j;  the smallest score wins, the first of equals

    Stands f = `hostile` of n >= 2 f + 3. Votes with NaN or infinity are left out, which is the same as if they were
    infinitely far from all others. Only one worker's samples count in each step, so it is as noisy as one worker
    alone. Of Blanchard et al., Machine Learning with Adversaries, NIPS 2017.

    >>> Krum(hostile=1).merge([torch.tensor([x]) for x in (1.0, 2.0, 2.25, -1e30, 4.0)])
    tensor([2.])
    """

    hostile: int
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self.name, "hostile", self.hostile, 0)

    @property
    def needs(self) -> int:
        return 2 * self.hostile + 3

    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        return votes[by_score(votes, len(votes) + left_out - self.hostile - 2)[0]].clone()


@dataclass(frozen=True, repr=False)
class MultiKrum(Robust):
    """The mean of the m = `chosen` updates with the smallest scores of Krum; unless told, of n - f - 2.

    Stands f = `hostile` of n >= 2 f + 3, with m <= n - f - 2; the more are chosen, the less noise.
    Of Blanchard et al., NIPS 2017, and Damaskinos et al., AggregaThor, MLSys 2019.

    >>> MultiKrum(hostile=1, chosen=2).merge([torch.tensor([x]) for x in (1.0, 2.0, 2.25, -1e30, 4.0)])
    tensor([2.1250])
    """

    hostile: int
    chosen: int | None = None
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self.name, "hostile", self.hostile, 0)
        if self.chosen is not None:
            check_whole(self.name, "chosen", self.chosen, 1)

    @property
    def needs(self) -> int:
        return self.hostile + 2 + max(self.hostile + 1, self.chosen or 1)

    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        nearest = len(votes) + left_out - self.hostile - 2
        best = by_score(votes, nearest)[: self.chosen or nearest]
        return merge_votes(mean, [votes[place] for place in sorted(best)])


def by_score(votes: Sequence[Tensor], nearest: int) -> list[int]:
    """Their places, the smallest sum of squared distances to so many nearest others first."""
    distances = squared_distances(votes).sort(1).values[:, 1 : nearest + 1]  # the first is that to itself
    if distances.is_meta:
        return list(range(len(votes)))
    scores = distances.sum(1).tolist()
    return sorted(range(len(votes)), key=lambda place: (scores[place], place))


# By their length


@dataclass(frozen=True, repr=False)
class NormClip(Robust):
    """Each update is shortened to the length `limit` if it is longer; then another rule, the plain mean unless told.

    u_i <- u_i min(1, limit / |u_i|);  then mean_i u_i

    Votes with NaN or infinity are left out. With the mean, f hostile ones of n move the result by at most
    2 f limit / n: enough against accidents, and no promise that training converges. For that let a rule follow that
    stands hostile workers, such as `norm_clip(1.0, then=median())`.

    >>> NormClip(limit=1.0).merge([torch.tensor([0.0, 0.5]), torch.tensor([3e10, 4e10])])
    tensor([0.3000, 0.6500])
    """

    limit: float
    then: Rule = mean
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = isinstance(self.limit, int | float) and not isinstance(self.limit, bool)
        if not number or not 0 < self.limit < inf:
            raise UsageError(
                f"norm_clip(limit={self.limit!r}): the longest length is a finite number above 0"
            )
        check_rule_given(self.name, "then", self.then)

    @property
    def needs(self) -> int:
        return getattr(self.then, "needs", 1)

    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        clipped = [_shortened(vote, self.limit) for vote in votes]
        if isinstance(self.then, Robust):
            return self.then.merge_finite(clipped, left_out)
        return merge_votes(self.then, clipped)


def _shortened(vote: Tensor, limit: float) -> Tensor:
    """To a length of at most `limit`; what has only a size stays as it is."""
    length = torch.linalg.vector_norm(vote.double())
    return vote if length.is_meta or length <= limit else vote * (limit / float(length))


ROBUST: Mapping[str, type[Robust]] = MappingProxyType(
    {
        "median": Median,
        "trimmed_mean": TrimmedMean,
        "krum": Krum,
        "multi_krum": MultiKrum,
        "norm_clip": NormClip,
    }
)
"""By the name that the command line uses. The plain rules are written without brackets, these are called."""
