"""What ends without an error and is still not what was meant: one line says so; an ordinary script prints none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.policies import Chosen
from running import Runner, plainly

USUAL = ("effective batch", "workers, strategy")
Schedule = Callable[[Optimizer, int, int], LRScheduler]
"""From the optimizer, the length of the loader and that of its shard."""
Loader = DataLoader[Any]


def network(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh(), nn.Linear(4, 1)]
    return nn.Sequential(*layers)


def samples(n: int, size: int, **options: Any) -> Loader:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), size, shuffle=True, **options)


def script(
    *,
    strategy: str = "allreduce",
    n: int = 48,
    size: int = 4,
    epochs: int = 2,
    accumulate: int = 1,
    norm: bool = False,
    schedule: Schedule | None = None,
    per_epoch: bool = False,
    spoilt: Callable[[int, int], float] = lambda worker, step: 1.0,
    steps_of: Callable[[int], int] = lambda worker: 10**6,
    final: Callable[[nn.Module, Loader], object] | None = lambda model, loader: fast.consolidate(model),
) -> list[str]:
    """An ordinary training of this worker, and the lines that it has said that aren't said in every run. `spoilt` is
    a factor on the loss of a worker's step; `steps_of` limits its steps."""
    said: list[str] = []
    seat = current_seat()
    seat.say = said.append
    model, loader, step = network(norm=norm), samples(n, size), 0
    optimizer = SGD(model.parameters(), lr=0.01)
    fast.join(model, optimizer, strategy)
    scheduler = schedule and schedule(optimizer, len(loader), len(fast.shard(loader)))
    for _ in range(epochs):
        for number, (x, y) in enumerate(fast.shard(loader), 1):
            if step >= steps_of(seat.id):
                break
            loss = (model(x) - y).square().mean() * spoilt(seat.id, step)
            loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if scheduler is not None and not per_epoch:
                    scheduler.step()
        if scheduler is not None and per_epoch:
            scheduler.step()
    if final is not None:
        final(model, loader)
    close_sessions(seat)
    return [line for line in said if not any(words in line for words in USUAL)]


def lines(workers: int = 2, **options: Any) -> list[list[str]]:
    """What each worker says."""
    found: list[list[str]] = run_threads(workers, lambda worker: script(**options), serve)
    return found


def only_worker_0(found: Sequence[list[str]]) -> str:
    """The one line that is said, by worker 0."""
    assert [len(each) for each in found] == [1] + [0] * (len(found) - 1), found
    return found[0][0]


# No false alarms


@pytest.mark.parametrize("final", [True, False], ids=["consolidate", "just ends"])
@pytest.mark.parametrize(
    "strategy",
    ["allreduce", "local_sgd(tau=3)", "dpsgd", "gossip(p=0.5)", "easgd", "hogwild", "ssp", "one_shot"],
)
def test_an_ordinary_script_says_nothing(strategy, final):
    if strategy == "one_shot" and not final:
        pytest.skip("it exchanges in fast.consolidate only, and this is noticed")
    options: dict[str, Any] = {} if final else {"final": None}
    assert lines(3, strategy=strategy, n=110, size=8, epochs=3, **options) == [[], [], []]


def test_nor_does_one_worker():
    for strategy in ("allreduce", "easgd"):
        assert lines(1, strategy=strategy, norm=True, n=48) == [[]]


def test_nor_does_a_training_that_was_over_before():
    """As when a script resumes from its last checkpoint: no worker takes a step."""
    for final in (None, lambda model, loader: fast.consolidate(model)):
        assert lines(3, epochs=0, final=final) == [[], [], []]


# Workers without steps


@pytest.mark.parametrize(
    "final", [None, lambda model, loader: fast.consolidate(model)], ids=["ends", "consolidates"]
)
@pytest.mark.parametrize("idle", [0, 1])
@pytest.mark.parametrize("strategy", ["allreduce", "gossip(p=1)"])
def test_a_worker_that_takes_no_step_says_so(strategy, idle, final):
    found = lines(3, strategy=strategy, steps_of=lambda worker: 0 if worker == idle else 100, final=final)
    assert [len(each) for each in found] == [int(worker == idle) for worker in range(3)]
    assert found[idle][0].startswith(f"worker {idle} has taken no step, and others have")


def idle_script() -> list[str]:
    return script(steps_of=lambda worker: 0 if worker == 1 else 100, final=None)


@pytest.mark.real
def test_real_workers_say_so_too(runner: Runner) -> None:
    quiet, told = runner.results("test_remarks:idle_script", 2)
    assert quiet == [] and told[0].startswith("worker 1 has taken no step")


# Not a number


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_noticed(value):
    line = only_worker_0(lines(spoilt=lambda worker, step: value if (worker, step) == (1, 5) else 1.0))
    assert line.startswith("the weights hold NaN or infinity after step 8, and after step 4 not yet.")
    assert "check_finite=True" in line


def test_it_is_known_whose_they_are():
    found = lines(3, strategy="one_shot", spoilt=lambda worker, step: float("nan") if worker == 2 else 1.0)
    assert [len(each) for each in found] == [0, 0, 1]
    assert found[2][0].startswith(
        "the weights of worker 2 hold NaN or infinity after step 1, and before the first"
    )


def test_the_last_step_counts_too():
    spoilt = lambda worker, step: float("nan") if step == 6 else 1.0  # noqa: E731
    line = only_worker_0(lines(n=56, epochs=1, spoilt=spoilt, final=None))
    assert "after step 7, and after step 4 not yet" in line


def test_so_are_those_of_a_plain_script():
    (line,) = plainly(lambda: script(spoilt=lambda worker, step: float("nan")))
    assert line.startswith("the weights hold NaN or infinity.")


# Schedules. 41 batches of the loader are 21 steps of two workers.


def cosine(total: Callable[[int, int], int]) -> Schedule:
    return lambda optimizer, plain, sharded: CosineAnnealingLR(optimizer, total(plain, sharded))


def one_cycle(optimizer: Optimizer, plain: int, sharded: int) -> LRScheduler:
    return OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=plain)


def warm_up(optimizer: Optimizer, plain: int, sharded: int) -> LRScheduler:
    parts = [LinearLR(optimizer, total_iters=plain), CosineAnnealingLR(optimizer, 2 * plain)]
    return SequentialLR(optimizer, parts, milestones=[plain])


@pytest.mark.parametrize("schedule", [cosine(lambda plain, sharded: 3 * plain), one_cycle, warm_up])
def test_a_schedule_made_from_the_loader_is_noticed(schedule):
    for epochs in (1, 3):  # in the middle of the first of three, too
        line = only_worker_0(lines(n=164, epochs=epochs, schedule=schedule))
        assert "ends after 123 steps, which are 3 x len(loader), but with 2 workers 3 epochs" in line
        assert "63 steps" in line and line.endswith("Make it from len(fast.shard(loader)).")


@pytest.mark.parametrize(
    ("n", "total", "accumulate"), [(160, 120, 1), (160, 60, 2), (164, 60, 2), (164, 61, 2)]
)
def test_a_total_that_may_be_meant_is_noticed_at_the_end_only(n, total, accumulate):
    """40 batches are twice 20 steps, so 120 steps may be six epochs, until three are over."""
    options: dict[str, Any] = {"n": n, "accumulate": accumulate, "schedule": cosine(lambda *_: total)}
    assert f"ends after {total} steps, which are 3 x len(loader)" in only_worker_0(lines(epochs=3, **options))
    assert lines(epochs=2, **options) == [[], []]


@pytest.mark.parametrize(
    ("schedule", "per_epoch"),
    [
        (cosine(lambda plain, sharded: 3 * sharded), False),
        (cosine(lambda plain, sharded: 100), False),
        (cosine(lambda plain, sharded: 3), True),
        (cosine(lambda plain, sharded: 3 * plain), True),
        (lambda optimizer, plain, sharded: StepLR(optimizer, 123), False),
        (lambda optimizer, plain, sharded: ConstantLR(optimizer), False),
        (lambda optimizer, plain, sharded: OneCycleLR(optimizer, 0.1, total_steps=3 * sharded + 1), False),
    ],
)
def test_other_schedules_are_nothing_to_talk_about(schedule, per_epoch):
    assert lines(n=164, epochs=3, schedule=schedule, per_epoch=per_epoch) == [[], []]


def saved(optimizer: Optimizer, plain: int, sharded: int) -> LRScheduler:
    """Saving gives a scheduler a dictionary of its own."""
    scheduler = CosineAnnealingLR(optimizer, 3 * plain)
    scheduler.load_state_dict(scheduler.state_dict())
    return scheduler


def test_a_schedule_whose_state_was_saved_is_found_too():
    assert "CosineAnnealingLR ends after 123 steps" in only_worker_0(lines(n=164, epochs=1, schedule=saved))


def test_without_lock_step_a_schedule_is_noticed_at_the_end():
    options: dict[str, Any] = {"n": 164, "strategy": "gossip(p=1)", "schedule": one_cycle}
    assert lines(epochs=1, **options) == [[], []]
    assert "OneCycleLR ends after 123 steps" in only_worker_0(lines(epochs=3, **options))


# No exchange


@pytest.mark.parametrize(
    "final", [None, lambda model, loader: fast.consolidate(model)], ids=["ends", "consolidates"]
)
@pytest.mark.parametrize(
    ("strategy", "period"),
    [
        ("diloco(interval=60)", "interval is 60"),
        ("local_sgd(tau=13)", "tau is 13"),
        ("easgd(tau=20)", "tau is 20"),
    ],
)
def test_workers_that_never_exchange_anything(strategy, period, final):
    line = only_worker_0(lines(strategy=strategy, final=final))
    assert line.startswith(f"12 steps were taken, and {strategy} has never exchanged anything")
    assert f"its {period} steps. Each has trained alone" in line


def test_one_shot_exchanges_in_consolidate():
    assert lines(strategy="one_shot") == [[], []]
    assert "one_shot has never exchanged anything between the workers. Each" in only_worker_0(
        lines(strategy="one_shot", final=None)
    )


# BatchNorm


def test_statistics_of_batchnorm_that_are_averaged():
    line = only_worker_0(lines(norm=True))
    assert line.startswith("the model has BatchNorm") and "batches=fast.shard(loader)" in line


def twice(model: nn.Module, loader: Loader) -> None:
    for _ in range(2):
        fast.snapshot(model)
    fast.consolidate(model)


def anew(model: nn.Module, loader: Loader) -> None:
    fast.consolidate(model, batches=fast.shard(loader))


def of_one(model: nn.Module, loader: Loader) -> None:
    fast.consolidate(model, Chosen(1))


def test_it_is_said_once_and_only_where_it_is_true():
    only_worker_0(lines(norm=True, final=twice))
    assert lines(norm=True, final=anew) == lines(norm=True, final=of_one) == [[], []]


def synchronised(x: Tensor) -> list[str]:
    said: list[str] = []
    current_seat().say = said.append
    model = fast.SyncBatchNorm.convert(network(norm=True))
    optimizer = SGD(model.parameters(), lr=0.01)
    fast.join(model, optimizer, "local_sgd(tau=9)" if x.size(0) % 2 else "allreduce")
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
    fast.consolidate(model)
    return [line for line in said if not any(words in line for words in USUAL)]


def test_layers_with_common_statistics_are_nothing_to_talk_about():
    assert run_threads(2, lambda worker: synchronised(torch.randn(4, 3)), serve) == [[], []]


def test_what_layers_exchange_is_not_the_strategys_exchange():
    line, *_ = run_threads(2, lambda worker: synchronised(torch.randn(5, 3)), serve)[0]
    assert "local_sgd(tau=9) has never exchanged anything" in line


# Short steps


@pytest.mark.parametrize(
    ("n", "workers", "each"), [(67, 2, "1 to 2 samples"), (65, 2, "0 to 1 samples"), (98, 3, "0 to 1 samples"),
                               (66, 2, "1 sample"), (68, 2, "2 samples")]
)  # fmt: skip
def test_a_last_step_of_a_few_samples_is_named(n, workers, each):
    line = only_worker_0(lines(workers, n=n, size=8))
    assert line.startswith(f"the last step of each epoch has {each} per worker, and the others have 8:")
    assert "drop_last=True" in line


def test_one_that_is_not_so_short_isnt():
    assert lines(2, n=70, size=8) == lines(2, n=64, size=8) == lines(2, n=65, size=2) == [[], []]
