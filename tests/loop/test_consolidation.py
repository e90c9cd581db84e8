"""One model out of many replicas: each policy against an independent reckoning, at the end and in between."""

from __future__ import annotations

import math
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.loop.reestimating import estimate, layers_of
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.policies import Average, Best, Chosen, Ema
from fast.runtime.gathering import representatives
from fast.runtime.moving import MovingAverage
from running import plainly

WIDTH, LOCAL = 5, "local_sgd(tau=1000)"
"""With this strategy nobody ever exchanges anything, so all replicas differ."""


def make_model() -> nn.Module:
    """With statistics, a counter and something random in it."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
    ).double()


def batch_of(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    x = torch.randn(7, WIDTH, generator=generator, dtype=torch.float64) + worker
    return x, x.sin().sum(1, keepdim=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, worker: int, step: int) -> None:
    x, y = batch_of(worker, step)
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Trained:
    """A worker that has taken its steps: its states after each of them, and what it is asked for at the end."""

    def __init__(self, steps: int, strategy: str, **options: Any) -> None:
        self.worker = current_seat().id
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        fast.join(self.model, self.optimizer, strategy, **options)
        self.states: list[dict[str, Tensor]] = []
        for step in range(steps):
            train_step(self.model, self.optimizer, self.worker, step)
            self.states.append(state_of(self.model))

    def ends(self, final: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """This worker's own last state, and that of the common model."""
        own = state_of(self.model)
        close_sessions(current_seat())
        return own, state_of(final)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def near(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-12) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name].double(), other[name].double(), rtol=tolerance, atol=tolerance)
        for name in one
    )


def consolidated(steps: list[int], policy: Any, strategy: str = LOCAL, **options: Any) -> list[Any]:
    """Everybody's own last state and the model that it got."""

    def body(worker: int) -> Any:
        trained = Trained(steps[worker], strategy, **options)
        return trained.ends(fast.consolidate(trained.model, policy))

    results = run_threads(len(steps), body, serve)
    assert all(same(final, results[0][1]) for _, final in results), "the same bits for all"
    return results


def mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: sum(state[name] for state in states) / len(states)  # type: ignore[misc]
        if value.is_floating_point()
        else torch.stack([state[name] for state in states]).amax(0)
        for name, value in states[0].items()
    }


# At the end


def test_the_average_is_the_mean_of_all_who_trained():
    results = consolidated([2, 5, 4], "average")
    assert near(results[0][1], mean_state([own for own, _ in results]))


@pytest.mark.parametrize(
    ("at_least", "count"), [(0.0, 3), (0.4, 3), (0.41, 2), (0.8, 2), (0.81, 1), (1.0, 1)]
)
def test_who_left_early_can_be_left_out_of_the_average(at_least, count):
    """Of the 5 steps of worker 1, worker 2 took four fifths and worker 0 two."""
    results = consolidated([2, 5, 4], Average(at_least=at_least))
    longest = [1, 2, 0][:count]
    assert near(results[0][1], mean_state([results[worker][0] for worker in longest]))


def test_exactly_that_part_of_the_steps_is_enough():
    """Also of 100 steps, where 0.55 * 100 is more than 55 for a computer."""
    strategy = strategy_from(LOCAL)
    for percent in range(1, 101):
        steps = {0: 100, 1: percent, 2: percent - 1}
        assert representatives(strategy, steps, percent / 100) == [0, 1], percent


def test_where_replicas_agree_the_latest_stand_for_all():
    results = consolidated([2, 5, 5], "average", "allreduce")
    weights = ("0.weight", "0.bias", "5.weight")
    assert all(torch.equal(results[0][1][name], results[2][0][name]) for name in weights)
    assert not torch.equal(results[0][1]["0.weight"], results[0][0]["0.weight"])


def test_a_chosen_worker_gives_its_replica_with_its_buffers():
    for worker in range(3):
        results = consolidated([2, 5, 4], Chosen(worker))
        assert same(results[0][1], results[worker][0])


def loss_on(worker: int, model: nn.Module) -> float:
    x, y = batch_of(worker, 99)
    with torch.no_grad():
        return float((model(x) - y).square().mean())


def test_the_best_replica_is_the_one_with_the_highest_score():
    """Each worker's data lie elsewhere, so on other data another one is best."""
    winners = set()
    for expert in range(3):
        results = consolidated([20, 20, 20], Best(lambda model, expert=expert: -loss_on(expert, model)))
        losses = []
        for own, _ in results:
            model = make_model()
            model.load_state_dict(own)
            losses.append(loss_on(expert, model.eval()))
        winner = losses.index(min(losses))
        assert same(results[0][1], results[winner][0])
        winners.add(winner)
    assert len(winners) > 1


def test_of_equally_good_replicas_the_first_worker_wins_and_nan_never_does():
    results = consolidated([2, 3, 4], Best(lambda model: 1.0))
    assert same(results[0][1], results[0][0])
    results = consolidated([2, 3, 4], Best(lambda model: math.nan if current_seat().id < 2 else -1e9))
    assert same(results[0][1], results[2][0])


def test_a_score_sees_a_copy_in_evaluation_mode_and_without_gradients():
    def score(model: nn.Module) -> float:
        assert not model.training and not torch.is_grad_enabled()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # spoils nothing but the copy
        return float(current_seat().id)

    results = consolidated([2, 3, 4], Best(score))
    assert same(results[0][1], results[2][0]) and float(results[2][0]["0.weight"].abs().sum()) > 0


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0, 0.999))
def test_a_moving_average_is_the_weighted_mean_over_all_steps(values, decay):
    average = MovingAverage(decay)
    for value in values:
        average.take(torch.tensor([value], dtype=torch.float64))
    shares = [decay ** (len(values) - 1 - step) for step in range(len(values))]
    expected = math.fsum(s * v for s, v in zip(shares, values, strict=True)) / math.fsum(shares)
    assert float(average.of(torch.zeros(1))) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_moving_average_of_short_numbers_is_kept_in_long_ones():
    average = MovingAverage(0.999)
    for _ in range(100):
        average.take(torch.ones(1, dtype=torch.bfloat16))
    average.take(torch.full((1,), 1.5, dtype=torch.bfloat16))
    assert average.of(torch.zeros(1)).dtype == torch.float32
    assert 1.005 < float(average.of(torch.zeros(1))) < 1.02, "in bfloat16 it would have stayed at 1"


def moving(states: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    shares = [decay ** (len(states) - 1 - step) for step in range(len(states))]
    return {
        name: sum(s * state[name] for s, state in zip(shares, states, strict=True)) / sum(shares)  # type: ignore[misc]
        for name, value in states[0].items()
        if value.is_floating_point() and "running" not in name
    }


@pytest.mark.parametrize("strategy", [LOCAL, "dpsgd", "gossip(p=0.5)"])
def test_the_moving_averages_of_all_replicas_are_averaged(strategy):
    def body(worker: int) -> Any:
        trained = Trained([6, 9, 9][worker], strategy, ema=0.7)
        final = fast.consolidate(trained.model, "ema")
        again = fast.consolidate(trained.model, Ema(at_least=0.9))
        return trained.states, trained.ends(final)[1], state_of(again)

    results = run_threads(3, body, serve)
    each = [moving(states, 0.7) for states, _, _ in results]
    for _, final, again in results:
        assert near({name: final[name] for name in each[0]}, mean_state(each))
        assert near({name: again[name] for name in each[0]}, mean_state(each[1:]))


def test_where_a_server_owns_the_weights_a_replica_is_what_its_worker_had():
    def body(worker: int) -> Any:
        trained = Trained(4, "downpour")
        own = state_of(trained.model)
        final, chosen = fast.consolidate(trained.model), fast.consolidate(trained.model, Chosen(1))
        trained.ends(final)
        return own, state_of(final), state_of(chosen)

    results = run_threads(2, body, serve)
    assert all(same(chosen, results[1][0]) for _, _, chosen in results)
    assert all(same(final, results[0][1]) for _, final, _ in results)


def test_with_one_worker_every_policy_means_that_worker():
    def script() -> None:
        trained = Trained(4, "allreduce", ema=0.5)
        own = state_of(trained.model)
        for policy in ("average", Chosen(0), Best(lambda model: 0.0)):
            assert same(state_of(fast.consolidate(trained.model, policy)), own)
            assert same(state_of(fast.snapshot(trained.model, policy)), own)
        expected = moving(trained.states, 0.5)
        final = state_of(fast.consolidate(trained.model, "ema"))
        assert near({name: final[name] for name in expected}, expected)
        assert not torch.equal(final["0.weight"], own["0.weight"])

    plainly(script)


# Statistics of BatchNorm


def batches_of(worker: int, count: int) -> list[tuple[Tensor, Tensor]]:
    return [batch_of(worker, 50 + number) for number in range(count)]


@pytest.mark.parametrize("counts", [[4, 4, 4], [1, 5, 2], [0, 3, 0]])
@pytest.mark.parametrize("policy", ["average", "ema", Chosen(1)], ids=["average", "ema", "chosen"])
def test_statistics_are_those_of_everybodys_batches_together(counts, policy):
    """As torch's own update_bn finds them on one worker with all batches."""

    def body(worker: int) -> Any:
        trained = Trained([2, 5, 4][worker], LOCAL, ema=0.5)
        averaged = fast.consolidate(trained.model, policy)
        final = fast.consolidate(trained.model, policy, batches=batches_of(worker, counts[worker]))
        assert [layer.momentum for layer in layers_of(final)] == [0.1, 0.1]
        assert all(module.training for module in final.modules())
        trained.ends(final)
        return averaged, state_of(final)

    results = run_threads(3, body, serve)
    reference = results[0][0]
    everybody = [x for worker in range(3) for x, _ in batches_of(worker, counts[worker])]
    stale = state_of(reference)
    update_bn(everybody, reference)
    assert all(same(final, results[0][1]) for _, final in results)
    assert near(results[0][1], state_of(reference))
    assert not near(stale, state_of(reference), 1e-3), "the mean of the replicas' own is something else"


def test_dropout_is_off_while_statistics_are_estimated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    x = torch.randn(20, 3)
    estimate(model, [lambda: model(x)], lambda mine: {0: mine})
    assert torch.allclose(model[1].running_mean, x.mean(0), atol=1e-6)
    assert model.training and model[0].training


def test_a_layer_that_no_batch_comes_through_keeps_its_statistics():
    model = nn.ModuleDict({"used": nn.BatchNorm1d(2), "unused": nn.BatchNorm1d(2)})
    model["unused"].running_mean.fill_(3.0)
    estimate(model, [lambda: model["used"](torch.randn(4, 2))], lambda mine: {0: mine})
    assert model["unused"].running_mean.tolist() == [3.0, 3.0]
    assert int(model["used"].num_batches_tracked) == 1


def test_without_batches_there_is_nothing_to_estimate_from():
    with pytest.raises(UsageError, match=r"no worker's `batches` had a batch.*fast\.shard\(loader\)"):
        estimate(nn.BatchNorm1d(2), [], lambda mine: {0: mine})


# In between


def paused(steps: list[int], at: int, policy: Any, strategy: str) -> list[Any]:
    """Everybody trains; after step `at` those who are still in make a snapshot, then go on."""

    def body(worker: int) -> Any:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        fast.join(model, optimizer, strategy, ema=0.5)
        states, found = [], None
        for step in range(steps[worker]):
            train_step(model, optimizer, worker, step)
            states.append(state_of(model))
            if step + 1 == at:
                found = state_of(fast.snapshot(model, policy))
        fast.consolidate(model)
        close_sessions(current_seat())
        return states, found

    return run_threads(len(steps), body, serve)


@pytest.mark.parametrize("strategy", [LOCAL, "local_sgd(tau=2)", "dpsgd", "choco"])
def test_a_snapshot_is_the_mean_of_those_who_are_in(strategy):
    results = paused([8, 3, 8, 8], 5, "average", strategy)
    assert results[1][1] is None, "it had left"
    there = [states[4] for states, found in results if found is not None]
    for _, found in results:
        assert found is None or near(found, mean_state(there))
    texts = [found for _, found in results if found is not None]
    assert all(same(texts[0], other) for other in texts)


def test_a_snapshot_takes_every_policy():
    results = paused([8, 8], 5, "ema", LOCAL)
    expected = mean_state([moving(states[:5], 0.5) for states, _ in results])
    assert near({name: results[0][1][name] for name in expected}, expected)
    results = paused([8, 8], 5, Best(lambda model: float(current_seat().id)), LOCAL)
    assert all(same(found, results[1][0][4]) for _, found in results)
    results = paused([8, 8], 5, Chosen(0), LOCAL)
    assert all(same(found, results[0][0][4]) for _, found in results)
    with pytest.raises(UsageError, match=r"worker=1\): it has left the training. Still in it are 0, 2;"):
        paused([8, 2, 8], 5, Chosen(1), LOCAL)


def test_many_snapshots_one_after_another_never_mix():
    """What is shown lies in two places in turn: a fast worker must not fill one that a slow one still reads."""

    def body(worker: int) -> list[float]:
        model = nn.Linear(1, 1, bias=False).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        fast.join(model, optimizer, LOCAL)
        found = []
        for number in range(40):
            with torch.no_grad():
                model.weight.fill_(number * 10 + worker)
            found.append(float(fast.snapshot(model).weight.detach()))
        return found

    for found in run_threads(3, body, serve):
        assert found == [number * 10 + 1.0 for number in range(40)]


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(tau=3)", "dpsgd"])
def test_a_training_with_snapshots_is_the_training_without_them(strategy, runner):
    """Bit for bit, on real workers, although they draw random numbers and go through the same loader."""
    plain = runner.results("consolidation_bodies:pause", 3, strategy=strategy, pauses=[])
    often = runner.results("consolidation_bodies:pause", 3, strategy=strategy, pauses=[1, 3, 4, 8])
    assert [result["own"] for result in often] == [result["own"] for result in plain]
    assert len({result["final"] for result in (*plain, *often)}) == 1
    assert [len(result["snapshots"]) for result in often] == [4, 4, 4]
    assert all(result["snapshots"] == often[0]["snapshots"] for result in often)
    assert len(set(often[0]["snapshots"])) == 4


@pytest.mark.real
def test_a_snapshot_by_one_worker_alone_ends_in_a_sentence_that_says_so(runner):
    failure = runner.outcome("consolidation_bodies:pause_alone", 2, strategy="allreduce").failure
    assert (
        "fast.snapshot must be called by all workers at the same step with this strategy" in failure.message
    )
    assert "worker 1 did not" in failure.message


# While the others train on


def looked_at(steps: list[int], policy: Any, strategy: str, **options: Any) -> list[Any]:
    """Each takes so many steps and stays there until worker 0 has looked, alone; then all train on. Gives the states
    after the start and each of these steps, and what worker 0 has seen."""
    there, seen = Barrier(len(steps)), Barrier(len(steps))

    def body(worker: int) -> Any:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        fast.join(model, optimizer, strategy, ema=0.5)
        states = [state_of(model)]
        for step in range(steps[worker]):
            train_step(model, optimizer, worker, step)
            states.append(state_of(model))
        there.wait(30)
        found = state_of(fast.snapshot(model, policy, **options)) if worker == 0 else None
        seen.wait(30)
        train_step(model, optimizer, worker, steps[worker])
        fast.consolidate(model)
        close_sessions(current_seat())
        return states, found

    return run_threads(len(steps), body, serve)


def trained_part(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the buffers, which are the own ones of whoever looks."""
    return {name: value for name, value in state.items() if "running" not in name and "batches" not in name}


@pytest.mark.parametrize("strategy", ["gossip(p=0)", "torus", "ad_psgd", "tree_easgd"])
def test_where_nobody_waits_one_may_look_at_all_replicas_alone(strategy):
    results = looked_at([4, 7, 2], "average", strategy)
    there, found = [states[-1] for states, _ in results], results[0][1]
    assert near(trained_part(found), trained_part(mean_state(there)))
    assert same({**found, **trained_part(there[0])}, there[0]), "the buffers are the own ones"


def test_one_who_looks_alone_has_every_policy():
    strategy, steps = "gossip(p=0)", [4, 7, 2]
    found = looked_at(steps, Average(at_least=0.5), strategy)
    expected = mean_state([found[worker][0][-1] for worker in (0, 1)])
    assert near(trained_part(found[0][1]), trained_part(expected)), "worker 2 is too far behind"
    found = looked_at(steps, Chosen(2), strategy)
    assert same(trained_part(found[0][1]), trained_part(found[2][0][-1]))
    found = looked_at(steps, Best(lambda model: -float(model[0].weight.sum())), strategy)
    sums = [float(states[-1]["0.weight"].sum()) for states, _ in found]
    assert same(trained_part(found[0][1]), trained_part(found[sums.index(min(sums))][0][-1]))
    found = looked_at(steps, "ema", strategy)
    expected = mean_state([moving(states[1:], 0.5) for states, _ in found])
    assert near({name: found[0][1][name] for name in expected}, expected)
    found = looked_at([0, 0], "ema", strategy)
    assert same(trained_part(found[0][1]), trained_part(found[0][0][0])), (
        "before the first step it is the weights"
    )


def test_with_servers_one_sees_what_they_have_now():
    """Lock-step: after each step everybody has the server's weights, or with shards those of all servers in one."""
    for strategy in ("parameter_server(tau=0)", "mxnet", "easgd(tau=100)"):
        results = looked_at([5, 5], "average", strategy)
        own, found = results[0][0], results[0][1]
        if strategy == "easgd(tau=100)":  # nobody has met the centre yet
            assert same(trained_part(found), trained_part(own[0]))
        else:
            assert same(trained_part(found), trained_part(own[-1]))


def test_statistics_of_one_who_looks_alone_are_of_its_own_batches():
    results = looked_at([3, 3], "average", "gossip(p=0)", batches=batches_of(0, 4))
    reference = make_model()
    reference.load_state_dict(results[0][1])
    update_bn([x for x, _ in batches_of(0, 4)], reference)
    assert near(results[0][1], state_of(reference))


def test_who_has_left_isnt_seen():
    """Also while it still waits for the others to take their last step."""
    left = Event()

    def body(worker: int) -> Any:
        trained = Trained(3, "gossip(p=0)")
        own = state_of(trained.model)
        if worker == 1:
            current_seat().sessions[-1].runtime.leave()
            left.set()
            close_sessions(current_seat())
            return own, None
        left.wait(30)
        found = state_of(fast.snapshot(trained.model))
        with pytest.raises(UsageError, match=r"worker=1\): it has left the training. Still in it are 0;"):
            fast.snapshot(trained.model, Chosen(1))
        close_sessions(current_seat())
        return own, found

    (own, found), _ = run_threads(2, body, serve)
    assert same(found, own)


@pytest.mark.real
def test_real_workers_look_into_each_others_memory(runner):
    assert runner.results("consolidation_bodies:look_around", 3) == [[1.0, 2.0]] * 3
    for strategy in ("parameter_server(tau=0)", "mxnet"):
        assert (
            runner.results("consolidation_bodies:look_at_servers", 2, strategy=strategy) == [[True] * 5] * 2
        )


def test_what_no_replay_could_show_again_isnt_shown_in_a_recorded_run():
    def body(worker: int) -> Any:
        trained = Trained(1, "gossip")
        world = current_seat().sessions[-1].runtime.world
        world.journal, kept = object(), world.journal
        with pytest.raises(UsageError, match=r"in a recorded run with gossip.*Run without --record"):
            fast.snapshot(trained.model)
        world.journal = kept
        return trained.ends(fast.consolidate(trained.model))

    run_threads(2, body, serve)


# What is refused


WRONG = (
    ("median", r"policy='median': a policy is 'average', 'ema', fast\.policies\.Best"),
    ("best", r"has to be told more: fast\.policies\.Best\(score=\.\.\.\)"),
    ("chosen", r"has to be told more: fast\.policies\.Chosen\(worker=\.\.\.\)"),
    (3, r"policy=3: a policy is"),
    (Chosen(2), r"Chosen\(worker=2\): there is no such worker here, there are workers 0 to 1"),
    ("ema", r"has been kept since the start: fast\.join\(model, optimizer, ema=0\.999\)"),
)


@pytest.mark.parametrize(("policy", "message"), WRONG, ids=[str(policy) for policy, _ in WRONG])
def test_a_wrong_policy_is_refused_before_anybody_leaves_or_waits(policy, message):
    """Worker 0 asks for it while worker 1 waits for its next step, and then both train on."""

    def body(worker: int) -> Any:
        trained = Trained(2, "allreduce")
        if worker == 0:
            for ask in (fast.consolidate, fast.snapshot):
                with pytest.raises(UsageError, match=message):
                    ask(trained.model, policy)
        train_step(trained.model, trained.optimizer, worker, 2)
        return trained.ends(fast.consolidate(trained.model))

    run_threads(2, body, serve)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Average(at_least=1.5), r"Average\(at_least=1\.5\): the part of the most steps"),
        (lambda: Ema(at_least=math.nan), r"Ema\(at_least=nan\)"),
        (lambda: Best(0.5), r"Best\(score=0\.5\): it takes a function"),
        (lambda: Chosen("0"), r"Chosen\(worker='0'\): it takes the number of a worker"),
        (lambda: Chosen(True), r"Chosen\(worker=True\)"),
        (lambda: fast.join(*_pair(), ema=1.0), r"join\(ema=1\.0\): the decay of a moving average"),
        (lambda: fast.join(*_pair(), ema="0.9"), r"join\(ema='0\.9'\)"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(make, message):
    with pytest.raises(UsageError, match=message):
        plainly(make)


def _pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            [{}, {"policy": Chosen(0)}],
            r"worker 0 asks for Average\(at_least=0\.0\) without batches and worker 1 for Chosen\(worker=0\)",
        ),
        ([{"batches": []}, {}], r"with batches and worker 1 for .* without batches.*to all or to none"),
    ],
)
@pytest.mark.parametrize("ask", [fast.consolidate, fast.snapshot], ids=["consolidate", "snapshot"])
def test_all_workers_must_ask_for_the_same(ask, asked, message):
    def body(worker: int) -> Any:
        trained = Trained(2, "allreduce")
        return ask(trained.model, **asked[worker])

    with pytest.raises(UsageError, match=message):
        run_threads(2, body, serve)


def test_after_the_end_there_is_no_in_between():
    def body(worker: int) -> Any:
        trained = Trained(2, "allreduce")
        final = fast.consolidate(trained.model)
        with pytest.raises(UsageError, match=r"called after fast\.consolidate"):
            fast.snapshot(trained.model)
        return trained.ends(final)

    run_threads(2, body, serve)


def test_a_score_is_one_number():
    def body(worker: int) -> Any:
        trained = Trained(1, "allreduce")
        return fast.consolidate(trained.model, Best(lambda model: "good"))

    with pytest.raises(UsageError, match="the score of Best returned str, and it must be one number"):
        run_threads(2, body, serve)


def test_who_ends_without_being_asked_for_its_score_cant_be_the_best():
    def body(worker: int) -> Any:
        trained = Trained(2, LOCAL)
        own = state_of(trained.model)
        if worker == 1:
            close_sessions(current_seat())
            return own, None
        final = fast.consolidate(trained.model, Best(lambda model: float(current_seat().id)))
        return own, trained.ends(final)[1]

    results = run_threads(3, body, serve)
    assert same(results[0][1], results[2][0]) and same(results[2][1], results[2][0])
