"""`fast simulate`: strategies side by side, on a cluster you don't have."""

from __future__ import annotations

from typing import Annotated

import typer

from fast.cli.comparing import carry_out
from fast.cli.options import (
    AgainOption,
    Asked,
    EpochsOption,
    JsonOption,
    NameOption,
    ResumeOption,
    RunsOption,
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
from fast.lab import Simulated

_SEEDS = 1
_WORLD = Simulated()


def simulate_command(
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
    network: Annotated[
        str | None,
        typer.Option(
            help="loopback, 1gbit, 10gbit, infiniband, wan, or rate,latency such as 100mbit,1ms.",
            show_default="1gbit",
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="How long a worker computes one gradient.", show_default="20ms")
    ] = None,
    straggler: Annotated[
        str | None,
        typer.Option(
            help="4x: the last worker is 4 times slower; 5x@0.1: every worker, in a tenth of its steps."
        ),
    ] = None,
    ticks: TicksOption = None,
    name: NameOption = None,
    runs: RunsOption = "runs",
    again: AgainOption = None,
    resume: ResumeOption = None,
    json: JsonOption = None,
) -> int:
    """Train TASK with each strategy on simulated workers: real gradients, virtual time.

    The programs are those of real workers; computing and links are models, and all times are
    virtual. The same arguments give the same result, to the last digit. Unless told otherwise
    there is one seed, and everybody keeps the task's own learning rate.
    """
    asked = Asked(
        task, strategies, workers, target, epochs, seconds, seed, seeds, tune, split, ticks,
        network=network, step=step, straggler=straggler,
    )  # fmt: skip
    world = Simulated(network or _WORLD.network, step or _WORLD.step, straggler)
    return carry_out(
        asked,
        lambda: asked.plan(world, seeds=_SEEDS, tune=0),
        name=name,
        runs=runs,
        again=again,
        resume=resume,
        json=json,
    )
