"""Rows of one tensor as replicas: torch's bits in the optimizer, torch's gradients up to rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from fast.adapters import TorchReplica
from fast.adapters.rows import Rows
from fast.errors import UsageError
from fast.view import ALIGN_BYTES

Batch = tuple[Tensor, Tensor]
Make = Callable[[list[Any]], Optimizer]
STEPS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fresh(*widths: int) -> nn.Sequential:
    """Linear layers with biases; widths that are no multiples of 16 leave padding in the flat tensor."""
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Tanh(), nn.Linear(before, after)]
    return nn.Sequential(*layers[1:])


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batch_of(seed: int, size: int = 8, inputs: int = 7, classes: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, inputs, generator=generator), torch.randint(
        0, classes, (size,), generator=generator
    )


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.01),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.3, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}
WIDTHS = [(7, 33, 5), (64, 64, 10), (16, 48, 16), (3, 1)]


def gradients(parameters: list[Tensor], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(p.shape, generator=generator) for p in parameters]


def flat_of(rows: Rows, values: list[Tensor | None]) -> Tensor:
    """These parameters' values in a flat tensor; its padding isn't zero, as after a codec."""
    flat = torch.full((rows.layout.size,), 7.0)
    for segment, value in zip(rows.layout.segments, values, strict=True):
        segment.of(flat).copy_(torch.zeros(segment.shape) if value is None else value)
    return flat


def same(rows: Rows, worker: int, parameters: list[Tensor]) -> bool:
    views = rows.layout.views(rows.weights[worker])
    return all(torch.equal(view, p.detach()) for view, p in zip(views, parameters, strict=True))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_the_bits_of_torch(name: str, widths: tuple[int, ...]) -> None:
    model, reference = fresh(*widths), fresh(*widths)
    rows = Rows(model, OPTIMIZERS[name](list(model.parameters())), loss, 3)
    parameters = list(reference.parameters())
    optimizer = OPTIMIZERS[name](parameters)
    for step in range(STEPS):
        values = gradients(parameters, step)
        for p, value in zip(parameters, values, strict=True):
            p.grad = value
        optimizer.step()
        rows.replicas[1].apply(flat_of(rows, list(values)), None)
    assert same(rows, 1, parameters)
    assert same(rows, 0, list(fresh(*widths).parameters()))  # the other rows stay where they were


def test_every_optimizer_of_torch_optim_that_we_know_is_tried() -> None:
    from fast.adapters import KNOWN

    tried = {type(make([nn.Parameter(torch.zeros(2, 2))])).__name__ for make in OPTIMIZERS.values()}
    assert tried == set(KNOWN) - {"Muon"}  # which takes matrices only, and has a test of its own


def test_muon_sees_matrices() -> None:
    def matrices() -> nn.Sequential:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(7, 33, bias=False), nn.Tanh(), nn.Linear(33, 5, bias=False))

    model, reference = matrices(), matrices()
    rows = Rows(model, torch.optim.Muon(model.parameters(), lr=0.01), loss, 2)
    parameters = list(reference.parameters())
    optimizer = torch.optim.Muon(parameters, lr=0.01)
    for step in range(3):
        values = gradients(parameters, step)
        for p, value in zip(parameters, values, strict=True):
            p.grad = value
        optimizer.step()
        rows.replicas[0].apply(flat_of(rows, list(values)), None)
    assert same(rows, 0, parameters)


def grouped(model: nn.Sequential) -> list[dict[str, Any]]:
    """Two groups whose parameters lie alternately in the flat tensor."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights, "lr": 0.1, "weight_decay": 0.01}, {"params": biases, "lr": 0.4}]


@pytest.mark.parametrize("name", ["SGD", "momentum", "Adam"])
def test_groups_keep_their_own_options_and_rates(name: str) -> None:
    model, reference = fresh(16, 32, 16), fresh(16, 32, 16)
    rows = Rows(model, OPTIMIZERS[name](grouped(model)), loss, 2)
    parameters = list(reference.parameters())
    optimizer = OPTIMIZERS[name](grouped(reference))
    assert rows.replicas[0].rates == [0.1, 0.4]
    for step in range(STEPS):
        values = gradients(parameters, step)
        for p, value in zip(parameters, values, strict=True):
            p.grad = value
        rates = [0.05, 0.2] if step == 2 else None  # for one step only
        for group, rate in zip(optimizer.param_groups, rates or [0.1, 0.4], strict=True):
            group["lr"] = rate
        optimizer.step()
        rows.replicas[0].apply(flat_of(rows, list(values)), None, rates)
    assert same(rows, 0, parameters)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_without_a_gradient_stay_as_in_torch(name: str) -> None:
    """In some steps one has none: it doesn't move, and its moments and counters don't either."""
    model, reference = fresh(16, 32, 16), fresh(16, 32, 16)
    rows = Rows(model, OPTIMIZERS[name](list(model.parameters())), loss, 2)
    parameters = list(reference.parameters())
    optimizer = OPTIMIZERS[name](parameters)
    for step, present in enumerate([None, None, 0b1011, None, 0b0110, 0, None]):
        values: list[Tensor | None] = list(gradients(parameters, step))
        if present is not None:
            values = [value if present >> n & 1 else None for n, value in enumerate(values)]
        for p, value in zip(parameters, values, strict=True):
            p.grad = value
        optimizer.step()
        rows.replicas[1].apply(flat_of(rows, values), present)
    assert same(rows, 1, parameters)


def test_padding_is_never_touched() -> None:
    model = fresh(7, 33, 5)
    rows = Rows(model, OPTIMIZERS["Adam"](list(model.parameters())), loss, 2)
    inside = torch.zeros(rows.layout.size, dtype=torch.bool)
    for segment in rows.layout.segments:
        inside[segment.start : segment.stop] = True
    assert not inside.all()
    rows.replicas[0].apply(torch.ones(rows.layout.size), None)
    rows.evaluate([0, 1], [batch_of(1), batch_of(2)])
    assert not rows.weights[:, ~inside].any() and not rows.gradients[:, ~inside].any()


def test_the_layout_is_that_of_a_torch_replica() -> None:
    model, other = fresh(7, 33, 5), fresh(7, 33, 5)
    rows = Rows(model, optimizer_of(model), loss, 2)
    assert rows.layout == TorchReplica(other, optimizer_of(other)).layout
    assert all(replica.weights.data_ptr() % ALIGN_BYTES == 0 for replica in rows.replicas)


def optimizer_of(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", ["SGD", "nesterov", "Adam", "Adagrad", "Adafactor"])
@pytest.mark.parametrize("present", [None, 0b1101])
def test_a_checkpoint_goes_on_with_the_same_bits(name: str, present: int | None) -> None:
    def step(rows: Rows, worker: int, number: int) -> None:
        values = gradients(list(fresh(16, 32, 16).parameters()), number)
        rows.replicas[worker].apply(flat_of(rows, list(values)), present)

    models = [fresh(16, 32, 16) for _ in range(2)]
    one, other = (Rows(m, OPTIMIZERS[name](list(m.parameters())), loss, 2) for m in models)
    for number in range(3):
        step(one, 0, number)
    saved = one.replicas[0].state_dict()
    other.replicas[1].load_state_dict(saved)
    for number in range(3, 6):
        step(one, 0, number)
        step(other, 1, number)
    assert torch.equal(one.weights[0], other.weights[1])
    assert not torch.equal(saved["weights"], one.weights[0])  # what was saved has memory of its own


def test_a_checkpoint_of_another_model_is_refused() -> None:
    one, other = fresh(7, 33, 5), fresh(7, 16, 5)
    saved = Rows(one, optimizer_of(one), loss, 1).replicas[0].state_dict()
    with pytest.raises(UsageError, match="another model"):
        Rows(other, optimizer_of(other), loss, 1).replicas[0].load_state_dict(saved)


def test_a_foreign_gradient_is_refused() -> None:
    model = fresh(7, 33, 5)
    rows = Rows(model, optimizer_of(model), loss, 1)
    with pytest.raises(UsageError, match="flat gradient"):
        rows.replicas[0].apply(torch.zeros(3), None)


# Gradients


def alone(weights: Tensor, rows: Rows, batch: Batch) -> list[Tensor | None]:
    """The gradient of a model of its own, by backward."""
    model = fresh(7, 33, 5)
    with torch.no_grad():
        for segment, p in zip(rows.layout.segments, model.parameters(), strict=True):
            p.copy_(segment.of(weights))
    loss(model, batch).backward()
    return [p.grad for p in model.parameters()]


def shaken(workers: int) -> Rows:
    """Rows with different weights."""
    model = fresh(7, 33, 5)
    rows = Rows(model, optimizer_of(model), loss, workers)
    generator = torch.Generator().manual_seed(9)
    for segment in rows.layout.segments:
        place = rows.weights[:, segment.start : segment.stop]
        place += torch.randn(place.shape, generator=generator) / 10
    return rows


@pytest.mark.parametrize("workers", [[0, 1, 2, 3, 4], [2, 3], [0, 2, 4], [4]], ids=str)
def test_gradients_are_those_of_backward_and_others_stay(workers: list[int]) -> None:
    rows = shaken(5)
    rows.gradients.fill_(3.0)
    batches = [batch_of(worker, size=8 if worker != 2 else 3) for worker in workers]
    rows.evaluate(workers, batches)
    for worker, batch in zip(workers, batches, strict=True):
        expected = alone(rows.weights[worker], rows, batch)
        for view, gradient in zip(rows.layout.views(rows.gradients[worker]), expected, strict=True):
            assert gradient is not None
            assert torch.linalg.vector_norm(view - gradient) <= 1e-6 * torch.linalg.vector_norm(gradient)
    for worker in set(range(5)) - set(workers):
        assert (rows.gradients[worker] == 3.0).all()


def test_chunks_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = shaken(7), shaken(7)
    batches = [batch_of(worker) for worker in range(7)]
    one.evaluate(range(7), batches)
    monkeypatch.setattr("fast.adapters.rows.CHUNK_ROWS", 3)
    other.evaluate(range(7), batches)
    assert torch.allclose(one.gradients, other.gradients, rtol=1e-5, atol=1e-7)
    assert one.gradients.abs().sum() > 0


class Partly(nn.Module):
    """Tied layers, one that isn't used, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 5)
        self.b.weight = self.a.weight
        self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(7, 7)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.frozen(self.b(self.a(x).tanh())))


def test_tied_frozen_and_unused_parameters() -> None:
    torch.manual_seed(1)
    model = Partly()
    reference = Partly()
    reference.load_state_dict(model.state_dict())
    rows = Rows(model, optimizer_of(model), loss, 3)
    batches = [batch_of(worker) for worker in range(3)]
    for segment in rows.layout.segments:
        rows.gradients[:, segment.start : segment.stop] = 1.0  # of the step before
    rows.evaluate(range(3), batches)
    replica = TorchReplica(reference, optimizer_of(reference))
    for worker, batch in enumerate(batches):
        replica.compute(lambda batch=batch: loss(reference, batch))  # type: ignore[misc]
        assert rows.replicas[worker].present == replica.present is not None
        assert torch.allclose(rows.gradients[worker], replica.gradient, atol=1e-7)
    assert rows.replicas[0].named(rows.weights[0]).keys() == reference.state_dict().keys()
    reference.load_state_dict(rows.replicas[0].named(rows.weights[0]))


def test_the_template_shows_each_row() -> None:
    rows = shaken(3)
    states = [dict(replica.model.state_dict()) for replica in rows.replicas]  # one model, three times
    for worker, state in enumerate(states):
        named = rows.replicas[worker].named(rows.weights[worker])
        assert state.keys() == named.keys()
        assert all(torch.equal(state[name], named[name]) for name in state)
    assert not torch.equal(states[0]["0.weight"], states[1]["0.weight"])
    expected = loss(fresh(7, 33, 5), batch_of(0)).item()
    model = fresh(7, 33, 5)
    still = Rows(model, optimizer_of(model), loss, 2)
    assert loss(still.replicas[1].model, batch_of(0)).item() == expected


def test_a_loss_that_draws_can_not_be_batched() -> None:
    def noisy(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, (batch[0] + torch.rand_like(batch[0]), batch[1]))

    model = fresh(7, 33, 5)
    rows = Rows(model, optimizer_of(model), noisy, 2)
    with pytest.raises(RuntimeError, match="random"):
        rows.evaluate([0, 1], [batch_of(0), batch_of(1)])


def test_mixed_dtypes_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    with pytest.raises(UsageError, match="one dtype"):
        Rows(model, optimizer_of(model), loss, 2)
