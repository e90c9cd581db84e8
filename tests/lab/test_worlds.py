"""Real and simulated workers: the same task, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fast.engine import LocalEngine
from fast.lab import Budget, Plan, Real, Run, Simulated, load_task, simulate_task, train_task
from fast.lab.tuning import Setting
from fast.lab.worlds import Notes, trainer_of
from fast.loop.loading import strategy_from
from fast.sim import Compute, parse_network, parse_straggler
from running import Lent

pytestmark = pytest.mark.real

OWN = f"{Path(__file__).parent / 'problems.py'}:Dropout"
SYNCHRONOUS = ("allreduce", "local_sgd(tau=2)", "dpsgd", "ssp(bound=0)")


def both(engine: LocalEngine, task: str, strategy: str, workers: int, epochs: float) -> tuple[Run, Run]:
    budget, seed = Budget.of(load_task(task), workers, epochs), 3
    real = train_task(task, strategy, workers=workers, budget=budget, seed=seed, engine=engine)
    simulated = simulate_task(
        load_task(task),
        strategy_from(strategy),
        workers=workers,
        budget=budget,
        network=parse_network("1gbit"),
        compute=Compute(straggler=parse_straggler("3x@0.3")),
        seed=seed,
    )
    return real, simulated


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
@pytest.mark.parametrize(("task", "workers", "epochs"), [("digits", 3, 1.2), (OWN, 2, 3), (OWN, 3, 2)])
def test_synchronous_training_gives_the_same_bits_in_both_worlds(
    engine: LocalEngine, task: str, workers: int, epochs: float, strategy: str
) -> None:
    """More than one epoch, each with a short last step; dropout and BatchNorm in the own task."""
    real, simulated = both(engine, task, strategy, workers, epochs)
    for ours, theirs in zip(real.weights, simulated.weights, strict=True):
        assert torch.equal(ours, theirs)
    assert real.final.keys() == simulated.final.keys()
    for name, value in real.final.items():
        assert torch.equal(value, simulated.final[name]), name
    for ours, theirs in zip(real.ticks, simulated.ticks, strict=True):
        assert all(torch.equal(value, theirs.state[name]) for name, value in ours.state.items())
    for ours, theirs in zip(real.workers, simulated.workers, strict=True):
        assert (ours.steps, ours.samples, ours.bytes_sent) == (
            theirs.steps,
            theirs.samples,
            theirs.bytes_sent,
        )
        assert ours.staleness == theirs.staleness


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(tau=2)"])
def test_groups_that_a_plan_names_are_those_of_both_worlds(strategy: str, engine: LocalEngine) -> None:
    """As `--groups` says them, with short last steps, so that the weights of a mean are unequal."""

    def trained(world: Real | Simulated, groups: str | None) -> torch.Tensor:
        plan = Plan.of(OWN, strategy, 4, epochs=2, groups=groups, world=world)
        with trainer_of(plan) as trainer:
            if isinstance(world, Real):
                trainer._engine = Lent(engine)  # type: ignore[attr-defined]
            setting = Setting(plan.settings.strategies[0], 1.0)
            return trainer.train(setting, 3, Notes(lambda event: None, "a")).weights[0]

    exact, hosts = Simulated(gradients="exact"), Simulated(gradients="exact", hosts="2")
    crossed, plain = trained(Real(), "0+2,1+3"), trained(Real(), None)
    assert torch.equal(crossed, trained(exact, "0+2,1+3")) and not torch.equal(crossed, plain)
    assert torch.equal(plain, trained(exact, None)) and torch.equal(plain, trained(hosts, "all"))
    assert torch.equal(trained(Real(), "2x2"), trained(hosts, None))


def test_one_worker_trains_as_in_the_simulator(engine: LocalEngine) -> None:
    real, simulated = both(engine, OWN, "allreduce", 1, 2)
    assert torch.equal(real.weights[0], simulated.weights[0])
    assert real.workers[0].samples == simulated.workers[0].samples == 220


def test_workers_that_never_wait_stop_together_at_the_budget(engine: LocalEngine) -> None:
    """The total passes the budget by less than one step of each worker, and every tick is taken."""
    real, simulated = both(engine, OWN, "gossip(p=0.5)", 3, 4)
    for run in (real, simulated):
        total = sum(report.samples for report in run.workers)
        assert 440 <= total < 440 + 3 * 16
        assert len(run.ticks) == 50
        times = [tick.at_s for tick in run.ticks]
        assert times == sorted(times) and times[0] > 0


def test_staleness_is_measured_at_the_server(engine: LocalEngine) -> None:
    """Every push is one included update. Between a worker's read and its push each of the others
    pushes at most 2 s + 1 times: from s clocks behind it to s + 1 clocks ahead."""
    real, simulated = both(engine, OWN, "ssp(bound=1)", 3, 3)
    for run in (real, simulated):
        (server,) = run.servers
        assert sum(server.staleness.values()) == sum(report.steps for report in run.workers)
        assert all(not report.staleness for report in run.workers)
        assert run.staleness.max_staleness == max(server.staleness) <= (3 - 1) * (2 * 1 + 1)


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(tau=3)", "dpsgd", "ssp(bound=0)"])
def test_in_lock_step_a_budget_of_time_ends_everybody_at_the_same_step(
    engine: LocalEngine, strategy: str
) -> None:
    """And all copies of a tick are of one step: where replicas agree they are the same."""
    budget = Budget.of(load_task(OWN), 3, 1.0, ticks=5, seconds=0.3)
    real = train_task(OWN, strategy, workers=3, budget=budget, engine=engine, pace_s=0.005)
    simulated = simulate_task(
        load_task(OWN), strategy_from(strategy), workers=3, budget=budget,
        network=parse_network("1gbit"), compute=Compute(0.01, parse_straggler("3x@0.3")),
    )  # fmt: skip
    for run in (real, simulated):
        assert len({report.steps for report in run.workers}) == 1
        assert len(run.ticks) == 5 and run.ticks[-1].at_s >= 0.3
        if strategy in ("allreduce", "ssp(bound=0)"):
            assert [tick.distance for tick in run.ticks] == [0.0] * 5


@pytest.mark.parametrize("strategy", ["ssp(bound=2)", "gossip(p=0.5)"])
def test_a_budget_of_time_ends_those_who_dont_wait_and_their_server(
    engine: LocalEngine, strategy: str
) -> None:
    budget = Budget.of(load_task(OWN), 3, 1.0, ticks=5, seconds=0.3)
    run = train_task(OWN, strategy, workers=3, budget=budget, engine=engine, pace_s=0.005)
    assert len(run.ticks) == 5 and all(report.steps > 3 for report in run.workers)
    assert all(len(server.tick_ns) == 5 for server in run.servers)


def test_a_tick_is_complete_when_the_copies_that_make_the_model_are(engine: LocalEngine) -> None:
    """In lock-step those are the workers', although the server takes note of the tick later."""
    budget = Budget.of(load_task(OWN), 3, 2.0, ticks=4)
    run = train_task(OWN, "ssp(bound=0)", workers=3, budget=budget, engine=engine)
    for number, tick in enumerate(run.ticks):
        last_ns = max(report.tick_ns[number] for report in run.workers)
        assert tick.at_s == (last_ns - run.began_ns) / 1e9
    (server,) = run.servers
    assert len(server.tick_ns) == 4 and server.tick_bytes[-1] > 0
