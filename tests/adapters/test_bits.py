"""Training through a replica gives the same bits as training without one."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Optimizer

from fast.adapters import TorchReplica

Loop = Callable[[nn.Module, Optimizer], None]
STEPS = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5))


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 33, bias=False), nn.Tanh(), nn.Linear(33, 5, bias=False))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(20, 5)
    )


class Tied(nn.Module):
    """Two layers that are one Parameter, an unused one, a frozen one, a scalar and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, 7), nn.Linear(7, 7)
        self.b.weight = self.a.weight
        self.unused, self.frozen, self.out = nn.Linear(3, 3), nn.Linear(7, 7), nn.Linear(7, 5)
        self.frozen.requires_grad_(False)
        self.scale, self.empty = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.frozen(self.b(self.a(x).tanh())) * self.scale) + self.empty.sum()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(8, 7, generator=generator), torch.randint(0, 5, (8,), generator=generator))
        for _ in range(count)
    ]


def backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    F.cross_entropy(model(batch[0]), batch[1]).backward()


def join(model: nn.Module, optimizer: Optimizer, *, lent: bool = False, **options: Any) -> TorchReplica:
    """Replace `optimizer.step` as a runtime does; with `lent` the gradient comes from foreign memory."""
    replica = TorchReplica(model, optimizer, **options)
    result = torch.empty_like(replica.gradient)

    def step(self: Optimizer, closure: None = None) -> None:
        replica.collect()
        if lent:
            replica.apply(result.copy_(replica.gradient), replica.present)
        else:
            replica.apply(replica.gradient, replica.present)
        replica.settle()

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    return replica


def plain_loop(model: nn.Module, optimizer: Optimizer) -> None:
    for batch in batches(STEPS):
        backward(model, batch)
        optimizer.step()
        optimizer.zero_grad()


def zero_in_place(model: nn.Module, optimizer: Optimizer) -> None:
    for batch in batches(STEPS):
        optimizer.zero_grad(set_to_none=False)
        backward(model, batch)
        optimizer.step()


def never_zeroed(model: nn.Module, optimizer: Optimizer) -> None:
    for batch in batches(STEPS):
        backward(model, batch)
        optimizer.step()


def accumulate(model: nn.Module, optimizer: Optimizer) -> None:
    for n, batch in enumerate(batches(3 * STEPS)):
        backward(model, batch)
        if n % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def clip(model: nn.Module, optimizer: Optimizer) -> None:
    for batch in batches(STEPS):
        optimizer.zero_grad()
        backward(model, batch)
        clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


def reinitialise(model: nn.Module, optimizer: Optimizer) -> None:
    plain_loop(model, optimizer)
    torch.manual_seed(9)
    for p in model.parameters():
        if p.dim() == 2 and p.numel():
            nn.init.xavier_uniform_(p)
    plain_loop(model, optimizer)


def load_state(model: nn.Module, optimizer: Optimizer) -> None:
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain_loop(model, optimizer)
    model.load_state_dict(saved)
    plain_loop(model, optimizer)


def scheduler_after(model: nn.Module, optimizer: Optimizer) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.3)
    for batch in batches(STEPS):
        backward(model, batch)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def create_graph(model: nn.Module, optimizer: Optimizer) -> None:
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + 0.1 * sum(g.square().sum() for g in gradients)).backward()
        optimizer.step()


LOOPS: list[Loop] = [
    plain_loop,
    zero_in_place,
    never_zeroed,
    accumulate,
    clip,
    reinitialise,
    load_state,
    scheduler_after,
]
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "foreach": True, "amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "fused": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "fused": True, "maximize": True}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr": 0.05}),
    ("Adagrad", {"lr": 0.05, "fused": True}),
    ("Adadelta", {"lr": 0.5}),
    ("Adamax", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01}),
    ("ASGD", {"lr": 0.05}),
    ("Rprop", {"lr": 0.01}),
    ("Rprop", {"lr": 0.01, "foreach": True}),
    ("Adafactor", {"lr": 0.05}),
    ("Muon", {"lr": 0.05}),
]


def identifier(value: object) -> str:
    return getattr(value, "__name__", None) or str(value).translate({ord(c): "" for c in "{}' "})


def twice(
    make: Callable[[], nn.Module],
    optimizer_of: Callable[[nn.Module], Optimizer],
    loop: Loop,
    **options: Any,
) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """The same training, without a replica and with one."""
    runs: list[Any] = []
    for joined in (False, True):
        torch.manual_seed(0)
        model = make()
        optimizer = optimizer_of(model)
        if joined:
            join(model, optimizer, **options)
        loop(model, optimizer)
        runs += [model, optimizer]
    return tuple(runs)  # type: ignore[return-value]


def assert_same(runs: tuple[nn.Module, Optimizer, nn.Module, Optimizer]) -> None:
    """Weights, buffers and the optimizer's state are equal to the bit."""
    plain, plain_optimizer, joined, joined_optimizer = runs
    assert {name: t.dtype for name, t in plain.state_dict().items()} == {
        name: t.dtype for name, t in joined.state_dict().items()
    }
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, joined.state_dict()[name]), name
    a, b = plain_optimizer.state_dict()["state"], joined_optimizer.state_dict()["state"]
    assert a.keys() == b.keys()
    for n in a:
        for key, value in a[n].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(b[n][key])), (n, key)


@pytest.mark.parametrize("lent", [False, True], ids=["own", "lent"])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=identifier)
def test_every_optimizer(name: str, options: dict[str, Any], lent: bool) -> None:
    kind = getattr(torch.optim, name)
    make = matrices if name == "Muon" else mlp
    assert_same(twice(make, lambda model: kind(model.parameters(), **options), plain_loop, lent=lent))


@pytest.mark.parametrize("lent", [False, True], ids=["own", "lent"])
@pytest.mark.parametrize("make", [mlp, cnn, Tied], ids=identifier)
@pytest.mark.parametrize("loop", LOOPS, ids=identifier)
def test_every_way_to_write_the_loop(loop: Loop, make: Callable[[], nn.Module], lent: bool) -> None:
    assert_same(twice(make, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), loop, lent=lent))


def test_gradients_of_gradients() -> None:
    assert_same(twice(mlp, lambda m: torch.optim.Adam(m.parameters(), lr=0.01), create_graph))


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
def test_backward_with_a_graph_of_its_own() -> None:
    """Then p.grad is part of a graph; only its values travel."""

    def loop(model: nn.Module, optimizer: Optimizer) -> None:
        for x, y in batches(STEPS):
            F.cross_entropy(model(x), y).backward(create_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    assert_same(twice(mlp, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loop))


def test_a_scheduler_made_before_joining() -> None:
    def optimizer_of(model: nn.Module) -> Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        return optimizer

    def loop(model: nn.Module, optimizer: Optimizer) -> None:
        for batch in batches(STEPS):
            backward(model, batch)
            optimizer.step()
            schedulers[-1].step()
            optimizer.zero_grad()

    def keep_the_mark(model: nn.Module, optimizer: Optimizer) -> None:
        if isinstance(optimizer.step, types.MethodType):
            optimizer.step.__func__._wrapped_by_lr_sched = True  # as a runtime does
        loop(model, optimizer)

    schedulers: list[Any] = []
    runs = twice(mlp, optimizer_of, keep_the_mark)
    assert_same(runs)
    assert runs[3].param_groups[0]["lr"] == 0.5**6


def test_several_groups() -> None:
    def optimizer_of(model: nn.Module) -> Optimizer:
        groups = [
            {"params": model[2].parameters(), "lr": 0.5},  # type: ignore[index,union-attr]
            {"params": model[0].parameters(), "weight_decay": 0.2},  # type: ignore[index,union-attr]
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    assert_same(twice(mlp, optimizer_of, plain_loop))


def test_an_unused_parameter_stays_where_it_is() -> None:
    """Adam with weight decay moves a parameter whose gradient is zero, but not one that has none."""

    def optimizer_of(model: nn.Module) -> Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)

    runs = twice(Tied, optimizer_of, zero_in_place, lent=True)
    assert_same(runs)
    torch.manual_seed(0)
    assert torch.equal(runs[2].unused.weight, Tied().unused.weight)  # type: ignore[union-attr]


def test_weight_norm() -> None:
    def make() -> nn.Module:
        return nn.Sequential(weight_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 5))

    assert_same(twice(make, lambda m: torch.optim.Adam(m.parameters(), lr=0.01), plain_loop))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> None:
        for x, y in batches(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
            optimizer.step()

    def optimizer_of(model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    assert_same(twice(lambda: mlp().to(dtype), optimizer_of, loop, lent=True))


def test_mixed_dtypes_through_the_mirror() -> None:
    """The mirror is wide enough for every value, so it changes no bit either."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(7, 9).to(torch.bfloat16), nn.Linear(9, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.high(self.low(x.to(torch.bfloat16)).tanh().float())

    said: list[str] = []
    runs = twice(
        Mixed, lambda m: torch.optim.Adam(m.parameters(), lr=0.01), accumulate, lent=True, say=said.append
    )
    assert_same(runs)
    assert len(said) == 1 and "mirror in torch.float32" in said[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend: str) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> None:
        plain_loop(torch.compile(model, backend=backend), optimizer)  # type: ignore[arg-type]

    assert_same(twice(mlp, lambda m: torch.optim.Adam(m.parameters(), lr=0.01), loop, lent=True))
    torch._dynamo.reset()


def test_clipping_the_merged_gradient_is_clipping() -> None:
    """With before_apply on one worker, clipping is what it is without workers."""
    torch.manual_seed(0)
    plain = mlp()
    clip(plain, torch.optim.SGD(plain.parameters(), lr=0.5))
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    join(model, optimizer, lent=True, before_apply=lambda: clip_grad_norm_(model.parameters(), 0.05) and None)
    plain_loop(model, optimizer)
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_clipping_the_merged_gradient_of_two_workers_is_clipping_the_big_batch() -> None:
    big, halves = mlp().double(), [mlp().double(), mlp().double()]
    for half in halves:
        half.load_state_dict(big.state_dict())
    big_optimizer = torch.optim.SGD(big.parameters(), lr=0.5)
    replicas = []
    for half in halves:

        def before_apply(half: nn.Module = half) -> None:
            clip_grad_norm_(half.parameters(), 0.05)

        optimizer = torch.optim.SGD(half.parameters(), lr=0.5)
        replicas.append(TorchReplica(half, optimizer, before_apply=before_apply))
    for x, y in batches(STEPS):
        big_optimizer.zero_grad()
        F.cross_entropy(big(x.double()), y).backward()
        clip_grad_norm_(big.parameters(), 0.05)
        big_optimizer.step()
        for n, (half, replica) in enumerate(zip(halves, replicas, strict=True)):
            part = slice(4 * n, 4 * n + 4)
            replica.compute(
                lambda half=half, part=part, x=x, y=y: F.cross_entropy(half(x[part].double()), y[part])
            )
        merged = (replicas[0].gradient + replicas[1].gradient) / 2
        untouched = merged.clone()
        for replica in replicas:
            replica.apply(merged, None)
        assert torch.equal(merged, untouched)
    for half in halves:
        for a, b in zip(big.parameters(), half.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
