"""What runs inside workers in the tests of large batches and of BatchNorm, and the same without FAST."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text

WIDTH, CHANNELS, SIDE = 6, 3, 4
OPTIMIZERS: Mapping[str, Callable[[nn.Module], Optimizer]] = MappingProxyType(
    {
        "sgd": lambda model: SGD(model.parameters(), lr=0.05),
        "momentum": lambda model: SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01),
        "adam": lambda model: Adam(model.parameters(), lr=0.01),
    }
)


def state_of(model: nn.Module) -> dict[str, str]:
    return {name.replace("_orig_mod.", ""): as_text(value) for name, value in model.state_dict().items()}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def started(model: nn.Module) -> nn.Module:
    """With the same values everywhere; threads share torch's own generator."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return model


# A rate that follows the batch: P workers with batch b, or one with all of it


def mlp() -> nn.Module:
    return started(nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 1)).double())


def samples(step: int, count: int) -> tuple[Tensor, Tensor]:
    """Those of all workers in one step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


def part(step: int, workers: int, worker: int, batch: int) -> tuple[Tensor, Tensor]:
    x, y = samples(step, workers * batch)
    mine = slice(worker * batch, (worker + 1) * batch)
    return x[mine], y[mine]


def train_warm(
    strategy: str,
    optimizer: str,
    steps: int,
    batch: int = 4,
    *,
    scheduled: bool = False,
    **plan: Any,
) -> dict[str, str]:
    """One worker's part. The rates outside of steps stay the optimizer's own."""
    seat, model = current_seat(), mlp()
    optimizer_ = OPTIMIZERS[optimizer](model)
    scheduler = StepLR(optimizer_, 3, 0.5) if scheduled else None
    own = optimizer_.param_groups[0]["lr"]
    joined = fast.join(model, optimizer_, strategy, large_batch=fast.LargeBatch(batch=batch, **plan))
    assert joined == (model, optimizer_)
    for step in range(steps):
        loss_of(model, *part(step, seat.workers, seat.id, batch)).backward()
        optimizer_.step()
        optimizer_.zero_grad()
        if scheduler is not None:
            scheduler.step()
            own = scheduler.get_last_lr()[0]
        assert optimizer_.param_groups[0]["lr"] == own
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"own": as_text(flat(model)), "final": as_text(flat(final))}


def warm_reference(
    optimizer: str,
    steps: int,
    workers: int,
    k: float,
    warm_up: int,
    *,
    batch: int = 4,
    scheduled: bool = False,
) -> Tensor:
    """One worker with the whole batch, torch's own warm-up, and no FAST."""
    model = mlp()
    optimizer_ = OPTIMIZERS[optimizer](model)
    for group in optimizer_.param_groups:
        group["lr"] *= k
    linear = LinearLR(optimizer_, start_factor=1 / k, total_iters=warm_up)
    halving = StepLR(optimizer_, 3, 0.5) if scheduled else None  # both multiply the rate there is
    for step in range(steps):
        loss_of(model, *samples(step, workers * batch)).backward()
        optimizer_.step()
        optimizer_.zero_grad()
        linear.step()
        if halving is not None:
            halving.step()
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# Accumulation


def accumulate(strategy: str, passes: int, steps: int, batch: int = 2, *, mark: bool = False) -> str:
    """Micro-batches of one worker: together they are its part of the whole batch."""
    seat, model = current_seat(), mlp()
    optimizer = OPTIMIZERS["momentum"](model)
    fast.join(model, optimizer, strategy, accumulate=0 if mark else passes)
    for step in range(steps):
        x, y = part(step, seat.workers, seat.id, passes * batch)
        for number, (rows, aims) in enumerate(zip(x.split(batch), y.split(batch), strict=True)):
            loss = loss_of(model, rows, aims) / passes
            if mark and number == passes - 1:
                with fast.final_backward():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = as_text(flat(model))
    close_sessions(seat)
    return weights


def accumulate_reference(workers: int, passes: int, steps: int, batch: int = 2) -> Tensor:
    """One large batch a step."""
    model = mlp()
    optimizer = OPTIMIZERS["momentum"](model)
    for step in range(steps):
        loss_of(model, *samples(step, workers * passes * batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


# BatchNorm


def normal_mlp(**options: Any) -> nn.Module:
    """A bias before BatchNorm would have no gradient but rounding errors, which Adam makes much of."""
    layers = [nn.Linear(WIDTH, 7, bias=False), nn.BatchNorm1d(7, **options), nn.Tanh()]
    layers += [nn.Linear(7, 5, bias=False), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 1)]
    return started(nn.Sequential(*layers).double())


def normal_conv() -> nn.Module:
    """BatchNorm first, whose input needs no gradient, and later once more."""
    layers = [nn.BatchNorm2d(CHANNELS), nn.Conv2d(CHANNELS, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU()]
    return started(nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * (SIDE - 2) ** 2, 1)).double())


MODELS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "1d": normal_mlp,
        "2d": normal_conv,
        "without affine": lambda: normal_mlp(affine=False),
        "cumulative": lambda: normal_mlp(momentum=None),
        "untracked": lambda: normal_mlp(track_running_stats=False),
    }
)


def inputs(model: str, count: int) -> tuple[Tensor, Tensor]:
    """Far from 0, and unlike each other, so that local statistics would be others."""
    generator = torch.Generator().manual_seed(7)
    shape = (CHANNELS, SIDE, SIDE) if model == "2d" else (WIDTH,)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    x = 3.0 + x * torch.linspace(0.5, 4.0, count, dtype=torch.float64).view(-1, *(1,) * len(shape))
    return x, x.flatten(1).sin().sum(1, keepdim=True)


def train_normal(
    model: str,
    strategy: str = "allreduce",
    optimizer: str = "momentum",
    *,
    synchronised: bool = True,
    count: int = 24,
    batch: int = 4,
    epochs: int = 2,
    compiled: bool = False,
) -> dict[str, Any]:
    """One worker's part of shuffled data, with what it saw in each step."""
    seat, built = current_seat(), MODELS[model]()
    if synchronised:
        fast.SyncBatchNorm.convert(built)
    optimizer_ = OPTIMIZERS[optimizer](built)
    trained = torch.compile(built, backend="eager") if compiled else built
    fast.join(trained, optimizer_, strategy)
    x, y = inputs(model, count)
    seen = []
    own = torch.Generator()  # threads share torch's
    loader = DataLoader(TensorDataset(x, y, torch.arange(count)), batch, shuffle=True, generator=own)
    for _ in range(epochs):
        for rows, aims, indices in fast.shard(loader):
            loss_of(trained, rows, aims).backward()
            optimizer_.step()
            optimizer_.zero_grad()
            seen.append(indices.tolist())
    final = fast.consolidate(trained)
    close_sessions(seat)
    return {"seen": seen, "own": state_of(built), "final": state_of(final)}


def normal_reference(model: str, optimizer: str, seen: list[list[list[int]]], count: int) -> nn.Module:
    """One worker with torch's BatchNorm, on what all saw together; `seen` by worker and step."""
    built, (x, y) = MODELS[model](), inputs(model, count)
    optimizer_ = OPTIMIZERS[optimizer](built)
    for step in zip(*seen, strict=True):
        # who sees a sample again because there are too few counts nothing
        whole = list(dict.fromkeys(index for part in step for index in part))
        loss_of(built, x[whole], y[whole]).backward()
        optimizer_.step()
        optimizer_.zero_grad()
    return built


def train_own_normal(sizes: list[int], synchronised: bool, steps: int = 3) -> dict[str, str]:
    """Data that stays with its worker: batches of other sizes on each."""
    seat, built = current_seat(), MODELS["1d"]()
    if synchronised:
        fast.SyncBatchNorm.convert(built)
    optimizer = OPTIMIZERS["momentum"](built)
    fast.join(built, optimizer)
    x, y = inputs("1d", sum(sizes))
    rows, aims = x.split(sizes)[seat.id], y.split(sizes)[seat.id]
    for own_rows, own_aims in fast.own([(rows, aims)] * steps):
        loss_of(built, own_rows, own_aims).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = state_of(built)
    close_sessions(seat)
    return state
