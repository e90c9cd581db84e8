"""The kit for transports: letters, what is published, who is there, and reducing in place.

All ends are made in this process; where one has to wait for another, each gets a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fast.core import Letter
from fast.core.framing import DTYPES
from fast.errors import UsageError
from fast.testing.growing import check_growth
from fast.testing.reducing import SOON_S, check_reduce, together
from fast.testing.showing import check_memory, check_published, check_status, check_windows, expect
from fast.transport import Phase, Transport

Make = Callable[[int], Sequence[Transport]]
"""Gives all ends of a fresh set of so many participants."""

_PLENTY = 64
_LETTERS = 1000
_ROUND_TRIPS = 50
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (2, 0, 3), (3, 5), (2, 1, 4), (1,) * 32)


def check_transport(make: Make, sizes: Iterable[int] = (1, 2, 3, 5)) -> None:
    """Fail with AssertionError where a transport breaks its contract.

    >>> from fast.transport import MemoryHub, MemoryTransport
    >>> def make(size: int) -> list[MemoryTransport]:
    ...     hub = MemoryHub(size)
    ...     return [MemoryTransport(id, hub) for id in range(size)]
    >>> check_transport(make, sizes=[2])
    """
    alone = (check_status, check_memory, check_published, check_windows)
    among = (_check_order, _check_broadcast, _check_values, _check_kinds)
    between_two = (
        _check_limit,
        _check_reuse,
        check_growth,
        _check_waking,
        _check_phase_wakes,
        _check_own_name,
    )
    for size in sizes:
        for check in (*alone, *(among if size > 1 else ()), *(between_two if size > 1 else ())):
            ends = make(size)
            assert [end.id for end in ends] == list(range(size)), (
                f"make({size}) gave other ids than 0 to {size - 1}"
            )
            assert all(end.size == size for end in ends), f"an end says another size than {size}"
            check(ends)
            expect([end.refusals() for end in ends], [[]] * size, "refusals among honest participants")
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
                part=(5, 6, 10 + number) if number % 3 else None,
            )
            if number % 2:
                letter = _as_encoded(letter)
            sent[end.id, number] = letter
            others = [peer.id for peer in ends if peer is not end]
            assert end.post(others, letter, _PLENTY) == (), "a letter was refused although there is room"
    for end in ends:
        arrived = end.arrivals()
        for sender in (peer.id for peer in ends if peer is not end):
            _same([x for x in arrived if x.sender == sender], [sent[sender, n] for n in range(6)])
        assert not [x for x in arrived if x.sender == end.id], "a letter came back to its sender"
        assert end.arrivals() == [], "a letter arrived twice"


def _as_encoded(letter: Letter) -> Letter:
    """As a codec leaves it: bytes, with what they stand for written on them."""
    return replace(
        letter,
        tensor=torch.tensor([letter.version, 9], dtype=torch.uint8),
        codec=["chain", {"codecs": [["clip", {"norm": 1.5}], ["fp16", {}]]}],
        dtype=torch.bfloat16,
        shape=(1, 1),
    )


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
        expect(letter.tensor.tolist(), [0, 1, 2, 3, 4], "a letter to several peers arrived")
        end.release([letter])
        first.post([end.id], _letter(0, torch.zeros(5)), _PLENTY)


def _check_kinds(ends: Sequence[Transport]) -> None:
    """Any dtype, any shape, any strides: the bits that were sent arrive."""
    first, last = ends[0], ends[-1]
    for tensor in _samples():
        what = f"{tensor.dtype} of shape {tuple(tensor.shape)}, stride {tensor.stride()}"
        assert first.post([last.id], _letter(0, tensor), _PLENTY) == (), f"{what} found no room"
        letter = _only(last)
        assert letter.tensor.dtype == tensor.dtype and letter.tensor.shape == tensor.shape, (
            f"{what} arrived as {letter.tensor.dtype} of shape {tuple(letter.tensor.shape)}"
        )
        assert _bits(letter.tensor) == _bits(tensor), f"{what} arrived with other values"
        assert not letter.tensor.requires_grad, f"{what} arrived with a history of its own"
        last.release([letter])


def _bits(tensor: Tensor) -> list[int]:
    """Every byte of every element, in order of the elements: NaNs have many values."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.complex32:  # hardly anything in torch takes these
        plain = plain.view(torch.int32)
    flat = plain.clone(memory_format=torch.contiguous_format).view(-1)
    return [int(byte) for byte in flat.view(torch.uint8)]


def _samples() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES.values():
        for shape in _SHAPES:
            yield _random(shape, dtype, generator)
        grid = _random((6, 8), dtype, generator)
        yield from (grid.T, grid[::2, 1::3], grid[:, 3], grid[2, 5].expand(4, 3))
    yield _random((4, 3), torch.complex64, generator).conj()
    yield _random((4, 3), torch.complex128, generator).conj().imag
    yield torch.ones(3, 4, requires_grad=True)[:, 1:]


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Any bits that a tensor of this kind can have."""
    count = math.prod(shape) * dtype.itemsize
    largest = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, largest, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def _check_values(ends: Sequence[Transport]) -> None:
    """A letter holds the values at the moment of `post`, for each of its receivers."""
    first, *others = ends
    tensor, words = torch.arange(9.0), ["said"]
    first.post([end.id for end in others], replace(_letter(0, tensor), note={"words": words}), _PLENTY)
    tensor.fill_(-1)
    words.append("later")
    first.post([end.id for end in others], _letter(0, tensor), _PLENTY)
    for end in others:
        before, after = end.arrivals()
        assert before.tensor.tolist() == list(range(9)), (
            "the sender changed its tensor, and the letter changed"
        )
        expect(before.note, {"words": ["said"]}, "the sender changed its list, and the letter's note is")
        before.note["words"].append("read")
        expect(after.tensor.tolist(), [-1] * 9, "the second letter arrived")


def _check_limit(ends: Sequence[Transport]) -> None:
    """With `limit` letters unread at a peer, the next one is refused until one was released."""
    first, last = ends[0], ends[-1]
    for number in range(2):
        expect(first.post([last.id], _letter(0, torch.ones(3), number), 2), (), "with room, post() refused")
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
    expect(two.tensor.tolist(), [1, 1, 1], "a letter that was not released holds")
    everybody = [end.id for end in ends[1:]]
    assert first.post(everybody, _letter(0, torch.ones(3), 3), 2) == (last.id,), (
        "of a letter to several peers only those without room are refused"
    )
    expect([letter.steps for letter in last.arrivals()], [(2,)], "of all these letters there arrived")


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
    expect(done, [_ROUND_TRIPS, _ROUND_TRIPS], "answers of the two ends")
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
    expect(together([tell, *watching]), [Phase.DONE] * len(ends), "phase of participant 0, seen by all")


def _check_own_name(ends: Sequence[Transport]) -> None:
    """Nobody writes in another's name."""
    first, last = ends[0], ends[-1]
    try:
        first.post([last.id], _letter(first.id + 1, torch.ones(1)), _PLENTY)
    except UsageError:
        expect(last.arrivals(), [], "after a letter in another's name was refused, there arrived")
    else:
        raise AssertionError("a letter in another's name was posted")


def _close(ends: Sequence[Transport]) -> None:
    for end in ends:
        end.close()
