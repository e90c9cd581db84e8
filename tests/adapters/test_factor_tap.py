"""Whatever a model and its user do: factors rebuild the very gradient, or there are none."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from fast.adapters import TorchReplica
from fast.parts.factors import Factors, places, rebuild


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 30, bias=False)).to(dtype)


def tapped(model: nn.Module, **options: Any) -> TorchReplica:
    replica = TorchReplica(model, SGD(model.parameters(), lr=0.1), **options)
    replica.tap_factors()
    return replica


def offers(replica: TorchReplica, workers: int = 2) -> dict[str, Factors | None]:
    """This step's, by the name of the weight."""
    replica.collect()
    known = places(replica.layout, workers)
    names = [replica.layout.segments[place.weight].name for place in known]
    return dict(zip(names, replica.factors(known, workers), strict=True))


def rows(replica: TorchReplica, workers: int = 2) -> dict[str, int | None]:
    """How many rows each layer offers. Checks that they are its gradient."""
    found = offers(replica, workers)
    for each in found.values():
        if each is not None:
            check_rebuilt(each, replica)
    return {name: None if each is None else each.rows for name, each in found.items()}


def check_rebuilt(each: Factors, replica: TorchReplica) -> None:
    flat = torch.zeros_like(replica.gradient)
    rebuild([(1.0, each)], replica.layout, flat)
    tolerance = 20 * torch.finfo(flat.dtype).eps
    for number in (each.place.weight, each.place.bias):
        if number is not None:
            expected = replica.layout.segments[number].of(replica.gradient)
            error = (replica.layout.segments[number].of(flat) - expected).abs().max()
            assert float(error) <= tolerance * max(1.0, float(expected.abs().max()))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*(shape or (4, 40)), dtype=dtype)


def train_step(model: nn.Module, *shape: int) -> None:
    loss_of(model(batch(*shape))).backward()


ALL, NONE = {"0.weight": 4, "2.weight": 4}, {"0.weight": None, "2.weight": None}


# What fits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_plain_step(dtype: torch.dtype) -> None:
    model = mlp(dtype)
    replica = tapped(model)
    x = batch(dtype=dtype)
    hidden = model[0](x)
    hidden.retain_grad()
    loss_of(model[2:](model[1](hidden))).backward()
    found = offers(replica)
    first = found["0.weight"]
    assert first is not None and found["2.weight"] is not None
    assert torch.equal(first.inputs, x) and torch.equal(first.errors, hidden.grad)
    assert (first.place.weight, first.place.bias, first.rows) == (0, 1, 4)
    assert found["2.weight"].place.bias is None


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (2, 1, 3, 40), (0, 40)], ids=repr)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("end", ["mean", "sum", "relu in place"])
def test_inputs_of_any_number_of_dimensions(shape: tuple[int, ...], biased: bool, end: str) -> None:
    """A sum sends back errors that are one number in memory; in-place functions change the result."""
    model = nn.Sequential(nn.Linear(40, 50, bias=biased))
    replica = tapped(model)
    out = model(batch(*shape))
    {"mean": loss_of, "sum": torch.sum, "relu in place": lambda y: F.relu_(y).square().sum()}[end](
        out
    ).backward()
    assert rows(replica) == {"0.weight": batch(*shape).numel() // 40}


def test_inputs_that_are_not_contiguous() -> None:
    replica = tapped(model := nn.Sequential(nn.Linear(40, 50)))
    loss_of(model(torch.randn(2, 40, 3).transpose(1, 2))).backward()
    assert rows(replica) == {"0.weight": 6}


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_anew_in_backward(reentrant: bool) -> None:
    replica = tapped(model := mlp())
    out = checkpoint(model, batch().requires_grad_(), use_reentrant=reentrant)
    loss_of(out).backward()
    assert rows(replica) == ALL


def test_several_backward_passes_into_one_gradient_follow_each_other() -> None:
    replica = tapped(model := mlp())
    for size in (2, 3, 1):
        train_step(model, size, 40)
    assert rows(replica) == {"0.weight": 6, "2.weight": 6}


def test_the_same_backward_twice() -> None:
    replica = tapped(model := mlp())
    loss = loss_of(model(batch()))
    loss.backward(retain_graph=True)
    loss.backward()
    assert rows(replica) == {"0.weight": 8, "2.weight": 8}


def test_a_layer_that_is_used_twice() -> None:
    replica = tapped(model := nn.Sequential(nn.Linear(40, 40)))
    loss_of(model(model(batch()).tanh())).backward()
    assert rows(replica) == {"0.weight": 8}


def test_layers_that_share_their_weight_and_bias() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40))
    model[2].weight, model[2].bias = model[0].weight, model[0].bias
    replica = tapped(model)
    train_step(model)
    assert rows(replica) == {"0.weight": 8}


def test_a_layer_without_work_has_no_rows() -> None:
    replica = tapped(model := mlp())
    loss_of(model[0](batch())).backward()
    assert rows(replica) == {"0.weight": 4, "2.weight": 0}
    assert replica.present == 0b011


def test_a_step_that_does_not_count_has_no_rows() -> None:
    replica = tapped(model := mlp())
    train_step(model)
    replica.samples = 0
    assert rows(replica) == {"0.weight": 0, "2.weight": 0}


def test_frozen_and_unused_biases_are_left_out() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    replica = tapped(model)
    train_step(model)
    found = offers(replica)
    assert found["0.weight"] is not None and found["0.weight"].place.bias is None


# What doesn't


def with_penalty(model: nn.Sequential) -> None:
    (loss_of(model(batch())) + 1e-5 * model[0].weight.square().sum()).backward()


def with_penalty_on_the_bias(model: nn.Sequential) -> None:
    (loss_of(model(batch())) + 1e-5 * model[0].bias.square().sum()).backward()


def with_its_weight_used_elsewhere(model: nn.Sequential) -> None:
    (loss_of(model(batch())) + F.linear(batch(2, 40), model[0].weight).mean()).backward()


def clipped(model: nn.Sequential) -> None:
    train_step(model)
    clip_grad_norm_([model[0].weight], 1e-4)


def changed_behind_the_back(model: nn.Sequential) -> None:
    train_step(model)
    model[0].weight.grad.data.mul_(0.5)  # the tensor's version doesn't tell


def with_a_hook_on_the_weight(model: nn.Sequential) -> None:
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    train_step(model)


def with_a_hook_on_the_result(model: nn.Sequential) -> None:
    hidden = model[0](batch())
    hidden.register_hook(lambda errors: errors * 2)
    loss_of(model[2](hidden)).backward()


def with_a_hook_that_changes_the_result(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda module, args, output: output * 2, prepend=True)
    train_step(model)


def after_a_gradient_that_was_thrown_away(model: nn.Sequential) -> None:
    loss_of(model[0](batch())).backward()
    model.zero_grad()
    train_step(model)


def with_inputs_that_are_overwritten(model: nn.Sequential) -> None:
    x = batch()
    loss_of(model(x)).backward()
    x.zero_()


def with_a_gradient_in_the_loss(model: nn.Sequential) -> None:
    x = batch().requires_grad_()
    (inner,) = torch.autograd.grad(loss_of(model[0](x)), x, create_graph=True)
    (inner.square().sum() + loss_of(model[2](torch.randn(4, 50)))).backward()


def in_bfloat16(model: nn.Sequential) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model[0](batch())
    loss_of(model[2](hidden.float())).backward()


def as_a_keyword(model: nn.Sequential) -> None:
    loss_of(model[2](model[0](input=batch()))).backward()


def in_a_trace(model: nn.Sequential) -> None:
    traced = torch.jit.trace(model[0], batch(), check_trace=False)
    loss_of(model[2](traced(batch()))).backward()


def not_a_number(model: nn.Sequential) -> None:
    train_step(model)
    model[0].weight.grad.fill_(float("nan"))


FALLBACKS = [
    with_penalty,
    with_penalty_on_the_bias,
    with_its_weight_used_elsewhere,
    clipped,
    changed_behind_the_back,
    with_a_hook_on_the_weight,
    with_a_hook_on_the_result,
    with_a_hook_that_changes_the_result,
    after_a_gradient_that_was_thrown_away,
    with_inputs_that_are_overwritten,
    with_a_gradient_in_the_loss,
    in_bfloat16,
    as_a_keyword,
    not_a_number,
]


@pytest.mark.parametrize("step", FALLBACKS, ids=lambda step: step.__name__)
def test_there_are_none_for_a_gradient_that_they_do_not_rebuild(
    step: Callable[[nn.Sequential], None],
) -> None:
    replica = tapped(model := mlp())
    step(model)
    assert rows(replica) == {"0.weight": None, "2.weight": 4}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_traced_layer_is_not_heard() -> None:
    replica = tapped(model := mlp())
    in_a_trace(model)
    assert rows(replica) == {"0.weight": None, "2.weight": 4}


@pytest.mark.parametrize("step", [clipped, with_penalty, after_a_gradient_that_was_thrown_away])
def test_the_next_step_is_heard_again(step: Callable[[nn.Sequential], None]) -> None:
    replica = tapped(model := mlp())
    step(model)
    assert rows(replica)["0.weight"] is None
    model.zero_grad()
    train_step(model)
    assert rows(replica) == ALL


def test_weights_that_are_shared_with_another_kind_of_layer() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(30, 40), nn.Linear(40, 30, bias=False)
            self.out.weight = self.table.weight

        def forward(self, words: Tensor) -> Tensor:
            result: Tensor = self.out(self.table(words).tanh())
            return result

    replica = tapped(model := Tied())
    loss_of(model(torch.tensor([1, 5, 5]))).backward()
    assert rows(replica) == {"table.weight": None}


def test_layers_whose_forward_is_not_called() -> None:
    replica = tapped(model := nn.MultiheadAttention(40, 2))
    x = batch(3, 2, 40)
    loss_of(model(x, x, x)[0]).backward()
    assert rows(replica) == {"in_proj_weight": None, "out_proj.weight": None}


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Summed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).sum(1)


class Widened(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.cat([input, input[:, :3]], 1))


class Widening(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([super().forward(input), input], 1)


class Repeated(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.repeat(2, 1))


@pytest.mark.parametrize("kind", [Scaled, Summed, Widened, Widening, Repeated])
def test_a_layer_that_computes_something_else(kind: type[nn.Linear]) -> None:
    replica = tapped(model := nn.Sequential(kind(40, 50)))
    train_step(model, 4, 37 if kind is Widened else 40)
    assert rows(replica) == {"0.weight": None}


def test_a_mirror_in_another_dtype_has_no_factors_of_what_was_rounded() -> None:
    model = mlp()
    model[0].to(torch.bfloat16)
    replica = tapped(model)
    loss_of(model[2](model[0](batch().bfloat16()).float())).backward()
    assert replica.layout.dtype == torch.float32
    assert rows(replica) == {"0.weight": None, "2.weight": 4}


@pytest.mark.parametrize("when", ["before", "after", "inside"])
def test_compiled_models_are_left_alone(when: str) -> None:
    model = mlp()
    if when == "before":
        compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
        replica = tapped(compiled)
    elif when == "after":
        replica = tapped(model)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
    else:
        model.compile(backend="eager")
        replica, compiled = tapped(model), model
    train_step(compiled)
    assert rows(replica) == NONE
    heard = [each for each in model.modules() if each._forward_hooks]
    assert bool(heard) == (when == "after")


def test_transformed_functions_are_not_heard() -> None:
    replica = tapped(model := mlp())
    values = {name: p.detach() for name, p in model.named_parameters()}

    def of(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss_of(torch.func.functional_call(model, parameters, (x,)))

    torch.func.vmap(torch.func.grad(of), (None, 0))(values, batch(3, 4, 40))
    train_step(model)
    assert rows(replica) == ALL


# How much is kept


def test_only_what_pays_is_offered() -> None:
    """40 (rows) of 40 + 50 are less than 40 * 50 up to 22 rows; among 5 workers up to 8."""
    for size, workers, expected in ((22, 2, 22), (23, 2, None), (8, 5, 8), (9, 5, None)):
        replica = tapped(model := nn.Sequential(nn.Linear(40, 50)))
        train_step(model, size, 40)
        assert rows(replica, workers) == {"0.weight": expected}


def test_several_passes_that_together_are_too_many() -> None:
    replica = tapped(model := nn.Sequential(nn.Linear(40, 50)))
    x = batch(10, 40)
    kept = weakref.ref(x.untyped_storage())
    loss_of(model(x)).backward()
    del x
    train_step(model, 10, 40)
    assert kept() is not None
    train_step(model, 10, 40)
    assert kept() is None
    assert rows(replica) == {"0.weight": None}
    model.zero_grad()
    train_step(model, 10, 40)
    assert rows(replica) == {"0.weight": 10}


def test_small_layers_are_not_heard() -> None:
    replica = tapped(model := nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 1)))
    assert [bool(each._forward_hooks) for each in model] == [True, False]
    train_step(model)
    assert rows(replica) == {"0.weight": 4}


def test_nothing_is_kept_of_what_has_no_backward() -> None:
    replica = tapped(model := mlp())
    seen = []
    for no_grad in (True, False):
        x = batch()
        with torch.set_grad_enabled(not no_grad):
            model(x)
        seen.append(weakref.ref(x.untyped_storage()))
        del x
    gc.collect()
    assert [each() for each in seen] == [None, None]
    train_step(model)
    assert rows(replica) == ALL


def test_memory_is_given_back_when_the_factors_were_taken_and_at_the_next_step_at_the_latest() -> None:
    replica = tapped(model := mlp())
    for take in (True, False):
        x = batch()
        kept = weakref.ref(x.untyped_storage())
        loss_of(model(x)).backward()
        del x
        if take:
            assert offers(replica)["0.weight"] is not None
        else:
            replica.collect()
            assert kept() is not None
            model.zero_grad()
            train_step(model)
            replica.collect()
        gc.collect()
        assert kept() is None


def test_they_are_given_once() -> None:
    replica = tapped(model := mlp())
    train_step(model)
    assert rows(replica) == ALL
    assert replica.factors(places(replica.layout)) == [None, None]


def test_without_a_tap_there_are_none_and_nothing_is_hooked() -> None:
    model = mlp()
    replica = TorchReplica(model, SGD(model.parameters(), lr=0.1))
    train_step(model)
    assert rows(replica) == NONE
    assert not any(each._forward_hooks for each in model.modules())


# The model stays the user's


def test_the_gradient_and_the_step_are_those_without_a_tap() -> None:
    gradients = []
    for tap in (True, False):
        torch.manual_seed(1)
        model = mlp()
        replica = TorchReplica(model, SGD(model.parameters(), lr=0.1))
        if tap:
            replica.tap_factors()
            replica.tap_factors()  # a second time changes nothing
        train_step(model)
        assert rows(replica) == (ALL if tap else NONE)
        gradients.append(replica.gradient.clone())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("how", ["copied", "saved"])
def test_copies_are_not_heard_and_can_be_made(how: str) -> None:
    replica = tapped(model := mlp())
    if how == "copied":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    train_step(other)
    train_step(model)
    assert rows(replica) == ALL
    assert other[0].weight.grad is not None
    assert all(inspect.isfunction(hook) for hook in other[0]._forward_hooks.values()), "it keeps nothing"


def test_unjoin_takes_the_hooks_away() -> None:
    replica = tapped(model := mlp())
    replica.unjoin()
    assert not any(each._forward_hooks for each in model.modules())


def test_tensors_without_values_are_left_alone() -> None:
    model = mlp().to("meta")
    replica = tapped(model)
    replica.compute(lambda: loss_of(model(torch.empty(4, 40, device="meta"))))
    assert replica.factors(places(replica.layout)) == [None, None]
