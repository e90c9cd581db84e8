"""Linear layers of many workers at once: the numbers of torch's own, in another order of factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fast.adapters import stacked_linear
from fast.adapters.rows import Rows
from fast.adapters.stacked_linear import StackedLinear

WORKERS, SAMPLES, INPUTS, OUTPUTS = 3, 5, 4, 2


def tensors(*inside: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, weights and biases of all workers."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((*inside, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    made = [torch.randn(WORKERS, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    x, weight, bias = (each.requires_grad_() for each in made)
    return x, weight, bias


@pytest.mark.parametrize("inside", [(SAMPLES,), (SAMPLES, 6), ()])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_one_worker_after_another(
    inside: tuple[int, ...], biased: bool
) -> None:
    given = tensors(*inside)[: 3 if biased else 2]
    with StackedLinear():
        together = vmap(F.linear)(*given)
    alone = torch.stack([F.linear(*(each[worker] for each in given)) for worker in range(WORKERS)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        *(torch.autograd.grad(y.pow(2).sum(), given) for y in (together, alone)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_layer_lies_as_its_weights_do() -> None:
    """Which is what it is for: nothing is transposed when it is written into the flat tensor."""
    x, weight, bias = tensors(SAMPLES)
    with StackedLinear():
        total = vmap(F.linear)(x, weight, bias).pow(2).sum()
    assert torch.autograd.grad(total, weight)[0].is_contiguous()
    plain = vmap(F.linear)(x, weight, bias).pow(2).sum()
    assert not torch.autograd.grad(plain, weight)[0].is_contiguous(), (
        "torch has found a better way: it may go"
    )


def test_other_layers_stay_as_they_are() -> None:
    images = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    layer = nn.Conv2d(1, 1, 3)
    with StackedLinear():
        assert torch.equal(layer(images), layer(images))
        named = F.linear(images[0, 0], weight=torch.ones(2, 4))
    assert torch.equal(named, F.linear(images[0, 0], torch.ones(2, 4)))


def test_rows_of_many_workers_are_computed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, linear = list[torch.Size](), stacked_linear._linear

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(weight.shape)
        return linear(x, weight, bias)

    monkeypatch.setattr(stacked_linear, "_linear", watched)
    model = nn.Sequential(nn.Linear(INPUTS, 3), nn.Linear(3, OUTPUTS))
    rows = Rows(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda own, x: own(x).sum(), WORKERS)
    rows.evaluate(range(WORKERS), [torch.ones(SAMPLES, INPUTS)] * WORKERS)
    assert seen == [(3, INPUTS), (OUTPUTS, 3)], "each layer once, for all workers"
