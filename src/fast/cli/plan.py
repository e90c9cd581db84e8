"""`fast plan`: which strategy for a cluster that nobody has paid for yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.advice import Following, console_for, print_advice, print_check
from fast.cli.comparing import check_json
from fast.cli.display import write_json
from fast.cli.options import (
    Asked,
    ClusterOption,
    HostsOption,
    RacksOption,
    SpeedsOption,
    SpreadOption,
    StragglerOption,
)
from fast.errors import UsageError
from fast.lab import Simulated
from fast.lab.planner.advice import Advice
from fast.lab.planner.advisor import advise
from fast.lab.planner.checking import check_advice
from fast.lab.planner.measuring import sizes_of
from fast.lab.planner.needs import Needs, parse_memory
from fast.lab.planner.picture import advice_picture
from fast.lab.planner.situation import Situation
from fast.sim.cluster.options import check_speeds


def plan_command(
    task: Annotated[
        str | None,
        typer.Argument(help="Task, or file.py:Name of a task or a torch.nn.Module, whose size is measured."),
    ] = None,
    parameters: Annotated[
        float | None, typer.Option(help="Number of parameters of the model, such as 25e6, instead of TASK.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(help="Time that a worker takes to compute one gradient: 0.2s, 20ms.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", help="Number of workers; servers are not counted.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Network between hosts: loopback, 1gbit, 10gbit, infiniband, wan, wifi, or "
            "rate,latency such as 100mbit,1ms."
        ),
    ] = None,
    cluster: ClusterOption = None,
    straggler: StragglerOption = None,
    spread: SpreadOption = None,
    speeds: SpeedsOption = None,
    hosts: HostsOption = None,
    racks: RacksOption = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="The same run must give the same weights every time.")
    ] = False,
    unreliable: Annotated[
        bool, typer.Option("--unreliable", help="Machines may fail, leave or join during the run.")
    ] = False,
    hostile: Annotated[int, typer.Option(help="Number of workers that may send wrong values.")] = 0,
    tuning: Annotated[
        str, typer.Option(help="Effort spent on hyperparameters: normal, or low for no search.")
    ] = "normal",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of a worker for weights, gradient and optimizer, such as 4GB.", show_default="enough"
        ),
    ] = None,
    not_iid: Annotated[
        bool, typer.Option("--not-iid", help="The workers' data have different distributions.")
    ] = False,
    small_data: Annotated[
        bool, typer.Option("--small-data", help="A worker's share is too small to learn from alone.")
    ] = False,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Train the first three in the simulator and compare with the prediction."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of that simulation.")] = 0,
    json: Annotated[
        str | None, typer.Option("--json", help="Also write the advice to this file; - is standard output.")
    ] = None,
    picture: Annotated[str | None, typer.Option(help="Draw the candidates into this SVG file.")] = None,
) -> int:
    """Say which strategy to take, how fast it will be and why, from sizes, speeds and needs alone.

    A short simulation without values predicts every strategy that your needs allow, and rules from the
    literature explain the choice. Nothing is trained, except with --simulate.
    """
    check_json(json)
    _check_picture(picture)
    needs = Needs(
        reproducible, unreliable, hostile, tuning,
        None if memory is None else parse_memory(memory), not not_iid, small_data,
    )  # fmt: skip
    world = Asked(
        network=network, step=step, straggler=straggler,
        cluster=cluster, hosts=hosts, racks=racks, speeds=speeds, spread=spread,
    ).simulated()  # fmt: skip
    situation = _situation(task, parameters, _checked(workers, world), world, needs)
    if speeds is not None:
        check_speeds(speeds, situation.workers)
    with Following() as following:
        advice = advise(situation, on_progress=following.tell)
        checked = check_advice(advice, seed=seed, tell=following.say) if simulate and advice.best else None
    console = console_for(to_stderr=json == "-")
    print_advice(console, advice)
    if checked is not None:
        print_check(console, checked)
    if json is not None:
        write_json(json, {**advice.to_json(), "check": None if checked is None else checked.to_json()})
    if advice.best is not None:
        _draw(advice, picture)
    elif simulate or picture is not None:
        print("fast: there is nothing to simulate or to draw: nothing that FAST has fits", file=sys.stderr)
    return 0


def _checked(workers: int | None, world: Simulated) -> int:
    """What has no sensible default has to be said."""
    if workers is None:
        raise UsageError("a plan for how many workers? Give --workers 64")
    if world.step is None and world.cluster is None:
        raise UsageError(
            "how long does a worker compute one gradient? Give --step 0.2s, or a --cluster file of `fast calibrate`"
        )
    if world.network is None and world.cluster is None:
        raise UsageError(
            "over which network? Give --network 1gbit (or 10gbit, infiniband, wan, wifi, 100mbit,1ms), or a --cluster "
            "file"
        )
    return workers


def _situation(
    task: str | None, parameters: float | None, workers: int, world: Simulated, needs: Needs
) -> Situation:
    sizes, measured = sizes_of(task, parameters)
    return Situation.of(sizes, workers, world, needs, task=measured)


def _check_picture(to: str | None) -> None:
    """Find out before the work whether it can be written."""
    if to is None:
        return
    path = Path(to)
    if path.suffix != ".svg":
        raise UsageError(f"--picture {to}: pictures are SVG files; give a name that ends with .svg")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"--picture {to}: can't write there")


def _draw(advice: Advice, to: str | None) -> None:
    if to is None:
        return
    try:
        Path(to).write_text(advice_picture(advice), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--picture {to}: can't write there: {error.strerror}") from error
