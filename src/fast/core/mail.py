"""Mail: the part of `me` that sends letters and reads those that have come."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from fast.core.buckets import Bucket, Cutting
from fast.core.coding import Coding, Opener
from fast.core.learning import Learning
from fast.core.letter import Letter
from fast.core.world import Need
from fast.errors import PeerLost, UsageError
from fast.parts.codecs.base import Codec
from fast.trace import Dropped, Included, Received, Sent
from fast.wire import HEADER_BYTES


class Whose(Enum):
    """Which parameters have a gradient in what is sent, where the sender doesn't say."""

    MINE = "mine"
    """Those that have one in this step, or in the letters that were read in it."""


class Mail(Learning):
    """The part of `Me` that is about letters."""

    steps: int
    versions: dict[int, int]
    ending: bool
    coding: Coding
    _codecs: Mapping[str, Codec | None]
    _device: torch.device
    _everybody: frozenset[int]
    _of_gradients: frozenset[str]
    _opener: Opener
    _several: bool

    @property
    @abstractmethod
    def alone(self) -> bool:
        """Whether the run has one worker only."""

    @abstractmethod
    def in_turn(self, targets: tuple[int, ...]) -> tuple[int, ...]:
        """The same receivers, beginning with another one than the others do."""

    @abstractmethod
    def _look_around(self) -> None:
        """See which view holds now."""

    def send(
        self,
        to: int | Iterable[int],
        tensor: Tensor | Bucket | Cutting,
        tag: str,
        *,
        codec: Codec | None = None,
        into: Tensor | None = None,
        present: int | Whose | None = Whose.MINE,
        weight: float | None = None,
        **note: Any,
    ) -> None:
        """Send values to one peer or several. Never waits; ordered per pair and tag; as of now.

        Any tensor: of any shape and dtype, contiguous or not. A `codec` makes its bytes fewer; without
        one the tag's own is used, if it has any. What the codec remembers belongs to the tag and to
        this shape: one residual per channel, however many peers hear it. `into` gets the values
        that the receivers will decode. `present` and `weight` are for a gradient of several steps: the
        parameters that have one in any of them, a bit each, and the samples of all of them.
        """
        targets = (to,) if isinstance(to, int) else tuple(to)
        if not targets and into is None:
            return
        if self._rounds.used:
            self._rounds.check_guards()
        self.check_known(targets)
        codec = codec or self._codecs.get(tag)
        if codec is not None:
            codec = self.in_use(codec)
        letter = self._letter(tensor, tag, note, present)
        letter.weight = letter.weight if weight is None else weight
        letter.tensor = self.world.outgoing(letter.tensor)
        if codec is not None and letter.tensor.numel():
            letter = self.coding.encoded(letter, codec, into, _place_of(tensor))
        elif into is not None:
            into.copy_(letter.tensor)
        if self._several:
            for one, group in self._by_version(letter, targets):
                self._hand_over(one, group, tag)
        elif targets:
            self._hand_over(letter, self.in_turn(targets), tag)

    def _by_version(
        self, letter: Letter, targets: tuple[int, ...]
    ) -> Iterator[tuple[Letter, tuple[int, ...]]]:
        """To each server with the version of its own weights that was read last."""
        owners, groups = self.world.start_view.owners, dict[int, list[int]]()
        for target in targets:
            version = self.versions.get(target, 0) if target in owners else self.version
            groups.setdefault(version, []).append(target)
        for version, group in groups.items():
            yield letter if version == letter.version else replace(letter, version=version), tuple(group)

    def _hand_over(self, letter: Letter, targets: tuple[int, ...], tag: str, *, asks: bool = False) -> None:
        if not self.world.observed:
            self.world.send(targets, letter)
            return
        began_ns = self.world.now()
        self.world.send(targets, letter)
        now = self.world.now()
        nbytes = len(targets) * (HEADER_BYTES + letter.tensor.numel() * letter.tensor.element_size())
        took_ns = now - began_ns
        self.world.emit(Sent(self.id, now, targets, tag, nbytes, self.steps, took_ns, letter.whole, asks))

    def request(self, to: int | Iterable[int], tag: str, **note: Any) -> None:
        """Ask for something, with a letter that carries no update (its weight is 0). It keeps its place
        among the letters of its tag, so who answers it has read all that was sent before."""
        targets = (to,) if isinstance(to, int) else tuple(to)
        self.check_known(targets)
        letter = self._letter(self.weights.new_empty(0), tag, note)
        letter.weight, letter.present = 0.0, None if letter.present is None else 0
        for one, group in self._by_version(letter, targets) if self._several else [(letter, targets)]:
            self._hand_over(one, group, tag, asks=True)

    def _letter(
        self,
        what: Tensor | Bucket | Cutting,
        tag: str,
        note: dict[str, Any],
        present: int | Whose | None = Whose.MINE,
    ) -> Letter:
        carries_gradient = tag in self._of_gradients
        tensor = what if isinstance(what, Tensor) else getattr(what, "values", what)
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"me.send got {tensor!r} for letter {tag!r}; it sends tensors: torch.tensor({tensor!r})"
            )
        if isinstance(present, Whose):
            if isinstance(what, Cutting):
                present = what.present
            else:
                present = self.present_for(what, tag) if carries_gradient else None
        tensor = tensor.detach() if tensor.requires_grad else tensor
        weight = float(self.samples) if carries_gradient else 1.0
        return Letter(
            self.id, tag, tensor, (self.steps,), self.view.number, self.version, weight, note, present,
            part=None if isinstance(what, Tensor) else what.part,
        )  # fmt: skip

    def present_for(self, what: Tensor | Bucket, tag: str) -> int | None:
        """Which parameters have a gradient in what is sent under this tag; None for all, or for no gradient."""
        if tag not in self._of_gradients:
            return None
        if isinstance(what, Bucket):
            return self.present_in(what)
        return self.replica.present if what is self.gradient else self._present_with(self._unused)

    def check_known(self, peers: tuple[int, ...]) -> None:
        """Refuse to talk to somebody who doesn't exist, or when nobody answers any more."""
        if self.ending:
            raise UsageError(
                f"{self.strategy!r} sends or waits in end(), when all workers have taken their last step and "
                "none answers any more. There, read what has arrived with me.letters(tag), and apply it."
            )
        if not self._everybody.issuperset(peers):
            there = self.world.start_view
            raise UsageError(
                f"participant {self.id} addressed peer {min(set(peers) - self._everybody)}, which doesn't exist. There "
                f"are workers {there.workers} and servers {there.servers}; me.peers has the others."
            )

    def in_use(self, codec: Codec | None) -> Codec | None:
        """With one worker there is nobody to send less to, so that alone every strategy stays what it is
        without FAST; unless the codec is a part of the optimizer."""
        if codec is not None and not isinstance(codec, Codec):
            raise UsageError(
                f"codec={codec!r} is no codec. In Python it is an object that is made by a call, such as "
                "fast.codecs.int8(), with the brackets and without quotes."
            )
        return None if codec is not None and self.alone and not codec.has_momentum else codec

    def letters(self, tag: str, from_: Iterable[int] | None = None) -> list[Letter]:
        """What has arrived since (from these peers), ordered by sender. Never waits."""
        return self._read(self.world.take(tag, None if from_ is None else tuple(from_)))

    async def receive(self, tag: str, from_: int) -> Letter:
        """The next letter of one peer. PeerLost if it can't come any more."""
        self.check_known((from_,))
        await self.world.wait(tag, (from_,), Need.ALL)
        letter = self.world.take_one(tag, from_)
        if letter is None:
            raise PeerLost(
                f"peer {from_} left after {self.world.departures().get(from_, 0)} steps, and participant "
                f"{self.id} still waits for its letter {tag!r}. Use gather() where peers may leave.",
                peers=(from_,),
                view=self.view.number,
            )
        return self._read([letter])[0]

    async def gather(self, tag: str, peers: Iterable[int]) -> tuple[dict[int, Letter], tuple[int, ...]]:
        """The next letter of each of these peers, and who of them is gone."""
        wanted = tuple(peers)
        self.check_known(wanted)
        await self.world.wait(tag, wanted, Need.ALL)
        take_one = self.world.take_one
        taken = [letter for peer in wanted if (letter := take_one(tag, peer)) is not None]
        read = {letter.sender: letter for letter in self._read(taken)}
        gone = () if len(read) == len(wanted) else tuple(peer for peer in wanted if peer not in read)
        return read, gone

    async def news(self, tag: str) -> list[Letter]:
        """What has arrived, after waiting for at least one letter or a change of view."""
        await self.world.wait(tag, self.view.workers, Need.ANY)
        self._look_around()
        return self.letters(tag)

    async def ask(self, server: int, tensor: Tensor, tag: str, **note: Any) -> Letter:
        """Send to a server and wait for its reply, which comes under the same tag."""
        self.send(server, tensor, tag, **note)
        return await self.receive(tag, server)

    def _read(self, letters: list[Letter]) -> list[Letter]:
        observed = self.world.observed
        if letters and observed:
            now = self.world.now()
            for letter in letters:
                steps = tuple(letter.steps)
                self.world.emit(Received(self.id, now, letter.sender, letter.tag, steps, letter.letters))
        for place, letter in enumerate(letters):
            if letter.codec is not None:
                letters[place] = letter = self._opened(letter)
            if letter.tensor.device != self._device:
                letter.tensor = letter.tensor.to(self._device)
            if letter.tag in self._of_gradients:
                letter.age = sum(self._late(letter)) / max(1, letter.count)
                self._unused.append(letter)
            elif letter.sender in self.world.start_view.owners:
                self.version = self.versions[letter.sender] = letter.version
            elif observed:
                self._report_included([letter])
        return letters

    def _opened(self, letter: Letter) -> Letter:
        return self._opener.open(letter, self.world.layout_of(letter.sender))

    def include(self, letters: Sequence[Letter]) -> None:
        """Say that the updates of these letters are in what is passed on from here; `apply` says so itself."""
        if self.world.observed:
            self._report_included(letters)

    def discard(self, letter: Letter, why: str) -> None:
        """Throw away what was read: its update becomes part of nothing. Nothing is swallowed: it is reported."""
        self._unused = [other for other in self._unused if other is not letter]
        if self.world.observed:  # as no letter, since as a letter it was read
            now, tag, steps = self.world.now(), letter.tag, tuple(letter.steps)
            self.world.emit(Dropped(self.id, now, letter.sender, self.id, tag, why, steps, letters=0))

    def _report_included(self, letters: Sequence[Letter]) -> None:
        now = self.world.now()
        for letter in letters:
            if letter.weight == 0:
                continue
            for step, late in zip(letter.steps, self._late(letter), strict=True):
                self.world.emit(Included(self.id, now, letter.sender, letter.tag, late, step))

    def _late(self, letter: Letter) -> list[int]:
        """How late each update inside is."""
        if self.is_server:
            return [self.version - letter.version] * letter.count
        return [max(0, self.steps - step) for step in letter.steps]


def _place_of(what: Tensor | Bucket | Cutting) -> int | None:
    """Where in the flat tensor it begins, if it is a slice of it."""
    if isinstance(what, Tensor) or (isinstance(what, Bucket) and what.part is None):
        return None
    return what.start
