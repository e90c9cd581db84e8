"""The part of the kit for codecs that is about what each says of itself: `unbiased`, `summable`,
`sparse`, `non_finite`, and rounds of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite, isnan, nan

import torch
from torch import Tensor

from fast.core import drive
from fast.parts.codecs.base import Codec, Coder, NonFinite, State, Workspace
from fast.parts.codecs.sparse import Sparse
from fast.testing.tensors import drawn, near, same_bits, shown
from fast.view import Layout

STANDARD_ERRORS = 5.0
NEVER_SEEN = 15.0
"""What should happen in this many of all draws happens in some of them, but for once in e^15 cases."""
FORGET_STEPS = 400
"""By then even a random choice of places has come to every one of them."""
_MOST_DRAWN = 1000


def check_promises(codec: Codec, layouts: Sequence[Layout], draws: int) -> None:
    if codec.unbiased:
        _check_unbiased(codec, _to_draw_on(layouts), draws)
    for layout in layouts:
        where = f"{codec!r} on {shown(layout)}"
        if codec.summable:
            _check_summable(codec, layout, where)
        if codec.sparse:
            _check_stream(codec, layout, where)
        if codec.rounds:
            _check_alone_in_rounds(codec, layout, where)
        _check_non_finite(codec, layout, where)


def _decoded(codec: Codec, packed: Tensor, layout: Layout) -> Tensor:
    out = torch.empty(layout.size, dtype=layout.dtype)
    codec.decode(packed, layout, out, Workspace())
    return out


# unbiased


def _to_draw_on(layouts: Sequence[Layout]) -> list[Layout]:
    """One small layout per kind that isn't rounded by itself."""
    small = [each for each in layouts if 0 < each.size <= _MOST_DRAWN and each.dtype.itemsize >= 4]
    return list({each.dtype: each for each in reversed(small)}.values())


def _check_unbiased(codec: Codec, layouts: Iterable[Layout], draws: int) -> None:
    """The mean of many decodings is the value, within 5 standard errors at every place."""
    for layout in layouts:
        values, jump = _not_near_zero(layout), 0.0
        coder, total, squares = Coder(codec, layout), torch.zeros_like(values), torch.zeros_like(values)
        for _ in range(draws):
            difference = coder.decode(coder.encode(values)).sub_(values)
            total.add_(difference)
            squares.addcmul_(difference, difference)
            jump = max(jump, float(difference.abs().max()))
        mean = total.double() / draws
        error = ((squares.double() / draws - mean**2).clamp(min=0) / draws).sqrt()
        rounding = 1e-6 * values.abs().double()
        wrong = mean.abs() > STANDARD_ERRORS * error + NEVER_SEEN * jump / draws + rounding
        assert not wrong.any(), (
            f"{codec!r} on {shown(layout)} isn't unbiased: the mean of {draws} decodings of "
            f"{values[wrong].tolist()[:5]} is off by {mean[wrong].tolist()[:5]}, and the standard error is "
            f"{error[wrong].tolist()[:5]}"
        )


def _not_near_zero(layout: Layout) -> Tensor:
    """What is rounded up once in a thousand draws would tell nothing."""
    normal = drawn(layout, 1)
    return normal.sign() * (0.5 + normal.abs().clamp(max=1.0))


# summable


def _check_summable(codec: Codec, layout: Layout, where: str) -> None:
    """The mean of three workers' summands decodes to the mean of their values."""
    packed = [Coder(codec, layout, seed).encode(drawn(layout, seed)).clone() for seed in range(3)]
    summands = [codec.summands(each, layout) for each in packed]
    assert all(each.is_floating_point() for each in summands), f"{where}: summands must be floating point"
    decoded = torch.stack([_decoded(codec, each, layout).double() for each in packed])
    mean = torch.stack([each.double() for each in summands]).mean(0)
    together = packed[0].clone()
    codec.summands(together, layout).copy_(mean)
    assert torch.equal(codec.summands(together, layout).double(), mean.to(summands[0].dtype).double()), (
        f"{where}: summands isn't a view of the bytes"
    )
    found, needed = _decoded(codec, together, layout), decoded.mean(0)
    coarser = max((layout.dtype, summands[0].dtype), key=lambda dtype: torch.finfo(dtype).eps)
    assert near(found, needed.to(coarser), decoded.abs().amax(0)), (
        f"{where}: the mean of the summands decodes to {found.tolist()[:8]}..., and the mean of what each decodes "
        f"to is {needed.tolist()[:8]}..."
    )


# sparse


def _check_stream(codec: Codec, layout: Layout, where: str) -> None:
    """Places and values say the same as `decode` does."""
    decoder = codec.decoder
    assert isinstance(decoder, Sparse), f"{where}: it says that it is sparse, and its decoder has no stream"
    packed = Coder(codec, layout).encode(drawn(layout, 1)).clone()
    for work in (None, Workspace()):
        indices, values = decoder.stream(packed, layout, work)
        assert (indices.dtype, values.dtype) == (torch.int32, layout.dtype), (
            f"{where}: a stream of {indices.dtype} and {values.dtype}"
        )
        places = indices.tolist()
        assert places == sorted(set(places)), f"{where}: the places of its stream must ascend"
        dense = torch.zeros(layout.size, dtype=layout.dtype)
        dense[indices.long()] = values
        assert same_bits(dense, _decoded(codec, packed, layout)), f"{where}: stream and decode disagree"


# rounds


def _check_alone_in_rounds(codec: Codec, layout: Layout, where: str) -> None:
    """With nobody else there, the rounds end with what the bytes stand for."""
    values, out = drawn(layout, 1), torch.empty(layout.size, dtype=layout.dtype)
    state = codec.begin(layout, 0, values.device)

    async def alone(tensor: Tensor) -> Tensor:
        return tensor

    drive(codec.mean_rounds(values.clone(), layout, state, Workspace(), alone, out))  # type: ignore[attr-defined]
    decoded = _decoded(codec, Coder(codec, layout).encode(values), layout)
    assert near(out, decoded, values.abs().amax() if values.numel() else values, 64), (
        f"{where}: alone in its rounds it gives {out.tolist()[:8]}..., and its bytes are {decoded.tolist()[:8]}..."
    )


# non_finite


def _check_non_finite(codec: Codec, layout: Layout, where: str) -> None:
    largest = max(layout.segments, key=lambda segment: segment.size, default=None)
    if largest is None or not largest.size:
        return
    place = largest.start + largest.size // 2
    for bad in (nan, inf, -inf):
        values = drawn(layout, 1)
        values[place] = bad
        what = f"{where}, {bad} at place {place}"
        _check_arrival(codec, layout, values, place, what)
        _check_remainder(codec, layout, values, place, what)
        _check_forgotten(codec, layout, values, what)


def _check_arrival(codec: Codec, layout: Layout, values: Tensor, place: int, what: str) -> None:
    decoded = _decoded(codec, Coder(codec, layout).encode(values), layout)
    found, finite = float(decoded[place]), bool(decoded.isfinite().all())
    if codec.sparse and found == 0.0:
        assert finite, f"{what}: it was not sent, and yet something arrives that isn't finite"
        return
    match codec.non_finite:
        case NonFinite.KEPT:
            sent = float(values[place])
            assert found == sent or (isnan(found) and isnan(sent)), (
                f"{what}: it isn't kept, but becomes {found}"
            )
            decoded[place] = 0
            assert bool(decoded.isfinite().all()), f"{what}: others than it arrive as NaN or infinity, too"
        case NonFinite.SPREADS:
            assert not isfinite(found), f"{what}: it arrives as {found}, and nobody notices"
        case NonFinite.DROPPED:
            assert finite, f"{what}: it should be dropped, and something arrives that isn't finite"


def _check_remainder(codec: Codec, layout: Layout, values: Tensor, place: int, what: str) -> None:
    """Nothing but a value that wasn't sent stays, and that only where it goes as it is with the next bytes."""
    rest, state = values.clone(), codec.begin(layout, 0, values.device)
    packed = codec.encode_rest(rest, layout, state, Workspace())
    if codec.sparse and codec.non_finite is not NonFinite.DROPPED:
        unsent = _decoded(codec, packed, layout)[place] == 0
        rest[place] = torch.where(unsent, torch.zeros_like(rest[place]), rest[place])
    assert bool(rest.isfinite().all()), f"{what}: encode_rest leaves what isn't finite"


def _check_forgotten(codec: Codec, layout: Layout, values: Tensor, what: str) -> None:
    """What a codec remembers becomes finite again: at once if it drops such values, else when they are sent."""
    coder = Coder(codec, layout)
    coder.encode(values)
    for step in range(0 if codec.non_finite is NonFinite.DROPPED else FORGET_STEPS):
        if _is_finite(coder.state):
            return
        coder.encode(drawn(layout, step))
    assert _is_finite(coder.state), f"{what}: it is remembered for ever"


def _is_finite(state: State) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in state.tensors.values()) and all(
        _is_finite(inner) for inner in state.inner
    )
