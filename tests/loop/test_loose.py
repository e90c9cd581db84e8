"""Parameters that the joined optimizer doesn't train: one value for all workers, whatever each has done to its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.policies import Best, Chosen

WORKERS, STEPS = 3, 4


def two_parts() -> nn.Module:
    torch.manual_seed(current_seat().id)  # everybody starts elsewhere; worker 0's values count
    return nn.ModuleDict({"joined": nn.Linear(3, 2), "apart": nn.Linear(2, 2), "untouched": nn.Linear(2, 1)})


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(ask: Any, *, second: bool = True, strategy: str = "allreduce") -> list[Any]:
    """Join one part; train a second one with an optimizer of its own. Gives per worker its own state, the states that
    `ask` made of all, and what was said."""

    def body(worker: int) -> Any:
        seat, said = current_seat(), list[str]()
        seat.say = said.append
        model = two_parts()
        optimizer = torch.optim.SGD(model["joined"].parameters(), lr=0.1)
        fast.join(model, optimizer, strategy)
        optimizers = [optimizer, torch.optim.SGD(model["apart"].parameters(), lr=0.1)][: 1 + second]
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(worker))
        for _ in range(STEPS):
            model["apart"](model["joined"](x)).square().mean().backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
        models = [state_of(each) for each in ask(model)]
        own = state_of(model)
        close_sessions(seat)
        return own, models, said

    return run_threads(WORKERS, body, serve)


def lines(said: list[str]) -> list[str]:
    return [line for line in said if "not in the joined optimizer" in line]


def check_same_everywhere(results: list[Any]) -> None:
    first = results[0][1]
    for _, models, _ in results:
        for one, other in zip(first, models, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("strategy", ["allreduce", "gossip", "parameter_server"])
def test_what_each_worker_trained_alone_becomes_the_mean(strategy):
    results = train(lambda model: [fast.consolidate(model)], strategy=strategy)
    check_same_everywhere(results)
    own = [state["apart.weight"] for state, _, _ in results]
    assert not torch.equal(own[0], own[1]), "each worker has trained it alone"
    final = results[0][1][0]
    assert torch.allclose(final["apart.weight"], torch.stack(own).mean(0))
    assert torch.equal(final["untouched.weight"], results[2][0]["untouched.weight"])
    for _, _, said in results:
        (line,) = lines(said)
        assert line.startswith(
            "2 parameters of the model (first 'apart.weight') are not in the joined optimizer"
        )
        assert "the model has the mean over the workers" in line and "before fast.join" in line


def test_a_snapshot_in_lock_step_is_the_same_everywhere_too():
    results = train(lambda model: [fast.snapshot(model), fast.consolidate(model)])
    check_same_everywhere(results)
    assert torch.equal(results[0][1][0]["apart.weight"], results[0][1][1]["apart.weight"])


def test_the_replica_of_one_worker_has_what_that_worker_trained():
    def ask(model: nn.Module) -> list[nn.Module]:
        best = Best(lambda model: float(current_seat().id == 1))
        return [fast.consolidate(model, Chosen(2)), fast.consolidate(model, best)]

    results = train(ask)
    check_same_everywhere(results)
    for number, worker in enumerate((2, 1)):
        assert torch.equal(results[0][1][number]["apart.weight"], results[worker][0]["apart.weight"])
        assert f"the values of worker {worker}." in lines(results[0][2])[number]


def test_parameters_that_nobody_changes_are_nothing_to_talk_about():
    """As in fine-tuning: the optimizer has the head only, and the rest stays as worker 0 had it."""
    results = train(lambda model: [fast.consolidate(model)], second=False)
    check_same_everywhere(results)
    assert torch.equal(results[0][1][0]["apart.weight"], results[0][0]["apart.weight"])
    assert not any(lines(said) for _, _, said in results)


def test_the_values_of_a_worker_that_has_left_are_not_missed():
    """It ends without consolidate; what it trained alone is gone, and the others still agree."""

    def ask(model: nn.Module) -> list[nn.Module]:
        return [] if current_seat().id == 1 else [fast.consolidate(model)]

    results = train(ask)
    kept = [results[worker] for worker in (0, 2)]
    check_same_everywhere(kept)
    mean = torch.stack([own["apart.weight"] for own, _, _ in kept]).mean(0)
    assert torch.allclose(kept[0][1][0]["apart.weight"], mean)


class Everything(nn.Module):
    """Tied parameters inside and outside the joined optimizer, and buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.joined_again = nn.Linear(3, 3), nn.Linear(3, 3)
        self.joined_again.weight = self.joined.weight
        self.apart, self.apart_again, self.later = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.apart_again.weight = self.apart.weight
        self.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.joined, self.joined_again, self.apart, self.apart_again, self.later):
            x = part(x).tanh()
        return x


def everything(ask: Any, strategy: str) -> list[Any]:
    """Each worker changes what is its own in its own way. A part is frozen in the middle."""

    def body(worker: int) -> Any:
        torch.manual_seed(worker)
        model = Everything()
        optimizer = torch.optim.SGD([*model.joined.parameters(), model.joined_again.bias], lr=0.1)
        fast.join(model, optimizer, strategy)
        apart = [*model.apart.parameters(), *model.apart_again.parameters(), *model.later.parameters()]
        second = torch.optim.SGD(list(dict.fromkeys(apart)), lr=0.1)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(worker))
        for step in range(STEPS):
            if step == 2 and worker != 1:  # on some workers only
                model.later.requires_grad_(False)
            model(x).square().mean().backward()
            for each in (optimizer, second):
                each.step()
                each.zero_grad()
            model.mean += worker + x.mean(0).detach()
            model.count += worker
            model.seen[worker] = True
            model.wave += worker * 1j
            model.hidden -= worker
            model.phase.data += 1 + worker * 1j
        models = ask(model)
        assert models[0].apart.weight is models[0].apart_again.weight
        assert models[0].joined.weight is models[0].joined_again.weight
        found = [{**state_of(each), "hidden": each.hidden} for each in models]
        own = state_of(model)
        close_sessions(current_seat())
        return own, found, []

    return run_threads(WORKERS, body, serve)


@pytest.mark.parametrize("strategy", ["allreduce", "gossip(p=1)", "local_sgd(tau=3)", "easgd(tau=2)"])
def test_everything_that_a_model_has_is_the_same_on_every_worker(strategy):
    def ask(model: nn.Module) -> list[nn.Module]:
        best = Best(lambda model: float(current_seat().id == 1))
        return [fast.consolidate(model), fast.consolidate(model, Chosen(2)), fast.consolidate(model, best)]

    results = everything(ask, strategy)
    check_same_everywhere(results)
    mean = results[0][1][0]
    assert mean["count"] == 2 * STEPS and mean["seen"].tolist() == [True, True, True, False]
    assert torch.allclose(mean["wave"], torch.full((2,), STEPS * 1j, dtype=torch.complex64))
    assert torch.allclose(mean["phase"], torch.full((2,), STEPS * (1 + 1j), dtype=torch.complex64))
    assert mean["hidden"].tolist() == [-STEPS, -STEPS]
    for number, worker in ((1, 2), (2, 1)):
        replica = results[worker][0]
        assert all(torch.equal(results[0][1][number][name], replica[name]) for name in replica)
