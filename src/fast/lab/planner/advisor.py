"""The advice: which technique, with which arguments, how fast, and why not another one.

Vetoes rule out what can't be; of the rest every call is predicted, and the predicted time to the target decides:
time per step times the samples that it needs, against plain synchronous training. The rules say what to expect and
why. Where the prediction comes to another end, the advice says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from fast.errors import UsageError
from fast.lab.planner.advice import Advice, Ranked, WhatIf
from fast.lab.planner.candidates import LIKE, calls_of
from fast.lab.planner.efficiency import samples_factor
from fast.lab.planner.facts import facts_of
from fast.lab.planner.prediction import Prediction, predict
from fast.lab.planner.rules import Match, matches
from fast.lab.planner.situation import Situation
from fast.lab.planner.techniques import technique_of
from fast.lab.planner.vetoes import Option, Vetoed, held, veto_of
from fast.loop.loading import strategy_from
from fast.sim.cluster.words import counted
from fast.strategies.catalogue import find

__all__ = ["BASELINE", "Advice", "Ranked", "WhatIf", "advise", "option_of"]

BASELINE = "allreduce"
CLOSE = 1.15
"""Predictions so near each other say nothing, as samples are known no better than that (`efficiency`): then the rule
decides, and what has less to tune."""
EQUAL = 1.005
CLOSE_UNTUNED = 1.5
"""With a low budget for tuning, what has nothing to tune may take so much longer. Ours."""
FASTER, SLOWER, MORE = 10.0, 0.1, 4
"""What if: the network so many times as fast, the workers so many times as many."""
RUNNERS_UP, ASKED = 2, 3
"""So many besides the first choice, and so many of those that the rule there asks for, take part in a what-if."""

OnProgress = Callable[[str], None]
Predicting = Callable[[Option, Situation], Prediction]


def advise(
    situation: Situation,
    *,
    what_ifs: bool = True,
    known: Mapping[str, Prediction] | None = None,
    on_progress: OnProgress = lambda call: None,
) -> Advice:
    """Predict everything that a situation allows, and say which to take. `known` are predictions for it that were made
    before, by call: they aren't made again."""
    advice = _advise(situation, None, _predicting(on_progress, known or {}))
    if what_ifs and advice.best is not None:
        found, unanswered = _what_ifs(advice, _predicting(on_progress, {}))
        return replace(advice, what_ifs=found, unanswered=unanswered)
    return advice


def _predicting(on_progress: OnProgress, known: Mapping[str, Prediction]) -> Predicting:
    def prediction_of(option: Option, situation: Situation) -> Prediction:
        on_progress(option.call)
        return known.get(option.call) or predict(option.strategy, situation)

    return prediction_of


def _advise(situation: Situation, only: Collection[str] | None, predicting: Predicting) -> Advice:
    facts = facts_of(situation)
    calls = [(name, call) for name, call in calls_of(situation, facts) if only is None or name in only]
    options = {call: option_of(name, call) for name, call in calls}
    vetoed = tuple(_vetoed(options, situation))
    forbidden = {each.call for each in vetoed}
    allowed = {call: option for call, option in options.items() if call not in forbidden}
    if not allowed and situation.fits:
        raise _contradiction(situation)
    baseline = _ranked(option_of(BASELINE, BASELINE), situation, predicting)
    found, refused = _predicted(allowed, baseline, situation, predicting)
    if allowed and not found:
        raise UsageError(f"nothing that is allowed here can be predicted. {refused[0][0]}: {refused[0][1]}")
    rules = _deciding_first(matches(situation, facts), found)
    ranked = _in_order(found, baseline, rules[0], situation)
    return Advice(situation, facts, rules, ranked, vetoed, refused, baseline)


def _deciding_first(found: Sequence[Match], allowed: Sequence[Ranked]) -> tuple[Match, ...]:
    """The first rule that isn't vetoed wins: one that asks for something that is allowed."""
    heard = (match for match in found if any(match.asks_for(each.name, each.strategy) for each in allowed))
    decides = next(heard, found[0])
    return (decides, *(match for match in found if match is not decides))


def _predicted(
    allowed: dict[str, Option], baseline: Ranked, situation: Situation, predicting: Predicting
) -> tuple[list[Ranked], tuple[tuple[str, str], ...]]:
    """What can be said of each, and of which nothing can."""
    found, refused = [], []
    for call, option in allowed.items():
        try:
            found.append(baseline if call == BASELINE else _ranked(option, situation, predicting))
        except UsageError as error:
            refused.append((call, str(error)))
    return found, tuple(refused)


def option_of(name: str, call: str) -> Option:
    strategy = strategy_from(call)
    return Option(name, call, strategy, technique_of(find(name), strategy))


def _ranked(option: Option, situation: Situation, predicting: Predicting) -> Ranked:
    option.strategy.check(situation.workers)
    prediction = predicting(option, situation)
    if not prediction.sent_bytes:
        raise UsageError("it talks so seldom that nothing of it was seen in a short simulation")
    samples = samples_factor(option.strategy, prediction, situation.workers, situation.model_bytes)
    return Ranked(option.name, option.call, option.strategy, option.technique, prediction, samples)


# Vetoes


def _vetoed(options: dict[str, Option], situation: Situation) -> list[Vetoed]:
    found = []
    for call, option in options.items():
        veto = veto_of(option, situation)
        if veto is not None:
            found.append(Vetoed(option.name, call, veto.id, veto.says(situation), veto.source))
    return found


def _contradiction(situation: Situation) -> UsageError:
    said = "; ".join(f"{veto.id}: {veto.says(situation)}" for veto in held(situation))
    return UsageError(f"nothing that FAST has meets all these needs at once ({said}). Drop one of them.")


# The order


def _in_order(
    found: Sequence[Ranked], baseline: Ranked, rule: Match, situation: Situation
) -> tuple[Ranked, ...]:
    timed = [replace(each, time=each.time_s / baseline.time_s) for each in found]
    if not timed:
        return ()
    timed.sort(key=lambda each: each.time)
    untuned = situation.needs.tuning == "low"
    near = timed[0].time * (CLOSE_UNTUNED if untuned else CLOSE)

    def key(each: Ranked) -> tuple[int, bool, int, float]:
        unasked = not rule.asks_for(each.name, each.strategy)
        return _to_tune(each) if untuned else 0, unasked, _to_tune(each), each.time

    first = min((each for each in timed if each.time <= near), key=key)
    rest = [each for each in timed if each is not first]
    return (
        replace(first, why="first choice"),
        *(replace(each, why=_lost(each, first, rule, situation)) for each in rest),
    )


def _to_tune(each: Ranked) -> int:
    return each.technique.hyperparameter_complexity


def _lost(each: Ranked, first: Ranked, rule: Match, situation: Situation) -> str:
    """The larger of the two factors of its time is the reason."""
    if each.time < first.time * EQUAL:
        return _no_faster(each, first, rule)
    slower, hungrier = each.prediction.step_s / first.prediction.step_s, each.samples / first.samples
    if slower >= hungrier:
        return f"{_times(slower)} the step: {_slow(each, first, situation.rate_bytes_per_s)}"
    return f"{_times(hungrier)} the samples: {_hungry(each)}"


def _no_faster(each: Ranked, first: Ranked, rule: Match) -> str:
    if _to_tune(each) > _to_tune(first):
        return "as fast, but more to tune"
    return "as fast" if rule.asks_for(each.name, each.strategy) else "as fast, but not the rule's choice"


def _slow(each: Ranked, first: Ranked, rate_bytes_per_s: float) -> str:
    """What takes at least half of the time by which its step is longer: a server's link, its own, or else waiting."""
    prediction, before = each.prediction, first.prediction
    half_bytes = (prediction.step_s - before.step_s) / 2 * rate_bytes_per_s
    if prediction.busiest_bytes / 2 > max(half_bytes, 2 * prediction.sent_bytes):
        return "server's link full"
    if prediction.sent_bytes - before.sent_bytes > half_bytes:
        return f"{_times(prediction.sent_bytes / max(1.0, before.sent_bytes))} as much sent"
    return "waits for others" if each.strategy.synchronous else "waits for answers"


def _hungry(each: Ranked) -> str:
    staleness = each.prediction.staleness
    if staleness:
        return f"{counted(staleness, 'step')} late"
    if each.technique.decentral:
        return "replicas drift" if each.strategy.topology is None else "neighbours only"
    return "coarse gradients" if not each.strategy.never_stale else "thrown away"


def _times(factor: float) -> str:
    """
    >>> _times(1.234), _times(123.4)
    ('1.2 x', '123 x')
    """
    return f"{factor:.0f} x" if factor >= 10 else f"{factor:.2g} x"


# What if


def _what_ifs(
    advice: Advice, predicting: Predicting
) -> tuple[tuple[WhatIf, ...], tuple[tuple[str, str], ...]]:
    """Those that can be, and of the others why not: no reason to lose the plan itself."""
    plan = advice.situation
    others: tuple[tuple[str, Callable[[], Situation]], ...] = (
        (f"the network {1 / SLOWER:g} times slower", lambda: plan.with_network(faster=SLOWER)),
        (f"the network {FASTER:g} times faster", lambda: plan.with_network(faster=FASTER)),
        (f"{plan.workers * MORE:,} workers", lambda: plan.with_workers(times=MORE)),
    )
    found, unanswered = [], []
    for words, make in others:
        try:
            found.append(_what_if(advice, words, make(), predicting))
        except UsageError as error:
            unanswered.append((words, str(error)))
    return tuple(found), tuple(unanswered)


def _what_if(advice: Advice, words: str, situation: Situation, predicting: Predicting) -> WhatIf:
    """Only the best of the plan and what the rules there ask for are predicted again."""
    first = matches(situation, facts_of(situation))[0]
    asked = [name for name in (*first.presets, *first.packed) if name not in LIKE]
    known = [each.name for each in advice.ranked[: 1 + RUNNERS_UP]]
    there = _advise(situation, {BASELINE, *known, *asked[:ASKED]}, predicting)
    best = there.ranked[0]  # the model fits a worker there if it fits one here
    own = next((each for each in there.ranked if advice.best and _alike(each, advice.best)), None)
    return WhatIf(words, there.facts, there.rule, best, own.time / best.time if own else None)


def _alike(each: Ranked, other: Ranked) -> bool:
    """The same but for intervals: compression is a choice of its own."""
    return each.name == other.name and ("codec" in each.call) == ("codec" in other.call)
