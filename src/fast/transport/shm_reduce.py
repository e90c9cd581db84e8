"""The mean over everybody's tensor, in place: nobody copies its input, everybody reads one result.

Round s of a group, for each member:

    announce where my tensor lies; ready = s
    wait until each other member is ready or has left: those who are ready take part
    add slice k of everybody's tensors, in ascending order, into slice k of the result
    done = s;  wait until all who take part are done

The result lies in the arena of the lowest member that takes part. It can't be overwritten while
somebody still reads it, because round s + 1 begins only when everybody is ready again. Inputs
are never written, and slices are cut at 64 bytes, so the bits are those of `canonical_mean`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fast.collectives.canonical import EqualMean, add_up
from fast.core.letter import union
from fast.core.world import Reduction
from fast.errors import UsageError
from fast.transport.arena import Arena
from fast.transport.base import Patience, Phase
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


class _Group:
    """This participant's part in the collectives of one group."""

    def __init__(self, place: int, members: tuple[int, ...]) -> None:
        digest = hashlib.blake2b(repr(members).encode(), digest_size=8).digest()
        self.place, self.members = place, members
        self.key = int.from_bytes(digest, "little") | 1
        self.round = 0
        self.places: dict[int, int] = {}
        self.staging: tuple[int, Tensor] | None = None
        self.presence: tuple[int, Tensor] | None = None
        self.result: tuple[int, Tensor] | None = None
        self.plan_key: object = None
        self.output: Tensor | None = None
        """The same object round after round, so that who reads it can prepare for it once."""
        self.output_place: object = None
        self.chunks: list[tuple[list[Tensor], Tensor]] = []
        self.equal: EqualMean | None = None
        """The sum of these chunks for equal weights, where there is a faster way."""


class ShmReducer:
    """All groups that one participant reduces in."""

    def __init__(
        self, id: int, arenas: Sequence[Arena], controls: Sequence[Control], futex: Futex, fence: Fence
    ) -> None:
        self._id, self._arenas, self._controls = id, arenas, controls
        self._mine, self._arena = controls[id], arenas[id]
        self._futex, self._fence = futex, fence
        self._groups: dict[tuple[int, ...], _Group] = {}
        self._waited: dict[int, int] = {}

    def reduce(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, patience: Patience
    ) -> Reduction:
        group = self._groups.get(among) or self._enter(among)
        group.round += 1
        self._announce(group, tensor, weight, present)
        members = tuple(
            peer for peer in among if peer == self._id or self._await(group, peer, _READY, patience, "round")
        )
        self._check_alike(group, members, tensor)
        output = self._output(group, members, tensor, patience)
        self._add_up(group, members, tensor, output)
        together = self._union(group, members)  # before DONE: then the others may announce anew
        self._tell(group, _DONE)
        for peer in members:
            if peer != self._id:
                self._await(group, peer, _DONE, patience, "result")
        return Reduction(output, members, together)

    def wake_waiters(self) -> None:
        """After a change of phase: whoever sleeps on one of our words must look again."""
        for group in self._groups.values():
            for word in (_READY, _DONE, _OUT_NBYTES):
                self._futex.wake(self._mine.address_of(self._mine.group_words(group.place) + word))

    # My entry

    def _enter(self, members: tuple[int, ...]) -> _Group:
        if len(self._groups) >= GROUPS:
            raise UsageError(
                f"participant {self._id} takes part in more than {GROUPS} groups of collectives; "
                "use letters for exchanges whose members keep changing"
            )
        group = _Group(len(self._groups), members)
        self._groups[members] = group
        self._mine.words64[self._mine.group_words(group.place) + _KEY] = group.key
        return group

    def _announce(self, group: _Group, tensor: Tensor, weight: float, present: int | None) -> None:
        nbytes = tensor.numel() * tensor.element_size()
        offset = self._arena.where(tensor)
        if offset is None:
            if group.staging is None or group.staging[1].numel() < nbytes:
                group.staging = self._arena.allocate(nbytes)
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

    def _await(self, group: _Group, peer: int, word: int, patience: Patience, why: str) -> bool:
        """Wait until a peer's word has reached this round. False if it left before."""
        entry = self._entry(group, peer)
        if entry is not None and self._controls[peer].words64[entry + word] >= group.round:
            return True
        began = time.monotonic_ns()
        try:
            return self._await_word(group, peer, word, patience, why)
        finally:
            self._waited[peer] = self._waited.get(peer, 0) + time.monotonic_ns() - began

    def _await_word(self, group: _Group, peer: int, word: int, patience: Patience, why: str) -> bool:
        control, naps = self._controls[peer], 0
        while True:
            has_left = control.phase >= Phase.DONE
            entry = self._entry(group, peer)
            value = 0 if entry is None else control.words64[entry + word]
            if value >= group.round:
                return True
            if has_left:
                return False
            if naps < _YIELDS:
                yield_core()
            elif entry is None:
                self._futex.sleep(self._mine.words32, 0, self._mine.bell_address, self._mine.bell, 0.001)
            else:
                at = (entry + word) * 2
                address = control.address_of(entry + word)
                self._futex.sleep(control.words32, at, address, value & 0xFFFFFFFF, _NAP_S)
            naps += 1
            if naps > _YIELDS:
                patience.check((peer,), why)

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

    def _output(self, group: _Group, members: tuple[int, ...], tensor: Tensor, patience: Patience) -> Tensor:
        """The result's memory, in the arena of the lowest member."""
        host, nbytes = members[0], tensor.numel() * tensor.element_size()
        control = self._controls[host]
        entry = self._entry(group, host)
        assert entry is not None
        if host == self._id and (group.result is None or group.result[1].numel() < nbytes):
            group.result = self._arena.allocate(nbytes)
            control.words64[entry + _OUT] = group.result[0]
            self._fence()
            control.words64[entry + _OUT_NBYTES] = nbytes
            self._futex.wake(control.address_of(entry + _OUT_NBYTES))
        naps = 0
        while control.words64[entry + _OUT_NBYTES] < nbytes:
            naps += 1
            yield_core()
            if naps > _YIELDS:
                word = entry + _OUT_NBYTES
                self._futex.sleep(control.words32, word * 2, control.address_of(word), 0, 0.001)
                patience.check((host,), "memory for the result")
        place = (host, control.words64[entry + _OUT], tensor.dtype, tensor.shape)
        if group.output is None or group.output_place != place:
            memory = self._arenas[host].map(place[1], nbytes)
            group.output, group.output_place = memory.view(tensor.dtype).view(tensor.shape), place
        return group.output

    def _add_up(self, group: _Group, members: tuple[int, ...], tensor: Tensor, output: Tensor) -> None:
        weights, places = [], []
        for peer in members:
            entry = self._entry(group, peer)
            assert entry is not None
            weights.append(self._controls[peer].doubles[entry + _WEIGHT])
            places.append(self._controls[peer].words64[entry + _OFFSET])
        key = (members, tuple(places), output.data_ptr(), tensor.numel(), tensor.dtype)
        if key != group.plan_key:
            inputs = [
                self._arenas[peer].read(place, tensor.numel() * tensor.element_size()).view(tensor.dtype)
                if peer != self._id or self._arena.where(tensor) is None
                else tensor.reshape(-1)
                for peer, place in zip(members, places, strict=True)
            ]
            group.plan_key = key
            group.chunks = _chunks(inputs, output.view(-1), members.index(self._id), len(members))
            several = len(members) > 1 and bool(group.chunks) and EqualMean.takes(tensor.dtype)
            group.equal = EqualMean(group.chunks) if several else None
        if group.equal is not None and len(set(weights)) == 1:
            group.equal.run()
            return
        for inputs, out in group.chunks:
            add_up(inputs, weights, out)

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
            present = union(present, int.from_bytes(bytes(data.numpy()), "little"))
        return present


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
