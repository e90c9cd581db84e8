"""What a run was worth: scores of the copies, found out after the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from fast.core import Task
from fast.lab.budget import Budget
from fast.lab.measures import Report, Run, State, Tick, one_thread
from fast.lab.policies import policy_scores
from fast.lab.results import Curve, Result
from fast.lab.tracing import timeline_of
from fast.lab.tuning import Setting, Trial


class Judge:
    """Scores a model's values on one batch: the validation data while tuning, else the test data."""

    def __init__(self, task: Task, batch: Any) -> None:
        self.task, self._batch = task, batch
        self._model = task.model().eval()

    def __call__(self, state: State) -> float | None:
        """None for values or a score that are no numbers: such a model has none, whatever it answers."""
        if not is_finite(state):
            return None
        self._model.load_state_dict(state)
        with torch.no_grad(), one_thread():
            score = float(self.task.score(self._model, self._batch))
        return score if math.isfinite(score) else None

    def on_validation(self) -> Judge | None:
        """One for the validation data, if the task has any."""
        batch = self.task.validation()
        return None if batch is None else Judge(self.task, batch)


@final
class Goal:
    """Looks at ticks one after another until a model is good enough, or it is too late for that.

    It is what a simulated run may ask whether it is to go on; ticks of a run that is over are shown to it by
    `look`.
    """

    def __init__(self, judge: Judge, target: float, by_s: float = math.inf) -> None:
        self._judge, self._target, self._by_s = judge, target, by_s
        self.scores: list[float | None] = []
        """Of the models that it saw."""
        self.reached: Tick | None = None
        """Whose model was the first to be good enough."""

    def __call__(self, tick: Tick) -> bool:
        if tick.at_s > self._by_s:
            return True
        self.scores.append(self._judge(tick.state))
        if self.score >= self._target:
            self.reached = tick
        return self.reached is not None

    @property
    def score(self) -> float:
        """Of the last model; worse than any if it has none."""
        return -math.inf if not self.scores or self.scores[-1] is None else self.scores[-1]

    def look(self, ticks: Iterable[Tick]) -> Tick | None:
        """The first of them that reaches it. Ticks after that one aren't looked at."""
        any(map(self, ticks))
        return self.reached


def is_finite(state: State) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())


@dataclass(frozen=True)
class Question:
    """What is asked of every run."""

    judge: Judge
    target: float
    budget: Budget
    reference_samples_per_s: float | None = None
    """The throughput of one worker alone."""
    paced: bool = False
    timeline: bool = True
    """Whether to keep the first steps of everybody; one run of a strategy is enough to look at."""


def judge_trial(question: Question, setting: Setting, run: Run) -> Trial:
    """What a setting is worth."""
    reached = Goal(question.judge, question.target).look(run.ticks)
    score = question.judge(run.final)
    return Trial(
        strategy=setting.call,
        rate=setting.rate,
        score=score,
        time_to_target_s=reached.at_s if reached else None,
        samples_to_target=reached.samples if reached else None,
        samples_per_s=_throughput(run),
        held=reached is None or (score is not None and score >= question.target),
        diverged=score is None,
    )


def judge_run(question: Question, setting: Setting, asked: str, label: str, seed: int, run: Run) -> Result:
    """A row of the comparison."""
    scores = [question.judge(tick.state) for tick in run.ticks]
    reached = next(
        (
            tick
            for tick, score in zip(run.ticks, scores, strict=True)
            if score is not None and score >= question.target
        ),
        None,
    )
    judge = question.judge
    workers, stale, final = len(run.workers), run.staleness, judge(run.final)
    replicas = _replica_scores(question.judge, run.ticks, scores)
    throughput = _throughput(run)
    return Result(
        strategy=setting.call,
        seed=seed,
        asked=asked,
        label=label,
        rate=setting.rate,
        reached_target=reached is not None,
        time_to_target_s=reached.at_s if reached else None,
        samples_to_target=reached.samples if reached else None,
        epochs_to_target=reached.samples / question.budget.epoch_samples if reached else None,
        bytes_to_target=reached.nbytes if reached else None,
        final_score=final,
        replica_scores=replicas[-1] if replicas else [],
        policies=policy_scores(judge.task, run, judge, judge.on_validation()) if run.replicas else {},
        steps=sum(report.steps for report in run.workers) / workers,
        samples=sum(report.samples for report in run.workers),
        bytes_sent_per_worker=sum(report.bytes_sent for report in run.workers) / workers,
        bytes_sent=sum(report.bytes_sent for report in run.participants),
        samples_per_s=throughput,
        scaling_efficiency=_efficiency(throughput, workers, question.reference_samples_per_s),
        duration_s=run.duration_ns / 1e9,
        mean_staleness=stale.mean_staleness,
        max_staleness=stale.max_staleness,
        staleness={str(late): count for late, count in sorted(stale.staleness.items())},
        consensus_distance=run.consensus_distance,
        wait_fraction=sum(report.waiting_share for report in run.workers) / workers,
        compute_fraction=sum(report.computing_share for report in run.workers) / workers,
        diverged=final is None or None in scores,
        pace_exceeded=_pace_exceeded(run.workers) if question.paced else None,
        curve=_curve(run.ticks, scores, replicas, question.budget),
        participants=[_participant(report, run) for report in run.participants],
        graph=_graph(run),
        timeline=_timeline(run) if question.timeline else None,
    )


def _throughput(run: Run) -> float | None:
    samples = sum(report.samples for report in run.workers)
    return samples / (run.duration_ns / 1e9) if run.duration_ns else None


def _efficiency(throughput: float | None, workers: int, alone: float | None) -> float | None:
    return throughput / (workers * alone) if throughput and alone else None


def _pace_exceeded(workers: Sequence[Report]) -> float:
    return sum(report.paced_steps for report in workers) / max(1, sum(report.steps for report in workers))


def _replica_scores(
    judge: Judge, ticks: Sequence[Tick], scores: Sequence[float | None]
) -> list[list[float | None]]:
    """Of every tick: nothing, or the score of each replica. Equal models are scored once."""
    return [
        [score if _equal(replica, tick.state) else judge(replica) for replica in tick.replicas]
        for tick, score in zip(ticks, scores, strict=True)
    ]


def _equal(one: State, other: State) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def _curve(
    ticks: Sequence[Tick],
    scores: Sequence[float | None],
    replicas: Sequence[Sequence[float | None]],
    budget: Budget,
) -> Curve:
    known = [[score for score in each if score is not None] for each in replicas]
    return {
        "at_s": [tick.at_s for tick in ticks],
        "samples": [tick.samples for tick in ticks],
        "epochs": [tick.samples / budget.epoch_samples for tick in ticks],
        "bytes": [tick.nbytes for tick in ticks],
        "score": list(scores),
        "distance": [tick.distance for tick in ticks],
        "replica_worst": [min(each, default=None) for each in known],
        "replica_best": [max(each, default=None) for each in known],
    }


def _participant(report: Report, run: Run) -> dict[str, Any]:
    """Where its time went. What is left of the run's duration was idle: it had not begun, or was done."""
    parts = {
        "compute_s": report.computed_ns / 1e9,
        "send_s": report.sent_ns / 1e9,
        "wait_s": report.waited_ns / 1e9,
        "merge_s": report.merged_ns / 1e9,
    }
    idle_s = max(0.0, run.duration_ns / 1e9 - sum(parts.values()))
    return {
        "name": report.name,
        "steps": report.steps,
        "samples": report.samples,
        **parts,
        "idle_s": idle_s,
        "peak_memory_bytes": report.peak_memory_bytes,
    }


def _graph(run: Run) -> dict[str, Any]:
    """Who has sent to whom, and who has taken part in which collectives."""
    means: dict[tuple[int, ...], list[int]] = {}
    for report in run.workers:
        for members, count, nbytes in report.means:
            entry = means.setdefault(tuple(members), [0, 0])
            entry[0], entry[1] = max(entry[0], count), entry[1] + nbytes
    letters = [[sender, *link] for sender, report in enumerate(run.participants) for link in report.links]
    return {
        "workers": len(run.workers),
        "servers": len(run.servers),
        "letters": letters,
        "means": [[list(members), *entry] for members, entry in sorted(means.items())],
    }


def _timeline(run: Run) -> dict[str, Any] | None:
    excerpts = [report.excerpt for report in run.participants if report.excerpt is not None]
    return timeline_of(excerpts, run.began_ns) if excerpts else None
