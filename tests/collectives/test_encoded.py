"""Means with codecs whose bytes can be averaged, or must be decoded, or need several rounds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchboard import Switch, bits, normal, perform_all

from fast.collectives.canonical import canonical_mean
from fast.collectives.performing import Performer
from fast.core.world import Kind, Round
from fast.errors import UsageError
from fast.parts.codecs.base import Codec, Coder, State, check_size
from fast.parts.codecs.casts import Bf16, Fp16
from fast.parts.codecs.eight_bit import BlockInt8, Int8
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored
from fast.parts.codecs.selections import RandomK
from fast.parts.codecs.signs import ColumnMeans, ScaledSign
from fast.view import Layout

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@dataclass(frozen=True, repr=False)
class Crude(Codec):
    """The largest absolute value as float32, and one signed byte for each value: so many 127ths of it."""

    name = "crude"

    def nbytes(self, layout, sent=None):
        return 4 + layout.size

    def encode(self, values, layout, state, work):
        largest = values.abs().max().float() if layout.size else torch.zeros(())
        packed = work.take("crude", self.nbytes(layout), torch.uint8)
        packed[:4].view(torch.float32).fill_(largest)
        steps = (values.float() / largest * 127).nan_to_num().round() if largest else torch.zeros(layout.size)
        packed[4:].view(torch.int8).copy_(steps)
        return packed

    def decode(self, packed, layout, out, work):
        check_size(self, packed, self.nbytes(layout))
        out.copy_(packed[4:].view(torch.int8).float() * (packed[:4].view(torch.float32) / 127))


@dataclass(frozen=True, repr=False)
class Rest(Codec):
    """`Crude` with a residual, as plainly as can be."""

    name = "rest"

    def begin(self, layout, seed, device):
        return State(seed, tensors={"residual": torch.zeros(layout.size, dtype=layout.dtype)})

    def nbytes(self, layout, sent=None):
        return Crude().nbytes(layout)

    def encode(self, values, layout, state, work):
        due = state.tensors["residual"] + values
        packed = Crude().encode(due, layout, state, work)
        decoded = torch.empty_like(due)
        Crude().decode(packed, layout, decoded, work)
        state.tensors["residual"].copy_(due - decoded)
        return packed

    def decode(self, packed, layout, out, work):
        Crude().decode(packed, layout, out, work)


@dataclass(frozen=True, repr=False)
class Twice(Codec):
    """Two rounds: the mean, and then the mean of the differences from it, which is 0."""

    name = "twice"
    rounds = True

    def nbytes(self, layout, sent=None):
        return layout.nbytes

    def encode(self, values, layout, state, work):
        raise AssertionError("it has rounds")

    decode = encode

    async def mean_rounds(self, values, layout, state, work, mean, out):
        first = await mean(values)
        second = await mean(values - first)
        out.copy_(first + second)
        state.tensors["seen"] = torch.tensor(state.steps)


LAYOUTS = [
    Layout.of([("w", (7, 5)), ("b", (5,)), ("v", (3, 4, 2))], torch.float32),
    Layout.of([("w", (40, 3))], torch.float64),
    Layout.single((61,), torch.float16),
    Layout.single((3,), torch.bfloat16),
    Layout.single((0,), torch.float32),
]


def values_of(layout, *seed):
    """Numbers in the segments, zeros between them."""
    flat = torch.zeros(layout.size, dtype=layout.dtype)
    for segment in layout.segments:
        flat[segment.start : segment.stop] = normal(segment.size, layout.dtype, segment.start, *seed)
    return flat


def compressed_by_hand(coders, tensors, weights, members, count):
    """Slice by slice: everybody encodes, the owner averages and encodes again, all decode that."""
    result = torch.empty_like(tensors[members[0]])
    for k, cut in enumerate(coders[0].layout.cuts(count)):
        terms = []
        for member in members:
            piece = coders[member].pieces(count)[k]
            terms.append(piece.decode(piece.encode(tensors[member][cut])).clone())
        mean = canonical_mean(terms, [weights[member] for member in members])
        owner = coders[members[k % len(members)]].pieces(count, "owner")[k]
        owner.decode(owner.encode(mean), result[cut])
    return result


@settings(max_examples=60)
@given(
    data=st.data(),
    codec=st.sampled_from(
        [Crude(), Rest(), Int8(), ErrorFeedback(ScaledSign()), ErrorFeedback(BlockInt8(block=16))]
    ),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 1 << 30),
)
def test_the_compressed_mean_is_the_one_made_by_hand(data, codec, layout, seed):
    """Over three rounds with one and the same coders, before which some leave."""
    size = data.draw(st.integers(1, 6))
    lives = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    lives[data.draw(st.integers(0, size - 1))] = 3
    weights = [float(w) for w in data.draw(st.lists(st.integers(1, 2), min_size=size, max_size=size))]
    tensors = [[values_of(layout, seed, step, k) for k in range(size)] for step in range(3)]
    coders, other = ([Coder(codec, layout, k) for k in range(size)] for _ in range(2))
    switch = Switch(size, seed)

    async def work(id):
        performer, results = Performer(switch.worlds[id]), []
        for step in range(lives[id]):
            round_ = Round(tensors[step][id], tuple(range(size)), weight=weights[id], coder=coders[id])
            results.append((await performer.perform(round_)).tensor.clone())
        return results

    results = switch.run({id: work(id) for id in range(size)})
    for step in range(3):
        members = tuple(k for k in range(size) if lives[k] > step)
        expected = compressed_by_hand(other, tensors[step], weights, members, size)
        for k in members:
            assert bits(results[k][step]) == bits(expected)


def test_what_a_compressed_mean_sends():
    """Each slice but one's own to its owner, and the sum of one's own to everybody; two hops."""
    size, layout = 4, Layout.single((256,), torch.float32)
    rounds = {
        k: Round(values_of(layout, k), tuple(range(size)), coder=Coder(Crude(), layout)) for k in range(size)
    }
    found, switch = perform_all(rounds)
    piece = 4 + 64
    for k in range(size):
        assert found[k].nbytes == 2 * (size - 1) * (piece + 256)
        assert len(switch.letters_of(k)) == 2 * (size - 1)
    assert torch.allclose(found[0].tensor, sum(r.tensor for r in rounds.values()) / size, atol=0.05)


@pytest.mark.parametrize(
    "codec", [Rest(), ErrorFeedback(ScaledSign()), ErrorFeedback(ColumnMeans())], ids=repr
)
def test_what_neither_members_nor_owners_could_say_is_remembered(codec):
    """All that arrived, the mean of the members' residuals and the owners' residuals make up all that came in."""
    size, steps = 3, 15
    layout = Layout.of([("w", (6, 8)), ("v", (16, 4))], torch.float64)
    coders = [Coder(codec, layout, k) for k in range(size)]
    arrived, given = (torch.zeros(layout.size, dtype=torch.float64) for _ in range(2))
    for step in range(steps):
        tensors = [values_of(layout, step, k) for k in range(size)]
        rounds = {k: Round(tensors[k], tuple(range(size)), coder=coders[k]) for k in range(size)}
        arrived += perform_all(rounds, step)[0][0].tensor
        given += sum(tensors) / size

    def residual(coder, stage):
        return torch.cat([piece.state.tensors["residual"] for piece in coder.pieces(size, stage)])

    remembered = sum(residual(coder, "") for coder in coders) / size + sum(
        residual(coder, "owner") for coder in coders
    )
    assert torch.allclose(arrived + remembered, given, atol=1e-5)
    assert (given - arrived).abs().max() > 1e-3, "then nothing had to be remembered"


# Summable


@settings(max_examples=60)
@given(
    codec=st.sampled_from([Fp16(), Bf16()]),
    layout=st.sampled_from(LAYOUTS),
    algorithm=st.sampled_from(["auto", "direct", "exchange", "ring", "doubling", "rabenseifner", "tree"]),
    size=st.integers(1, 6),
    seed=st.integers(0, 1 << 30),
)
def test_bytes_that_can_be_added_are_averaged_as_they_are(codec, layout, algorithm, size, seed):
    tensors = [values_of(layout, seed, k) for k in range(size)]
    rounds = {
        k: Round(tensors[k], tuple(range(size)), algorithm=algorithm, coder=Coder(codec, layout))
        for k in range(size)
    }
    found, _ = perform_all(rounds, seed)
    expected = canonical_mean([tensor.to(codec.dtype) for tensor in tensors], [1.0] * size).to(layout.dtype)
    for k in range(size):
        assert bits(found[k].tensor) == bits(found[0].tensor)
        if algorithm in ("auto", "direct", "exchange"):
            assert bits(found[k].tensor) == bits(expected)
        assert torch.allclose(found[k].tensor.double(), expected.double(), atol=0.02)


def test_16_bits_travel_as_16_bits():
    layout = Layout.single((128,), torch.float32)
    rounds = {
        k: Round(values_of(layout, k), (0, 1, 2, 3), algorithm="direct", coder=Coder(Fp16(), layout))
        for k in range(4)
    }
    assert perform_all(rounds)[0][2].nbytes == 2 * 3 * (128 // 4 * 2 + 256)


def test_numbers_beside_the_summands_stay_what_they_are():
    """Random places that all workers share: only the values at them are averaged."""
    layout, size = Layout.single((100,), torch.float32), 3
    tensors = [values_of(layout, k) for k in range(size)]
    coders = [Coder(RandomK(0.2, scaled=False), layout) for _ in range(size)]
    for _ in range(3):
        found, _ = perform_all({k: Round(tensors[k], (0, 1, 2), coder=coders[k]) for k in range(size)})
        mean = canonical_mean(tensors, [1.0] * size)
        places = found[0].tensor.nonzero().view(-1)
        assert len(places) == 20
        assert torch.equal(found[1].tensor[places], mean[places])


def test_error_feedback_of_summable_bytes():
    layout, size = Layout.single((50,), torch.float64), 3
    coders = [Coder(ErrorFeedback(Bf16()), layout) for _ in range(size)]
    tensors = [values_of(layout, k) for k in range(size)]
    arrived = torch.zeros(50, dtype=torch.float64)
    for _ in range(200):
        found, _ = perform_all({k: Round(tensors[k], (0, 1, 2), coder=coders[k]) for k in range(size)})
        arrived += found[0].tensor
    assert torch.allclose(arrived / 200, sum(tensors) / size, atol=1e-2)


# Several rounds


@pytest.mark.parametrize("algorithm", ["auto", "ring", "doubling"])
@pytest.mark.parametrize("gone", [(), (1,)])
def test_a_codec_may_average_several_times(algorithm, gone):
    layout, size = Layout.single((40,), torch.float64), 4
    tensors = [values_of(layout, k) for k in range(size)]
    staying = [k for k in range(size) if k not in gone]
    rounds = {
        k: Round(
            tensors[k],
            tuple(range(size)),
            weight=k + 1.0,
            algorithm=algorithm,
            coder=Coder(Twice(), layout),
            present=1 << k,
        )
        for k in staying
    }
    found, switch = perform_all(rounds, gone=gone)
    expected = canonical_mean([tensors[k] for k in staying], [k + 1.0 for k in staying])
    for k in staying:
        assert torch.allclose(found[k].tensor, expected, atol=1e-12)
        assert found[k].members == tuple(staying)
        assert found[k].present == sum(1 << each for each in staying)
        assert rounds[k].coder.state.steps == 1
    if algorithm != "auto":
        entries = [each for each in switch.sent if each.is_entry]
        assert len(entries) == len(staying) * (size - 1), "it is found out once who is there"


@pytest.mark.parametrize("algorithm", ["auto", "direct", "ring"])
def test_low_rank_depends_on_the_mean_matrix_only(algorithm):
    layout, size = Layout.of([("w", (12, 9)), ("b", (9,))], torch.float64), 4
    tensors = [values_of(layout, k) for k in range(size)]
    alone = Coder(Factored(2), layout)
    coders = [Coder(Factored(2), layout) for _ in range(size)]
    for _ in range(3):
        mean, _ = perform_all({0: Round(canonical_mean(tensors, [1.0] * size), (0,), coder=alone)})
        rounds = {
            k: Round(tensors[k], tuple(range(size)), algorithm=algorithm, coder=coders[k])
            for k in range(size)
        }
        found, _ = perform_all(rounds)
        assert torch.allclose(found[3].tensor, mean[0].tensor, atol=1e-10)
        assert len({bits(each.tensor) for each in found.values()}) == 1
    assert torch.linalg.matrix_rank(layout.segments[0].of(found[0].tensor)) == 2
    assert torch.allclose(layout.segments[1].of(found[0].tensor), layout.segments[1].of(sum(tensors) / size))


# Refusals


def test_what_can_not_be_encoded_is_refused():
    layout = Layout.single((10,), torch.float32)
    for kind in (Kind.SUM, Kind.ALL_GATHER, Kind.BROADCAST, Kind.REDUCE_SCATTER):
        with pytest.raises(UsageError, match="without a codec"):
            perform_all({0: Round(torch.ones(10), (0,), kind=kind, coder=Coder(Crude(), layout))})
    for tensor in (torch.ones(11), torch.ones(10, dtype=torch.float64)):
        with pytest.raises(UsageError, match="was set up for 10 values"):
            perform_all({0: Round(tensor, (0,), coder=Coder(Crude(), layout))})
    with pytest.raises(UsageError, match="'ring' doesn't work for crude"):
        perform_all({0: Round(torch.ones(10), (0,), algorithm="ring", coder=Coder(Crude(), layout))})
    rounds = {
        0: Round(torch.ones(10), (0, 1), coder=Coder(Crude(), layout)),
        1: Round(torch.ones(10), (0, 1), coder=Coder(Int8(), layout)),
    }
    with pytest.raises(UsageError, match="mean of 10 float32 as"):
        perform_all(rounds)
