"""`fast compare`: strategies side by side, on real workers of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from fast.cli.comparing import DEFAULT_STRATEGIES, check_json, run_and_report
from fast.cli.run import check_workers
from fast.errors import UsageError
from fast.lab import Plan, Real


def compare_command(
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
    seed: Annotated[
        int, typer.Option(help="Seed of initial weights, data order, dropout and random choices.")
    ] = 0,
    deadline: Annotated[
        float, typer.Option(help="Seconds without a sign of life until a peer is given up.")
    ] = 60.0,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the results to this file; - is stdout.")
    ] = None,
) -> int:
    """Train TASK with each strategy on real workers and compare time to target, score and traffic.

    All start from the same weights, see the same data and the same number of samples. The score
    is that of the mean model on test data, found out after the run, so that nothing disturbs it.
    """
    check_workers(workers)
    check_json(json)
    if not deadline > 0:
        raise UsageError(f"--deadline {deadline:g}: a deadline is longer than 0 seconds")
    plan = Plan.of(task, strategies, workers, target=target, epochs=epochs, seeds=[seed])
    title = f"{task}: {workers} worker{'s' * (workers > 1)} on this machine, target {plan.target:g}"
    return run_and_report(plan, Real(deadline), title, json)
