"""The part of the kit for transports that reduce in place, and threads for ends that wait for each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, final

import torch
from torch import Tensor

from fast.collectives.canonical import canonical_mean, parts_of
from fast.core import Reduction
from fast.core.letter import union
from fast.core.world import Round
from fast.testing.showing import SOON_S
from fast.transport import Phase, Transport
from fast.transport.base import Patience
from fast.view import Groups

Result = TypeVar("Result")

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_LENGTHS = (1, 15, 16, 1003, 70_001)


@final
class _Patience(Patience):
    """Waits until the kit gives up."""

    def __init__(self) -> None:
        self.over = False

    def check(self, peers: tuple[int, ...], why: str) -> None:
        assert not self.over, f"waited too long for {why} of {peers}"


def together(
    acts: Sequence[Callable[[], Result]],
    patience: _Patience | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Result]:
    """All at the same time, one thread each. Nobody may take for ever."""
    with ThreadPoolExecutor(len(acts)) as pool:
        futures = [pool.submit(act) for act in acts]
        meanwhile()
        _, late = wait(futures, SOON_S)
        if patience is not None:
            patience.over = bool(late)
        assert not late, f"{len(late)} of {len(acts)} ends were not woken within {SOON_S:g} s"
        return [future.result() for future in futures]


@dataclass(frozen=True)
class _Brought:
    """What each participant brings to a round, by its id."""

    tensors: Sequence[Tensor]
    weights: Sequence[float]
    present: Sequence[int | None]
    groups: Groups = ()

    def expected(self, ids: Sequence[int]) -> Reduction:
        tensors, weights = [self.tensors[k] for k in ids], [self.weights[k] for k in ids]
        mean = canonical_mean(tensors, weights, parts=parts_of(ids, self.groups))
        present: int | None = 0
        for k in ids:
            present = union(present, self.present[k])
        return Reduction(mean, tuple(ids), present)


def check_reduce(ends: Sequence[Transport]) -> None:
    """The bits of `canonical_mean`, whatever is reduced; then one after another leaves."""
    size, patience = len(ends), _Patience()
    for number, (dtype, length) in enumerate(itertools.product(_DTYPES, _LENGTHS)):
        brought = _Brought(
            tensors=[_tensor(end, number, length).to(dtype) for end in ends],
            weights=[[1.0] * size, [1.0 + 2 * k for k in range(size)], [0.0] * size][number % 3],
            present=[None if number % 4 == 0 and k == size - 1 else 1 << 30 * k for k in range(size)],
            groups=(tuple(range(0, size, 2)), tuple(range(1, size, 2))) if number // 2 % 2 else (),
        )
        if number % 2:
            brought = replace(
                brought, tensors=[_moved(*each) for each in zip(ends, brought.tensors, strict=True)]
            )
        _check_round(ends, ends, brought, patience)
    staying = list(ends)
    while len(staying) > 1:
        gone = staying.pop(len(staying) // 2)
        brought = _Brought([_tensor(end, 0, 1003) for end in ends], range(1, size + 1), [0] * size)
        _check_round(ends, staying, brought, patience, partial(gone.set_phase, Phase.DONE))


def _tensor(end: Transport, number: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * number + end.id))


def _moved(end: Transport, tensor: Tensor) -> Tensor:
    """The same values in memory of the transport's own."""
    return end.allocate(tensor.numel() * tensor.element_size()).view(tensor.dtype).copy_(tensor)


def _check_round(
    ends: Sequence[Transport],
    staying: Sequence[Transport],
    brought: _Brought,
    patience: _Patience,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    among, ids = tuple(end.id for end in ends), tuple(end.id for end in staying)
    before, expected = [tensor.clone() for tensor in brought.tensors], brought.expected(ids)

    def reduce(end: Transport) -> Reduction:
        k = end.id
        under_way = end.reduce(
            Round(
                brought.tensors[k],
                among,
                weight=brought.weights[k],
                present=brought.present[k],
                groups=brought.groups,
            )
        )
        under_way.finish(patience)
        found = under_way.reduction
        return replace(found, tensor=found.tensor.clone())

    results = together([partial(reduce, end) for end in staying], patience, meanwhile)
    for found, k in zip(results, ids, strict=True):
        what = f"{len(expected.tensor)} values of {expected.tensor.dtype} among {ids}, at participant {k}"
        assert torch.equal(found.tensor, expected.tensor), f"{what}: other bits than canonical_mean gives"
        assert found.members == ids, f"{what}: members {found.members}"
        assert found.present == expected.present, (
            f"{what}: present is {found.present}, not {expected.present}"
        )
        assert torch.equal(brought.tensors[k], before[k]), f"{what}: the input was changed"
