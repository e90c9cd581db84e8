"""`fast compare`: strategies side by side, on real workers of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from fast.cli.comparing import FolderOption, carry_out
from fast.cli.grouping import GroupsOption
from fast.cli.options import (
    AgainOption,
    Asked,
    EpochsOption,
    JsonOption,
    NameOption,
    ResumeOption,
    SecondsOption,
    SeedOption,
    SeedsOption,
    SplitOption,
    StrategiesOption,
    TargetOption,
    TaskArgument,
    TicksOption,
    TuneOption,
    WorkersOption,
)
from fast.lab import DEFAULT_TRIALS, Real
from fast.sim import parse_duration

_SEEDS = 3


def compare_command(
    task: TaskArgument = None,
    strategies: StrategiesOption = None,
    workers: WorkersOption = None,
    target: TargetOption = None,
    epochs: EpochsOption = None,
    seconds: SecondsOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    tune: TuneOption = None,
    split: SplitOption = None,
    pace: Annotated[
        str | None,
        typer.Option(
            help="Make every step take at least this time, such as 20ms. For machines with fewer cores than workers."
        ),
    ] = None,
    straggler: Annotated[
        str | None,
        typer.Option(
            help="Slow workers, by sleeping. 4x: the last one is 4 times slower. 5x@0.1: every one in a random tenth "
            "of its steps. 5x@0.1/50: in stretches of 50.",
            show_default="none",
        ),
    ] = None,
    ticks: TicksOption = None,
    groups: GroupsOption = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Seconds without a sign of life after which a worker counts as lost.", show_default="60"
        ),
    ] = None,
    name: NameOption = None,
    runs: FolderOption = None,
    again: AgainOption = None,
    resume: ResumeOption = None,
    json: JsonOption = None,
) -> int:
    """Train TASK with each strategy on real workers and compare time to target, score and traffic.

    All strategies start from the same weights and see the same samples in the same order. First, 8
    trials tune each strategy's learning rate on validation data. Then each runs with 3 seeds. The score is
    that of the final model on test data; it is computed after the run, so it doesn't slow it down. The
    report is in runs/NAME/report.html.
    """
    asked = Asked(
        task, strategies, workers, target, epochs, seconds, seed, seeds, tune, split, ticks,
        None if pace is None else parse_duration(pace) / 1e9, deadline, straggler=straggler, groups=groups,
    )  # fmt: skip
    return carry_out(
        asked,
        lambda: asked.plan(Real(straggler), seeds=_SEEDS, tune=DEFAULT_TRIALS),
        name=name,
        runs=runs,
        again=again,
        resume=resume,
        json=json,
    )
