"""Changing memory that others change too: the values, and what is lost without an atomic instruction."""

import mmap
import multiprocessing
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fast.errors import UsageError
from fast.parts.kernels.amending import amend, amend_atomically

PROCESSES, SIZE, ROUNDS = 4, 1000, 1000
KINDS = (torch.float32, torch.float64, torch.int32, torch.int64)


def plainly(memory, before, after):
    """Component by component, in Python."""
    changed = memory.clone()
    for i in range(len(memory)):
        if after[i] != before[i]:
            changed[i] = after[i] if memory[i] == before[i] else memory[i] + (after[i] - before[i])
    return changed


def bits(tensor):
    return tensor.numpy().tobytes()


numbers = st.sampled_from([0.0, -0.0, 1.0, 1e-8, -3.5, 1e30, 7.0, float("inf"), float("nan")])
triples = arrays.arrays("float64", st.tuples(st.just(3), st.integers(0, 9)), elements=numbers)


@given(triples, st.sampled_from([torch.float32, torch.float64]))
def test_every_way_gives_the_same_bits(values, dtype):
    memory, before, after = torch.from_numpy(values).to(dtype)
    expected = plainly(memory, before, after)
    for change in (amend, amend.reference, amend_atomically):
        found = memory.clone()
        change(found, before, after)
        assert bits(found.nan_to_num(nan=123.0)) == bits(expected.nan_to_num(nan=123.0))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_undisturbed_it_becomes_exactly_what_it_should(dtype):
    before = (torch.randn(100, generator=torch.Generator().manual_seed(1)) * 1000).to(dtype)
    after = (torch.randn(100, generator=torch.Generator().manual_seed(2)) * 1e-3).to(dtype)
    for change in (amend, amend_atomically):
        memory = before.clone()
        change(memory, before, after)
        assert torch.equal(memory, after)


def test_half_precision_is_amended_but_not_atomically():
    memory, before, after = (torch.full((3,), value, dtype=torch.bfloat16) for value in (3.0, 1.0, 2.0))
    amend(memory, before, after)
    assert memory.tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(UsageError, match="can't be changed atomically"):
        amend_atomically(memory, before, after)


# Several processes on one memory


def together(change, rounds=ROUNDS, size=SIZE):
    """What `change(memory, process)` leaves in shared memory, called by all processes again and again."""
    memory = torch.frombuffer(mmap.mmap(-1, 4 * size), dtype=torch.float32)
    for kernel in (amend, amend_atomically):  # so that all begin with a compiled loop
        kernel(memory, memory.clone(), memory.clone())
    children = []
    for process in range(PROCESSES):
        child = os.fork()
        if child == 0:
            try:
                for _ in range(rounds):
                    change(memory, process)
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
    return memory


def counting(kernel):
    def change(memory, process):
        before = memory.clone()
        kernel(memory, before, before + 1)

    return change


@pytest.mark.real
def test_atomic_changes_of_all_are_conserved():
    assert together(counting(amend_atomically)).unique().tolist() == [PROCESSES * ROUNDS]


@pytest.mark.real
def test_counting_finds_changes_that_get_lost():
    """The negative control: all read, and only then does anybody write. Of all changes of a round one remains."""
    barrier = multiprocessing.get_context("fork").Barrier(PROCESSES)

    def change(memory, process):
        before = memory.clone()
        barrier.wait()
        memory.copy_(before + 1)
        barrier.wait()

    assert together(change, rounds=20).unique().tolist() == [20]


@pytest.mark.real
def test_plain_changes_of_the_same_components_may_get_lost_and_nothing_else():
    """How many is up to the machine: it may be none. What remains is a count, and at most all of them."""
    counted = together(counting(amend))
    assert bool((counted <= PROCESSES * ROUNDS).all()) and bool((counted >= 1).all())
    assert torch.equal(counted, counted.round())


@pytest.mark.real
def test_plain_changes_of_different_components_do_not_get_lost():
    """Beside each other in the same cache lines."""

    def change(memory, process):
        before = memory.clone()
        after = before.clone()
        after[process::PROCESSES] += 1
        amend(memory, before, after)

    assert together(change).unique().tolist() == [ROUNDS]


def test_an_optimizer_in_place_would_lose_even_those():
    """Why nobody's optimizer works on the shared memory itself: it writes also what it doesn't change, with
    what was there when it read it. Here another one's change falls in between."""
    start, own, others = torch.zeros(4), torch.tensor([0.0, -1, 0, 0]), torch.tensor([1.0, 0, 0, 0])
    in_place, amended = start.clone(), start.clone()
    written = in_place - own
    for memory in (in_place, amended):
        amend(memory, start, others)
    in_place.copy_(written)
    amend(amended, start, start - own)
    assert in_place.tolist() == [0, 1, 0, 0] and amended.tolist() == [1, 1, 0, 0]
