"""Streaming DiLoCo: fragments, rounds that take several steps, mixing and codecs, against plain loops in float64."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fast.adapters import TorchReplica
from fast.codecs import error_feedback, fp16, int8, power_sgd, top_k
from fast.errors import UsageError
from fast.parts.codecs import Coder
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.decentral.streaming import fragments_of
from fast.strategies.presets import diloco, streaming_diloco
from fast.trace import Dropped, Received, Reduced, Sent
from fast.view import Layout

from .problem import INSTANT, LeastSquares, RandomCompute, close, equal, random_network, weights

LR = 0.01


class Wide(LeastSquares):
    """More values than rows, so that every fragment has slices for everybody."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.a, self.b, self.start = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((32, 200), (32,), (200,))
        )


PROBLEM = Wide()


def run(strategy, batches, **options):
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, **options)
    simulation.run()
    return simulation


# The model in fragments


def layouts():
    shape = st.one_of(st.tuples(st.integers(1, 400)), st.tuples(st.integers(1, 40), st.integers(1, 40)))
    named = st.lists(shape, min_size=1, max_size=12)
    return named.map(
        lambda shapes: Layout.of([(f"p{k}", shape) for k, shape in enumerate(shapes)], torch.float32)
    )


@given(layouts(), st.integers(1, 8))
def test_every_value_is_in_one_fragment_and_none_is_much_larger_than_its_share(layout, count):
    fragments = fragments_of(layout, layout.size, count)
    times = torch.zeros(layout.size, dtype=torch.int64)
    for places in fragments:
        for place in places:
            assert place.stop > place.start
            times[place] += 1
    assert bool((times == 1).all())
    assert 1 <= len(fragments) <= count
    rows = max((each.matrix[1] for each in layout.segments if len(each.shape) > 1), default=0)
    largest = max(sum(place.stop - place.start for place in places) for places in fragments)
    assert largest <= 2 * (layout.size / count + rows + 16)


def test_equal_layers_are_strided():
    layout = Layout.of([(f"layer {k}", (16, 16)) for k in range(6)], torch.float32)
    starts = [[place.start // 256 for place in places] for places in fragments_of(layout, layout.size, 3)]
    assert starts == [[0, 3], [1, 4], [2, 5]]


def test_parameters_are_cut_only_where_they_are_larger_than_their_share():
    layout = Layout.of([("large", (60, 32)), ("small", (16,)), ("another", (8, 32))], torch.float32)
    fragments = fragments_of(layout, layout.size, 2)
    edges = {edge for places in fragments for place in places for edge in (place.start, place.stop)}
    inside = edges - {segment.start for segment in layout.segments} - {layout.size}
    assert len(inside) == 1 and all(edge % 32 == 0 for edge in inside)  # between two rows of the large one


# One fragment, at once: DiLoCo


@pytest.mark.parametrize("counts", [[11], [11, 11, 11], [11, 4, 9, 11]], ids=repr)
def test_with_one_fragment_at_once_it_is_diloco_bit_for_bit(counts):
    batches, found = PROBLEM.batches(len(counts), counts), {}
    at_once = streaming_diloco(fragments=1, interval=3, overlap=0, mix=0.0)
    for strategy in (at_once, diloco(interval=3)):
        records = []
        simulation = run(
            strategy,
            batches,
            momentum=0.5,
            compute=RandomCompute(),
            network=random_network(len(counts), 1),
            observers=[records.append],
        )
        sent = [record.nbytes for record in records if isinstance(record, Reduced)]
        found[strategy.call] = weights(simulation), sent
    (ours, our_bytes), (theirs, their_bytes) = found.values()
    assert equal(ours, theirs)
    assert our_bytes == their_bytes


@pytest.mark.parametrize(
    "other",
    [
        streaming_diloco(fragments=2, interval=3, overlap=0, mix=0.0),
        streaming_diloco(fragments=1, interval=3, overlap=1, mix=0.0),
        streaming_diloco(fragments=1, interval=3, overlap=0, mix=0.5),
        streaming_diloco(fragments=1, interval=3, overlap=0, mix=0.0, codec=int8()),
    ],
    ids=repr,
)
def test_otherwise_it_is_not(other):
    batches = PROBLEM.batches(3, 11)
    assert not equal(weights(run(other, batches)), weights(run(diloco(interval=3), batches)))


# Values


def slices_of(count, size):
    """Whole cache lines of 8 values to everybody, as equal as they can be."""
    lines = -(-size // 8)
    edges = [min(lines * k // count * 8, size) for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def loop(
    batches,
    *,
    fragments,
    interval,
    overlap,
    mix,
    rate=0.7,
    momentum=0.9,
    inner=0.0,
    coded=lambda x, *channel: x,
):
    """Everything at once, one step after another. A worker without a batch has left; its letters of the steps
    before still count. Who isn't heard of is left out of the rounds that begin later."""
    size, half = len(batches), (overlap + 1) // 2
    cut = fragments_of(Layout.of([("w", (200,))], torch.float64), 200, fragments)
    index = [torch.cat([torch.arange(place.start, place.stop) for place in places]) for places in cut]
    theta, b = (
        [PROBLEM.start[at] for at in index],
        [torch.zeros(len(at), dtype=torch.float64) for at in index],
    )
    w = [PROBLEM.start.clone() for _ in range(size)]
    v = [torch.zeros_like(PROBLEM.start) for _ in range(size)]
    seen = [[0] * size for _ in index]
    known, under_way = list(range(size)), {}
    for now in range(1, max(map(len, batches)) + 1):
        live = [i for i in range(size) if now <= len(batches[i])]
        for i in live:
            batch = batches[i][now - 1]
            v[i] = inner * v[i] + PROBLEM.gradient(w[i], batch)
            w[i] = w[i] - LR * v[i]
            for each in seen:
                each[i] += len(batch)
        for f, at in enumerate(index):
            if now % interval == f * interval // len(index):
                deltas = {i: (theta[f] - w[i][at], seen[f][i]) for i in live}
                seen[f] = [0] * size
                under_way[f] = now, list(known), deltas, {}
        for f, (began, members, deltas, means) in under_way.items():
            if now - began == half:
                total = sum(samples for _, samples in deltas.values())
                for owner, part in zip(members, slices_of(len(members), len(index[f])), strict=True):
                    if owner in live:
                        terms = [
                            coded(delta[part], f, i, owner) * samples
                            for i, (delta, samples) in deltas.items()
                        ]
                        means[owner] = coded(sum(terms) / total, f, owner)
                known = [i for i in known if i in deltas]
        for f, (began, members, _, means) in under_way.items():
            if now - began == overlap:
                for owner, part in zip(members, slices_of(len(members), len(index[f])), strict=True):
                    if owner not in means:
                        known = [i for i in known if i != owner]
                        continue
                    b[f][part] = momentum * b[f][part] + means[owner]
                    theta[f][part] = theta[f][part] - rate * (means[owner] + momentum * b[f][part])
                    for i in live:
                        at = index[f][part]
                        w[i][at] = mix * w[i][at] + (1 - mix) * theta[f][part]
    return torch.stack(w)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("fragments", "overlap", "mix"), [(1, 1, 0.0), (2, 2, 0.5), (3, 5, 0.5), (4, 7, 0.25), (3, 0, 0.5)]
)
def test_it_is_the_plain_loop(size, fragments, overlap, mix):
    batches = PROBLEM.batches(size, 30)
    options = {"fragments": fragments, "interval": 8, "overlap": overlap, "mix": mix}
    simulation = run(streaming_diloco(**options), batches, momentum=0.5)
    assert close(weights(simulation), loop(batches, **options, inner=0.5))


@pytest.mark.parametrize("counts", [[30, 9, 30], [30, 11, 17, 30], [2, 30, 30, 3], [30, 1, 1]], ids=repr)
@pytest.mark.parametrize("overlap", [1, 2, 5])
def test_when_workers_leave_it_is_the_loop_without_them_whatever_the_times(counts, overlap):
    batches = PROBLEM.batches(len(counts), counts)
    options = {"fragments": 3, "interval": 6, "overlap": overlap, "mix": 0.5}
    ends, anchors = [], []
    for seed in range(2):
        simulation = run(
            streaming_diloco(**options),
            batches,
            compute=RandomCompute(),
            network=random_network(len(counts), seed),
            seed=seed,
        )
        ends.append(weights(simulation))
        last = [p.me.state for p in simulation.workers if p.me.steps == 30]
        assert len({state.members for state in last}) == 1
        anchors += [torch.cat([each.anchor for each in state.fragments]) for state in last]
    assert all(equal(end, ends[0]) for end in ends)
    assert all(equal(anchor, anchors[0]) for anchor in anchors)
    assert close(ends[0], loop(batches, **options))


def test_samples_are_weights():
    batches = [[(0, 1, 2, 3)] * 12, [(4,)] * 12]
    options = {"fragments": 2, "interval": 4, "overlap": 2, "mix": 0.5}
    assert close(weights(run(streaming_diloco(**options), batches)), loop(batches, **options))


# Codecs


def test_what_travels_is_what_the_codec_makes_of_it():
    """To the owner and from it; each time what the receivers decode is used by the sender too."""
    batches = PROBLEM.batches(3, 24)
    options = {"fragments": 2, "interval": 6, "overlap": 3, "mix": 0.5}
    simulation = run(streaming_diloco(**options, codec=fp16()), batches)
    rounded = loop(batches, **options, coded=lambda x, *channel: x.half().double())
    assert close(weights(simulation), rounded)
    assert not close(weights(simulation), loop(batches, **options))


def test_what_a_codec_leaves_out_is_remembered_for_every_slice_by_itself():
    """The reference has one coder for each fragment, sender and owner, and one for each mean."""
    batches, coders = PROBLEM.batches(4, 36), {}
    options = {"fragments": 2, "interval": 6, "overlap": 3, "mix": 0.5}
    codec = error_feedback(top_k(0.25))

    def coded(x, *channel):
        coder = coders.setdefault(channel, Coder(codec, Layout.single(x.shape, x.dtype)))
        return coder.decode(coder.encode(x)).clone()

    simulation = run(streaming_diloco(**options, codec=codec), batches)
    assert close(weights(simulation), loop(batches, **options, coded=coded))
    assert len(coders) == 2 * (4 * 4 + 4)


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize(
    "codec", [int8(), error_feedback(top_k(0.2)), top_k(0.5), power_sgd(2)], ids=lambda codec: codec.name
)
def test_with_any_codec_all_workers_have_the_same_anchor_and_training_works(codec, overlap):
    batches = PROBLEM.batches(3, 60)
    strategy = streaming_diloco(fragments=2, interval=4, overlap=overlap, momentum=0.5, codec=codec)
    simulation = run(strategy, batches, compute=RandomCompute(), network=Network(1e7, 1e-3))
    states = [p.me.state for p in simulation.workers]
    for other in states[1:]:
        for a, b in zip(states[0].fragments, other.fragments, strict=True):
            assert equal(a.anchor, b.anchor)
    everything = tuple(range(32))
    before, after = (
        float(PROBLEM.gradient(w, everything).norm()) for w in (PROBLEM.start, weights(simulation).mean(0))
    )
    assert after < 0.5 * before


# Traffic and time


def deep():
    """Eight equal layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(8)))
    replica = TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return replica, SimWorker(
        replica, iter([torch.ones(2, 16)] * 40), lambda x: replica.compute(lambda: model(x).square().mean())
    )


def sent_by_step(strategy):
    """By worker and step, the bytes of values, without headers; and which fragments began."""
    sent, began = Counter(), Counter()

    def watch(record):
        if isinstance(record, Sent):
            sent[record.who, record.step] += record.nbytes - 256 * len(record.to)
            if record.tag.startswith("part"):
                began[record.who, record.step, record.tag.split()[1]] += 1
        if isinstance(record, Reduced):
            sent[record.who, simulation.me(record.who).steps] += record.nbytes

    workers = [deep()[1] for _ in range(4)]
    simulation = Simulation(strategy, workers, network=INSTANT, compute=Compute(), observers=[watch])
    simulation.run()
    return sent, began


@pytest.mark.parametrize("overlap", [0, 2])
def test_fragments_are_exchanged_once_per_interval_and_the_peak_is_a_share(overlap):
    """d values of 4 bytes: 2 (P - 1) / P of them per interval, in no step more than 1 / F of that."""
    total = 8 * 16 * 16 * 4
    whole, _ = sent_by_step(diloco(interval=8))
    sent, began = sent_by_step(streaming_diloco(fragments=4, interval=8, overlap=overlap))
    assert max(whole.values()) == 2 * 3 * total // 4
    assert max(sent.values()) <= max(whole.values()) // 4
    for who in range(4):
        window = [
            sent[who, step] for step in range(16, 32)
        ]  # two intervals, both halves of every round in them
        assert sum(window) == 2 * 2 * 3 * total // 4
        if overlap:
            starts = [(step, name) for (by, step, name) in began if by == who and 16 <= step < 24]
            assert sorted(name for _, name in starts) == ["0", "1", "2", "3"]
            assert len({step for step, _ in starts}) == 4


def test_training_goes_on_while_a_round_is_under_way():
    """A step takes 20 ms and a letter 50: half of an overlap of 6 steps, 60 ms, hides it."""

    def last_step_ns(strategy):
        times = []
        simulation = PROBLEM.simulation(strategy, PROBLEM.batches(4, 40), lr=LR, network=Network(1e12, 0.05))
        simulation.run(on_step=lambda me, now: times.append(now))
        return max(times)

    hidden = 40 * 20_000_000
    assert last_step_ns(streaming_diloco(fragments=2, interval=10, overlap=6)) == hidden
    assert last_step_ns(streaming_diloco(fragments=2, interval=10, overlap=2)) > hidden + 4 * 50_000_000
    assert last_step_ns(diloco(interval=10)) > hidden + 4 * 50_000_000


def test_every_letter_is_read_or_reported_as_dropped():
    records = []
    run(
        streaming_diloco(fragments=3, interval=6, overlap=4),
        PROBLEM.batches(4, [30, 9, 17, 28]),
        compute=RandomCompute(),
        network=random_network(4, 5),
        observers=[records.append],
    )
    sent = Counter((r.who, to, r.tag) for r in records if isinstance(r, Sent) for to in r.to)
    read = Counter((r.sender, r.who, r.tag) for r in records if isinstance(r, Received))
    dropped = Counter((r.sender, r.to, r.tag) for r in records if isinstance(r, Dropped))
    assert sent == read + dropped
    assert dropped


@pytest.mark.parametrize(
    "build",
    [
        lambda: streaming_diloco(fragments=0),
        lambda: streaming_diloco(fragments=9, interval=8),
        lambda: streaming_diloco(interval=5, overlap=5),
        lambda: streaming_diloco(overlap=-1),
        lambda: streaming_diloco(mix=1.0),
        lambda: streaming_diloco(rate="high"),
        lambda: streaming_diloco(codec="int8"),
        lambda: streaming_diloco(momentum=1.5),
    ],
)
def test_what_cannot_be_is_refused(build):
    with pytest.raises(UsageError):
        build()
