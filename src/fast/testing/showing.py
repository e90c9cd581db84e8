"""The part of the kit for transports that is about what participants show each other: how far they
are, and memory that the others read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fast.transport import Phase, Transport
from fast.view import ALIGN_BYTES

SOON_S = 60.0
"""Longer than anything here takes; whoever sleeps that long was not woken."""
_NAP_S = 0.05


def check_status(ends: Sequence[Transport]) -> None:
    for end in ends:
        expect(end.phase(end.id), Phase.STARTING, "phase at the start")
        end.set_phase(Phase.JOINED)
        end.set_progress(10 + end.id, 100 + end.id)
        end.set_waits(f"something of {end.id}: ü")
    for end in ends:
        for peer in ends:
            seen = f"participant {peer.id}, seen by {end.id}: "
            eventually(end, lambda: end.phase(peer.id) == Phase.JOINED, f"{seen}it has joined")  # noqa: B023
            eventually(end, lambda: end.status(peer.id).waits != "", f"{seen}it waits")  # noqa: B023
            status = end.status(peer.id)
            expect(status[:3], (Phase.JOINED, 10 + peer.id, 100 + peer.id), f"{seen}phase, steps and samples")
            expect(status.waits, f"something of {peer.id}: ü", f"{seen}what it waits for")
    mine, watcher = ends[0], ends[-1]
    before = watcher.status(mine.id)
    mine.set_waits("x" * 1000)
    eventually(
        watcher, lambda: watcher.status(mine.id).waits[:100] == "x" * 100, "the beginning of a long text"
    )
    mine.set_waits("")
    mine.beat()
    eventually(watcher, lambda: watcher.status(mine.id).waits == "", "after a wait, what is waited for")
    after = watcher.status(mine.id)
    assert after.wait_number > before.wait_number, "set_waits() was called, and wait_number didn't grow"
    assert after.alive_ns > before.alive_ns, "beat() was called, and alive_ns didn't grow"


def check_memory(ends: Sequence[Transport]) -> None:
    """Zeroed, aligned, of the size that was asked for, and each region apart from the others."""
    for end in ends:
        regions = [end.allocate(nbytes) for nbytes in (0, 1, 64, 5000)]
        for region, nbytes in zip(regions, (0, 1, 64, 5000), strict=True):
            expect((region.dtype, tuple(region.shape)), (torch.uint8, (nbytes,)), f"allocate({nbytes}) gave")
            expect(
                region.data_ptr() % ALIGN_BYTES, 0, f"the address of allocate({nbytes}), modulo {ALIGN_BYTES}"
            )
            expect(int(region.sum()), 0, f"the sum of the fresh bytes of allocate({nbytes})")
        for number, region in enumerate(regions, 1):
            region.fill_(number)
        apart = all(bool(region.eq(number).all()) for number, region in enumerate(regions, 1))
        assert apart, "two regions of allocate() overlap"


def check_published(ends: Sequence[Transport]) -> None:
    for end in ends:
        values = torch.arange(6, dtype=torch.float32).view(2, 3).T + end.id
        end.publish("values", values)
        end.publish("nothing", torch.zeros(0))
        end.publish("grows", torch.zeros(2))
        end.publish("one", torch.tensor(5, dtype=torch.int16))
        values.fill_(-1)
    for end in ends:
        for peer in ends:
            expected = torch.arange(6, dtype=torch.float32).view(2, 3).T + peer.id
            expect_same(_peeked(end, peer.id, "values"), expected, "what was published, as of publish(),")
            expect_same(_peeked(end, peer.id, "nothing"), torch.zeros(0), "an empty tensor")
            expect_same(_peeked(end, peer.id, "one"), torch.tensor(5, dtype=torch.int16), "a single number")
            assert end.peek(peer.id, "never published") is None, "something is there that nobody published"
    for length in (2, 9, 3):
        ends[0].publish("grows", torch.full((length,), 7.0))
        expect_same(_peeked(ends[-1], 0, "grows"), torch.full((length,), 7.0), "what was published once more")


def check_windows(ends: Sequence[Transport]) -> None:
    """Peers see what the owner writes, when it writes it; of memory that peers can read there is no copy."""
    first, last = ends[0], ends[-1]
    weights = first.allocate(4096).view(torch.float32)[16:28].view(3, 4)
    opened = first.window("weights", weights)
    assert isinstance(opened, Tensor), f"window() gave {opened!r}, not the memory to write into"
    expect(opened.data_ptr(), weights.data_ptr(), "window() of memory of allocate(): its address")
    elsewhere = torch.arange(6, dtype=torch.float64).view(2, 3).T
    copy = first.window("elsewhere", elsewhere)
    assert copy.data_ptr() != elsewhere.data_ptr(), "window() of other memory gave that memory itself"
    seen, other = _peeked(last, 0, "weights"), _peeked(last, 0, "elsewhere")
    expect_same(other, elsewhere, "a window, when it is opened,")
    for number in range(1, 4):
        weights.fill_(number)
        copy[1, 1] = -number
        elsewhere.fill_(99)
        expect_same(seen, torch.full((3, 4), float(number)), "a window after its owner wrote into it")
        expect_same(_peeked(last, 0, "weights"), seen, "a window that is looked through once more")
        expected = torch.arange(6, dtype=torch.float64).view(2, 3).T.clone()
        expected[1, 1] = -number
        expect_same(other, expected, "a window into a copy after its owner wrote into it")
    expect(first.window("weights", weights).data_ptr(), weights.data_ptr(), "window() once more: the address")
    first.window("weights", torch.zeros(2))
    expect_same(_peeked(last, 0, "weights"), torch.zeros(2), "a window into something else")


def _peeked(end: Transport, peer: int, name: str) -> Tensor:
    found = end.peek(peer, name)
    assert found is not None, f"{name!r} of participant {peer} was published, and {end.id} doesn't see it"
    return found


def eventually(end: Transport, holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds, as the runtime waits: looking again whenever something may have changed."""
    quiet_s = 0.0
    while True:
        token = end.listen()
        if holds():
            return
        assert quiet_s < SOON_S, f"{what}: it didn't happen within {SOON_S:g} s"
        end.sleep(token, _NAP_S)
        if end.listen() == token:
            quiet_s += _NAP_S


def expect_same(found: Tensor, needed: Tensor, what: str) -> None:
    expect((found.dtype, tuple(found.shape)), (needed.dtype, tuple(needed.shape)), f"{what}: dtype and shape")
    assert torch.equal(found, needed), f"{what}: found {found.tolist()}, and needed is {needed.tolist()}"


def expect(found: object, needed: object, what: str) -> None:
    assert found == needed, f"{what}: found {found}, and needed is {needed}"
