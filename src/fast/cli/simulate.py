"""`fast simulate`: strategies side by side, on a cluster you don't have."""

from __future__ import annotations

from typing import Annotated

import typer

from fast.cli.comparing import FolderOption, carry_out
from fast.cli.fuzz import check_fuzzed, fuzz_strategies
from fast.cli.grouping import GroupsOption
from fast.cli.options import (
    AgainOption,
    Asked,
    ClusterOption,
    EpochsOption,
    GradientsOption,
    HostsOption,
    JsonOption,
    NameOption,
    NetworkOption,
    RacksOption,
    ResumeOption,
    ScenarioOption,
    SecondsOption,
    SeedOption,
    SeedsOption,
    SpeedsOption,
    SplitOption,
    SpreadOption,
    StepOption,
    StragglerOption,
    StrategiesOption,
    TargetOption,
    TaskArgument,
    TicksOption,
    TuneOption,
    WorkersOption,
)
from fast.cli.sizes import SizesAsked, check_sized, simulate_sizes_only
from fast.errors import UsageError
from fast.lab import Plan, Simulated
from fast.sim.cluster.options import check_speeds

_SEEDS = 1


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
    network: NetworkOption = None,
    step: StepOption = None,
    straggler: StragglerOption = None,
    hosts: HostsOption = None,
    racks: RacksOption = None,
    speeds: SpeedsOption = None,
    spread: SpreadOption = None,
    cluster: ClusterOption = None,
    gradients: GradientsOption = None,
    scenario: ScenarioOption = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check after every event that the strategy keeps its promises; end the run if not.",
        ),
    ] = False,
    fuzz: Annotated[
        int | None,
        typer.Option(
            help="Instead of a comparison, test each strategy with this many seeds, from --seed on. Each draws random "
            "machines and faults. Stops where a strategy breaks a promise. Default task: quadratic."
        ),
    ] = None,
    sizes_only: Annotated[
        bool,
        typer.Option(
            "--sizes-only",
            help="Simulate sizes without values: step times and bytes sent for thousands of workers. "
            "Nothing is learned.",
        ),
    ] = False,
    parameters: Annotated[
        float | None,
        typer.Option(help="With --sizes-only: number of parameters of the model, instead of TASK."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="With --sizes-only: number of steps per worker.", show_default="100")
    ] = None,
    ticks: TicksOption = None,
    groups: GroupsOption = None,
    name: NameOption = None,
    runs: FolderOption = None,
    again: AgainOption = None,
    resume: ResumeOption = None,
    json: JsonOption = None,
) -> int:
    """Train TASK with each strategy on simulated workers: real gradients, virtual time.

    The strategies are the same programs as on real workers. Computing and network are models, and all times
    are virtual. The same arguments give the same result, to the last digit. By default there is one seed and
    no tuning: every strategy uses the task's own learning rate.
    """
    asked = Asked(
        task, strategies, workers, target, epochs, seconds, seed, seeds, tune, split, ticks,
        network=network, step=step, straggler=straggler,
        cluster=cluster, hosts=hosts, racks=racks, speeds=speeds, spread=spread, gradients=gradients,
        scenario=scenario, check=check or None, groups=groups,
    )  # fmt: skip
    sized = SizesAsked(parameters, steps) if sizes_only or parameters is not None else None
    if sized is not None:
        folder = [("name", name), ("runs", runs), ("again", again), ("resume", resume)]
        check_sized(asked, [("fuzz", fuzz), *folder])
    if fuzz is not None:
        check_fuzzed(asked, name=name, runs=runs, again=again, resume=resume, steps=steps)
        return fuzz_strategies(task, strategies, fuzz, seed or 0, json)
    world = asked.simulated()
    if sized is not None:
        return simulate_sizes_only(asked, sized, world, json)
    if steps is not None:
        raise UsageError(
            "--steps belongs to --sizes-only; how long workers train is said by --epochs or --seconds"
        )
    return carry_out(
        asked,
        lambda: _plan(asked, world),
        name=name,
        runs=runs,
        again=again,
        resume=resume,
        json=json,
    )


def _plan(asked: Asked, world: Simulated) -> Plan:
    plan = asked.plan(world, seeds=_SEEDS, tune=0)
    if asked.speeds is not None:
        check_speeds(asked.speeds, plan.settings.workers)
    return plan
