"""Large batches: the rate follows the batch, velocities follow the rate, schedulers and checkpoints go on."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import large_batch_bodies as bodies
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from large_batch_bodies import accumulate_reference, warm_reference
from loop_bodies import CASES, reference
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adafactor, Adam, Muon, Optimizer, Rprop
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast import LargeBatch
from fast.adapters.optimizer_spec import KNOWN
from fast.engine import Seat, current_seat, seated
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.loop.large_batch import HOLDS_RATE, PlainRates
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from running import from_text, plainly

TINY_MB = 1e-6
STEPS = 8


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def number(text: str) -> Tensor:
    return from_text(text, torch.float64)


# The plan


@given(
    workers=st.integers(1, 64),
    batch=st.integers(1, 512),
    reference=st.integers(1, 512),
    warm_up=st.integers(0, 20),
)
def test_the_rate_is_that_of_torchs_own_linear_warm_up(workers, batch, reference, warm_up):
    plan = LargeBatch(batch, reference, warm_up)
    k = workers * batch / reference
    assert plan.effective(workers) == workers * batch
    assert plan.scale(workers) == k
    found = [0.1 * plan.factor(step, workers) for step in range(25)]
    if k < 1 or warm_up == 0:
        assert found == [pytest.approx(0.1 * k)] * 25
        return
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1 * k)
    linear = schedulers.LinearLR(optimizer, start_factor=1 / k, total_iters=warm_up)
    for rate in found:
        assert rate == pytest.approx(linear.get_last_lr()[0])
        optimizer.step()
        linear.step()


def test_the_closed_form():
    plan = LargeBatch(batch=32, reference=64, warm_up=4)
    assert [plan.factor(step, 8) for step in range(7)] == [1.0, 1.75, 2.5, 3.25, 4.0, 4.0, 4.0]
    assert LargeBatch(batch=32).scale(8) == 8.0, "tuned for one worker, unless told"
    assert LargeBatch(batch=32, reference=64, power=0.5).scale(8) == 2.0
    assert LargeBatch(batch=32, power=0.0).scale(8) == 1.0


def seat_of(workers: int) -> Seat:
    return Seat(0, workers, lambda: None, lambda *_: None, print)


@pytest.mark.parametrize(("workers", "accumulate", "steps"), [(1, 1, 33), (4, 1, 10), (4, 2, 5), (8, 1, 5)])
def test_a_loader_says_batch_and_steps(workers, accumulate, steps):
    """100 samples in batches of 8 are 13 steps of one worker, 4 of four, 2 of eight; and 2.5 epochs of that."""
    loader = DataLoader(TensorDataset(torch.zeros(100, 1)), batch_size=8)
    with seated(seat_of(workers)):
        plan = LargeBatch.of(loader, epochs=2.5, accumulate=accumulate)
        assert plan == LargeBatch(batch=8 * accumulate, reference=8, warm_up=steps)
        assert LargeBatch.of(loader, reference=16).reference == 16


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LargeBatch(batch=0), "at least 1 sample"),
        (lambda: LargeBatch(batch=8, reference=0), "at least 1 sample"),
        (lambda: LargeBatch(batch=8, warm_up=-1), r"counts steps.*LargeBatch\.of\(loader, epochs=5\)"),
        (lambda: LargeBatch(batch=8, warm_up=0.5), "counts steps"),
        (lambda: LargeBatch(batch=8, power=2.0), "between 0 .* and 1"),
        (lambda: LargeBatch(batch="32"), "at least 1 sample"),
        (lambda: LargeBatch(batch=2.5), "at least 1 sample"),
        (lambda: LargeBatch(batch=8, reference=True), "at least 1 sample"),
        (lambda: LargeBatch(batch=8, warm_up=True), "counts steps"),
        (lambda: LargeBatch(batch=8, power="1"), "between 0 .* and 1"),
        (lambda: LargeBatch(batch=8, holds_rate="velocity"), r"a tuple of names, such as \('velocity',\)"),
        (lambda: LargeBatch.of([1, 2]), "a DataLoader with a batch_size and got list"),
        (lambda: LargeBatch.of(DataLoader([1], batch_sampler=[[0]])), "say it yourself"),
        (lambda: LargeBatch.of(DataLoader([1]), accumulate=0), "at least 1 batch"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


# One worker: what a step does with a gradient of 1 is its rate


def one_weight() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


def push(model: nn.Linear, optimizer: Optimizer) -> float:
    """One step with a gradient of -1; where the weight is afterwards."""
    (-model(torch.ones(1, 1, dtype=torch.float64)).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model.weight.item()


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda optimizer: schedulers.StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 6),
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(
        optimizer, 0.3, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "in a row": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.ConstantLR(optimizer, 0.3, 3), schedulers.ExponentialLR(optimizer, 0.8)],
        milestones=[4],
    ),
}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_goes_on_and_is_multiplied(kind, moment):
    """Made before or after join; the rates that it says are those without FAST."""

    def rates_without() -> Iterator[float]:
        optimizer = SGD(one_weight().parameters(), lr=0.1, momentum=0.0)
        scheduler = SCHEDULERS[kind](optimizer)
        for _ in range(STEPS):
            yield scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()

    def script() -> None:
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.0)
        scheduler = SCHEDULERS[kind](optimizer) if moment == "before" else None
        plan = LargeBatch(batch=8, reference=2, warm_up=4)
        fast.join(model, optimizer, large_batch=plan)
        scheduler = scheduler or SCHEDULERS[kind](optimizer)
        at = 0.0
        for step, rate in enumerate(rates_without()):
            assert scheduler.get_last_lr() == [rate] == [optimizer.param_groups[0]["lr"]]
            at += rate * (1 + 3 * min(1, step / 4))
            assert push(model, optimizer) == pytest.approx(at, rel=1e-12)
            scheduler.step()

    plainly(script)


def test_a_plateau_is_seen_in_the_users_own_numbers():
    def script():
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1)
        fast.join(model, optimizer, large_batch=LargeBatch(batch=8, reference=4))
        scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
        scheduler.step(1.0)
        assert push(model, optimizer) == pytest.approx(0.2)
        scheduler.step(1.0)
        assert push(model, optimizer) == pytest.approx(0.22)

    plainly(script)


def test_several_groups_and_rates_that_are_tensors():
    def script():
        model = nn.ModuleList([one_weight(), one_weight()])
        optimizer = SGD(
            [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}],
            lr=torch.tensor(0.25, dtype=torch.float64), foreach=False,
        )  # fmt: skip
        tensor = optimizer.param_groups[0]["lr"]
        fast.join(model, optimizer, large_batch=LargeBatch(batch=8, reference=2))
        (-sum(part(torch.ones(1, 1, dtype=torch.float64)).sum() for part in model)).backward()
        optimizer.step()
        assert [part.weight.item() for part in model] == [1.0, 2.0]
        assert optimizer.param_groups[0]["lr"] is tensor
        assert (tensor.item(), optimizer.param_groups[1]["lr"]) == (0.25, 0.5)

    plainly(script)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "ASGD", "Rprop"])
def test_a_checkpoint_goes_on_where_it_was_in_the_warm_up(kind):
    """Saved and loaded as everybody does: model, optimizer, scheduler; the same bits as without a break."""
    makers = {**bodies.OPTIMIZERS, "ASGD": lambda m: ASGD(m.parameters(), lr=0.05),
              "Rprop": lambda m: Rprop(m.parameters(), lr=0.01)}  # fmt: skip
    plan = LargeBatch(batch=8, reference=2, warm_up=6)

    def run(first: int, last: int, saved: bytes | None) -> tuple[Tensor, bytes, str]:
        said: list[str] = []
        model = bodies.mlp()
        optimizer = makers[kind](model)
        scheduler = schedulers.StepLR(optimizer, 3, 0.7)
        things = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        if saved is not None:
            for name, state in torch.load(io.BytesIO(saved), weights_only=True).items():
                things[name].load_state_dict(state)
        current_seat().say = said.append
        fast.join(model, optimizer, large_batch=plan)
        for step in range(first, last):
            bodies.loss_of(model, *bodies.samples(step, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        file = io.BytesIO()
        torch.save({name: thing.state_dict() for name, thing in things.items()}, file)
        return bodies.flat(model), file.getvalue(), said[0]

    whole, _, _ = plainly(lambda: run(0, 9, None))
    _, saved, first_line = plainly(lambda: run(0, 4, None))
    resumed, _, line = plainly(lambda: run(4, 9, saved))
    # torch itself gives ASGD's rate another dtype when it loads it
    assert close(resumed, whole, 1e-6) if kind == "ASGD" else torch.equal(resumed, whole)
    assert "are done" not in first_line
    assert line.endswith("in a warm-up of 6 steps, 4 of which are done")


def test_a_step_that_breaks_off_leaves_the_rates_as_they_were_and_is_not_counted():
    def script():
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1)
        fast.join(
            model, optimizer, check_finite=True, large_batch=LargeBatch(batch=8, reference=4, warm_up=2)
        )
        push(model, optimizer)
        (model(torch.ones(1, 1, dtype=torch.float64)).sum() * float("nan")).backward()
        with pytest.raises(fast.FastError, match="NaN or infinity"):
            optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.1
        optimizer.zero_grad()
        assert push(model, optimizer) == pytest.approx(0.1 + 0.15)
        assert push(model, optimizer) == pytest.approx(0.1 + 0.15 + 0.2)

    plainly(script)


def test_without_a_plan_nothing_is_written_into_the_optimizer():
    def script(plan: LargeBatch | None) -> set[str]:
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1)
        fast.join(model, optimizer, large_batch=plan)
        push(model, optimizer)
        return set(optimizer.param_groups[0])

    assert plainly(lambda: script(LargeBatch(batch=1))) - plainly(lambda: script(None)) == {
        "large_batch_steps", "large_batch_rate"
    }  # fmt: skip


# Momentum


class InsideOut(Optimizer):
    """The other form of momentum: v <- mu v + eta g;  w <- w - v."""

    def __init__(self, parameters: Any, lr: float, mu: float) -> None:
        super().__init__(parameters, {"lr": lr, "mu": mu})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                velocity = state.setdefault("velocity", torch.zeros_like(p))
                velocity.mul_(group["mu"]).add_(p.grad, alpha=group["lr"])
                p.sub_(velocity)


def warm_run(make: Callable[[nn.Module], Optimizer], **options: Any) -> Tensor:
    """Twelve steps with a warm-up over five to four times the rate, halved after eight."""

    def script() -> Tensor:
        model = bodies.mlp()
        optimizer = make(model)
        fast.join(model, optimizer, large_batch=LargeBatch(batch=8, reference=2, warm_up=5, **options))
        scheduler = schedulers.StepLR(optimizer, 8, 0.5)
        for step in range(12):
            bodies.loss_of(model, *bodies.samples(step, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return bodies.flat(model)

    return plainly(script)


def rate(step: int, base: float) -> float:
    return base * (1 + 3 * min(1, step / 5)) * (0.5 if step >= 8 else 1.0)


def by_hand(base: float, mu: float) -> Tensor:
    """v <- mu v + g;  w <- w - eta_t v, one worker, no optimizer."""
    model = bodies.mlp()
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(12):
        gradients = torch.autograd.grad(
            bodies.loss_of(model, *bodies.samples(step, 8)), list(model.parameters())
        )
        with torch.no_grad():
            for p, g, v in zip(model.parameters(), gradients, velocities, strict=True):
                v.mul_(mu).add_(g)
                p.sub_(v, alpha=rate(step, base))
    return bodies.flat(model)


def test_torchs_momentum_needs_no_correction():
    assert close(warm_run(lambda m: SGD(m.parameters(), lr=0.02, momentum=0.9)), by_hand(0.02, 0.9))


def test_a_velocity_that_has_the_rate_inside_is_corrected():
    """Then it is the same training as with the other form, through warm-up and scheduler."""
    inside_out = lambda m: InsideOut(m.parameters(), lr=0.02, mu=0.9)  # noqa: E731
    assert close(warm_run(inside_out, holds_rate=("velocity",)), by_hand(0.02, 0.9))
    assert not close(warm_run(inside_out), by_hand(0.02, 0.9), 1e-2), "it makes no difference here"


def test_asgd_takes_each_step_with_the_rate_of_that_step():
    """With lambd 0 it is SGD at a rate of 32 bits, which torch alone takes a step too late."""
    assert close(warm_run(lambda m: ASGD(m.parameters(), lr=0.02, lambd=0.0)), by_hand(0.02, 0.0), 1e-6)
    model = bodies.mlp()
    alone = ASGD(model.parameters(), lr=0.02, lambd=0.0)
    scheduler = schedulers.LambdaLR(alone, lambda step: rate(step, 1.0))
    for step in range(12):
        bodies.loss_of(model, *bodies.samples(step, 8)).backward()
        alone.step()
        alone.zero_grad()
        scheduler.step()
    assert not close(bodies.flat(model), by_hand(0.02, 0.0), 1e-3)


def test_rprops_step_sizes_follow_the_rate():
    """With gradients of one sign they grow by 1.2 a step, and by the rate's own growth."""

    def script() -> list[float]:
        model = one_weight()
        optimizer = Rprop(model.parameters(), lr=0.01)
        fast.join(model, optimizer, large_batch=LargeBatch(batch=8, reference=2, warm_up=4))
        return [push(model, optimizer) for _ in range(7)]

    at, expected = 0.0, []
    for step in range(7):
        at += 0.01 * 1.2**step * (1 + 3 * min(1, step / 4))
        expected.append(at)
    assert plainly(script) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KNOWN.values(), ids=KNOWN)
def test_which_of_torchs_optimizers_keep_the_rate_is_known(kind):
    """With the same gradients all along, what differs in the state between two rates has the rate inside."""

    def state(rate: float) -> dict[str, Any]:
        p = nn.Parameter(torch.ones(3, 4, dtype=torch.float64 if kind is not Muon else torch.float32))
        extras = {"momentum": 0.9} if "momentum" in kind.__init__.__annotations__ else {}
        optimizer = kind(
            [p], lr=rate, **({"weight_decay": 0.0} if kind in (Adam, Adafactor, Muon) else {}), **extras
        )
        for step in range(4):
            p.grad = torch.linspace(-1, 1 + step, 12, dtype=p.dtype).view(3, 4)
            optimizer.step()
        return dict(optimizer.state[p])

    low, high = state(0.01), state(0.02)
    differ = {
        name for name in low if not torch.equal(torch.as_tensor(low[name]), torch.as_tensor(high[name]))
    }
    if kind is ASGD:
        differ.remove("ax")  # the average of the weights themselves
    assert differ == set(HOLDS_RATE.get(kind, ()))


# Several workers


STRATEGIES = [
    "allreduce",
    f"allreduce(bucket_mb={TINY_MB})",
    "ssp(bound=0)",
    f"ssp(bound=0, bucket_mb={TINY_MB})",
]


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_workers_warm_up_like_one_with_the_whole_batch(strategy, scheduled):
    """The servers of a strategy get the scaled rates too, also when a step begins during backward."""
    arguments = {"optimizer": "momentum", "steps": STEPS, "scheduled": scheduled}
    results = run_threads(
        3, lambda id: bodies.train_warm(strategy, reference=2, warm_up=5, **arguments), serve
    )
    assert len({worker["own"] for worker in results}) == 1
    assert close(number(results[0]["own"]), warm_reference(workers=3, k=6.0, warm_up=5, **arguments))


@pytest.mark.real
@pytest.mark.parametrize(("strategy", "optimizer"), [("allreduce", "adam"), ("ssp(bound=0)", "momentum")])
def test_processes_warm_up_like_one_with_the_whole_batch_and_say_so(strategy, optimizer, runner):
    said: list[str] = []
    outcome = runner.outcome(
        "large_batch_bodies:train_warm", 3, strategy=strategy, optimizer=optimizer, steps=STEPS, reference=2, warm_up=5,
        listen=lambda event: event["event"] == "say" and said.append(event["text"]),
    )  # fmt: skip
    assert outcome.failure is None, outcome.failure
    expected = warm_reference(optimizer, STEPS, workers=3, k=6.0, warm_up=5)
    assert {worker["final"] for worker in outcome.results} == {outcome.results[0]["own"]}
    assert close(number(outcome.results[0]["own"]), expected)
    base = {"adam": 0.01, "momentum": 0.02}[optimizer]
    assert said[1:] == [
        f"effective batch 3 x 4 = 12, learning rate {base} for 2 scaled by 6 to {6 * base:g} in a warm-up of 5 steps",
        "the warm-up of 5 steps is over",
    ], said


@pytest.mark.real
def test_where_steps_are_on_own_batches_that_is_said(runner):
    said: list[str] = []
    runner.outcome(
        "large_batch_bodies:train_warm", 2, strategy="local_sgd(tau=2)", optimizer="sgd", steps=2, reference=16,
        listen=lambda event: event["event"] == "say" and said.append(event["text"]),
    )  # fmt: skip
    assert said[1] == "effective batch 2 x 4 = 8, learning rate 0.05 for 16 scaled by 0.5 to 0.025"
    assert said[2].startswith("with local_sgd(tau=2) every worker takes its steps on its own batch.")


@pytest.mark.parametrize(
    ("call", "workers", "words"),
    [
        ("allreduce", 4, "effective batch 4 x 32 = 128, learning rate 0.1, 0.02 as it is"),
        ("ssp(bound=0)", 3, "effective batch 3 x 32 = 96, learning rate 0.1, 0.02 as it is"),
        ("tensorflow(backups=1)", 4, "effective batch 3 x 32 = 96, learning rate 0.1, 0.02 as it is"),
        ("allreduce", 1, None),
        ("ssp(bound=3)", 4, None),
        ("local_sgd", 4, None),
        ("torus", 4, None),
    ],
)
def test_without_a_plan_the_log_says_once_to_which_batch_the_rate_is_applied(call, workers, words):
    """Where a step is made of everybody's gradients; with one's own batches there is nothing to say."""
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))]},
        {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.02},
    ]
    said = []
    rates = PlainRates(strategy_from(call), workers, SGD(groups, lr=0.1), said.append)
    rates.compare(None, divided=True)
    rates.compare(7, divided=False)  # the others may have more of their own, or less
    for samples in (32, 16):
        rates.compare(samples, divided=True)
    assert said == ([] if words is None else [f"{words}; fast.LargeBatch scales it"])


def test_only_those_count_whose_gradients_are_in_an_update():
    """With backup workers a step is made of fewer than all."""

    def body(id: int) -> float:
        strategy = fast.presets.allreduce()
        strategy.contributors = lambda workers: workers - 2  # type: ignore[attr-defined]
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1)
        fast.join(model, optimizer, strategy, large_batch=LargeBatch(batch=8))
        at = push(model, optimizer)
        close_sessions(current_seat())
        return at

    assert run_threads(4, body, serve) == [pytest.approx(0.2)] * 4


def test_gradients_that_are_never_late_may_have_a_higher_rate():
    class NeverLate(fast.Strategy):
        never_stale = identity_alone = True

        async def step(self, me: fast.Me) -> None:
            me.apply(me.gradient)

    def script() -> float:
        model = one_weight()
        optimizer = SGD(model.parameters(), lr=0.1)
        fast.join(model, optimizer, NeverLate(), large_batch=LargeBatch(batch=8, reference=2))
        return push(model, optimizer)

    assert plainly(script) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("options", "optimizer", "sentence"),
    [
        ({"strategy": "torus"}, SGD, r"torus\(.*\) is asynchronous.*want a lower rate"),
        ({"strategy": "ssp(bound=3)"}, SGD, "is asynchronous.*Leave large_batch out"),
        ({"strategy": "ssp(bound=0)"}, ASGD, "ASGD keeps the learning rate in its state.*on a server"),
        ({"large_batch": 256}, SGD, r"takes a plan, such as fast\.LargeBatch\(batch=32"),
        ({"accumulate": -1}, SGD, "counts backward passes"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_joined(options, optimizer, sentence):
    def script() -> None:
        model = one_weight()
        fast.join(
            model, optimizer(model.parameters(), lr=0.1), **{"large_batch": LargeBatch(batch=8), **options}
        )

    with pytest.raises(UsageError, match=re.compile(sentence, re.DOTALL)):
        plainly(script)


def test_an_optimizer_without_rates_is_refused():
    class Rateless(Optimizer):
        def step(self, closure: Any = None) -> None: ...

    def script() -> None:
        model = one_weight()
        fast.join(model, Rateless(model.parameters(), {}), large_batch=LargeBatch(batch=8))

    with pytest.raises(UsageError, match="nothing to scale: Rateless has a group of parameters without 'lr'"):
        plainly(script)


# P workers with batch b are one with batch P b, on a server too (on none: test_values.py)


@pytest.mark.real
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_bound_0_trains_like_one_worker_with_the_whole_batch(name, runner):
    results = runner.results("loop_bodies:train", 3, name=name, override="ssp(bound=0)")
    assert len({worker["own"] for worker in results}) == 1
    steps = zip(*(worker["seen"] for worker in results), strict=True)
    expected = reference(name, [[index for part in step for index in part] for step in steps])
    assert sorted(index for worker in results for step in worker["seen"] for index in step) == sorted(
        list(range(CASES[name].samples)) * CASES[name].epochs
    )
    assert close(number(results[0]["own"]), expected)


# Accumulation


@pytest.mark.parametrize("mark", [False, True], ids=["counted", "marked"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_micro_batches_are_one_batch(strategy, mark):
    weights = run_threads(3, lambda id: bodies.accumulate(strategy, passes=4, steps=4, mark=mark), serve)
    assert len(set(weights)) == 1
    assert close(number(weights[0]), accumulate_reference(3, passes=4, steps=4))


@pytest.mark.real
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_micro_batches_of_processes_are_one_batch(strategy, runner):
    weights = runner.results("large_batch_bodies:accumulate", 2, strategy=strategy, passes=3, steps=3)
    assert len(set(weights)) == 1
    assert close(number(weights[0]), accumulate_reference(2, passes=3, steps=3))
