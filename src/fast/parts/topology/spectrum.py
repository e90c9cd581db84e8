"""How fast mixing on a topology brings workers together, from the eigenvalues of its mixing matrix.

One round of mixing is x <- W x, and over T rounds x <- W_T ... W_1 x. The mean of the workers stays (eigenvalue 1); all
their differences are multiplied by the other eigenvalues, in the long run by the largest of them in size:

    |x_t - mean|  ~  lambda_2^t |x_0 - mean|,    spectral gap = 1 - lambda_2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.topology.base import Topology
from fast.view import View

LARGEST = 2000
"""So many workers at most: eigenvalues take the third power of their number."""
ROUNDS = 16
"""Of a topology whose links change at least so many rounds are multiplied."""
_ROUNDING = 1e-12
"""Smaller than this is nothing but rounding."""

OfPlace = Callable[[int, View, int], Mapping[int, float]]


@dataclass(frozen=True)
class Spectrum:
    """What the mixing of a topology does to differences between workers.

    >>> from fast.parts.topology.ready import Ring
    >>> spectrum_of(Ring(), 8)
    Spectrum(workers=8, rounds=1, second=0.804738)
    """

    workers: int
    rounds: int
    """So many were multiplied: 1 where the links don't change."""
    second: float
    """The second largest |eigenvalue| of their product."""

    @property
    def factor(self) -> float:
        """By which disagreement shrinks in each round, in the long run: lambda_2. 0 is at once, 1 never."""
        return float(self.second ** (1.0 / self.rounds))

    @property
    def gap(self) -> float:
        """The spectral gap, 1 - lambda_2: the larger, the faster workers agree."""
        return 1.0 - self.factor

    def after(self, rounds: float) -> float:
        """What is left of a disagreement after so many rounds, if nothing makes a new one: lambda_2^t."""
        return float(self.factor**rounds)

    def rounds_until(self, left: float) -> float:
        """After how many rounds only this part of a disagreement is left; infinity for never."""
        if self.factor == 0.0:
            return float(self.rounds)
        return inf if self.factor >= 1.0 else float(ceil(log(left) / log(self.factor)))

    def __repr__(self) -> str:
        return f"Spectrum(workers={self.workers}, rounds={self.rounds}, second={self.second:.6g})"


def spectrum_of(topology: Topology, workers: int, *, gamma: float = 1.0, push: bool = False) -> Spectrum:
    """The spectrum of a topology with so many workers, at most 2,000 for the cost.

    It is that of plain mixing; with `push`, or where a topology has no mixing weights, since it is directed and not
    balanced, that of push-sum. With a `gamma` below 1 each round goes only so far: x <- x + gamma (W x - x).
    """
    if workers > LARGEST:
        raise UsageError(
            f"the spectrum of {topology!r} with {workers} workers would take too long: at most {LARGEST} are allowed. "
            "Look at a smaller number, with which the trend is seen as well."
        )
    period = topology.period(workers)
    rounds = period * ceil(ROUNDS / period) if topology.changing else 1
    product = torch.eye(workers, dtype=torch.float64)
    matrix_of = push_matrix if push else _matrix
    for round_ in range(rounds):
        product = product.lerp(matrix_of(topology, workers, round_) @ product, gamma)
        if topology.changing and round_ + 1 == period and not second_eigenvalue(product):
            return Spectrum(workers, period, 0.0)  # the exact mean within a period: nothing is left to shrink
    return Spectrum(workers, rounds, second_eigenvalue(product))


def second_eigenvalue(matrix: Tensor) -> float:
    """The second largest |eigenvalue| of a matrix whose rows or columns add up to 1."""
    if len(matrix) < 2:
        return 0.0
    symmetric = torch.equal(matrix, matrix.T)
    values = torch.linalg.eigvalsh(matrix) if symmetric else torch.linalg.eigvals(matrix)
    second = float(values.abs().sort(descending=True).values[1])
    return min(second, 1.0) if second > _ROUNDING else 0.0


def _matrix(topology: Topology, workers: int, round_: int) -> Tensor:
    try:
        return mixing_matrix(topology, workers, round_)
    except UsageError:
        return push_matrix(topology, workers, round_)


def mixing_matrix(topology: Topology, size: int, round_: int = 0) -> Tensor:
    """W, with what a worker keeps of its own on the diagonal, in float64: x <- W x.

    UsageError if the topology has no mixing weights, which only a directed one may.
    """
    return _rest_on_the_diagonal(_rows(topology.neighbours, size, round_))


def push_matrix(topology: Topology, size: int, round_: int = 0) -> Tensor:
    """The shares of push-sum, in float64: column i is how place i parts what it has, x <- P x."""
    return _rest_on_the_diagonal(_rows(topology.audience, size, round_)).T


def _rows(of_place: OfPlace, size: int, round_: int) -> Tensor:
    view = View(0, tuple(range(size)))
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for index in range(size):
        found = of_place(index, view, round_)
        matrix[index, list(found)] = torch.tensor(list(found.values()), dtype=torch.float64)
    return matrix


def _rest_on_the_diagonal(rows: Tensor) -> Tensor:
    return rows + torch.diag(1.0 - rows.sum(1))
