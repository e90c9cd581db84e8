"""Rounds by letters on real threads, on a transport that can't reduce by itself: the bits of `canonical_mean`."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from fast.collectives.canonical import canonical_mean
from fast.collectives.performing import Performer, perform
from fast.collectives.sums import SUMS
from fast.core import drive
from fast.core.world import Round
from fast.parts.codecs.base import Coder
from fast.parts.codecs.casts import Fp16
from fast.parts.codecs.eight_bit import Int8
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored
from fast.parts.codecs.selections import TopK
from fast.runtime import RealWorld
from fast.testing.reducing import together
from fast.trace import Sent
from fast.transport import MemoryHub, MemoryTransport, Phase, ShmTransport, create_arenas
from fast.view import Layout, View


class Counting(RealWorld):
    """Counts the bytes of the letters that it sends."""

    sent = 0

    def send(self, to, letter):
        self.sent += len(to) * letter.tensor.numel() * letter.tensor.element_size()
        super().send(to, letter)


@pytest.fixture
def make_worlds():
    made = []

    def make(size):
        hub, view = MemoryHub(size), View(0, tuple(range(size)))
        made.extend(Counting(MemoryTransport(id, hub), view, ()) for id in range(size))
        return made[-size:]

    yield make
    for world in made:
        world.close()


def mean_of_all(worlds, tensors, weights, present=None, among=None, algorithm="direct"):
    group = among or tuple(world.id for world in worlds)
    bits = present or [None] * len(tensors)

    def join(world):
        k = world.id
        round_ = Round(tensors[k], group, weight=weights[k], present=bits[k], algorithm=algorithm)
        return drive(perform(world, round_))

    return together([lambda world=world: join(world) for world in worlds])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_it_has_the_canonical_bits(make_worlds, size, dtype):
    worlds = make_worlds(size)
    for length in (0, 1, 15, 33, 1003):
        tensors = [torch.randn(length).to(dtype) for _ in range(size)]
        before = [tensor.clone() for tensor in tensors]
        for weights in ([1.0] * size, [3.0 + k for k in range(size)], [0.0] * size):
            expected = canonical_mean(before, weights)
            for found in mean_of_all(worlds, tensors, weights):
                assert torch.equal(found.tensor, expected)
                assert found.members == tuple(range(size))
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.fixture
def make_shm_worlds():
    """Worlds in one process whose letters lie in shared memory, where they are read in place."""
    worlds, descriptors = [], []

    def make(size):
        arenas, view = create_arenas(size), View(0, tuple(range(size)))
        descriptors.extend(arenas)
        worlds.extend(RealWorld(ShmTransport(id, arenas), view, ()) for id in range(size))
        return worlds

    yield make
    for world in worlds:
        world.close()
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("algorithm", [*SUMS, "auto"])
@pytest.mark.parametrize("transport", ["make_worlds", "make_shm_worlds"])
def test_every_algorithm_gives_the_mean(request, transport, size, algorithm):
    worlds = request.getfixturevalue(transport)(size)
    for length in (1, 1003, 70_000):
        tensors = [torch.randn(length) for _ in range(size)]
        weights = [3.0 + k for k in range(size)]
        results = mean_of_all(worlds, tensors, weights, algorithm=algorithm)
        assert torch.allclose(results[0].tensor, canonical_mean(tensors, weights), atol=1e-5)
        assert all(torch.equal(found.tensor, results[0].tensor) for found in results)
        for world in worlds:
            world.turn_ended()


@pytest.mark.parametrize(
    "codec", [Int8(), TopK(0.1), ErrorFeedback(TopK(0.1)), Fp16(), Factored(2)], ids=repr
)
def test_codecs_over_shared_memory(make_shm_worlds, codec):
    """Everybody decodes the same bytes, round after round, and they are near the mean."""
    size, layout = 4, Layout.of([("w", (40, 50)), ("b", (50,))], torch.float32)
    worlds, everybody = make_shm_worlds(size), tuple(range(size))
    performers = [Performer(world) for world in worlds]
    coders = [Coder(codec, layout, k) for k in range(size)]
    mean = torch.arange(layout.size).remainder(7).float()
    for _ in range(5):

        def join(k):
            tensor = mean * (k + 1) / 2.5
            return drive(performers[k].perform(Round(tensor, everybody, coder=coders[k]))).tensor

        results = together([lambda k=k: join(k) for k in everybody])
        assert all(torch.equal(found, results[0]) for found in results)
        for world in worlds:
            world.turn_ended()
    assert torch.nn.functional.cosine_similarity(results[0], mean, dim=0) > 0.3


def test_shapes_stay_and_results_are_private(make_worlds):
    worlds = make_worlds(2)
    tensors = [torch.randn(6, 4).T, torch.randn(4, 6)]
    one, other = mean_of_all(worlds, tensors, [1.0, 1.0])
    assert one.tensor.shape == other.tensor.shape == (4, 6)
    expected = canonical_mean(tensors, [1.0, 1.0])
    one.tensor.zero_()
    assert torch.equal(other.tensor, expected)


def test_bitmaps_are_united(make_worlds):
    worlds, tensors, weights = make_worlds(3), [torch.zeros(20)] * 3, [1.0] * 3
    assert [r.present for r in mean_of_all(worlds, tensors, weights, [0b001, 0b100, 1 << 90])] == [
        0b101 | 1 << 90
    ] * 3
    assert [r.present for r in mean_of_all(worlds, tensors, weights, [1, None, 2])] == [None] * 3


def test_who_has_left_is_left_out_and_the_rest_cut_anew(make_worlds):
    worlds = make_worlds(4)
    tensors = [torch.randn(100) for _ in worlds]
    worlds[1].transport.set_phase(Phase.DONE)
    staying = [worlds[k] for k in (0, 2, 3)]
    weights = [1.0, 2.0, 3.0, 4.0]
    for _ in range(2):  # the round after it works too
        results = mean_of_all(staying, tensors, weights, among=(0, 1, 2, 3))
        expected = canonical_mean([tensors[k] for k in (0, 2, 3)], [1.0, 3.0, 4.0])
        for found in results:
            assert found.members == (0, 2, 3)
            assert torch.equal(found.tensor, expected)


def test_it_sends_what_a_ring_would(make_worlds):
    """2 (P - 1) / P of the tensor per member, if it can be cut evenly at 64 bytes."""
    size, values = 4, 64 * 4
    worlds = make_worlds(size)
    mean_of_all(worlds, [torch.randn(values)] * size, [1.0] * size)
    assert Counter(world.sent for world in worlds) == {2 * (size - 1) * values * 4 // size: size}


def test_a_group_may_be_a_part_of_all(make_worlds):
    worlds = make_worlds(4)
    tensors = [torch.full((5,), float(k)) for k in range(4)]
    results = mean_of_all([worlds[1], worlds[3]], tensors, [1.0] * 4, among=(1, 3))
    assert [found.tensor.tolist() for found in results] == [[2.0] * 5] * 2


def test_only_me_mean_reports_bytes(make_worlds):
    """The letters of a collective are its own business; nobody counts them twice."""
    records = []
    hub, view = MemoryHub(2), View(0, (0, 1))
    worlds = [RealWorld(MemoryTransport(id, hub), view, (), observers=[records.append]) for id in range(2)]
    mean_of_all(worlds, [torch.zeros(8)] * 2, [1.0, 1.0])
    for world in worlds:
        world.close()
    assert not [record for record in records if isinstance(record, Sent)]
