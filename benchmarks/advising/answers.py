"""What the advisor offers in a situation, and what became of each of its candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advising.situations import Case, weights_bytes
from advising.trainings import Reached, Training, mean_s, timed_s, trained
from fast.lab.planner.advisor import advise
from fast.lab.planner.efficiency import Features, features_of
from fast.lab.planner.prediction import Prediction
from fast.loop.loading import strategy_from

TOLERANCE = 1.5
"""A first choice is right if it takes at most so many times as long as the best."""
FAR = 2.5
"""Who would need so many times as long as the best by the prediction of its steps isn't timed step by step."""
HOPELESS = 0.5
"""Who would be too late by the prediction of its steps, even if it took only so large a part of the steps of
synchronous training, isn't trained. Of those that were, the most frugal one took 0.65."""


@dataclass(frozen=True)
class Offer:
    """A candidate of the advisor in one situation."""

    asked: str
    """As the advisor writes it; `call` has all its arguments."""
    call: str
    prediction: Prediction

    @property
    def step_s(self) -> float:
        return self.prediction.step_s

    def features(self, workers: int) -> Features:
        seen = self.prediction
        sent = seen.sent_bytes / weights_bytes()
        return features_of(strategy_from(self.call), workers, seen.staleness, seen.period, sent)


def advised(job: tuple[Case, Mapping[str, Prediction]]) -> list[Offer]:
    """All that the advisor allows, its first choice first; with predictions of an earlier run, where there are any."""
    case, known = job
    ranked = advise(case.situation(), what_ifs=False, known=known).ranked
    return [Offer(each.call, repr(each.strategy), each.prediction) for each in ranked]


@dataclass(frozen=True)
class Question:
    """All candidates of a situation, the rates of those calls, and what is known of those in lock-step."""

    case: Case
    offers: tuple[Offer, ...]
    rates: Mapping[str, float]
    known: Mapping[str, Reached | None]
    steps: int = 0
    """Of synchronous training until it reaches the target; 0 if it doesn't."""


Found = dict[str, tuple[float, int] | None]
"""By call when the target was reached, and after how many samples; None: too late, or never."""


def answered(question: Question) -> Found:
    """Lock-step first: it is known, but for the time, and tells the others how long is too long."""
    case, found = question.case, Found()
    guesses = {
        offer: reached.steps * offer.step_s
        for offer in question.offers
        if (reached := question.known.get(offer.call)) is not None
    }
    nearest = min(guesses.values(), default=math.inf)
    for offer in question.offers:
        reached = question.known.get(offer.call)
        if reached is not None:
            far = guesses[offer] > FAR * nearest
            at_s = guesses[offer] if far else timed_s(case, offer.call, reached.steps)
            found[offer.call] = at_s + reached.apart * mean_s(case), reached.samples
        else:
            found[offer.call] = None
    for offer in sorted(question.offers, key=lambda each: each.step_s):
        if offer.call not in question.known:
            found[offer.call] = _trained_here(question, offer, best_s(found))
    return found


def _trained_here(question: Question, offer: Offer, best: float) -> tuple[float, int] | None:
    """Nobody is waited for that takes longer than the first choice may: whoever that is, by whatever numbers."""
    case = question.case
    rate, by_s = question.rates[offer.call], TOLERANCE * best
    if HOPELESS * question.steps * offer.step_s > by_s:
        return None
    reached, _ = trained(
        Training(offer.call, case.workers, case.seed, rate, case.split, case=case, by_s=by_s)
    )
    return None if reached is None else (reached.at_s + reached.apart * mean_s(case), reached.samples)


def best_s(found: Found) -> float:
    return min((each[0] for each in found.values() if each is not None), default=math.inf)


def ratio_of(call: str, found: Found) -> float:
    """How many times as long as the best it took; inf if it was much too late, 1 if nobody got there."""
    best, own = best_s(found), found[call]
    if math.isinf(best):
        return 1.0
    return math.inf if own is None else own[0] / best
