"""What an advice consists of: plain values, and how they are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fast.core import Strategy
from fast.lab.planner.candidates import LIKE
from fast.lab.planner.facts import Facts
from fast.lab.planner.prediction import Prediction
from fast.lab.planner.rules import Match
from fast.lab.planner.situation import Situation
from fast.lab.planner.techniques import TECHNIQUES, Technique
from fast.lab.planner.vetoes import Vetoed


@dataclass(frozen=True)
class Ranked:
    """One call, with what is predicted of it."""

    name: str
    call: str
    strategy: Strategy
    technique: Technique
    prediction: Prediction
    samples: float
    """How many times the samples of synchronous training it needs."""
    time: float = 1.0
    """To the target, against plain allreduce."""
    why: str = ""
    """Why it won or lost, in a line."""

    @property
    def time_s(self) -> float:
        """What a step of synchronous training's worth takes."""
        return self.prediction.step_s * self.samples

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "call": self.call,
            "strategy": repr(self.strategy),
            "technique": self.technique.name,
            "prediction": self.prediction.to_json(),
            "samples": self.samples,
            "time": self.time,
            "why": self.why,
        }


@dataclass(frozen=True)
class WhatIf:
    """The advice for one other situation."""

    words: str
    facts: Facts
    rule: Match
    best: Ranked
    before: float | None
    """The first choice of the plan in that situation, against the best there; None if it couldn't be."""

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.words,
            "rho": self.facts.rho,
            "rule": self.rule.id,
            "best": self.best.to_json(),
            "plan_against_best": self.before,
        }


@dataclass(frozen=True)
class Advice:
    """The whole answer."""

    situation: Situation
    facts: Facts
    rules: tuple[Match, ...]
    """All that hold; the first one decides."""
    ranked: tuple[Ranked, ...]
    """What is allowed, the first choice first; empty only if the model has to be cut."""
    vetoed: tuple[Vetoed, ...]
    refused: tuple[tuple[str, str], ...]
    """Calls of which nothing can be predicted, with the reason."""
    baseline: Ranked
    """Plain allreduce, also where it isn't allowed."""
    what_ifs: tuple[WhatIf, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    """What-ifs that can't be, or of which nothing can be predicted, with the reason."""

    @property
    def best(self) -> Ranked | None:
        return self.ranked[0] if self.ranked else None

    @property
    def rule(self) -> Match:
        return self.rules[0]

    @property
    def rho(self) -> float:
        return self.facts.rho

    @property
    def technique(self) -> Technique:
        return self.best.technique if self.best else TECHNIQUES["MP"]

    @property
    def expected(self) -> Ranked | None:
        """The best of what the deciding rule asks for."""
        return self.best_for(self.rule)

    def best_for(self, rule: Match) -> Ranked | None:
        """The best of what a rule asks for."""
        return next((each for each in self.ranked if rule.asks_for(each.name, each.strategy)), None)

    @property
    def agrees(self) -> bool:
        """Whether the prediction came to where the rule points."""
        return self.best is None or self.rule.asks_for(self.best.name, self.best.strategy)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "plan",
            "situation": self.situation.to_json(),
            "facts": self.facts.to_json(),
            "technique": self.technique.to_json(),
            "rules": [rule.to_json() for rule in self.rules],
            "agrees": self.agrees,
            "best": None if self.best is None else self.best.call,
            "ranked": [each.to_json() for each in self.ranked],
            "vetoed": [each.to_json() for each in self.vetoed],
            "refused": [{"call": call, "reason": reason} for call, reason in self.refused],
            "baseline": self.baseline.to_json(),
            "left_out": dict(LIKE),
            "what_ifs": [each.to_json() for each in self.what_ifs],
            "unanswered": [{"what": words, "reason": reason} for words, reason in self.unanswered],
        }
