"""Tensors for the kits to try: layouts of all sorts, and values that are hard to write down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf, nan

import torch
from torch import Tensor

from fast.view import Layout

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
GUARD = 64
"""So many elements before and after a guarded tensor must stay what they are."""
LARGE = 4096
"""A layout of at least so many values shows what work in proportion to its size is done."""
_FLOAT32 = torch.finfo(torch.float32)
_PIECES = 3
_MODEL = (("weight", (7, 5)), ("bias", (7,)), ("kernel", (3, 2, 3, 3)), ("scale", ()), ("none", (0,)))
_SHAPES: tuple[tuple[int, ...], ...] = ((33, 17), (), (257,), (0,), (3, 0), (5, 1))
_LARGE_MODEL = (("weight", (300, 113)), ("bias", (113,)), ("kernel", (8, 4, 3, 3)))


def some_layouts() -> Iterator[Layout]:
    """Models with padding and single tensors, odd and empty ones too; most of them in float32."""
    for dtype in DTYPES:
        yield Layout.of(_MODEL, dtype)
        yield from (Layout.single(shape, dtype) for shape in _SHAPES[:2])
    yield from (Layout.single(shape, torch.float32) for shape in _SHAPES[2:])
    yield Layout.of(_LARGE_MODEL, torch.float32)


def with_slices(layouts: Iterable[Layout]) -> Iterator[Layout]:
    """These; and of the first one with several segments the slices that a round cuts, and an uneven one."""
    cut = False
    for layout in layouts:
        yield layout
        if len(layout.segments) > 1 and not cut:
            cut = True
            yield from (layout.part(piece.start, piece.stop) for piece in layout.cuts(_PIECES))
            yield layout.part(3, max(3, layout.size - 21))


def shown(layout: Layout) -> str:
    """For messages."""
    kind = str(layout.dtype).removeprefix("torch.")
    return f"{layout.size} values of {kind}, shapes {[segment.shape for segment in layout.segments]}"


def drawn(layout: Layout, seed: int) -> Tensor:
    """Normal values, with zeros between the segments."""
    return _drawn(layout, seed).clone()


@lru_cache(maxsize=256)
def _drawn(layout: Layout, seed: int) -> Tensor:
    values = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return unpadded(values.to(layout.dtype), layout)


def unpadded(values: Tensor, layout: Layout) -> Tensor:
    """The same values with zeros between the segments."""
    return values.masked_fill(padding(layout), 0)


@lru_cache(maxsize=64)
def padding(layout: Layout) -> Tensor:
    """True at places that are in no segment; to be read only."""
    outside = torch.ones(layout.size, dtype=torch.bool)
    for segment in layout.segments:
        outside[segment.start : segment.stop] = False
    return outside


@lru_cache(maxsize=64)
def finite_values(layout: Layout) -> tuple[tuple[str, Tensor], ...]:
    """Values that every codec must cope with, and what is special about them; to be read only."""
    normal, info = drawn(layout, 1).double(), torch.finfo(layout.dtype)
    signs, exponents = normal.sign(), drawn(layout, 2).double()
    lonely = normal * 1e-3
    lonely[layout.size // 2 :][:1] = 1e4
    made = {
        "normal values": normal,
        "small values": normal * 1e-6,
        "denormal values": signs * (info.smallest_normal / 3),
        "zeros": torch.zeros_like(normal),
        "the largest values": signs * min(info.max, _FLOAT32.max),
        "values of all sizes": signs * 10.0 ** (2 * exponents - 1),
        "equal values": torch.full_like(normal, 0.75),
        "equal negative values": torch.full_like(normal, -3.0),
        "one large value": lonely,
    }
    return tuple((what, unpadded(values.to(layout.dtype), layout)) for what, values in made.items())


@lru_cache(maxsize=64)
def other_values(layout: Layout) -> tuple[tuple[str, Tensor], ...]:
    """Values that need not arrive, but must not break anything; to be read only."""
    normal = drawn(layout, 1)
    thirds = torch.tensor([nan, inf, -inf], dtype=layout.dtype).repeat(layout.size // 3 + 1)[: layout.size]
    made = {
        "nothing but NaN": torch.full_like(normal, nan),
        "nothing but infinities": torch.full_like(normal, inf),
        "half of it not finite": torch.where(normal > 0, normal, thirds),
    }
    if layout.dtype == torch.float64:
        made["values beyond float32"] = normal.sign() * 1e300
    return tuple((what, unpadded(values, layout)) for what, values in made.items())


def guarded(layout: Layout, filled_with: float) -> tuple[Tensor, Tensor]:
    """Memory, and a tensor of this layout in its middle."""
    memory = torch.full((layout.size + 2 * GUARD,), 777.0, dtype=layout.dtype)
    out = memory[GUARD : GUARD + layout.size]
    return memory, out.fill_(filled_with)


def is_intact(memory: Tensor) -> bool:
    """Whether all around a guarded tensor is as it was."""
    return bool((memory[:GUARD] == 777.0).all()) and bool((memory[-GUARD:] == 777.0).all())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also of NaN and of negative zeros."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def near(found: Tensor, needed: Tensor, scale: Tensor, roundings: float = 4.0) -> bool:
    """Whether they differ by no more than so many roundings of values as large as `scale`."""
    info = torch.finfo(needed.dtype)
    allowed = roundings * (info.eps * scale.double().abs() + info.smallest_normal * info.eps)
    return bool(((found.double() - needed.double()).abs() <= allowed).all())
