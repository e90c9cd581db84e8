"""The comparison: every strategy from the same start over the same data, tuned with the same budget."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from fast.core import Strategy
from fast.errors import FastError
from fast.lab.journal import CantWrite, Journal
from fast.lab.judging import Judge, Question, judge_run, judge_trial
from fast.lab.known import check_known
from fast.lab.measures import Run
from fast.lab.plan import REAL, Plan
from fast.lab.results import Comparison, Result
from fast.lab.settings import Real, Simulated
from fast.lab.surroundings import surroundings
from fast.lab.tracing import trace_events
from fast.lab.tuning import Setting, Trial, Tuning, knobs_for, next_setting
from fast.lab.worlds import ALONE_STEPS, Notes, Trainer, trainer_of
from fast.strategies.calls import short_call

Stage = Literal["alone", "tuning", "run"]
Judged = TypeVar("Judged", Trial, Result)


class Listener(Protocol):
    """Hears how a comparison goes on."""

    def begins(self, stage: Stage, name: str, steps: int) -> None:
        """A training begins; each worker will take about so many steps, 0 if that isn't known."""

    def event(self, message: dict[str, Any]) -> None:
        """Something happened in it: see `fast.engine`."""

    def ends(self, stage: Stage, words: str) -> None:
        """It came to its end, with this outcome."""

    def skips(self, stage: Stage) -> None:
        """It was done before, and is not done again."""


@dataclass(frozen=True)
class Silent:
    """A listener that says nothing."""

    def begins(self, stage: Stage, name: str, steps: int) -> None: ...
    def event(self, message: dict[str, Any]) -> None: ...
    def ends(self, stage: Stage, words: str) -> None: ...
    def skips(self, stage: Stage) -> None: ...


SILENT = Silent()


def compare(
    task: str,
    strategies: str | Sequence[str | Strategy],
    workers: int,
    *,
    world: Real | Simulated = REAL,
    listener: Listener = SILENT,
    **options: Any,
) -> Comparison:
    """Train a task with each strategy; `options` are those of `Plan.of`.

    Same initial weights and same data order for all of them, the same number of samples, and the
    score on data that nobody trained or tuned on. A strategy that fails gets a row that says why.
    """
    return run_plan(Plan.of(task, strategies, workers, world=world, **options), listener)


def run_plan(plan: Plan, listener: Listener = SILENT, journal: Journal | None = None) -> Comparison:
    """Run a comparison that has been checked; what the journal has already is not run again."""
    with trainer_of(plan) as trainer:
        return _Comparing(plan, trainer, listener, journal or Journal()).run()


@dataclass
class _Comparing:
    """A comparison under way."""

    plan: Plan
    trainer: Trainer
    listener: Listener
    journal: Journal
    tunings: list[Tuning] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    alone_samples_per_s: float | None = None
    surroundings: Mapping[str, Any] = field(default_factory=surroundings)
    started: str = ""

    def run(self) -> Comparison:
        check_known(self.journal)
        self.started = self._once("started", lambda: {"at": _now()})["at"]
        self._update()
        self.alone_samples_per_s = self._once("alone", self._measure_alone)["samples_per_s"]
        settings = {repr(strategy): self._tuned(strategy) for strategy in self.plan.strategies}
        labels = _labels(settings)
        test = Judge(self.plan.task, self.plan.task.test())
        for seed in self.plan.settings.seeds:
            for asked, setting in settings.items():
                self._run(asked, setting, labels[asked], seed, test)
        ended = self._once("ended", lambda: {"at": _now()})["at"]
        return self._update(ended)

    def _once(self, key: str, make: Any) -> Mapping[str, Any]:
        if key not in self.journal.finished:
            self.journal.finish(key, key, make())
        return self.journal.finished[key]

    def _measure_alone(self) -> dict[str, float | None]:
        """Nothing depends on it but one column: if it fails, so will the runs, and say why."""
        if self.plan.settings.workers == 1:
            return {"samples_per_s": None}
        if self.plan.settings.simulated:  # nothing to run: it follows from the time of a step
            return {"samples_per_s": self.trainer.alone_samples_per_s(self.listener.event)}
        self.listener.begins("alone", "one worker alone", ALONE_STEPS)
        try:
            measured = self.trainer.alone_samples_per_s(self.listener.event)
        except Exception as error:
            self.listener.event({"event": "failed", "error": error})
            measured = None
        self.listener.ends("alone", "no throughput" if measured is None else f"{measured:.0f} samples/s")
        return {"samples_per_s": measured}

    # Tuning

    def _tuned(self, strategy: Strategy) -> Setting:
        asked, trials = repr(strategy), list[Trial]()
        if not self.plan.settings.tune:
            return Setting(asked)
        judge = Judge(self.plan.task, self.plan.task.validation())
        question = Question(judge, self.plan.settings.target, self.plan.budget)
        # Another trial may choose another setting: not after a run has been made with this one.
        again = not any(self._is_done(_run_key(asked, seed)) for seed in self.plan.settings.seeds)
        knobs = knobs_for(strategy, self.plan.settings.workers)
        for number in range(self.plan.settings.tune):
            setting = next_setting(asked, knobs, trials)
            trials.append(self._trial(f"trial {number} of {asked}", setting, question, again))
        self.tunings.append(Tuning(asked, trials))
        return self.tunings[-1].chosen.setting

    def _trial(self, key: str, setting: Setting, question: Question, again: bool) -> Trial:
        """`again`: whether one that failed is tried once more."""
        if self._is_done(key, again):
            self.listener.skips("tuning")
            return msgspec.convert(self.journal.finished[key], Trial)
        name = f"{short_call(setting.call)}, rate x {setting.rate:g}"
        judge = partial(judge_trial, question, setting)
        trial = self._attempt("tuning", name, key, setting, self.plan.tuning_seed, judge)
        if isinstance(trial, str):
            trial = Trial(setting.call, setting.rate, error=trial)
        self.journal.finish("trial", key, msgspec.to_builtins(trial))
        self.listener.ends(
            "tuning", _words(trial.error, trial.score, trial.time_to_target_s, "validation score")
        )
        return trial

    # Runs

    def _run(self, asked: str, setting: Setting, label: str, seed: int, test: Judge) -> None:
        key = _run_key(asked, seed)
        if self._is_done(key):
            self.results.append(msgspec.convert(self.journal.finished[key], Result))
            self.listener.skips("run")
            return
        result = self._result(key, asked, setting, label, seed, test)
        self.journal.finish("run", key, result.to_json())
        self.results.append(result)
        self._update()
        self.listener.ends("run", _words(result.error, result.final_score, result.time_to_target_s, "score"))

    def _result(self, key: str, asked: str, setting: Setting, label: str, seed: int, test: Judge) -> Result:
        seeds, settings = self.plan.settings.seeds, self.plan.settings
        name = f"{label}, seed {seed}" if len(seeds) > 1 else label
        first = seed == seeds[0]
        question = Question(
            test,
            settings.target,
            self.plan.budget,
            self.alone_samples_per_s,
            paced=settings.pace_s is not None,
            timeline=first,
        )

        def judge(run: Run) -> Result:
            result = judge_run(question, setting, asked, label, seed, run)
            if first:
                self._trace(settings.strategies.index(asked), label, run)
            return result

        result = self._attempt("run", name, key, setting, seed, judge)
        if not isinstance(result, str):
            return result
        return Result(
            strategy=setting.call, seed=seed, asked=asked, label=label, rate=setting.rate, error=result
        )

    def _is_done(self, key: str, again: bool = True) -> bool:
        """What failed is tried again: the disk may have been full then."""
        finished = self.journal.finished.get(key)
        return finished is not None and not (again and finished.get("error") is not None)

    def _attempt(
        self,
        stage: Stage,
        name: str,
        key: str,
        setting: Setting,
        seed: int,
        judge: Callable[[Run], Judged],
    ) -> Judged | str:
        """What a run was worth, or why there is none. Strategy and task may be anybody's code:
        whatever they raise ends their own run and no other."""

        def listen(message: dict[str, Any]) -> None:
            if "virtual_s" in message:
                self.journal.note("tick", run=key, steps=message["steps"][0], virtual_s=message["virtual_s"])
            self.listener.event(message)

        budget = self.plan.budget
        self.listener.begins(stage, name, 0 if budget.seconds is not None else budget.steps)
        try:
            return judge(self.trainer.train(setting, seed, Notes(listen, key, self.journal.metrics)))
        except CantWrite:
            raise
        except Exception as error:
            self.listener.event({"event": "failed", "error": error})
            return str(error) if isinstance(error, FastError) else f"{type(error).__name__}: {error}"

    def _trace(self, process: int, label: str, run: Run) -> None:
        excerpts = [report.excerpt for report in run.participants if report.excerpt is not None]
        self.journal.trace(trace_events(process, label, excerpts, run.began_ns))

    def _update(self, ended: str | None = None) -> Comparison:
        """The comparison as it stands, told to the journal."""
        plan, settings = self.plan, self.plan.settings
        facts = {**plan.facts, "reference_samples_per_s": self.alone_samples_per_s}
        if settings.tune:
            facts["tuning_seed"] = plan.tuning_seed
        comparison = Comparison(
            task=settings.task,
            workers=settings.workers,
            world="sim" if settings.simulated else "real",
            target=settings.target,
            results=tuple(self.results),
            tuning=tuple(tuning.to_json() for tuning in self.tunings),
            about={
                "settings": msgspec.to_builtins(settings),
                "facts": facts,
                **self.surroundings,
                "timestamps": {"started": self.started, "ended": ended},
            },
        )
        self.journal.update(comparison.to_json())
        return comparison


def _run_key(asked: str, seed: int) -> str:
    return f"run of {asked} with seed {seed}"


def _labels(settings: Mapping[str, Setting]) -> dict[str, str]:
    """A short name for each; where two were tuned to the same, what was asked for stands before it."""
    short = {asked: short_call(setting.call) for asked, setting in settings.items()}
    names = list(short.values())
    return {
        asked: name if names.count(name) == 1 else f"{short_call(asked)} as {name}"
        for asked, name in short.items()
    }


def _words(error: str | None, score: float | None, time_s: float | None, what: str) -> str:
    if error is not None:
        return "failed"
    if score is None:
        return "diverged"
    return f"{what} {score:.3f}, " + (
        "target not reached" if time_s is None else f"target after {time_s:.2f} s"
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
