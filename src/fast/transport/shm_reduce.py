"""The mean over everybody's tensor, in place: nobody copies its input, everybody reads one result.

Round s of a group in one lane, for each member:

    announce where my tensor lies; ready = s
    wait until each other member is ready or has left: those who are ready take part
    add slice k of everybody's tensors, in ascending order, into slice k of the result
    done = s;  wait until all who take part are done

The result lies in the arena of the lowest member that takes part. It can't be overwritten while
somebody still reads it, because round s + 1 begins only when everybody is ready again. Inputs
are never written, and slices are cut at 64 bytes, so the bits are those of `canonical_mean`.

In a mean with other hosts the members of this host meet and end in the same way (`share`). In between each of
them writes slices of the result that it makes together with the other hosts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

from fast.collectives.across import Share
from fast.collectives.canonical import EqualMean, add_up, parts_of
from fast.core.letter import union
from fast.core.world import Reduction, Round
from fast.errors import PeerLost, UsageError
from fast.transport.arena import Arena, room_for
from fast.transport.base import Patience, Phase, Reducing, Sharing, UnderWay
from fast.transport.control import GROUPS, Control, Fence
from fast.transport.futex import Futex, yield_core
from fast.view import ALIGN_BYTES

CHUNK_BYTES = 256 * 1024
"""Small enough that a chunk of the result stays in the second-level cache while it is added up."""
_PRESENCE_BYTES = 1 << 16
_YIELDS = 50
_NAP_S = 0.1

# Words of a group's entry. READY and DONE are slept on, so only their lower half counts.
_KEY, _READY, _DONE, _OFFSET, _NBYTES, _WEIGHT, _PRESENT_AT, _PRESENT_LEN, _OUT, _OUT_NBYTES, _DTYPE = range(
    11
)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Result = TypeVar("Result")
_Key = tuple[tuple[int, ...], int, tuple[int, int, int] | None]
"""Members, lane, and which slice of a flat tensor: what one has allotted is never moved by another."""


class _Group:
    """This participant's part in the collectives of one group."""

    def __init__(self, place: int, key: _Key) -> None:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        self.place = place
        self.key = int.from_bytes(digest, "little") | 1
        self.round = 0
        self.present: tuple[int, ...] = ()
        """Who takes part in this round."""
        self.places: dict[int, int] = {}
        self.staging: tuple[int, Tensor] | None = None
        self.presence: tuple[int, Tensor] | None = None
        self.plan_key: object = None
        self.inputs: list[Tensor] = []
        """Everybody's flat tensors, where they lay in the last round."""
        self.output: Tensor | None = None
        """The same object round after round, so that who reads it can prepare for it once."""
        self.output_place: object = None
        self.whole: Tensor | None = None
        """Of a slice: all of the flat result that it is a slice of."""
        self.chunks: list[tuple[list[Tensor], Tensor]] = []
        self.equal: EqualMean | None = None
        """The sum of these chunks for equal weights, where there is a faster way."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Of a peer: that one of its words reaches this value."""

    peer: int
    word: int
    least: int
    why: str


class ShmReducer:
    """All groups that one participant reduces in."""

    def __init__(
        self, id: int, arenas: Sequence[Arena], controls: Sequence[Control], futex: Futex, fence: Fence
    ) -> None:
        self._id, self._arenas, self._controls = id, arenas, controls
        self._mine, self._arena = controls[id], arenas[id]
        self._futex, self._fence = futex, fence
        self._groups: dict[_Key, _Group] = {}
        self._wholes: dict[tuple[tuple[int, ...], int], int] = {}
        self._waited: dict[int, int] = {}

    def reduce(self, round_: Round) -> Reducing:
        group = self._group(round_)
        return _Reducing(self, group, self._program(group, round_))

    def share(self, round_: Round, among: tuple[int, ...]) -> Sharing:
        group = self._group(round_)
        return _Sharing(self, group, self._opening(group, round_, among), lambda: self._closing(group))

    def _group(self, round_: Round) -> _Group:
        key = (round_.among, round_.lane, round_.part)
        return self._groups.get(key) or self._enter(key)

    # Programs: each yields what it needs of a peer, and is told whether it has come (else the peer has left)

    def _program(self, group: _Group, round_: Round) -> Generator[_Wanted, bool, Reduction]:
        output = yield from self._meet(group, round_, round_.among)
        present = group.present
        self._add_up(group, round_, output)
        together = self._union(group, present)  # before DONE: then the others may announce anew
        yield from self._closing(group)
        return Reduction(output, present, together, whole=group.whole)

    def _opening(
        self, group: _Group, round_: Round, among: tuple[int, ...]
    ) -> Generator[_Wanted, bool, Share]:
        output = yield from self._meet(group, round_, among)
        weights, _ = self._plan(group, round_.tensor, output)
        together = self._union(group, group.present)
        return Share(group.present, tuple(weights), together, group.inputs, output.view(-1), group.whole)

    def _closing(self, group: _Group) -> Generator[_Wanted, bool, None]:
        self._tell(group, _DONE)
        for peer in group.present:
            if peer != self._id and not (yield _Wanted(peer, _DONE, group.round, "result")):
                raise PeerLost(f"peer {peer} left in the middle of a mean", peers=(peer,))

    def _meet(self, group: _Group, round_: Round, among: tuple[int, ...]) -> Generator[_Wanted, bool, Tensor]:
        """Find out who of `among` takes part; memory for the result that all of them can write."""
        group.round += 1
        tensor = round_.tensor
        self._announce(group, tensor, round_.weight, round_.present)
        present: tuple[int, ...] = ()
        for peer in among:
            if peer == self._id or (yield _Wanted(peer, _READY, group.round, "round")):
                present += (peer,)
        self._check_alike(group, present, tensor)
        host, nbytes = present[0], tensor.numel() * tensor.element_size()
        if host == self._id:
            self._offer_output(group, round_, nbytes)
        else:
            yield _Wanted(host, _OUT_NBYTES, nbytes, "memory for the result")
        group.present = present
        return self._output(group, host, round_)

    def wake_waiters(self) -> None:
        """After a change of phase: whoever sleeps on one of our words must look again."""
        for group in self._groups.values():
            for word in (_READY, _DONE, _OUT_NBYTES):
                self._futex.wake(self._mine.address_of(self._mine.group_words(group.place) + word))

    # My entry

    def _enter(self, key: _Key) -> _Group:
        if len(self._groups) >= GROUPS:
            raise UsageError(
                f"participant {self._id} takes part in more than {GROUPS} groups of collectives; "
                "use letters for exchanges whose members keep changing"
            )
        group = _Group(len(self._groups), key)
        self._groups[key] = group
        self._mine.words64[self._mine.group_words(group.place) + _KEY] = group.key
        return group

    def _announce(self, group: _Group, tensor: Tensor, weight: float, present: int | None) -> None:
        nbytes = tensor.numel() * tensor.element_size()
        offset = self._arena.where(tensor)
        if offset is None:
            if group.staging is None or group.staging[1].numel() < nbytes:
                group.staging = self._arena.allocate(room_for(nbytes))
            offset, memory = group.staging
            memory[:nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
        word = self._mine.group_words(group.place)
        words = self._mine.words64
        words[word + _OFFSET], words[word + _NBYTES] = offset, nbytes
        words[word + _DTYPE] = _dtype_number(tensor)
        self._mine.doubles[word + _WEIGHT] = weight
        words[word + _PRESENT_LEN] = 0
        if present is not None:
            data = present.to_bytes(present.bit_length() // 8 + 1, "little")
            if group.presence is None:
                group.presence = self._arena.allocate(_PRESENCE_BYTES)
            words[word + _PRESENT_AT] = group.presence[0]
            group.presence[1][: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            words[word + _PRESENT_LEN] = len(data)
        self._tell(group, _READY)

    def _tell(self, group: _Group, word: int) -> None:
        self._fence()
        at = self._mine.group_words(group.place) + word
        self._mine.words64[at] = group.round
        self._futex.wake(self._mine.address_of(at))

    # The others' entries

    def _entry(self, group: _Group, peer: int) -> int | None:
        """The index of the first word of a peer's entry for this group, once it has one."""
        place = group.places.get(peer)
        control = self._controls[peer]
        if place is None:
            for candidate in range(GROUPS):
                if control.words64[control.group_words(candidate) + _KEY] == group.key:
                    place = group.places[peer] = candidate
                    break
            else:
                return None
        return control.group_words(place)

    def look(self, group: _Group, wanted: _Wanted) -> bool | None:
        """Whether it has come; False if the peer left before, None if it may still come."""
        control = self._controls[wanted.peer]
        has_left = control.phase >= Phase.DONE
        entry = self._entry(group, wanted.peer)
        if entry is not None and control.words64[entry + wanted.word] >= wanted.least:
            return True
        return False if has_left else None

    def wait(self, group: _Group, wanted: _Wanted, patience: Patience) -> bool:
        """Wait until it has come. False if the peer left before."""
        found, naps, began = self.look(group, wanted), 0, time.monotonic_ns()
        while found is None:
            if naps < _YIELDS:
                yield_core()
            else:
                self._sleep(group, wanted)
            naps += 1
            if naps > _YIELDS:
                patience.check((wanted.peer,), wanted.why)
            found = self.look(group, wanted)
        if naps:
            self._waited[wanted.peer] = self._waited.get(wanted.peer, 0) + time.monotonic_ns() - began
        return found

    def _sleep(self, group: _Group, wanted: _Wanted) -> None:
        """Until the peer's word changes; the kernel refuses if it has changed since it was looked at."""
        control, entry = self._controls[wanted.peer], self._entry(group, wanted.peer)
        if entry is None:
            self._futex.sleep(self._mine.words32, 0, self._mine.bell_address, self._mine.bell, 0.001)
            return
        word = entry + wanted.word
        value = control.words64[word]
        if value < wanted.least and control.phase < Phase.DONE:
            self._futex.sleep(control.words32, word * 2, control.address_of(word), value & 0xFFFFFFFF, _NAP_S)

    def take_waited_ns(self) -> dict[int, int]:
        """How long each peer was waited for since the last call."""
        waited, self._waited = self._waited, {}
        return waited

    def _check_alike(self, group: _Group, members: tuple[int, ...], tensor: Tensor) -> None:
        nbytes, dtype = tensor.numel() * tensor.element_size(), _dtype_number(tensor)
        for peer in members:
            entry = self._entry(group, peer)
            assert entry is not None
            words = self._controls[peer].words64
            if words[entry + _NBYTES] != nbytes or words[entry + _DTYPE] != dtype:
                raise UsageError(
                    f"mean() got {nbytes} bytes of {tensor.dtype} from participant {self._id} and "
                    f"{words[entry + _NBYTES]} bytes of {_DTYPES[words[entry + _DTYPE]]} from {peer}. "
                    "All members of a round bring tensors of the same size and dtype."
                )

    # The sum

    def _offer_output(self, group: _Group, round_: Round, nbytes: int) -> None:
        """Memory for the result, in the arena of the lowest member. All slices of one flat tensor lie
        in one piece, so that their results together are its result."""
        word, words = self._mine.group_words(group.place), self._mine.words64
        if words[word + _OUT_NBYTES] >= nbytes:
            return
        if round_.part is None:
            nbytes = room_for(nbytes)
            offset = self._arena.allocate(nbytes)[0]
        else:
            start, _, total = round_.part
            itemsize = round_.tensor.element_size()
            key = (round_.among, total * itemsize)
            if key not in self._wholes:
                self._wholes[key] = self._arena.allocate(total * itemsize)[0]
            offset = self._wholes[key] + start * itemsize
        words[word + _OUT] = offset
        self._fence()
        words[word + _OUT_NBYTES] = nbytes
        self._futex.wake(self._mine.address_of(word + _OUT_NBYTES))

    def _output(self, group: _Group, host: int, round_: Round) -> Tensor:
        """The result's memory; the same object round after round, as long as it is the same place."""
        entry = self._entry(group, host)
        assert entry is not None
        tensor = round_.tensor
        place = (host, self._controls[host].words64[entry + _OUT], tensor.dtype, tensor.shape)
        if group.output is None or group.output_place != place:
            memory = self._arenas[host].read(place[1], tensor.numel() * tensor.element_size())
            group.output, group.output_place = memory.view(tensor.dtype).view(tensor.shape), place
            group.whole = None
            if round_.part is not None:
                start, _, total = round_.part
                first = place[1] - start * tensor.element_size()
                group.whole = self._arenas[host].read(first, total * tensor.element_size()).view(tensor.dtype)
        return group.output

    def _add_up(self, group: _Group, round_: Round, output: Tensor) -> None:
        tensor, members = round_.tensor, group.present
        parts = parts_of(members, round_.groups)
        weights, is_new = self._plan(group, tensor, output)
        if is_new:
            group.chunks = _chunks(group.inputs, output.view(-1), members.index(self._id), len(members))
            several = len(members) > 1 and bool(group.chunks) and EqualMean.takes(tensor.dtype)
            group.equal = EqualMean(group.chunks) if several else None
        if group.equal is not None and not parts and len(set(weights)) == 1:
            group.equal.run()
            return
        for inputs, out in group.chunks:
            add_up(inputs, weights, out, parts)

    def _plan(self, group: _Group, tensor: Tensor, output: Tensor) -> tuple[list[float], bool]:
        """Everybody's weights; and whether their tensors, which are mapped now, or the result lie where they have
        not lain before."""
        weights, places, members = [], [], group.present
        for peer in members:
            entry = self._entry(group, peer)
            assert entry is not None
            weights.append(self._controls[peer].doubles[entry + _WEIGHT])
            places.append(self._controls[peer].words64[entry + _OFFSET])
        key = (members, tuple(places), output.data_ptr(), tensor.numel(), tensor.dtype)
        if key == group.plan_key:
            return weights, False
        group.inputs = [
            self._arenas[peer].read(place, tensor.numel() * tensor.element_size()).view(tensor.dtype)
            if peer != self._id or self._arena.where(tensor) is None
            else tensor.reshape(-1)
            for peer, place in zip(members, places, strict=True)
        ]
        group.plan_key = key
        return weights, True

    def _union(self, group: _Group, members: tuple[int, ...]) -> int | None:
        present: int | None = 0
        for peer in members:
            entry = self._entry(group, peer)
            assert entry is not None
            words = self._controls[peer].words64
            length = words[entry + _PRESENT_LEN]
            if length == 0:
                return None
            data = self._arenas[peer].map(words[entry + _PRESENT_AT], _PRESENCE_BYTES)[:length]
            present = union(present, int.from_bytes(data, "little"))
        return present


class _Program(Generic[Result]):
    """One program of one group, as far as it has come."""

    def __init__(
        self,
        reducer: ShmReducer,
        group: _Group,
        program: Generator[_Wanted, bool, Result],
        ended: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self._reducer, self._group, self._program = reducer, group, program
        self._wanted: _Wanted | None = None
        self._ended = ended
        self._advance(None)

    def _advance(self, answer: bool | None) -> None:
        try:
            self._wanted = self._program.send(answer)  # type: ignore[arg-type]  # None starts it
        except StopIteration as stop:
            self._wanted = None
            self._ended(stop.value)

    def poll(self) -> bool:
        while self._wanted is not None:
            found = self._reducer.look(self._group, self._wanted)
            if found is None:
                return False
            self._advance(found)
        return True

    def finish(self, patience: Patience) -> None:
        while self._wanted is not None:
            self._advance(self._reducer.wait(self._group, self._wanted, patience))


@final
class _Reducing(_Program[Reduction], Reducing):
    """A mean among the participants of this host."""

    def __init__(
        self, reducer: ShmReducer, group: _Group, program: Generator[_Wanted, bool, Reduction]
    ) -> None:
        super().__init__(reducer, group, program, self._keep)

    def _keep(self, reduction: Reduction) -> None:
        self.reduction = reduction


@final
class _Closing(_Program[None], UnderWay):
    """The end of a round that is shared."""


@final
class _Sharing(_Program[Share], Sharing):
    """This host's part of a mean with other hosts."""

    def __init__(
        self,
        reducer: ShmReducer,
        group: _Group,
        opening: Generator[_Wanted, bool, Share],
        closing: Callable[[], Generator[_Wanted, bool, None]],
    ) -> None:
        self._closing = closing
        super().__init__(reducer, group, opening, self._keep)

    def _keep(self, share: Share) -> None:
        self.share = share

    def close(self) -> UnderWay:
        return _Closing(self._reducer, self._group, self._closing())


def _dtype_number(tensor: Tensor) -> int:
    if tensor.dtype not in _DTYPES:
        raise UsageError(
            f"mean() adds {', '.join(map(str, _DTYPES))} and got {tensor.dtype}; convert it first"
        )
    return _DTYPES.index(tensor.dtype)


def _chunks(
    inputs: Sequence[Tensor], output: Tensor, index: int, count: int
) -> list[tuple[list[Tensor], Tensor]]:
    """My slice of all inputs and of the output, in pieces that fit the cache."""
    unit = ALIGN_BYTES // output.element_size()
    units = -(-output.numel() // unit)
    first, last = units * index // count * unit, min(units * (index + 1) // count * unit, output.numel())
    step = CHUNK_BYTES // output.element_size()
    return [
        ([flat[at : min(at + step, last)] for flat in inputs], output[at : min(at + step, last)])
        for at in range(first, last, step)
    ]
