"""All codecs in one table, and what holds for each of them; and that the kit notices when it doesn't."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.parts.codecs import (
    CODECS,
    TRANSFORMATIONS,
    Codec,
    Coder,
    ErrorFeedback,
    NonFinite,
    State,
    Workspace,
)
from fast.parts.codecs.base import check_size
from fast.testing import check_codec
from fast.view import Layout

c = SimpleNamespace(**CODECS, **TRANSFORMATIONS)

TABLE: dict[str, list[Codec]] = {
    "fp16": [c.fp16()],
    "bf16": [c.bf16()],
    "scaled_fp16": [c.scaled_fp16()],
    "int8": [c.int8(), c.int8(stochastic=True)],
    "block_int8": [c.block_int8(), c.block_int8(block=10, stochastic=True)],
    "qsgd": [c.qsgd(), c.qsgd(levels=1, bucket=64), c.qsgd(levels=100)],
    "terngrad": [c.terngrad(), c.terngrad(clip=None, dense_below=0)],
    "column_means": [c.column_means()],
    "sign": [c.sign()],
    "scaled_sign": [c.scaled_sign()],
    "two_bit": [c.two_bit(threshold=0.5)],
    "top_k": [c.top_k(0.1), c.top_k(1.0)],
    "sampled_top_k": [c.sampled_top_k(0.1)],
    "random_k": [c.random_k(0.3), c.random_k(0.3, shared=False), c.random_k(0.3, scaled=False)],
    "threshold": [c.threshold(0.5)],
    "low_rank": [c.low_rank(2)],
    "dgc": [
        c.dgc(0.1),
        c.dgc(0.1, momentum=0.5, nesterov=True, clip=1.0, workers=4, warm_up=4, dense_below=16),
    ],
    "error_feedback": [
        c.error_feedback(c.top_k(0.1)),
        c.error_feedback(c.sampled_top_k(0.1)),
        c.error_feedback(c.random_k(0.3, scaled=False)),
        c.error_feedback(c.int8()),
        c.error_feedback(c.fp16()),
        c.error_feedback(c.qsgd(levels=127)),
        c.error_feedback(c.chain(c.top_k(0.1), c.int8())),
        c.error_feedback(c.chain(c.clip(1.0), c.top_k(0.1))),
    ],
    "chain": [
        c.chain(c.top_k(0.1), c.int8()),
        c.chain(c.random_k(0.3), c.bf16()),
        c.chain(c.sampled_top_k(0.1), c.qsgd()),
        c.chain(c.clip(1.0), c.error_feedback(c.top_k(0.1))),
    ],
    "clip": [c.chain(c.clip(0.5), c.int8()), c.chain(c.clip(0.5), c.low_rank(2))],
    "one_bit_sgd": [c.one_bit_sgd()],
    "ef_sign": [c.ef_sign()],
    "mxnet_two_bit": [c.mxnet_two_bit(0.5)],
    "strom": [c.strom(0.5)],
    "power_sgd": [c.power_sgd()],
}
EVERY = [codec for codecs in TABLE.values() for codec in codecs]
WITH_FEEDBACK = [codec for codec in EVERY if isinstance(codec, ErrorFeedback)]
DRAWS = 1000


def test_the_table_has_every_codec() -> None:
    assert set(TABLE) == {*CODECS, *TRANSFORMATIONS}


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_kit(codec: Codec) -> None:
    check_codec(codec, draws=DRAWS)


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=repr)
@pytest.mark.parametrize("shapes", [[(33, 17)], [(7, 5), (7,), (3, 2, 3, 3)]], ids=str)
def test_what_was_sent_and_what_is_kept_add_up(codec: Codec, shapes: list[tuple[int, ...]]) -> None:
    """At every place and after every step, to the rounding of float64."""
    layout = Layout.of([(str(number), shape) for number, shape in enumerate(shapes)], torch.float64)
    coder, draw = Coder(codec, layout, seed=3), torch.Generator().manual_seed(0)
    given = sent = torch.zeros(layout.size, dtype=torch.float64)
    for _ in range(20):
        gradient = torch.zeros_like(given)
        for segment in layout.segments:
            segment.of(gradient).normal_(generator=draw)
        given = given + gradient
        sent = sent + coder.decode(coder.encode(gradient))
        torch.testing.assert_close(sent + coder.state.tensors["residual"], given, rtol=0, atol=1e-11)


@given(
    codec=st.sampled_from(EVERY),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120)
def test_any_bits_on_any_layout(
    codec: Codec, shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int
) -> None:
    """Whatever the memory of a gradient holds: as many bytes as the formula says, twice, and values back."""
    layout = Layout.of([(str(number), shape) for number, shape in enumerate(shapes)], dtype)
    draw, coder = torch.Generator().manual_seed(seed), Coder(codec, layout, seed)
    for _ in range(2):
        values = torch.zeros(layout.size, dtype=dtype)
        for segment in layout.segments:
            noise = torch.randint(256, (segment.size * dtype.itemsize,), dtype=torch.uint8, generator=draw)
            values[segment.start : segment.stop] = noise.view(dtype)
        packed = coder.encode(values)
        assert packed.numel() == codec.nbytes(layout, codec.sent(packed, layout))
        assert coder.decode(packed).shape == values.shape


@pytest.mark.parametrize(
    "codec", [c.one_bit_sgd(), c.power_sgd(), c.dgc(0.1), c.int8(stochastic=True)], ids=repr
)
def test_slices_have_states_of_their_own_that_are_saved(codec: Codec) -> None:
    layout = Layout.of([("weight", (40, 50)), ("bias", (40,))], torch.float32)
    coder, fresh = Coder(codec, layout, 7), Coder(codec, layout, 8)
    gradients = torch.randn(6, layout.size, generator=torch.Generator().manual_seed(0))

    def encode(who: Coder, gradient: Tensor) -> list[Tensor]:
        pieces = zip(who.pieces(3), layout.cuts(3), strict=True)
        return [piece.encode(gradient[cut]).clone() for piece, cut in pieces]

    for gradient in gradients[:3]:
        encode(coder, gradient)
    fresh.load_state_dict(coder.state_dict())
    for gradient in gradients[3:]:
        for found, needed in zip(encode(fresh, gradient), encode(coder, gradient), strict=True):
            assert torch.equal(found, needed)


# The kit notices


@dataclass(frozen=True, repr=False)
class Plain(Codec):
    """The values as they are, in the layout's own kind: a codec that does everything right."""

    name: ClassVar[str] = "plain"
    summable = True
    non_finite = NonFinite.KEPT

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        return layout.nbytes

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        packed = work.take("packed", layout.nbytes, torch.uint8)
        packed.view(layout.dtype).copy_(values)
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed, layout.nbytes)
        out.copy_(packed.view(layout.dtype))

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        return packed.view(layout.dtype)


class SaysMoreBytes(Plain):
    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        return layout.nbytes + 1


class ChangesValues(Plain):
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(values.clamp_(-1, 1), layout, state, work)


class LeavesZerosOut(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed, layout.nbytes)
        values = packed.view(layout.dtype)
        out[values != 0] = values[values != 0]


class WritesBeyond(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        super().decode(packed, layout, out, work)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0


class SpoilsBytes(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        super().decode(packed, layout, out, work)
        work.take("packed", layout.nbytes, torch.uint8).zero_()


class FillsPadding(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        super().decode(packed, layout, out, work)
        out.masked_fill_(out == 0, 1e-3)


class ThrowsDice(Plain):
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(values * torch.rand_like(values), layout, state, work)


class LeavesNoRest(Plain):
    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return self.encode(values, layout, state, work)


class LosesTheSmall(Plain):
    unbiased = True

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(torch.where(values.abs() < 1, 0 * values, values), layout, state, work)


class AddsRoots(Plain):
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(values.sign() * values.abs().sqrt(), layout, state, work)

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        super().decode(packed, layout, out, work)
        out.copy_(out.sign() * out**2)


class Remembers(Plain):
    """Sends what came since the last call, too; keeps it where each subclass says."""

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        kept = self.kept(state, values)
        packed = super().encode(values + kept, layout, state, work)
        kept.copy_(values)
        return packed

    def kept(self, state: State, values: Tensor) -> Tensor:
        raise NotImplementedError


class RemembersInTheWrongPlace(Remembers):
    elsewhere: ClassVar[dict[tuple[int, torch.dtype], Tensor]] = {}

    def kept(self, state: State, values: Tensor) -> Tensor:
        return self.elsewhere.setdefault((values.numel(), values.dtype), torch.zeros_like(values))


class RemembersTooLate(Remembers):
    def kept(self, state: State, values: Tensor) -> Tensor:
        return state.tensors.setdefault("kept", torch.zeros_like(values))


class RemembersForEver(Remembers):
    """Unlike error feedback, it never puts 0 in the place of NaN."""

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        return State(seed, tensors={"kept": torch.zeros(layout.size, dtype=layout.dtype)})

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(state.tensors["kept"].add_(values), layout, state, work)

    def kept(self, state: State, values: Tensor) -> Tensor:
        return torch.zeros_like(values)


class TrustsStrangers(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        out.copy_(packed.view(layout.dtype))


class TakesTheFirst(Plain):
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed[: layout.nbytes], layout.nbytes)
        out.copy_(packed[: layout.nbytes].view(layout.dtype))


class DropsNothing(Plain):
    non_finite = NonFinite.DROPPED


class HidesInfinity(Plain):
    non_finite = NonFinite.SPREADS

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        largest = torch.finfo(layout.dtype).max
        return super().encode(values.clamp(-largest, largest), layout, state, work)


class SparseByName(Plain):
    sparse = True


class TakesMemory(Plain):
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return super().encode(values * 1, layout, state, work)


class GivesNewMemory(Plain):
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return torch.from_numpy(values.numpy().view(numpy.uint8).copy())


LAYOUTS = (
    Layout.of([("weight", (7, 5)), ("bias", (7,))], torch.float32),
    Layout.single((70, 60), torch.float32),
)


def test_a_codec_that_is_right_passes() -> None:
    check_codec(Plain(), LAYOUTS, registered=False)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (SaysMoreBytes(), "bytes, and nbytes says"),
        (ChangesValues(), "encode changed the values"),
        (LeavesZerosOut(), "does it write all of `out`"),
        (WritesBeyond(), "wrote before or after `out`"),
        (SpoilsBytes(), "decode spoils bytes in the same workspace"),
        (FillsPadding(), "something else than 0 arrives between the segments"),
        (ThrowsDice(), "decode spoils|other bytes than encode|differs from another coder's"),
        (LeavesNoRest(), "and values - decoded is"),
        (LosesTheSmall(), "isn't unbiased"),
        (AddsRoots(), "the mean of the summands decodes to"),
        (RemembersInTheWrongPlace(), "spoils bytes|other bytes than encode|differs from another coder's"),
        (RemembersTooLate(), "can't be what `begin` makes"),
        (RemembersForEver(), "it is remembered for ever"),
        (TrustsStrangers(), "strange bytes raised"),
        (TakesTheFirst(), "strange bytes took them"),
        (DropsNothing(), "it should be dropped"),
        (HidesInfinity(), "nobody notices"),
        (SparseByName(), "its decoder has no stream"),
        (TakesMemory(), "allocates 16800 bytes at every call"),
        (GivesNewMemory(), "in other memory every time"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Codec) else "",
)
def test_the_kit_notices(broken: Codec, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_codec(broken, LAYOUTS, registered=False)


def test_the_kit_asks_for_a_name_that_is_known() -> None:
    with pytest.raises(Exception, match="plain"):
        check_codec(Plain(), LAYOUTS)


def test_the_kit_compares_what_a_receiver_builds() -> None:
    @dataclass(frozen=True, repr=False)
    class Int8OfMyOwn(Plain):
        name: ClassVar[str] = "int8"
        stochastic: bool = False

    with pytest.raises(AssertionError, match=r"its spec .* builds int8"):
        check_codec(Int8OfMyOwn(), LAYOUTS)


def test_a_codec_that_refuses_everything_fails() -> None:
    tiny: Any = c.threshold(1e-300)
    with pytest.raises(AssertionError, match="refuses every layout"):
        check_codec(tiny, LAYOUTS)
