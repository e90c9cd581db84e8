"""Shared memory and descriptors follow what is under way, whatever sizes there have been before."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fast.core import Letter
from fast.core.world import Round
from fast.transport import ShmTransport, create_arenas
from fast.transport.arena import PAGE, Arena, room_for
from fast.transport.base import Patience
from fast.transport.slots import SPARE_BYTES, Slots
from fast.wire import HEADER_LIMIT_BYTES
from growth_bodies import open_descriptors, used_bytes
from running import Runner

Make = Callable[[int], list[ShmTransport]]
MIB = 1 << 20


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[int] = []

    def make(size: int) -> list[ShmTransport]:
        arenas = create_arenas(size)
        opened.extend(arenas)
        return [ShmTransport(id, arenas) for id in range(size)]

    yield make
    for fd in opened:
        os.close(fd)


class Impatient(Patience):
    def check(self, peers: tuple[int, ...], why: str) -> None:
        raise TimeoutError(f"{why} of {peers}")


def letter(nbytes: int, number: int = 0) -> Letter:
    """All of its bytes say its number."""
    return Letter(0, "test", torch.full((nbytes,), number % 251, dtype=torch.uint8), steps=(number,))


def check_letter(letter: Letter) -> None:
    assert bool((letter.tensor == letter.steps[0] % 251).all()), f"letter {letter.steps[0]} was overwritten"


def limit_for(in_flight_bytes: int) -> int:
    """Twice what is under way, each in a slot that may have been twice as full, and what is always kept."""
    return 4 * in_flight_bytes + SPARE_BYTES + 64 * PAGE


# Letters


def test_letters_that_grow_hold_no_more_than_what_is_under_way(make: Make) -> None:
    sender, receiver = make(2)
    before = open_descriptors()
    kept: list[Letter] = []
    for number in range(2000):
        nbytes = 1 + 1000 * number
        assert sender.post([1], letter(nbytes, number), 3) == ()
        kept += receiver.arrivals()
        assert used_bytes(sender) < limit_for(3 * nbytes)
        if len(kept) == 3:
            check_letter(kept[0])
            receiver.release([kept.pop(0)])
    assert os.fstat(sender._arena.fd).st_size < 32 * nbytes, "places are used again, too"
    assert open_descriptors() == before


@pytest.mark.parametrize("seed", range(3))
def test_letters_of_any_size_hold_no_more_than_what_is_under_way(make: Make, seed: int) -> None:
    """Read in any order, by two who don't read the same ones."""
    dice = random.Random(seed)
    sender, *receivers = make(3)
    before, most = open_descriptors(), 0
    waiting: list[list[Letter]] = [[], []]
    for number in range(3000):
        to = dice.choice(([1], [2], [1, 2]))
        sender.post(to, letter(int(2 ** dice.uniform(0, 19)), number), 5)
        for receiver, held in zip(receivers, waiting, strict=True):
            held += receiver.arrivals()
            while len(held) > dice.randrange(1, 6):
                check_letter(held[-1])
                receiver.release([held.pop(dice.randrange(len(held)))])
        unread = {x.steps: x.tensor.numel() for held in waiting for x in held}
        most = max(most, sum(unread.values()) + len(unread) * HEADER_LIMIT_BYTES)
        assert used_bytes(sender) < limit_for(most)
    assert open_descriptors() == before


def test_what_was_needed_once_goes_back(make: Make) -> None:
    """Also if no slot grows any more."""
    sender, receiver = make(2)
    sender.post([1], letter(100), 40)
    for number in range(20):
        sender.post([1], letter(MIB, number), 40)
    assert used_bytes(sender) > 20 * MIB
    receiver.release(receiver.arrivals())
    for number in range(2500):
        sender.post([1], letter(100, number), 40)
        receiver.release(receiver.arrivals())
    assert used_bytes(sender) < limit_for(HEADER_LIMIT_BYTES + 100)
    for number in range(20):  # and comes again
        sender.post([1], letter(MIB, number), 40)
    for arrived in receiver.arrivals():
        check_letter(arrived)


def test_sizes_in_turn_keep_their_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving pages back costs time: who sends the same few sizes again and again does it at first only."""
    sender, receiver = make(2)
    given: list[int] = []
    give_back = Arena.give_back
    monkeypatch.setattr(
        Arena, "give_back", lambda arena, offset, n: (given.append(n), give_back(arena, offset, n))
    )
    for sizes in ([3 * MIB], [8 * MIB, 100], [5 * MIB, 3 * MIB, 9 * MIB]):
        for turn in range(20):
            for nbytes in sizes:
                sender.post([1], letter(nbytes), 2)
                receiver.release(receiver.arrivals())
            if turn == 3:
                given.clear()
        assert given == []


def test_a_slot_that_is_read_is_never_given_back(make: Make) -> None:
    """Whatever comes after it: its memory isn't free."""
    sender, receiver = make(2)
    sender.post([1], letter(3 * MIB, 77), 4)
    (kept,) = receiver.arrivals()
    for number in range(300):
        sender.post([1], letter(1 + 20_000 * number, number), 4)
        receiver.release(receiver.arrivals())
    check_letter(kept)


def test_slots_are_counted_as_the_system_counts_them() -> None:
    (fd,) = create_arenas(1)
    try:
        slots = Slots(Arena(fd), lambda slot: not slot.readers)
        before = os.fstat(fd).st_blocks * 512
        for nbytes in (5 * MIB, 300, 17 * MIB, 3 * MIB, MIB + 1, 16 * MIB):
            slots.take(nbytes).memory[:nbytes] = 1
            counted = sum(
                -(-slot.touched_bytes // PAGE) * PAGE for some in slots._by_room.values() for slot in some
            )
            assert os.fstat(fd).st_blocks * 512 - before == counted
            assert counted <= 2 * nbytes + SPARE_BYTES
    finally:
        os.close(fd)


# What is given back


def test_pages_that_were_given_back_are_empty_and_can_be_used_again() -> None:
    (fd,) = create_arenas(1)
    try:
        owner, reader = Arena(fd), Arena(fd)
        offset, memory = owner.allocate(MIB)
        beside, other = owner.allocate(MIB)
        memory.fill_(1)
        other.fill_(2)
        seen = reader.read(offset, MIB)
        before = os.fstat(fd).st_blocks * 512
        owner.give_back(offset, MIB)
        assert before - os.fstat(fd).st_blocks * 512 == MIB
        assert not seen.any() and bool((reader.read(beside, MIB) == 2).all())
        memory.fill_(3)
        assert bool((seen == 3).all())
    finally:
        os.close(fd)


def test_rooms_are_powers_of_two() -> None:
    assert [room_for(n) for n in (0, 1, PAGE, PAGE + 1, 3 * PAGE, MIB, MIB + 1)] == [
        PAGE, PAGE, PAGE, 2 * PAGE, 4 * PAGE, MIB, 2 * MIB,
    ]  # fmt: skip


# What is published, and means


def test_what_is_published_may_grow(make: Make) -> None:
    """Memory that somebody might still read isn't used for other things; all sizes together are twice the last."""
    owner, peer = make(2)
    start, descriptors = used_bytes(owner), open_descriptors()
    for number in range(500):
        owner.publish("values", torch.full((1 + 1000 * number,), float(number)))
        found = peer.peek(0, "values")
        assert found is not None and bool((found == number).all()) and len(found) == 1 + 1000 * number
    assert used_bytes(owner) - start < 2 * room_for(4 * 500_000)
    assert open_descriptors() == descriptors


def test_means_may_grow(make: Make) -> None:
    (end,) = make(1)
    start, descriptors = used_bytes(end), open_descriptors()
    for number in range(500):
        under_way = end.reduce(Round(torch.full((1 + 1000 * number,), float(number)), (0,)))
        under_way.finish(Impatient())
        assert bool((under_way.reduction.tensor == number).all())
    assert used_bytes(end) - start < 4 * room_for(4 * 500_000), "what was brought, and the result"
    assert open_descriptors() == descriptors


# Real processes


@pytest.mark.real
@pytest.mark.parametrize("sizes", ["growing", "any"])
def test_processes_hold_no_more_than_what_is_under_way(runner: Runner, sizes: str) -> None:
    for found in runner.results("growth_bodies:exchange", 3, sizes=sizes):
        limit = limit_for(2 * (found["largest_bytes"] + HEADER_LIMIT_BYTES))
        assert found["sent_bytes"] > 20 * limit, "else it would be no wonder"
        assert found["used_bytes"] < limit, found
        assert found["mapped_bytes"] < 3 * limit, found
        assert found["descriptors"] == 1, "they are the same ones all the time"


TRAINING = """
import torch, fast
weights = torch.nn.Linear(300 * 1024, 1, bias=False)
weights, optimizer = fast.join(weights, torch.optim.SGD(weights.parameters(), lr=0.01), strategy="allreduce")
for step in range(1, 301):
    gradient = torch.zeros(1, 300 * 1024)
    gradient[:, : 1024 * step] = 3.0  # beyond the threshold: a page more in every step
    weights(gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["allreduce", "ssp"])
def test_a_codec_whose_letters_grow_needs_few_descriptors(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    fast = Path(sys.executable).parent / "fast"
    limited = 'ulimit -n 100; exec "$@"'
    run = subprocess.run(
        [
            "sh",
            "-c",
            limited,
            "sh",
            fast,
            "run",
            "-w",
            "2",
            "--strategy",
            "torus(codec=threshold(2.0))",
            path,
        ],
        capture_output=True,
        cwd=tmp_path,  # where the log goes
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == ["[worker 0] trained", "[worker 1] trained"]
