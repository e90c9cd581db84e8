"""`fast simulate`: strategies side by side, on a cluster you don't have."""

from __future__ import annotations

from typing import Annotated

import typer

from fast.cli.comparing import DEFAULT_STRATEGIES, check_json, run_and_report
from fast.cli.run import check_workers
from fast.lab import Plan, Simulated
from fast.sim import Compute, parse_duration, parse_network, parse_straggler


def simulate_command(
    task: Annotated[str, typer.Argument(help="A built-in task (digits), or file.py:Name.")],
    strategies: Annotated[
        str,
        typer.Option(
            "--strategies", "-s", help="Names or calls, separated by commas; also file.py:Name(...)."
        ),
    ] = DEFAULT_STRATEGIES,
    workers: Annotated[
        int, typer.Option("--workers", "-w", help="How many workers (servers not counted).")
    ] = 4,
    target: Annotated[
        float | None, typer.Option(help="The score to reach, above 0 and at most 1; default: the task's.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data, all workers together; default: the task's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything; the same seed gives the same result.")] = 0,
    network: Annotated[
        str,
        typer.Option(help="loopback, 1gbit, 10gbit, infiniband, wan, or rate,latency such as 100mbit,1ms."),
    ] = "1gbit",
    step: Annotated[str, typer.Option(help="How long a worker computes one gradient.")] = "20ms",
    straggler: Annotated[
        str | None,
        typer.Option(
            help="4x: the last worker is 4 times slower; 5x@0.1: every worker, in a tenth of its steps."
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the results to this file; - is stdout.")
    ] = None,
) -> int:
    """Train TASK with each strategy on simulated workers: real gradients, virtual time.

    The programs are those of real workers; computing and links are models, and all times are
    virtual. The same arguments give the same result, to the last digit.
    """
    check_workers(workers)
    check_json(json)
    slow = None if straggler is None else parse_straggler(straggler)
    world = Simulated(parse_network(network), Compute(parse_duration(step) / 1e9, slow))
    plan = Plan.of(task, strategies, workers, target=target, epochs=epochs, seeds=[seed])
    words = f"{task}: {workers} simulated worker{'s' * (workers > 1)}, {network}, step {step}"
    if straggler is not None:
        words += f", straggler {straggler}"
    return run_and_report(plan, world, f"{words}, target {plan.target:g}", json)
