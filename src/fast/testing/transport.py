"""The kit for transports: letters, what is published, who is there, and reducing in place.

All ends are made in this process; where one has to wait for another, each gets a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fast.core import Letter
from fast.testing.reducing import SOON_S, check_reduce, together
from fast.transport import Phase, Transport
from fast.view import ALIGN_BYTES

Make = Callable[[int], Sequence[Transport]]
"""Gives all ends of a fresh set of so many participants."""

_PLENTY = 64
_LETTERS = 1000
_ROUND_TRIPS = 50
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (2, 0, 3), (3, 5), (2, 1, 4))
_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def check_transport(make: Make, sizes: Iterable[int] = (1, 2, 3, 5)) -> None:
    """Fail with AssertionError where a transport breaks its contract.

    >>> from fast.transport import MemoryHub, MemoryTransport
    >>> def make(size: int) -> list[MemoryTransport]:
    ...     hub = MemoryHub(size)
    ...     return [MemoryTransport(id, hub) for id in range(size)]
    >>> check_transport(make, sizes=[2])
    """
    alone = (_check_status, _check_memory, _check_published)
    among = (_check_order, _check_broadcast, _check_kinds, _check_values)
    between_two = (_check_limit, _check_reuse, _check_waking, _check_phase_wakes)
    for size in sizes:
        for check in (*alone, *(among if size > 1 else ()), *(between_two if size > 1 else ())):
            ends = make(size)
            assert [end.id for end in ends] == list(range(size)), (
                f"make({size}) gave other ids than 0 to {size - 1}"
            )
            assert all(end.size == size for end in ends), f"an end says another size than {size}"
            check(ends)
            _close(ends)
        if make(size)[0].can_reduce(torch.zeros(1)):
            ends = make(size)
            check_reduce(ends)
            _close(ends)


# Letters


def _letter(sender: int, tensor: Tensor, number: int = 0) -> Letter:
    return Letter(sender, "kit", tensor, steps=(number,))


def _only(end: Transport) -> Letter:
    arrived = end.arrivals()
    assert len(arrived) == 1, f"participant {end.id} got {len(arrived)} letters, and one was posted to it"
    return arrived[0]


def _check_order(ends: Sequence[Transport]) -> None:
    """Letters of a pair keep their order, and everything that is written on them."""
    sent = {}
    for number in range(6):
        for end in ends:
            letter = Letter(
                sender=end.id,
                tag=f"tag {number % 2}",
                tensor=torch.tensor([float(100 * end.id + number)]),
                steps=(number, number + 1),
                view=3,
                version=number,
                weight=0.5 + number,
                note={"share": 0.25, "words": ["a", "b"], "yes": True, "none": None},
                present=None if number % 2 else (1 << 70) + number,
            )
            sent[end.id, number] = letter
            others = [peer.id for peer in ends if peer is not end]
            assert end.post(others, letter, _PLENTY) == (), "a letter was refused although there is room"
    for end in ends:
        arrived = end.arrivals()
        for sender in (peer.id for peer in ends if peer is not end):
            _same([x for x in arrived if x.sender == sender], [sent[sender, n] for n in range(6)])
        assert not [x for x in arrived if x.sender == end.id], "a letter came back to its sender"
        assert end.arrivals() == [], "a letter arrived twice"


def _same(arrived: Sequence[Letter], sent: Sequence[Letter]) -> None:
    assert [x.tensor.tolist() for x in arrived] == [x.tensor.tolist() for x in sent], (
        f"sent were {[x.tensor.tolist() for x in sent]}, and {[x.tensor.tolist() for x in arrived]} arrived"
    )
    for got, given in zip(arrived, sent, strict=True):
        plain = replace(given, tensor=got.tensor, private=got.private)
        assert got == plain, f"{plain} arrived as {got}"


def _check_broadcast(ends: Sequence[Transport]) -> None:
    """One post, one letter for each; releasing it here doesn't take it from anybody else."""
    first, *others = ends
    first.post([end.id for end in others], _letter(0, torch.arange(5.0)), _PLENTY)
    for end in others:
        letter = _only(end)
        _expect(letter.tensor.tolist(), [0, 1, 2, 3, 4], "a letter to several peers arrived")
        end.release([letter])
        first.post([end.id], _letter(0, torch.zeros(5)), _PLENTY)


def _check_kinds(ends: Sequence[Transport]) -> None:
    first, last = ends[0], ends[-1]
    for tensor in _samples():
        first.post([last.id], _letter(0, tensor), _PLENTY)
        letter = _only(last)
        what = f"{tensor.dtype} of shape {tuple(tensor.shape)}, stride {tensor.stride()}"
        assert letter.tensor.dtype == tensor.dtype and letter.tensor.shape == tensor.shape, (
            f"{what} arrived as {letter.tensor.dtype} of shape {tuple(letter.tensor.shape)}"
        )
        assert torch.equal(letter.tensor, tensor), f"{what} arrived with other values"
        last.release([letter])


def _samples() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for dtype in _KINDS:
        for shape in _SHAPES:
            yield (torch.randn(shape, generator=generator) * 9).to(dtype)
    grid = torch.randn(6, 8, generator=generator)
    yield from (grid.T, grid[::2, 1::3], grid[:, 3], torch.tensor(2.0).expand(4, 3))


def _check_values(ends: Sequence[Transport]) -> None:
    """A letter holds the values at the moment of `post`, for each of its receivers."""
    first, *others = ends
    tensor = torch.arange(9.0)
    first.post([end.id for end in others], _letter(0, tensor), _PLENTY)
    tensor.fill_(-1)
    first.post([end.id for end in others], _letter(0, tensor), _PLENTY)
    for end in others:
        before, after = end.arrivals()
        assert before.tensor.tolist() == list(range(9)), (
            "the sender changed its tensor, and the letter changed"
        )
        _expect(after.tensor.tolist(), [-1] * 9, "the second letter arrived")


def _check_limit(ends: Sequence[Transport]) -> None:
    """With `limit` letters unread at a peer, the next one is refused until one was released."""
    first, last = ends[0], ends[-1]
    for number in range(2):
        _expect(first.post([last.id], _letter(0, torch.ones(3), number), 2), (), "with room, post() refused")
    assert first.post([last.id], _letter(0, torch.ones(3)), 2) == (last.id,), (
        "a third letter found room for two"
    )
    one, two = last.arrivals()
    assert first.post([last.id], _letter(0, torch.ones(3)), 2) == (last.id,), (
        "a letter was read, not released"
    )
    last.release([one])
    assert first.post([last.id], _letter(0, torch.ones(3), 2), 2) == (), (
        "a letter was released, and no room made"
    )
    _expect(two.tensor.tolist(), [1, 1, 1], "a letter that was not released holds")
    everybody = [end.id for end in ends[1:]]
    assert first.post(everybody, _letter(0, torch.ones(3), 3), 2) == (last.id,), (
        "of a letter to several peers only those without room are refused"
    )
    _expect([letter.steps for letter in last.arrivals()], [(2,)], "of all these letters there arrived")


def _check_reuse(ends: Sequence[Transport]) -> None:
    """Many letters of changing sizes, two at a time: room comes back, values stay right."""
    first, last = ends[0], ends[-1]
    held: list[Letter] = []
    for number in range(_LETTERS):
        tensor = torch.full((1 + number % 50,), float(number))
        assert first.post([last.id], _letter(0, tensor, number), 2) == (), f"letter {number} found no room"
        held.append(_only(last))
        if len(held) == 2:
            oldest = held.pop(0)
            assert oldest.tensor.eq(float(oldest.steps[0])).all(), f"letter {oldest.steps[0]} was overwritten"
            last.release([oldest])


# Waking


def _await_letter(end: Transport) -> Letter:
    while True:
        token = end.listen()
        arrived = end.arrivals()
        if arrived:
            return arrived[0]
        end.sleep(token, 2 * SOON_S)


def _check_waking(ends: Sequence[Transport]) -> None:
    """Two ends answer each other; a single missed wake-up would stop them."""

    def play(end: Transport, peer: int, *, serves: bool) -> int:
        trips = 0
        if serves:
            end.post([peer], _letter(end.id, torch.zeros(1)), _PLENTY)
        while trips < _ROUND_TRIPS:
            letter = _await_letter(end)
            trips += 1
            end.post([peer], _letter(end.id, letter.tensor + 1), _PLENTY)
            end.release([letter])
        return trips

    first, last = ends[0], ends[-1]
    done = together([lambda: play(first, last.id, serves=True), lambda: play(last, first.id, serves=False)])
    _expect(done, [_ROUND_TRIPS, _ROUND_TRIPS], "answers of the two ends")
    token = last.listen()
    first.post([last.id], _letter(0, torch.zeros(1)), _PLENTY)
    together([lambda: last.sleep(token, 2 * SOON_S)])  # it came before, so this returns at once
    last.sleep(last.listen(), 0.0)


def _check_phase_wakes(ends: Sequence[Transport]) -> None:
    first, *others = ends

    def watch(end: Transport) -> Phase:
        while True:
            token = end.listen()
            if end.phase(first.id) >= Phase.DONE:
                return end.phase(first.id)
            end.sleep(token, 2 * SOON_S)

    def tell() -> Phase:
        for phase in (Phase.JOINED, Phase.READY, Phase.DONE):
            first.set_phase(phase)
        return Phase.DONE

    watching: list[Callable[[], Phase]] = [partial(watch, end) for end in others]
    _expect(together([tell, *watching]), [Phase.DONE] * len(ends), "phase of participant 0, seen by all")


# Who is there, and memory


def _check_status(ends: Sequence[Transport]) -> None:
    for end in ends:
        _expect(end.phase(end.id), Phase.STARTING, "phase at the start")
        end.set_phase(Phase.JOINED)
        end.set_progress(10 + end.id, 100 + end.id)
        end.set_waits(f"something of {end.id}: ü")
    for end in ends:
        for peer in ends:
            seen = f"participant {peer.id}, seen by {end.id}: "
            status = end.status(peer.id)
            _expect(
                status[:3], (Phase.JOINED, 10 + peer.id, 100 + peer.id), f"{seen}phase, steps and samples"
            )
            _expect(status.waits, f"something of {peer.id}: ü", f"{seen}what it waits for")
    mine, watcher = ends[0], ends[-1]
    before = watcher.status(mine.id)
    mine.set_waits("x" * 1000)
    _expect(watcher.status(mine.id).waits[:100], "x" * 100, "the beginning of a long text")
    mine.set_waits("")
    mine.beat()
    after = watcher.status(mine.id)
    _expect(after.waits, "", "after a wait, what is waited for")
    assert after.wait_number > before.wait_number, "set_waits() was called, and wait_number didn't grow"
    assert after.alive_ns > before.alive_ns, "beat() was called, and alive_ns didn't grow"


def _check_memory(ends: Sequence[Transport]) -> None:
    """Zeroed, aligned, of the size that was asked for, and each region apart from the others."""
    for end in ends:
        regions = [end.allocate(nbytes) for nbytes in (0, 1, 64, 5000)]
        for region, nbytes in zip(regions, (0, 1, 64, 5000), strict=True):
            _expect((region.dtype, tuple(region.shape)), (torch.uint8, (nbytes,)), f"allocate({nbytes}) gave")
            _expect(
                region.data_ptr() % ALIGN_BYTES, 0, f"the address of allocate({nbytes}), modulo {ALIGN_BYTES}"
            )
            _expect(int(region.sum()), 0, f"the sum of the fresh bytes of allocate({nbytes})")
        for number, region in enumerate(regions, 1):
            region.fill_(number)
        apart = all(bool(region.eq(number).all()) for number, region in enumerate(regions, 1))
        assert apart, "two regions of allocate() overlap"


def _check_published(ends: Sequence[Transport]) -> None:
    for end in ends:
        values = torch.arange(6, dtype=torch.float32).view(2, 3).T + end.id
        end.publish("values", values)
        end.publish("nothing", torch.zeros(0))
        end.publish("grows", torch.zeros(2))
        values.fill_(-1)
    for end in ends:
        for peer in ends:
            expected = (torch.arange(6, dtype=torch.float32).view(2, 3).T + peer.id).reshape(-1)
            _expect(
                _peeked(end, peer.id, "values"), expected.tolist(), "what was published, as of publish(),"
            )
            _expect(_peeked(end, peer.id, "nothing"), [], "an empty tensor that was published")
            assert end.peek(peer.id, "never published") is None, "something is there that nobody published"
    for length in (2, 9, 3):
        ends[0].publish("grows", torch.full((length,), 7.0))
        _expect(_peeked(ends[-1], ends[0].id, "grows"), [7.0] * length, "what was published once more")


def _peeked(end: Transport, peer: int, name: str) -> list[float]:
    found = end.peek(peer, name)
    assert found is not None, f"{name!r} of participant {peer} was published, and {end.id} doesn't see it"
    _expect(found.dtype, torch.uint8, "what peek() gives, in bytes:")
    return found.view(torch.float32).tolist()


def _expect(found: object, needed: object, what: str) -> None:
    assert found == needed, f"{what}: found {found}, and needed is {needed}"


def _close(ends: Sequence[Transport]) -> None:
    for end in ends:
        end.close()
