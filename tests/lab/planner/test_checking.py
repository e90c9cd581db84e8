"""Whether an advice was right: on which ground it is checked, how long trainings take, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fast.lab import Budget, Simulated, load_task, simulate_task
from fast.lab.judging import Judge
from fast.lab.planner import checking
from fast.lab.planner.checking import Checked, Ground, Trained, check_advice, ground_of, scaled, trained
from fast.lab.planner.needs import Needs
from fast.lab.planner.situation import Situation
from fast.lab.sizes import Sizes, simulate_sizes
from fast.lab.tasks import Digits
from fast.loop.loading import strategy_from
from fast.sim.cluster import Cluster, Compute, Hosts, Network, Racks, Work, to_toml

DIGITS_BYTES = 4 * (64 * 64 + 64 + 64 * 10 + 10)


class Easy(Digits):  # type: ignore[misc]
    """Digits with a target that is reached in an epoch or two."""

    target = 0.7


def bare(workers: int = 4, parameters: float = 25e6, **world: Any) -> Situation:
    return Situation.of(Sizes.of_parameters(parameters), workers, Simulated(**world))


def ground(epochs: float, rates: tuple[float, ...] = (1.0,), **world: Any) -> Ground:
    situation = replace(bare(**world), task="digits")
    return replace(ground_of(situation), task=Easy(), epochs=epochs, rates=rates)


# The ground


def test_the_plan_s_own_task_is_trained_on_its_own_machines() -> None:
    situation = replace(bare(8, network="10gbit", step="5ms", straggler="2x"), task="digits")
    found = ground_of(situation)
    assert (found.name, found.workers, found.cluster) == ("digits", 8, situation.machines)
    assert (found.rates, found.epochs, found.split) == ((1.0,), 60.0, "iid")


def test_for_a_bare_number_digits_stands_in() -> None:
    situation = bare(64, network="1gbit", step="0.2s")
    found = ground_of(situation)
    assert found.name == "digits" and found.workers == 32 and len(found.rates) == 3
    assert found.cluster.network.rate_bytes_per_s == pytest.approx(125e6 * DIGITS_BYTES / 100e6)
    assert found.cluster.compute == situation.machines.compute
    assert "32 workers for 64" in found.words and "digits stands in for 25,000,000 parameters" in found.words


def test_data_that_differs_is_divided_so() -> None:
    situation = replace(bare(), needs=Needs(iid=False))
    assert ground_of(situation).split == "dirichlet(0.3)"


@pytest.mark.parametrize("call", ["allreduce", "local_sgd(tau=2)"])
def test_a_step_takes_as_long_as_in_the_plan(call: str) -> None:
    """A mean is a formula without headers; which parameters have a gradient is told beside it, in a few bytes."""
    situation = bare(8, network="1gbit", step="50ms", spread=0.2)
    small = Sizes.of_task("digits", load_task("digits"))
    times = [
        simulate_sizes(
            sizes, strategy_from(call), workers=8, steps=10, world=Simulated(cluster=to_toml(machines))
        )
        for sizes, machines in (
            (situation.sizes, situation.machines),
            (small, ground_of(situation).cluster),
        )
    ]
    assert times[1].virtual_s == pytest.approx(times[0].virtual_s, rel=2e-3)
    assert times[1].step_bytes < times[0].step_bytes / 1000


def test_all_rates_are_scaled_and_nothing_else() -> None:
    network = Network(
        1e9,
        1e-3,
        links={(0, 1): Network(1e6, 0.5)},
        message_s=1e-6,
        receive_bytes_per_s=2e9,
        shared=True,
        hosts=Hosts(2),
        inside=Network(4e9, 1e-6),
        racks=Racks(2, 3e9, 1e-4),
    )
    work = Work(
        turn_s=1e-6, apply_rate=1e8, send_rate=2e8, means=((2, 1000, 0.5),), servers=Work(apply_rate=4e8)
    )
    found = scaled(Cluster(Compute(), network, work), 0.5)
    assert found.network == Network(
        5e8,
        1e-3,
        links={(0, 1): Network(5e5, 0.5)},
        message_s=1e-6,
        receive_bytes_per_s=1e9,
        shared=True,
        hosts=Hosts(2),
        inside=Network(2e9, 1e-6),
        racks=Racks(2, 1.5e9, 1e-4),
    )
    assert found.work == Work(
        turn_s=1e-6, apply_rate=5e7, send_rate=1e8, means=((2, 500, 0.5),), servers=Work(apply_rate=2e8)
    )


# Trainings


def test_a_training_ends_at_the_target() -> None:
    """Against the plainest way to find it out."""
    own, strategy = ground(4, network="1gbit", step="5ms"), strategy_from("allreduce")
    found = trained(own, strategy, 1.0, seed=0)
    task = Easy()
    run = simulate_task(
        task, strategy, workers=4, budget=Budget.of(task, 4, 4, ticks=16), cluster=own.cluster, seed=0
    )
    judge = Judge(task, task.test())
    first = next(tick for tick in run.ticks if (judge(tick.state) or 0) >= task.target)
    assert (found.at_s, found.epochs, found.rate) == (first.at_s, first.samples / 896, 1.0)


def test_the_best_rate_counts() -> None:
    own = ground(3, network="1gbit", step="5ms")
    slow, usual = (
        trained(replace(own, rates=(rate,)), strategy_from("allreduce"), 1.0, 0) for rate in (0.01, 1.5)
    )
    assert slow.at_s is None and slow.error is None
    assert trained(replace(own, rates=(0.01, 1.5)), strategy_from("allreduce"), 1.0, 0) == usual


def test_what_can_not_be_trained_says_why() -> None:
    found = trained(ground(1), strategy_from("tensorflow(backups=4)"), 2.0, 0)
    assert found.at_s is None and found.error is not None and "backups" in found.error


def test_the_first_three_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "epochs_of", lambda task: 3.0)
    monkeypatch.setattr(checking, "load_task", lambda name: Easy())
    calls, told = ("allreduce", "local_sgd(tau=2)", "bigdl", "dpsgd"), list[str]()
    ranked = [
        SimpleNamespace(strategy=strategy_from(call), call=call, time=0.5 + 0.25 * place)
        for place, call in enumerate(calls)
    ]
    advice = SimpleNamespace(situation=ground_situation(), ranked=ranked)
    found = check_advice(advice, seed=1, tell=told.append)  # type: ignore[arg-type]
    assert [row.predicted for row in found.rows] == [1.0, 1.5, 2.0]
    assert len(told) == 3 and "local_sgd(tau=2)" in told[1]
    own = ground_of(ground_situation())
    assert found.rows[0] == trained(own, strategy_from("allreduce"), 1.0, 1)
    assert found.right, "all are there after as many steps, and only the means take a little longer"


def ground_situation() -> Situation:
    return replace(bare(network="1gbit", step="5ms"), task="digits")


# The verdict


def row(call: str, at_s: float | None, error: str | None = None) -> Trained:
    return Trained(strategy_from(call).call, 1.0, at_s, 0.5, 3.0, error)


def test_right_is_within_half_as_long_again() -> None:
    right = Checked("here", (row("allreduce", 3.0), row("local_sgd(tau=4)", 2.0)))
    assert (right.ratio, right.right) == (1.5, True)
    assert (
        "was close" in right.verdict
        and "1.50 times as long" in right.verdict
        and "margin of 1.5" in right.verdict
    )
    best = Checked("here", (row("allreduce", 2.0), row("local_sgd(tau=4)", 3.0)))
    assert best.verdict == "The advice was right: its first choice was the best of these."
    wrong = Checked("here", (row("allreduce", 3.1), row("local_sgd(tau=4)", 2.0)))
    assert wrong.right is False and "local_sgd(tau=4) was the best" in wrong.verdict
    never = Checked("here", (row("allreduce", None), row("local_sgd(tau=4)", 2.0)))
    assert (never.ratio, never.right) == (None, False) and "didn't get there" in never.verdict
    nobody = Checked("here", (row("allreduce", None),))
    assert nobody.right is None and "says nothing" in nobody.verdict


def test_lines_and_json_tell_the_same() -> None:
    found = Checked("here:", (row("allreduce", 3.0), row("sgp", None, "UsageError: no"), row("easgd", None)))
    first, *table, verdict = found.lines()
    assert first == "here:" and len(table) == 3 and verdict == found.verdict
    assert "simulated x 1.00: 3 s" in table[0] and "UsageError: no" in table[1] and "didn't reach" in table[2]
    data = found.to_json()
    assert data["right"] is True and data["best"] == found.rows[0].call
    assert [each["time_to_target_s"] for each in data["rows"]] == [3.0, None, None]
