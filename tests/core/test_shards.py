"""Shards: how a flat tensor is cut for servers, and what of it each of them is sent."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.core.buckets import Bucket, bucket_cuts, buckets_of
from fast.core.shards import Shards
from fast.view import ALIGN_BYTES, Layout

SHAPES = st.lists(
    st.sampled_from([(), (0,), (1,), (5,), (16,), (40,), (3, 7), (8, 16), (2, 3, 4)]), max_size=8
)
LAYOUTS = st.builds(
    lambda shapes, dtype: Layout.of([(f"p{n}", shape) for n, shape in enumerate(shapes)], dtype),
    SHAPES,
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
COUNTS = st.integers(1, 12)


def sizes(cuts: list[slice]) -> list[int]:
    return [cut.stop - cut.start for cut in cuts]


@given(LAYOUTS, COUNTS, st.booleans())
def test_shards_follow_each_other_and_are_everything(layout: Layout, count: int, whole: bool) -> None:
    cuts = layout.shards(count, whole_parameters=whole)
    assert len(cuts) == count and cuts[0].start == 0 and cuts[-1].stop == layout.size
    assert all(a.stop == b.start for a, b in pairwise(cuts))


@given(LAYOUTS, COUNTS)
def test_they_are_cut_at_64_bytes_and_differ_by_no_more(layout: Layout, count: int) -> None:
    cuts = layout.shards(count, whole_parameters=False)
    nbytes = [size * layout.dtype.itemsize for size in sizes(cuts)]
    assert all(cut.start * layout.dtype.itemsize % ALIGN_BYTES == 0 for cut in cuts)
    assert max(nbytes) - min(nbytes) <= ALIGN_BYTES


@given(LAYOUTS, st.integers(1, 5))
def test_whole_parameters_stay_whole_and_the_largest_shard_is_as_small_as_can_be(
    layout: Layout, count: int
) -> None:
    cuts = layout.shards(count, whole_parameters=True)
    starts = {segment.start for segment in layout.segments} | {layout.size}
    assert all(cut.start in starts and cut.stop in starts for cut in cuts) or not layout.segments
    largest = [
        max(b - a for a, b in zip((0, *edges), (*edges, layout.size), strict=True))
        for edges in combinations_with_replacement(sorted(starts | {0}), count - 1)
    ]
    assert max(sizes(cuts)) == min(largest)


def test_four_equal_parameters_on_three_servers_leave_none_of_them_idle() -> None:
    layout = Layout.of([(str(n), (16,)) for n in range(4)], torch.float32)
    assert sorted(sizes(layout.shards(3, whole_parameters=True))) == [16, 16, 32]


def test_more_servers_than_values_leave_some_without_any() -> None:
    layout = Layout.of([("w", (20,))], torch.float32)
    assert sizes(layout.shards(5, whole_parameters=False)) == [0, 0, 16, 0, 16]
    assert sorted(sizes(layout.shards(3, whole_parameters=True))) == [0, 0, 32]


@given(LAYOUTS, st.integers(0, 400), st.integers(0, 400))
def test_within_names_the_segments_of_a_slice(layout: Layout, a: int, b: int) -> None:
    start, stop = sorted((min(a, layout.size), min(b, layout.size)))
    expected = [n for n, s in enumerate(layout.segments) if s.start < stop and s.stop > start]
    assert list(layout.within(start, stop)) == expected or start == stop
    if start < stop:
        assert [s.name for s in layout.part(start, stop).segments] == [f"p{n}" for n in expected]


class Bitmaps:
    """As much of `me` as cutting needs."""

    def __init__(self, layout: Layout, present: int | None) -> None:
        self.replica = self
        self.layout, self.present = layout, present
        self.gradient = torch.arange(float(layout.size))

    def present_in(self, bucket: Bucket) -> int:
        return bucket.segments & (self.layout.everything if self.present is None else self.present)

    _present_in, _pieces = Shards._present_in, Shards._pieces


def bits_of(layout: Layout, shard: slice, present: int) -> int:
    """One parameter after another: those of which something lies in the shard are numbered from 0."""
    inside = [n for n, s in enumerate(layout.segments) if s.start < shard.stop and s.stop > shard.start]
    return sum((present >> place & 1) << number for number, place in enumerate(inside))


@given(LAYOUTS, COUNTS, st.booleans(), st.integers(min_value=0))
def test_a_bitmap_is_cut_to_the_shard(layout: Layout, count: int, whole: bool, seed: int) -> None:
    present = seed & layout.everything
    me = Bitmaps(layout, present)
    for shard in layout.shards(count, whole_parameters=whole):
        cut = me._present_in(shard, present)  # type: ignore[arg-type]
        part = layout.part(shard.start, shard.stop)
        expected = bits_of(layout, shard, present)
        assert (part.everything if cut is None else cut) == expected
        assert me._present_in(shard, None) is None  # type: ignore[arg-type]


@given(LAYOUTS, COUNTS, st.booleans(), st.sampled_from([None, 64, 200]), st.integers(min_value=-1))
def test_pieces_of_buckets_put_together_are_the_shard(
    layout: Layout, count: int, whole: bool, bucket_bytes: int | None, seed: int
) -> None:
    """As the receiver does: pieces come from the end, and their bits are joined."""
    present = None if seed < 0 else seed & layout.everything
    me = Bitmaps(layout, present)
    buckets = buckets_of(me.gradient, bucket_cuts(layout, bucket_bytes))
    for shard in layout.shards(count, whole_parameters=whole):
        pieces = [piece for bucket in buckets for piece in me._pieces(bucket, shard)]  # type: ignore[arg-type]
        assert torch.equal(torch.cat([piece.values for piece in reversed(pieces)]), me.gradient[shard])
        size, missing, bits = shard.stop - shard.start, shard.stop - shard.start, 0
        for piece in pieces:
            start, stop, total = piece.part or (0, size, size)
            assert (stop, total) == (missing, size) and piece.start == shard.start + start
            missing = start
            bits |= (
                layout.part(shard.start, shard.stop).everything if piece.present is None else piece.present
            )
        assert missing == 0 and (size == 0 or pieces[-1].part is None or pieces[-1].part[0] == 0)
        assert bits == bits_of(layout, shard, layout.everything if present is None else present)


def test_an_empty_shard_gets_one_empty_piece() -> None:
    layout = Layout.of([("a", (16,)), ("b", (16,))], torch.float32)
    me = Bitmaps(layout, None)
    buckets = buckets_of(me.gradient, bucket_cuts(layout, 64))
    assert len(buckets) == 2
    for at in (0, 16, 32):
        pieces = [p for bucket in buckets for p in me._pieces(bucket, slice(at, at))]  # type: ignore[arg-type]
        assert [(p.values.numel(), p.part) for p in pieces] == [(0, None)]
