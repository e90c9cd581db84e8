"""What a torch replica promises besides equal bits: presence, memory, refusals and sentences."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.optim import SGD, Adam, Optimizer

from fast.adapters import KNOWN, TorchReplica
from fast.core import Replica
from fast.errors import NotFinite, UsageError


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def make(model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, Optimizer, TorchReplica]:
    model = mlp() if model is None else model
    optimizer = SGD(model.parameters(), lr=0.1)
    return model, optimizer, TorchReplica(model, optimizer, **options)


def backward(model: nn.Module) -> None:
    model(torch.linspace(-1, 1, 6).view(2, 3)).square().sum().backward()


def bits(*names: int) -> int:
    return sum(1 << n for n in names)


# Layout and memory


def test_it_is_a_replica() -> None:
    replica: Replica = make()[2]
    assert replica.samples == 1 and replica.present is None and replica.rates == [0.1]


def test_weights_and_gradient_are_laid_out_like_the_model() -> None:
    model, _, replica = make()
    assert [s.name for s in replica.layout.segments] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    backward(model)
    replica.collect()
    for segment, p in zip(replica.layout.segments, model.parameters(), strict=True):
        assert p.data_ptr() == segment.of(replica.weights).data_ptr() and p.data_ptr() % 64 == 0
        assert torch.equal(segment.of(replica.gradient), p.grad)
    assert replica.present is None
    replica.weights.zero_()
    assert not any(bool(p.any()) for p in model.parameters())


def test_memory_comes_from_allocate() -> None:
    pool = torch.full((4096 + 64,), 7, dtype=torch.uint8)
    pool = pool[-pool.data_ptr() % 64 :][:4096]
    halves = iter((pool[:2048], pool[2048:]))

    def allocate(nbytes: int) -> Tensor:
        return next(halves)[:nbytes]

    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    _, _, replica = make(model, allocate=allocate)
    assert replica.weights.data_ptr() == pool.data_ptr()
    assert replica.gradient.data_ptr() == pool.data_ptr() + 2048 and float(replica.gradient.sum()) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    padding = replica.weights.numel() - sum(s.size for s in replica.layout.segments)
    assert int((replica.weights == 0).sum()) >= padding > 0


@pytest.mark.parametrize("memory", [torch.zeros(4096), torch.zeros(8, dtype=torch.uint8)])
def test_unfit_memory_is_refused(memory: Tensor) -> None:
    with pytest.raises(UsageError, match=r"allocate\(\d+\) gave"):
        make(allocate=lambda nbytes: memory)


def test_names_order_and_strays() -> None:
    model, stray, frozen = mlp(), nn.Parameter(torch.ones(2)), torch.zeros(2)
    model[0].bias.requires_grad_(False)
    optimizer = SGD([{"params": [stray, *model[2].parameters()]}, {"params": [frozen, model[0].weight]}])
    replica = TorchReplica(model, optimizer)
    assert [s.name for s in replica.layout.segments] == ["0.weight", "2.weight", "2.bias", "optimizer.0"]
    assert [name for name, _ in replica.rest()] == ["0.bias", "optimizer.3"]


def test_a_compiled_model_has_the_plain_one_s_layout() -> None:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(2))
    optimizer = SGD(model.parameters())
    plain = TorchReplica(model, optimizer)
    compiled = TorchReplica(torch.compile(model, backend="eager"), optimizer)  # type: ignore[arg-type]
    assert compiled.layout.fingerprint == plain.layout.fingerprint
    assert [name for name, _ in compiled.rest()] == [name for name, _ in plain.rest()]


def test_rest_is_all_that_the_weights_are_not() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    optimizer = SGD([*model[0].parameters(), *model[1].parameters()])
    replica = TorchReplica(model, optimizer)
    buffers = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [name for name, _ in replica.buffers()] == buffers
    assert [name for name, _ in replica.rest()] == ["0.weight", "2.weight", "2.bias", *buffers]
    dict(replica.rest())["2.bias"].fill_(3)
    assert torch.equal(model[2].bias, torch.full((2,), 3.0))


def test_unjoin_gives_the_model_memory_of_its_own() -> None:
    model, _, replica = make()
    before = [p.detach().clone() for p in model.parameters()]
    replica.unjoin()
    replica.weights.fill_(9)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_the_planner_s_tensors_without_values() -> None:
    model = mlp().to("meta")
    replica = TorchReplica(model, SGD(model.parameters(), lr=0.1))
    assert replica.compute(lambda: model(torch.empty(2, 3, device="meta")).sum()) is None
    replica.apply(replica.gradient, replica.present)
    assert replica.weights.is_meta and replica.gradient.is_meta


# Collecting


def test_missing_gradients_are_zeroed_and_marked() -> None:
    model, _, replica = make()
    backward(model)
    replica.collect()
    model[2].weight.grad = None
    replica.collect()
    assert replica.present == bits(0, 1, 3)
    assert float(replica.layout.segments[2].of(replica.gradient).abs().sum()) == 0
    assert torch.equal(replica.layout.segments[3].of(replica.gradient), model[2].bias.grad)


def test_a_step_without_samples_does_not_count() -> None:
    model, _, replica = make()
    backward(model)
    replica.samples = 0
    replica.collect()
    assert replica.present == 0 and float(replica.gradient.abs().sum()) == 0
    before = replica.weights.clone()
    replica.apply(replica.gradient, replica.present)
    assert torch.equal(before, replica.weights)


def test_no_gradient_at_all_is_said_once() -> None:
    said: list[str] = []
    model, _, replica = make(say=said.append)
    backward(copy.deepcopy(model))
    replica.collect()
    replica.collect()
    assert replica.present == 0
    assert len(said) == 1 and "not on a copy" in said[0]


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    replica = TorchReplica(model, SGD(model.parameters()))
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UsageError, match=r"'weight' is sparse.*sparse=False"):
        replica.collect()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_names_the_parameter(value: float) -> None:
    model, _, replica = make(check_finite=True)
    backward(model)
    replica.collect()
    model[2].weight.grad[0, 0] = value
    with pytest.raises(NotFinite, match=r"'2.weight' \(1 of 4"):
        replica.collect()


def test_changing_gradients_after_backward_is_said_once() -> None:
    said: list[str] = []
    model, _, replica = make(say=said.append)
    for _ in range(2):
        backward(model)
        backward(model)
        replica.collect()
        replica.apply(replica.gradient / 2, None)
    assert said == []
    for _ in range(2):
        backward(model)
        clip_grad_norm_(model.parameters(), 0.1)
        replica.collect()
        replica.apply(replica.gradient / 2, None)
    assert len(said) == 1 and said[0].endswith(
        "To act on the merged gradient (to clip it, say) use before_apply."
    )


def test_changing_gradients_that_nobody_merges_is_no_mistake() -> None:
    """`local_sgd`, `gossip`, `easgd` and the like apply this worker's own gradient: there is no other to clip."""
    said: list[str] = []
    model, _, replica = make(say=said.append)
    for _ in range(3):
        backward(model)
        clip_grad_norm_(model.parameters(), 0.1)
        replica.collect()
        replica.apply(replica.gradient, replica.present)
    assert said == []


def test_where_the_optimizer_runs_elsewhere_before_apply_is_not_advised() -> None:
    """`ssp` would refuse it."""
    said: list[str] = []
    model, _, replica = make(say=said.append)
    for _ in range(3):
        backward(model)
        clip_grad_norm_(model.parameters(), 0.1)
        replica.collect()
    assert len(said) == 1 and "before_apply" not in said[0] and "the only place to clip" in said[0]


def test_a_scaled_gradient_is_refused() -> None:
    model, optimizer, replica = make()
    backward(model)
    optimizer.grad_scale = torch.tensor(2.0)  # type: ignore[attr-defined] # as GradScaler.step does
    with pytest.raises(UsageError, match=r"scaler.unscale_\(optimizer\)"):
        replica.collect()


def test_compute_returns_the_loss_and_leaves_the_gradient() -> None:
    model, _, replica = make()
    x = torch.ones(2, 3)
    loss = replica.compute(lambda: model(x).square().sum())
    assert loss == float(model(x).detach().square().sum())
    first = replica.gradient.clone()
    replica.compute(lambda: model(x).square().sum())
    assert torch.equal(first, replica.gradient) and float(first.abs().sum()) > 0
    assert all(p.grad is None for p in model.parameters())


# Applying


def test_apply_moves_by_the_given_gradient_and_never_writes_into_it() -> None:
    model, optimizer, replica = make()
    backward(model)
    replica.collect()
    kept = [p.grad for p in model.parameters()]
    before, given = replica.weights.clone(), torch.randn_like(replica.gradient)
    untouched, version = given.clone(), given._version
    replica.apply(given, None)
    for segment in replica.layout.segments:
        assert torch.equal(segment.of(replica.weights), segment.of(before).sub(segment.of(given), alpha=0.1))
    assert [p.grad for p in model.parameters()] == kept
    optimizer.zero_grad(set_to_none=False)
    assert torch.equal(given, untouched) and given._version == version


def test_parameters_without_a_bit_stay() -> None:
    model, _, replica = make()
    before = replica.weights.clone()
    replica.apply(torch.ones_like(replica.gradient), bits(1, 2))
    moved = [not torch.equal(s.of(before), s.of(replica.weights)) for s in replica.layout.segments]
    assert moved == [False, True, True, False]
    assert all(p.grad is None for p in model.parameters())


def test_rates_hold_for_one_step_only() -> None:
    _, optimizer, replica = make()
    before = replica.weights.clone()
    replica.apply(torch.ones_like(replica.gradient), None, [0.5])
    segment = replica.layout.segments[0]
    assert torch.equal(segment.of(replica.weights), segment.of(before) - 0.5)
    assert replica.rates == [0.1] and optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(UsageError, match="2 learning rates for 1"):
        replica.apply(replica.gradient, None, [0.5, 0.5])


def test_before_apply_sees_the_merged_gradient_and_may_change_it() -> None:
    seen: list[Tensor] = []

    def before_apply() -> None:
        for p in model.parameters():
            seen.append(p.grad.clone())
            p.grad.mul_(2)

    model = mlp()
    replica = make(model, before_apply=before_apply)[2]
    before, given = replica.weights.clone(), torch.randn_like(replica.gradient)
    untouched = given.clone()
    replica.apply(given, None)
    assert torch.equal(given, untouched)
    for segment, tensor in zip(replica.layout.segments, seen, strict=True):
        assert torch.equal(tensor, segment.of(given))
        assert torch.equal(
            segment.of(replica.weights), segment.of(before).sub(2 * segment.of(given), alpha=0.1)
        )


class Writer(Optimizer):
    """An optimizer of the user's own that spoils p.grad."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad.mul_(0.5))


def test_unknown_optimizers_get_a_gradient_to_write_into() -> None:
    model = mlp()
    replica = TorchReplica(model, Writer(model.parameters()))
    before, given = replica.weights.clone(), torch.randn_like(replica.gradient)
    untouched = given.clone()
    replica.apply(given, None)
    assert torch.equal(given, untouched)
    for segment in replica.layout.segments:
        assert torch.equal(segment.of(replica.weights), segment.of(before) - 0.5 * segment.of(given))
    assert replica.rates == [0.0]


def test_hooks_around_the_step_get_a_gradient_to_write_into() -> None:
    model, optimizer, replica = make()
    optimizer.register_step_pre_hook(lambda *_: [p.grad.zero_() for p in model.parameters()] and None)
    before, given = replica.weights.clone(), torch.ones_like(replica.gradient)
    replica.apply(given, None)
    assert torch.equal(replica.weights, before) and torch.equal(given, torch.ones_like(given))


def test_zero_grad_in_a_hook_holds() -> None:
    model, optimizer, replica = make()
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    backward(model)
    replica.collect()
    replica.apply(torch.ones_like(replica.gradient), None)
    assert all(p.grad is None for p in model.parameters())


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every known optimizer in each of its implementations, with the options that touch gradients."""
    how = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
    extras = [{}, {"weight_decay": 0.1}, {"maximize": True}, {"weight_decay": 0.1, "maximize": True}]
    return [
        (name, {**variant, **extra})
        for name, kind in KNOWN.items()
        for variant in how
        for extra in extras
        if {*variant, *extra} <= {*inspect.signature(kind).parameters}
    ]


@pytest.mark.parametrize(("name", "options"), variants(), ids=str)
def test_known_optimizers_only_read(name: str, options: dict[str, Any]) -> None:
    """What lending memory that others read rests on; checked again with every release of torch."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((8, 16), (40, 33))]
    optimizer = KNOWN[name](parameters, **options)  # type: ignore[call-arg]
    for _ in range(4):
        gradients = [torch.randn_like(p) for p in parameters]
        copies = [gradient.clone() for gradient in gradients]
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(gradients, copies, strict=True))


def test_views_are_made_once_per_tensor_and_keep_nothing_alive() -> None:
    _, _, replica = make()
    given = torch.ones_like(replica.gradient)
    replica.apply(given, None)
    views = replica._views.of(given)
    replica.apply(given, None)
    assert replica._views.of(given) is views
    view, gone = weakref.ref(views[0]), weakref.ref(given)
    del given, views
    gc.collect()
    assert gone() is None and view() is None


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(64, dtype=torch.float64), torch.ones(128)[::2]])
def test_a_gradient_of_another_shape_is_refused(wrong: Tensor) -> None:
    with pytest.raises(UsageError, match="needs a contiguous flat gradient"):
        make()[2].apply(wrong, None)


def test_the_original_step_is_called() -> None:
    _, optimizer, replica = make()
    optimizer.step = lambda closure=None: pytest.fail("the replacement was called")  # type: ignore[method-assign]
    before = replica.weights.clone()
    replica.apply(torch.ones_like(replica.gradient), None)
    assert not torch.equal(before, replica.weights)


# The mirror


class Mixed(nn.Module):
    """Two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(3, 4).to(torch.bfloat16), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.high(self.low(x.to(torch.bfloat16)).float())


def test_settle_gives_the_model_what_is_in_the_mirror() -> None:
    model, _, replica = make(Mixed())
    assert replica.weights.dtype == torch.float32
    replica.weights.copy_(torch.linspace(0, 1, replica.weights.numel()))
    replica.settle()
    for segment, p in zip(replica.layout.segments, model.parameters(), strict=True):
        assert torch.equal(segment.of(replica.weights).to(p.dtype), p.detach())


def test_the_mirror_takes_over_what_the_user_changed() -> None:
    model, _, replica = make(Mixed())
    nn.init.constant_(model.low.weight, 0.25)
    backward(model)
    replica.collect()
    assert torch.equal(replica.layout.segments[0].of(replica.weights), torch.full((4, 3), 0.25))
    for segment, p in zip(replica.layout.segments, model.parameters(), strict=True):
        assert torch.equal(segment.of(replica.gradient), p.grad.float()) and bool(p.grad.any())
    before = replica.weights.clone()
    given = torch.ones_like(replica.gradient)
    replica.apply(given, None)
    assert torch.equal(replica.layout.segments[0].of(replica.weights), model.low.weight.float())
    assert not torch.equal(before, replica.weights)
    assert torch.equal(given, torch.ones_like(given))


def test_apply_starts_from_what_the_strategy_wrote_into_the_mirror() -> None:
    model, _, replica = make(Mixed())
    replica.weights.fill_(1.0)
    replica.apply(torch.ones_like(replica.gradient), None)
    for p in model.parameters():
        assert torch.equal(p, torch.ones_like(p).sub(torch.ones_like(p), alpha=0.1))


def test_float16_and_bfloat16_meet_in_float32() -> None:
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2).bfloat16())
    assert make(model)[2].layout.dtype == torch.float32


# State


def test_state_is_a_copy_and_brings_everything_back() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = Adam(model.parameters(), lr=0.1)
    replica = TorchReplica(model, optimizer)

    def step() -> None:
        replica.compute(lambda: model(torch.linspace(-1, 1, 6).view(2, 3)).square().sum())
        replica.apply(replica.gradient, replica.present)

    step()
    state = replica.state_dict()
    kept = copy.deepcopy(state)
    step()
    after, counted = replica.weights.clone(), int(model[1].num_batches_tracked)
    optimizer.param_groups[0]["lr"] = 3.0
    step()
    replica.load_state_dict(state)
    assert replica.rates == [0.1] and int(model[1].num_batches_tracked) == counted - 1
    step()
    assert torch.equal(after, replica.weights)
    assert torch.equal(state["weights"], kept["weights"])
    assert all(torch.equal(kept["rest"][name], tensor) for name, tensor in state["rest"].items())
    for n, entries in state["optimizer"]["state"].items():
        assert all(torch.equal(kept["optimizer"]["state"][n][key], value) for key, value in entries.items())


def test_the_state_of_another_model_is_refused() -> None:
    state = make(nn.Linear(30, 1))[2].state_dict()
    with pytest.raises(UsageError, match="another model"):
        make()[2].load_state_dict(state)


# What breaks the alias


def test_moved_parameters_are_put_back() -> None:
    said: list[str] = []
    model, _, replica = make(say=said.append)
    vector_to_parameters(
        torch.linspace(0, 1, parameters_to_vector(model.parameters()).numel()), model.parameters()
    )
    moved = [p.detach().clone() for p in model.parameters()]
    backward(model)
    replica.collect()
    model[0].weight.data = torch.ones(4, 3)
    replica.collect()
    assert torch.equal(replica.layout.segments[0].of(replica.weights), torch.ones(4, 3))
    for segment, p, value in list(zip(replica.layout.segments, model.parameters(), moved, strict=True))[1:]:
        assert torch.equal(segment.of(replica.weights), value)
        assert p.data_ptr() == segment.of(replica.weights).data_ptr()
    assert len(said) == 1 and "put back" in said[0]


def test_channels_last_is_made_contiguous_and_said() -> None:
    said: list[str] = []
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = model.weight.detach().clone()
    _, _, replica = make(model, say=said.append)
    assert model.weight.is_contiguous() and torch.equal(model.weight, before)
    assert len(said) == 1 and "'weight'" in said[0] and "channels_last" in said[0]
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model(torch.ones(1, 3, 4, 4)).sum().backward()
    replica.collect()
    assert model.weight.is_contiguous() and torch.equal(
        replica.layout.segments[0].of(replica.weights), before
    )
    assert torch.equal(replica.layout.segments[0].of(replica.gradient), model.weight.grad)


def test_a_replaced_parameter_is_refused() -> None:
    model, _, replica = make()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    replica.collect()
    model.load_state_dict(state, assign=True)
    with pytest.raises(UsageError, match=r"'0.weight' of the model was replaced"):
        replica.collect()


def test_conversion_after_joining_is_refused() -> None:
    model, _, replica = make()
    model.to(torch.float64)
    with pytest.raises(UsageError, match=r"was torch.float32 on cpu and is torch.float64"):
        replica.collect()


def test_freezing_and_thawing_are_refused() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    _, optimizer, replica = make(model)
    model[0].bias.requires_grad_(True)
    with pytest.raises(UsageError, match="was frozen and is trainable now"):
        replica.collect()
    model[0].bias.requires_grad_(False)
    model[0].weight.requires_grad_(False)
    with pytest.raises(UsageError, match=r"'0.weight' was trainable and is frozen now"):
        replica.collect()
    model[0].weight.requires_grad_(True)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(UsageError, match="other parameters now"):
        replica.collect()


def test_a_copy_of_the_model_has_nothing_to_do_with_the_replica() -> None:
    model, _, replica = make()
    other = copy.deepcopy(model)
    replica.weights.zero_()
    assert float(other[0].weight.detach().abs().sum()) > 0
    assert not other[2].bias._post_accumulate_grad_hooks


# Refusals at the start


def test_what_can_not_be_joined() -> None:
    model, shared = mlp(), nn.Parameter(torch.ones(2))
    twin = nn.Parameter(torch.ones(2))
    twin.data = shared.data
    computed = (torch.ones(2, requires_grad=True) * 2).requires_grad_()
    odd = SGD([nn.Parameter(torch.ones(2))])
    odd.param_groups[0]["params"] = [computed]
    lazy = nn.LazyLinear(3)
    for bad_model, optimizer, sentence in [
        (lambda x: x, SGD(model.parameters()), "must be a torch.nn.Module"),
        (model, object(), "must be a torch.optim.Optimizer"),
        (model, torch.optim.LBFGS(model.parameters()), r"step\(closure\)"),
        (model, SGD([torch.ones(2)]), "no trainable parameter"),
        (model, odd, "not a leaf"),
        (model, SGD([nn.Parameter(torch.ones(2, dtype=torch.complex64))]), "view_as_real"),
        (model, SGD([shared, twin]), "two objects on one memory"),
        (lazy, SGD(lazy.parameters()), "run one batch"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            TorchReplica(bad_model, optimizer)  # type: ignore[arg-type]
