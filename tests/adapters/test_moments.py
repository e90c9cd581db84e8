"""What optimizers remember, as flat tensors: read, replaced and forgotten on every kind of replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fast.adapters import ServerReplica, TorchReplica
from fast.adapters.optimizer_spec import KNOWN
from fast.adapters.rows import Rows
from fast.adapters.sizes import SizesReplica
from fast.core import Replica
from fast.errors import UsageError
from fast.view import Layout

Make = Callable[[list[Any]], Optimizer]


class Own(Optimizer):
    """Nobody's but ours: a running sum of gradients, a counter, and a number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state.update(total=torch.zeros_like(p), step=torch.tensor(0.0), count=0)
            state["total"].add_(p.grad)
            state["step"] += 1
            state["count"] += 1
            p.sub_(state["total"], alpha=0.1)


OPTIMIZERS: dict[str, tuple[Make, list[str]]] = {
    "plain SGD": (lambda p: torch.optim.SGD(p, lr=0.3), []),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), ["momentum_buffer"]),
    "Adam": (lambda p: torch.optim.Adam(p, lr=0.01), ["exp_avg", "exp_avg_sq"]),
    "amsgrad": (
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
    ),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.25), ["sum"]),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=0.01), ["square_avg"]),
    "heavy RMSprop": (
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
        ["grad_avg", "momentum_buffer", "square_avg"],
    ),
    "NAdam": (lambda p: torch.optim.NAdam(p), ["exp_avg", "exp_avg_sq"]),
    "RAdam": (lambda p: torch.optim.RAdam(p), ["exp_avg", "exp_avg_sq"]),
    "Adamax": (lambda p: torch.optim.Adamax(p), ["exp_avg", "exp_inf"]),
    "Adadelta": (lambda p: torch.optim.Adadelta(p), ["acc_delta", "square_avg"]),
    "Rprop": (lambda p: torch.optim.Rprop(p), ["prev", "step_size"]),
    "ASGD": (lambda p: torch.optim.ASGD(p), ["ax"]),
    "own": (Own, ["total"]),
}
WITH_MOMENTS = [kind for kind, (_, names) in OPTIMIZERS.items() if names]
KINDS = ["torch", "row", "server"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model() -> nn.Module:
    """Sizes that are no multiples of 16, so that there is padding between the parameters."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def replica_of(kind: str, make: Make) -> Any:
    net = model()
    optimizer = make(list(net.parameters()))
    if kind == "torch":
        return TorchReplica(net, optimizer)
    if kind == "row":
        return Rows(net, optimizer, lambda m, batch: m(batch).sum(), 2).replicas[1]
    worker = TorchReplica(net, optimizer)
    return ServerReplica(worker.optimizer_spec(), worker.layout, worker.weights.clone())


def gradient_for(replica: Replica, seed: int) -> Tensor:
    """Random in every parameter, zero between them."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros_like(replica.weights)
    for view in replica.layout.views(flat):
        view.copy_(torch.randn(view.shape, generator=generator))
    return flat


def train(replica: Replica, seeds: range, present: int | None = None) -> None:
    for seed in seeds:
        replica.apply(gradient_for(replica, seed), present)


def in_torch(make: Make, seeds: range) -> tuple[list[nn.Parameter], Optimizer]:
    """The same steps without any replica."""
    net = model()
    parameters = list(net.parameters())
    optimizer = make(parameters)
    layout = Layout.of([(name, p.shape) for name, p in net.named_parameters()], torch.float32)
    flat = torch.zeros(layout.size)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for view in layout.views(flat):
            view.copy_(torch.randn(view.shape, generator=generator))
        for p, view in zip(parameters, layout.views(flat), strict=True):
            p.grad = view.clone()
        optimizer.step()
    return parameters, optimizer


RARE = ("own", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD")


def fits(kind: str, where: str) -> bool:
    """Rows and servers only have torch's own optimizers, and not all of them must be tried there."""
    return where == "torch" or kind not in RARE


EVERYWHERE = [(kind, where) for where in KINDS for kind in OPTIMIZERS if fits(kind, where)]


@pytest.mark.parametrize(("kind", "where"), EVERYWHERE)
def test_moments_are_what_torch_keeps(kind: str, where: str) -> None:
    make, names = OPTIMIZERS[kind]
    replica = replica_of(where, make)
    train(replica, range(4))
    parameters, optimizer = in_torch(make, range(4))
    found = replica.moments()
    assert sorted(found) == names
    for name, flat in found.items():
        assert flat.shape == replica.weights.shape
        for p, view in zip(parameters, replica.layout.views(flat), strict=True):
            assert torch.equal(view, optimizer.state[p][name])
            view.zero_()
        assert not flat.any(), "padding holds nothing"


@pytest.mark.parametrize(("kind", "where"), EVERYWHERE)
def test_they_are_copies(kind: str, where: str) -> None:
    replica = replica_of(where, OPTIMIZERS[kind][0])
    train(replica, range(2))
    for flat in replica.moments().values():
        flat.fill_(9.0)
    assert all(not (flat == 9.0).any() for flat in replica.moments().values())


@pytest.mark.parametrize(("kind", "where"), [(k, w) for k, w in EVERYWHERE if k in WITH_MOMENTS])
def test_who_gets_anothers_moments_goes_on_as_that_one(kind: str, where: str) -> None:
    """With the same weights and counters, the next steps are the same bits; and with its own moments not."""
    make, _ = OPTIMIZERS[kind]
    one, other = replica_of(where, make), replica_of(where, make)
    train(one, range(3))
    train(other, range(10, 13))
    other.weights.copy_(one.weights)
    handed = one.moments()
    other.set_moments(handed)
    for flat in handed.values():
        flat.fill_(7.0)  # they are copied in as well
    train(one, range(20, 22))
    train(other, range(20, 22))
    assert torch.equal(one.weights, other.weights)
    third = replica_of(where, make)
    train(third, range(10, 13))
    third.weights.copy_(one.weights)
    train(third, range(20, 22))
    train(one, range(20, 22))
    assert not torch.equal(one.weights, third.weights)


@pytest.mark.parametrize(("kind", "where"), EVERYWHERE)
def test_who_forgets_goes_on_as_if_it_had_never_taken_a_step(kind: str, where: str) -> None:
    """Counters included: else Adam's bias would be corrected as if there had been many steps."""
    make, _ = OPTIMIZERS[kind]
    worn, new = replica_of(where, make), replica_of(where, make)
    train(worn, range(5))
    worn.forget_moments()
    new.weights.copy_(worn.weights)
    assert torch.equal(worn.weights, new.weights), "the weights stay"
    for seeds in (range(6, 7), range(7, 9)):
        train(worn, seeds)
        train(new, seeds)
        assert torch.equal(worn.weights, new.weights)


@pytest.mark.parametrize("where", KINDS)
def test_to_forget_before_the_first_step_changes_nothing(where: str) -> None:
    for kind, (make, _) in OPTIMIZERS.items():
        if fits(kind, where):
            forgetful, plain = replica_of(where, make), replica_of(where, make)
            forgetful.forget_moments()
            train(forgetful, range(2))
            train(plain, range(2))
            assert torch.equal(forgetful.weights, plain.weights)


@pytest.mark.parametrize("where", KINDS)
@pytest.mark.parametrize("kind", ["momentum", "Adam", "amsgrad", "RMSprop", "Adagrad"])
def test_who_has_taken_no_step_has_the_same_names(kind: str, where: str) -> None:
    make, names = OPTIMIZERS[kind]
    found = replica_of(where, make).moments()
    assert sorted(found) == names
    begins = 0.25 if kind == "Adagrad" else 0.0
    layout = replica_of(where, make).layout
    assert all((view == begins).all() for flat in found.values() for view in layout.views(flat))


@pytest.mark.parametrize("where", KINDS)
def test_a_parameter_without_a_gradient_has_zeros_and_keeps_none(where: str) -> None:
    """Adam's next step would need a counter too, which nobody can know."""
    make, _ = OPTIMIZERS["Adam"]
    replica = replica_of(where, make)
    train(replica, range(2), present=0b1011)
    found = replica.moments()
    assert [bool(view.any()) for view in replica.layout.views(found["exp_avg"])] == [True, True, False, True]
    replica.set_moments({name: torch.ones_like(flat) for name, flat in found.items()})
    again = replica.layout.views(replica.moments()["exp_avg"])
    assert [bool(view.all()) for view in again] == [True, True, False, True]


@pytest.mark.parametrize("where", KINDS)
def test_momentum_can_be_given_before_the_first_gradient(where: str) -> None:
    """Plain momentum needs nothing else: v <- mu v + g from where it is told to begin."""
    replica = replica_of(where, OPTIMIZERS["momentum"][0])
    given, before = gradient_for(replica, 1), replica.weights.clone()
    replica.set_moments({"momentum_buffer": given})
    gradient = gradient_for(replica, 2)
    replica.apply(gradient, None)
    assert torch.allclose(replica.weights, before - 0.3 * (0.9 * given + gradient), atol=1e-6)


def test_a_group_may_have_momentum_and_another_not() -> None:
    net = model()
    first, *rest = net.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "momentum": 0.5}, {"params": rest}], lr=0.1)
    replica = TorchReplica(net, optimizer)
    train(replica, range(2))
    views = replica.layout.views(replica.moments()["momentum_buffer"])
    assert [bool(view.any()) for view in views] == [True, False, False, False]
    before = replica.weights.clone()
    replica.set_moments({"momentum_buffer": torch.ones_like(replica.weights)})
    replica.apply(torch.zeros_like(replica.weights), None)
    moved = [bool(view.any()) for view in replica.layout.views(before - replica.weights)]
    assert moved == [True, False, False, False], "who has no momentum doesn't coast"


def test_a_mirror_of_several_dtypes() -> None:
    net = model()
    net[2].bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    replica = TorchReplica(net, optimizer)
    train(replica, range(2))
    found = replica.moments()["momentum_buffer"]
    assert found.dtype == torch.float32
    kept = optimizer.state[net[2].weight]["momentum_buffer"]
    assert kept.dtype == torch.bfloat16
    assert torch.equal(replica.layout.views(found)[2], kept.float())
    replica.set_moments({"momentum_buffer": torch.full_like(found, 0.75)})
    assert kept.dtype == torch.bfloat16 and (kept == 0.75).all()


@pytest.mark.parametrize("where", KINDS)
def test_what_an_optimizer_does_not_keep_is_refused(where: str) -> None:
    plain = replica_of(where, OPTIMIZERS["plain SGD"][0])
    with pytest.raises(UsageError, match="SGD keeps no momentum_buffer; its moments are: none"):
        plain.set_moments({"momentum_buffer": plain.weights})
    adam = replica_of(where, OPTIMIZERS["Adam"][0])
    with pytest.raises(UsageError, match="Adam keeps no ax and no sum; its moments are: exp_avg, exp_avg_sq"):
        adam.set_moments({"sum": adam.weights, "ax": adam.weights})


def test_moments_by_rows_and_columns_are_refused_and_forgotten() -> None:
    replica = replica_of("torch", lambda p: torch.optim.Adafactor(p))
    with pytest.raises(UsageError, match="Adafactor keeps its moments as rows and columns"):
        replica.moments()
    train(replica, range(2))
    replica.forget_moments()
    assert not replica.optimizer.state


def test_a_counter_is_no_moment_even_of_a_parameter_that_is_a_number() -> None:
    net = nn.Module()
    net.scale = nn.Parameter(torch.tensor(2.0))
    replica = TorchReplica(net, Own(list(net.parameters())))
    train(replica, range(2))
    assert sorted(replica.moments()) == ["total"]


def test_every_known_optimizer_says_what_it_keeps() -> None:
    """Whatever torch puts into its state with the shape of the parameters is one of its moments."""
    for name, kind in KNOWN.items():
        if name in ("Adafactor", "SGD"):
            continue
        net = nn.Linear(4, 4, bias=False)
        replica = TorchReplica(net, kind(net.parameters(), lr=0.01))  # type: ignore[call-arg]
        train(replica, range(2))
        kept = replica.optimizer.state[net.weight]
        shaped = [
            key
            for key, value in kept.items()
            if isinstance(value, Tensor) and value.shape == net.weight.shape
        ]
        assert sorted(replica.moments()) == sorted(shaped), name


def test_where_there_are_sizes_only() -> None:
    replica = SizesReplica(Layout.of([("w", (8,))], torch.float32))
    for ask in (replica.moments, lambda: replica.set_moments({})):
        with pytest.raises(UsageError, match="sizes only"):
            ask()
    replica.forget_moments()
