"""Numbers of efficiency from trainings: least squares over the logarithm of samples against synchronous training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from advising.answers import Offer
from advising.notes import Notes, known_key
from advising.situations import Case
from advising.trainings import SYNCHRONOUS
from fast.lab.planner.efficiency import KINDS, LOSSES, Features, Kind, Loss, factor_of
from fast.loop.loading import strategy_from

RIDGE = 0.5
"""How much a coefficient has to be worth: the fit is over few situations."""


def ranked(offers: Sequence[Offer], workers: int, losses: Mapping[Kind, Loss]) -> list[Offer]:
    return sorted(offers, key=lambda offer: offer.step_s * _factor(offer, workers, losses))


def _factor(offer: Offer, workers: int, losses: Mapping[Kind, Loss]) -> float:
    return wasted(offer, workers) * factor_of(offer.features(workers), losses)


def wasted(offer: Offer, workers: int) -> float:
    strategy = strategy_from(offer.call)
    return workers / strategy.contributors(workers) if strategy.never_stale else 1.0


def observations(notes: Notes, cases: Sequence[Case]) -> list[tuple[Features, float]]:
    """Features of what reached the target, and log2 of its samples against those of synchronous training."""
    base, rows = strategy_from(SYNCHRONOUS).call, []
    for case in cases:
        reference = notes.known[known_key(base, case)]
        for offer in notes.offers[case.key]:
            own = notes.found[case.key][offer.call]
            if reference is not None and own is not None:
                times = own[1] / reference.samples / wasted(offer, case.workers)
                rows.append((offer.features(case.workers), math.log2(times)))
    return rows


def fitted(rows: Sequence[tuple[Features, float]]) -> dict[Kind, Loss]:
    """Least squares for each kind, with a ridge on all but the constant; lock-step loses nothing."""
    losses: dict[Kind, Loss] = {}
    for kind in KINDS:
        own = [(features.row, value) for features, value in rows if features.kind == kind]
        if kind == "lock-step" or not own:
            losses[kind] = LOSSES[kind]
            continue
        table, values = np.array([row for row, _ in own]), np.array([value for _, value in own])
        ridge = np.diag([1e-6, RIDGE, RIDGE, RIDGE])
        solved = np.linalg.solve(table.T @ table + ridge, table.T @ values)
        losses[kind] = Loss(*(round(float(each), 3) for each in solved))
    return losses
