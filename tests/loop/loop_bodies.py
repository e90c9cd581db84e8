"""What runs inside real workers in the tests of the user's loop, and the same without FAST."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import fast
import preset_bodies
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text, parameters_of

WIDTH = 6


# Models


def double_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 1)).double()


class TiedAndFrozen(nn.Module):
    """One weight used twice, and one that never moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.first.weight
        self.frozen, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.again(self.first(x).tanh()).tanh()))


class Mixed(nn.Module):
    """Parameters of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(WIDTH, 5).float(), nn.Linear(5, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x.float()).tanh().double())


class TwoHeads(nn.Module):
    """The second head is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(WIDTH, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.double()

    def forward(self, x: Tensor, both: bool) -> Tensor:
        hidden = self.body(x).tanh()
        return self.a(hidden) + self.b(hidden) if both else self.a(hidden)


# Cases: the same training on P workers with batch b and on one with batch P b


@dataclass(frozen=True)
class Case:
    """A training; `optimizer` takes the model."""

    optimizer: Callable[[nn.Module], Optimizer]
    model: Callable[[], nn.Module] = double_mlp
    samples: int = 22
    batch: int = 4
    epochs: int = 2
    clip: float | None = None
    accumulate: int = 1
    scheduler: str = ""
    """When it is made: "before" or "after" join; or never."""
    set_to_none: bool = True
    compiled: bool = False


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def adam(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=0.01)


def groups(model: nn.Module) -> Optimizer:
    first, *rest = list(model.parameters())
    return SGD([{"params": [first], "lr": 0.2, "momentum": 0.5}, {"params": rest}], lr=0.05, weight_decay=0.1)


CASES: MappingProxyType[str, Case] = MappingProxyType(
    {
        "sgd": Case(sgd),
        "momentum": Case(momentum),
        "adam": Case(adam),
        "fewer samples than workers in the last step": Case(momentum, samples=26),
        "one step of two samples": Case(adam, samples=2, epochs=3),
        "clipping the merged gradient": Case(momentum, clip=0.05),
        "accumulation": Case(momentum, samples=48, accumulate=2),
        "scheduler before join": Case(sgd, scheduler="before"),
        "scheduler after join": Case(sgd, scheduler="after"),
        "several groups": Case(groups),
        "tied and frozen": Case(adam, model=TiedAndFrozen),
        "several dtypes": Case(sgd, model=Mixed),
        "zero_grad to zeros": Case(momentum, set_to_none=False),
        "torch.compile": Case(momentum, compiled=True),
    }
)


def data_of(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(case.samples, WIDTH, generator=generator, dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


def make_model(case: Case, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return case.model()


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def clipper(case: Case, model: nn.Module) -> Callable[[], None] | None:
    if case.clip is None:
        return None
    limit = case.clip
    return lambda: nn.utils.clip_grad_norm_(model.parameters(), limit) and None


def train(name: str) -> dict[str, Any]:
    """One worker's part of a case. Everybody starts with other weights; worker 0's count."""
    warnings.simplefilter("error")
    case, seat = CASES[name], current_seat()
    model = make_model(case, seed=seat.id)
    optimizer = case.optimizer(model)
    scheduler = StepLR(optimizer, 2, 0.5) if case.scheduler == "before" else None
    trained = torch.compile(model, backend="eager") if case.compiled else model
    fast.join(trained, optimizer, before_apply=clipper(case, model))
    if case.scheduler == "after":
        scheduler = StepLR(optimizer, 2, 0.5)
    loader = DataLoader(TensorDataset(*data_of(case), torch.arange(case.samples)), case.batch, shuffle=True)
    sharded, seen, backwards = fast.shard(loader), [], 0
    for _ in range(case.epochs):
        for x, y, indices in sharded:
            (loss_of(trained, x, y) / case.accumulate).backward()
            backwards += 1
            seen.append(indices.tolist())
            if backwards % case.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=case.set_to_none)
                if scheduler is not None:
                    scheduler.step()
    final = fast.consolidate(trained)
    close_sessions(seat)
    return {"seen": seen, "own": as_text(flat(model)), "final": as_text(flat(final))}


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def reference(name: str, seen: Sequence[Sequence[int]]) -> Tensor:
    """One worker, without FAST, on these batches."""
    case = CASES[name]
    model = make_model(case)
    optimizer, (x, y) = case.optimizer(model), data_of(case)
    scheduler = StepLR(optimizer, 2, 0.5) if case.scheduler else None
    clip = clipper(case, model)
    for number, indices in enumerate(seen, 1):
        (loss_of(model, x[list(indices)], y[list(indices)]) / case.accumulate).backward()
        if number % case.accumulate == 0:
            if clip is not None:
                clip()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return flat(model)


# Parameters that some steps don't use


def uses_both(worker: int, step: int) -> bool:
    """In step 0 everybody, in steps 1 and 4 nobody, otherwise some."""
    return step == 0 or (step not in (1, 4) and (worker + step) % 3 == 0)


def head_batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * worker + step)
    x = torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True)


def heads_model() -> TwoHeads:
    torch.manual_seed(0)
    return TwoHeads()


def train_heads(strategy: str, steps: int) -> dict[str, str]:
    seat, model = current_seat(), heads_model()
    optimizer = Adam(model.parameters(), lr=0.05)
    fast.join(model, optimizer, strategy)
    for step in range(steps):
        x, y = head_batch(seat.id, step)
        (model(x, uses_both(seat.id, step)) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"final": as_text(parameters_of(final))}


# Buffers


def train_buffers(steps: list[int], strategy: str, compiled: bool) -> dict[str, Any]:
    """Worker i takes steps[i] steps with BatchNorm, whose buffers stay its own until the end."""
    seat = current_seat()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double()
    optimizer = sgd(model)
    trained = torch.compile(model, backend="eager") if compiled else model
    fast.join(trained, optimizer, strategy)
    for step in range(steps[seat.id]):
        loss_of(trained, *head_batch(seat.id, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(trained)
    close_sessions(seat)
    return {"own": state_of(model), "final": state_of(final), "type": type(final).__name__}


def state_of(model: nn.Module) -> dict[str, str]:
    state = model.state_dict()
    return {name.replace("_orig_mod.", ""): as_text(value) for name, value in state.items()}


# Data that stays with its worker


def own_data(worker: int) -> list[tuple[Tensor, Tensor]]:
    """Three batches, of other sizes on every worker and in every step."""
    generator = torch.Generator().manual_seed(worker)
    sizes = [(3, 1, 4), (5, 9, 2), (6, 5, 3)][worker]
    rows = [torch.randn(size, WIDTH, generator=generator, dtype=torch.float64) for size in sizes]
    return [(x, x.sum(1, keepdim=True)) for x in rows]


def train_own() -> str:
    seat = current_seat()
    model = make_model(CASES["momentum"])
    optimizer = momentum(model)
    fast.join(model, optimizer)
    for x, y in fast.own(own_data(seat.id)):
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return as_text(flat(model))


# fast.shard inside real workers


class Counting(torch.utils.data.IterableDataset[int]):
    """Numbers from 0 on, whoever iterates."""

    def __iter__(self) -> Any:
        return iter(range(10))


def shard_kinds() -> dict[str, list[list[int]]]:
    """Which samples this worker sees of loaders of several kinds."""
    data = TensorDataset(torch.arange(20))
    pairs = [[2 * n, 2 * n + 1] for n in range(7)]
    kinds: dict[str, Iterable[Any]] = {
        "worker processes": DataLoader(data, 3, shuffle=True, num_workers=1),
        "batch sampler": DataLoader(data, batch_sampler=pairs),
        "iterable data set": DataLoader(Counting(), 2),
        "list": pairs,
    }
    return {name: [_numbers(batch) for batch in fast.shard(loader)] for name, loader in kinds.items()}


def _numbers(batch: Any) -> list[int]:
    values = batch[0] if isinstance(batch, list) and isinstance(batch[0], Tensor) else batch
    return [int(value) for value in values]


# What is refused


def _joined(**options: Any) -> tuple[nn.Module, Optimizer]:
    model = make_model(CASES["sgd"])
    return fast.join(model, sgd(model), **options)


def _step(model: nn.Module, optimizer: Optimizer, scale: float = 1.0) -> None:
    x, y = head_batch(current_seat().id, 0)
    (loss_of(model, x, y) * scale).backward()
    optimizer.step()
    optimizer.zero_grad()


def use_scaler(steps: int = 2) -> str:
    model, optimizer = _joined()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for _ in range(steps):
        scaler.scale(loss_of(model, *head_batch(0, 0))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return as_text(flat(model))


def use_closure() -> str:
    model, optimizer = _joined()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *head_batch(0, 0))
        loss.backward()
        return loss

    optimizer.step(closure)
    return as_text(flat(model))


def use_lbfgs() -> None:
    model = make_model(CASES["sgd"])
    fast.join(model, torch.optim.LBFGS(model.parameters()))


def be_infinite(check: bool, who: int) -> list[bool]:
    """One worker's gradient isn't a number. Returns whether each parameter still is one."""
    model, optimizer = _joined(check_finite=check)
    _step(model, optimizer, float("nan") if current_seat().id == who else 1.0)
    return [bool(p.isfinite().all()) for p in model.parameters()]


def differ(how: str) -> None:
    odd = current_seat().id == 1
    model: nn.Module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    if odd and how == "shape":
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    if odd and how == "number":
        model.append(nn.Linear(1, 1))  # type: ignore[operator]
    if odd and how == "buffers":
        model.register_buffer("extra", torch.zeros(2))
    if odd and how == "dtype":
        model.double()
    strategy = "torus" if odd and how == "strategy" else "allreduce"
    fast.join(model, sgd(model), strategy)


def join_twice() -> None:
    _joined()
    _joined()


def join_no_module() -> None:
    fast.join([nn.Linear(1, 1)], sgd(nn.Linear(1, 1)))  # type: ignore[type-var]


def join_no_optimizer() -> None:
    fast.join(nn.Linear(1, 1), "sgd")  # type: ignore[type-var]


def clip_on_a_server() -> None:
    model = nn.Linear(1, 1)
    fast.join(model, sgd(model), "ssp", before_apply=lambda: None)


def clip_beside_a_server(strategy: str) -> int:
    """How often a worker's own optimizer was about to move the weights, in three steps."""
    model, seen = nn.Linear(1, 1), list[int]()
    optimizer = sgd(model)
    fast.join(model, optimizer, strategy, before_apply=lambda: seen.append(1))
    for _ in range(3):
        model(torch.ones(2, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    fast.consolidate(model)
    return len(seen)


def step_after_the_end() -> None:
    model, optimizer = _joined()
    _step(model, optimizer)
    fast.consolidate(model)
    _step(model, optimizer)


def consolidate_a_stranger() -> None:
    _joined()
    fast.consolidate(nn.Linear(1, 1))


def freeze_later() -> None:
    model, optimizer = _joined()
    _step(model, optimizer)
    next(model.parameters()).requires_grad_(False)
    _step(model, optimizer)


def write_into_the_mean() -> None:
    class Spoiling(fast.Strategy):
        async def step(self, me: fast.Me) -> None:
            me.apply((await me.mean(me.gradient, read_only=True)).mul_(2))

    model, optimizer = _joined(strategy=Spoiling())
    _step(model, optimizer)


def clip_own_gradient() -> None:
    """Changes the gradients after backward, which FAST mentions."""
    model, optimizer = _joined()
    loss_of(model, *head_batch(0, 0)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    close_sessions(current_seat())


# fast.Worker


def train_torus_by_hand() -> str:
    model = preset_bodies.make_model()

    def iteration(me: fast.Me, batch: Any, updates: Sequence[fast.Letter]) -> None:
        me.backward(preset_bodies.loss_of(me.model, batch))
        me.send(me.neighbours, me.gradient, tag="update")
        me.apply(fast.rules.mean(me.gradient, me.samples, updates))

    batches = list(preset_bodies.batches(0, 240))
    optimizer = preset_bodies.make_optimizer(model)
    fast.Worker(fast.topologies.Torus(), iteration).train(model, optimizer, batches)
    final = fast.consolidate(model)
    close_sessions(current_seat())
    return as_text(parameters_of(final))


# An epoch that ends before all of it is done


def finish_early(samples: int, finish: float, epochs: int) -> dict[str, Any]:
    """One sample per step. Worker 2 is in its first step until the others have ended their first pass."""
    seat, steps = current_seat(), []
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    fast.join(model, optimizer, "project_adam")
    loader = DataLoader(
        TensorDataset(torch.arange(float(samples)).view(-1, 1) / samples), batch_size=1, shuffle=True
    )
    for epoch in range(epochs):
        steps.append(0)
        for (x,) in fast.shard(loader, finish=finish):
            optimizer.zero_grad()
            (model(x) - x).square().sum().backward()
            optimizer.step()
            steps[-1] += 1
            if epoch == 0 and seat.id == 2:
                preset_bodies.await_everybody(seat.sessions[-1])
        if epoch == 0 and seat.id != 2:
            preset_bodies.await_everybody(seat.sessions[-1])
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"steps": steps, "final": as_text(parameters_of(final))}
