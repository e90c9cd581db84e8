"""Numbers of efficiency from trainings: least squares over the logarithm of samples against synchronous training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advising.answers import TOLERANCE, Offer, best_s
from advising.notes import Notes, known_key
from advising.situations import Case
from advising.trainings import SYNCHRONOUS, is_lock_step
from fast.lab.planner.efficiency import KINDS, LOSSES, Features, Kind, Loss, factor_of
from fast.loop.loading import strategy_from

RIDGE = 0.5
"""How much a coefficient has to be worth: the fit is over few situations."""
ROUNDS = 20


def ranked(offers: Sequence[Offer], workers: int, losses: Mapping[Kind, Loss]) -> list[Offer]:
    return sorted(offers, key=lambda offer: offer.step_s * _factor(offer, workers, losses))


def _factor(offer: Offer, workers: int, losses: Mapping[Kind, Loss]) -> float:
    return wasted(offer, workers) * factor_of(offer.features(workers), losses)


def wasted(offer: Offer, workers: int) -> float:
    strategy = strategy_from(offer.call)
    return workers / strategy.contributors(workers) if strategy.never_stale else 1.0


@dataclass(frozen=True)
class Seen:
    """Of one training: log2 of its samples against those of synchronous training, or at least so many."""

    features: Features
    value: float
    at_least: bool = False


def observations(notes: Notes, cases: Sequence[Case]) -> list[Seen]:
    """Of all that reached the target, and of those that were given up because it was too late."""
    base, rows = strategy_from(SYNCHRONOUS).call, []
    for case in cases:
        reference, found = notes.known[known_key(base, case)], notes.found[case.key]
        for offer in notes.offers[case.key] if reference is not None else ():
            own, features, part = found[offer.call], offer.features(case.workers), wasted(offer, case.workers)
            if own is not None:
                rows.append(Seen(features, math.log2(own[1] / reference.samples / part)))
            elif not is_lock_step(offer.call) and math.isfinite(best := best_s(found)):
                steps = TOLERANCE * best / offer.step_s
                rows.append(Seen(features, math.log2(steps / reference.steps / part), at_least=True))
    return rows


def fitted(rows: Sequence[Seen]) -> dict[Kind, Loss]:
    """Least squares for each kind, with a ridge on all but the constant; lock-step loses nothing. Whoever was given up
    counts where it should have been there by what was found without it, and so again, until nothing changes."""
    losses: dict[Kind, Loss] = {}
    for kind in KINDS:
        own = [row for row in rows if row.features.kind == kind]
        known = [row for row in own if not row.at_least]
        if kind == "lock-step" or not known:
            losses[kind] = LOSSES[kind]
            continue
        solved = _solved(known)
        for _ in range(ROUNDS):
            late = [row for row in own if row.at_least and row.value > solved @ np.array(row.features.row)]
            solved = _solved([*known, *late])
        losses[kind] = Loss(*(round(float(each), 2) + 0.0 for each in solved))
    return losses


def _solved(rows: Sequence[Seen]) -> NDArray[np.float64]:
    table, values = np.array([row.features.row for row in rows]), np.array([row.value for row in rows])
    ridge = np.diag([1e-6, RIDGE, RIDGE, RIDGE])
    solved: NDArray[np.float64] = np.linalg.solve(table.T @ table + ridge, table.T @ values)
    return solved
