"""The rule by layer type: which models' gradients are computed together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fast.adapters.batchable import LARGEST, batchable


def verdict_of(
    *layers: nn.Module, make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
) -> tuple[bool, bool]:
    """What the rule says, and whether one may ask for it all the same."""
    model = nn.Sequential(nn.Linear(4, 4), *layers)
    verdict = batchable(model, make(model.parameters(), lr=0.1))
    assert verdict.reason
    return verdict.together, verdict.may_ask


class Declared(nn.Module):
    batchable = True

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Undeclared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Heir(Declared):
    """A subclass may do something else, so it must say it itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(())


YES, SLOWER, NEVER = (True, True), (False, True), (False, False)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.ReLU(), nn.LayerNorm(4), nn.Sequential(nn.GELU(), nn.Flatten()), nn.Identity()], YES),
        ([nn.Embedding(3, 4)], YES),
        ([Declared()], YES),
        ([Undeclared()], SLOWER),
        ([Heir()], SLOWER),
        ([nn.Conv2d(1, 1, 3)], SLOWER),
        ([nn.MultiheadAttention(4, 2)], SLOWER),
        ([nn.Linear(600, 600)], SLOWER),
        ([nn.Dropout(0.5)], NEVER),
        ([nn.Dropout(0.0)], NEVER),
        ([nn.Sequential(nn.Sequential(nn.AlphaDropout()))], NEVER),
        ([nn.BatchNorm1d(4)], NEVER),
        ([nn.LSTM(4, 4)], NEVER),
        ([nn.GRUCell(4, 4)], NEVER),
        ([nn.RReLU()], NEVER),
        ([nn.Embedding(3, 4, max_norm=1.0)], NEVER),
        ([nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)], NEVER),
    ],
    ids=str,
)
def test_the_rule(layers: list[nn.Module], expected: tuple[bool, bool]) -> None:
    assert verdict_of(*layers) == expected


def test_large_models_gain_nothing() -> None:
    width = 1 << (LARGEST.bit_length() // 2)
    assert width * width >= LARGEST
    assert verdict_of(nn.Linear(width, width)) == SLOWER


def test_hooks_may_do_anything() -> None:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *_: None)
    assert verdict_of(layer) == NEVER


def test_an_optimizer_that_can_not_be_sent_as_data() -> None:
    class Own(torch.optim.SGD):
        pass

    assert verdict_of(make=Own) == NEVER
    assert verdict_of(make=torch.optim.Adam) == YES


def test_an_optimizer_with_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    assert not batchable(model, optimizer).may_ask


def test_dtypes_and_strangers() -> None:
    mixed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    assert not batchable(mixed, torch.optim.SGD(mixed.parameters(), lr=0.1)).may_ask
    model, stranger = nn.Sequential(nn.Linear(4, 4)), nn.Parameter(torch.zeros(3))
    assert not batchable(model, torch.optim.SGD([*model.parameters(), stranger], lr=0.1)).may_ask
