"""An outer optimizer, fragment by fragment: each part of the model has its own time to be exchanged, and training
goes on while it is.

A round of a fragment is an all-reduce in two halves, each of them letters that are read some steps later:

    step s                every worker sends slice j of its change to member j                     (a part)
    step s + half         member j averages the parts of its slice, and sends the mean to all      (a mean)
    step s + overlap      everybody takes the outer step with all the means

Who leaves has sent all its letters of a step or none, so all who are left always know the same about it. Parts that
don't come aren't in the mean; of a mean that doesn't come (its owner has left) the slice stays as it is in this
round, and later rounds are made among the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.collectives.cutting import cut_evenly
from fast.core import Me, Strategy
from fast.parts.codecs import Codec
from fast.parts.outer import Outer
from fast.view import Layout

Places = tuple[slice, ...]
"""Of the flat tensor, what belongs to a fragment."""


@dataclass
class Fragment:
    """A part of the model, with all that its rounds need. Anchor and memory are equal on all workers."""

    number: int
    places: Places
    anchor: Tensor
    """The common weights of this fragment, as they were after its last round."""
    memory: Tensor
    """What the outer optimizer remembers."""
    counted: int = 0
    """How many samples this worker had seen when the last round began."""
    members: tuple[int, ...] = ()
    """Of the round under way; nobody if there is none."""
    samples: int = 0
    """How much this worker counts in it."""
    own: Tensor | None = None
    """The slice that this worker owns in it: its own part, and once it is known the mean."""

    @staticmethod
    def of(flat: Tensor, places: Places, number: int) -> Fragment:
        """At the start."""
        anchor = _in_one_piece(flat, places)
        return Fragment(number, places, anchor, torch.zeros_like(anchor))

    def read(self, flat: Tensor) -> Tensor:
        """A copy of this fragment of a flat tensor, in one piece."""
        return _in_one_piece(flat, self.places)

    def write(self, values: Tensor, flat: Tensor) -> None:
        edges = accumulate((place.stop - place.start for place in self.places), initial=0)
        for place, (start, stop) in zip(self.places, pairwise(edges), strict=True):
            flat[place] = values[start:stop]

    def begin(self, members: tuple[int, ...], samples: int) -> None:
        """A round, when so many samples have been seen."""
        self.members, self.samples, self.counted = members, samples - self.counted, samples

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Each member of the round, with the slice that it owns."""
        size, itemsize = self.anchor.numel(), self.anchor.element_size()
        return zip(self.members, cut_evenly(len(self.members), size, itemsize), strict=True)

    def others(self, me: Me) -> list[int]:
        return [member for member in self.members if member != me.id]


@dataclass
class Stream:
    """The fragments, who is still known to be in, and how many samples this worker has seen."""

    fragments: list[Fragment]
    members: tuple[int, ...]
    samples: int = 0


class FragmentSteps(Strategy):
    """Local steps; every `interval` steps, each at its own time, a fragment w of the model goes on to
    outer(w, mean_i C(w - w_i)), which is known `overlap` steps after the w_i were looked at; then
    w_i <- mix w_i + (1 - mix) w."""

    synchronous = True

    def __init__(
        self,
        *,
        fragments: int,
        interval: int,
        overlap: int,
        mix: float,
        outer: Outer,
        codec: Codec | None = None,
    ) -> None:
        self.fragments, self.interval, self.overlap = fragments, interval, overlap
        self.mix, self.outer, self.codec = mix, outer, codec
        self.half = self.late = (overlap + 1) // 2
        # Other rounds than the plain mean go over letters, and a death may come between two of them.
        self.survives_death = overlap == 0 and codec is None
        if overlap:  # until the parts of a round are needed nobody waits, and rounds are this far apart
            self.lead = interval + self.half
        shorter = tuple(steps for steps in (10, 25) if steps > overlap and steps >= fragments)
        self.knobs = MappingProxyType({"interval": shorter})

    def state(self, me: Me) -> Stream:
        cut = fragments_of(me.layout, me.weights.numel(), self.fragments)
        fragments = [Fragment.of(me.weights, places, number) for number, places in enumerate(cut)]
        return Stream(fragments, me.workers)

    async def step(self, me: Me) -> None:
        stream: Stream = me.state
        me.apply(me.gradient)
        stream.samples += me.samples
        if self.overlap == 0:
            for fragment in self._due(me, after=0):
                await self._exchange(me, fragment)
            return
        for fragment in self._due(me, after=0):
            self._send_parts(me, fragment)
        for fragment in self._due(me, after=self.half):
            await self._send_mean(me, fragment)
        for fragment in self._due(me, after=self.overlap):
            await self._take_means(me, fragment)

    def _due(self, me: Me, after: int) -> Iterator[Fragment]:
        """Those whose round begins so many steps before this one; before its first, a fragment has none."""
        fragments: list[Fragment] = me.state.fragments
        for fragment in fragments:
            began = me.steps + 1 - after
            phase = fragment.number * self.interval // len(fragments)
            if began > 0 and began % self.interval == phase:
                yield fragment

    # At once

    async def _exchange(self, me: Me, fragment: Fragment) -> None:
        fragment.begin(me.workers, me.state.samples)
        local = fragment.read(me.weights)
        mean = await me.mean(
            fragment.anchor - local,
            weight=fragment.samples,
            read_only=True,
            codec=self.codec,
            channel=f"fragment {fragment.number}",
        )
        self._go_on(fragment, local, slice(None), mean)
        fragment.write(local, me.weights)

    def _go_on(self, fragment: Fragment, local: Tensor, part: slice, change: Tensor) -> None:
        """The outer step of a part of a fragment, of which the worker's own weights keep `mix`."""
        self.outer.step(fragment.anchor[part], change, fragment.memory[part])
        local[part] = fragment.anchor[part].lerp(local[part], self.mix)

    # In halves

    def _send_parts(self, me: Me, fragment: Fragment) -> None:
        """To each member its slice of what this worker has changed. One's own goes through the codec too."""
        fragment.begin(me.state.members, me.state.samples)
        change = fragment.anchor - fragment.read(me.weights)
        for owner, part in fragment.slices():
            tag = _part_tag(fragment, owner)
            if owner == me.id:
                fragment.own = torch.empty_like(change[part])
                me.send((), change[part], tag, codec=self.codec, into=fragment.own)
            else:
                me.send(owner, change[part], tag, codec=self.codec, samples=fragment.samples)

    async def _send_mean(self, me: Me, fragment: Fragment) -> None:
        got, gone = await me.gather(_part_tag(fragment, me.id), fragment.others(me))
        _forget(me.state, gone)
        assert fragment.own is not None
        parts = {peer: (letter.tensor, float(letter.note["samples"])) for peer, letter in got.items()}
        parts[me.id] = (fragment.own, float(fragment.samples))
        tensors, weights = zip(*(parts[member] for member in sorted(parts)), strict=True)
        mean = canonical_mean(tensors, weights)
        me.send(got, mean, f"mean {fragment.number}", codec=self.codec, into=fragment.own)

    async def _take_means(self, me: Me, fragment: Fragment) -> None:
        got, gone = await me.gather(f"mean {fragment.number}", fragment.others(me))
        _forget(me.state, gone)
        assert fragment.own is not None
        means = {peer: letter.tensor for peer, letter in got.items()} | {me.id: fragment.own}
        local = fragment.read(me.weights)
        for owner, part in fragment.slices():
            if owner in means:
                self._go_on(fragment, local, part, means[owner])
        fragment.write(local, me.weights)
        fragment.members, fragment.own = (), None


def _in_one_piece(flat: Tensor, places: Places) -> Tensor:
    return torch.cat([flat[place] for place in places])


def _part_tag(fragment: Fragment, owner: int) -> str:
    """What a codec remembers belongs to a tag, and slices of several owners may be equally long."""
    return f"part {fragment.number} of {owner}"


def _forget(stream: Stream, gone: Iterable[int]) -> None:
    stream.members = tuple(member for member in stream.members if member not in gone)


# How a model is cut


def fragments_of(layout: Layout, size: int, count: int) -> list[Places]:
    """The flat tensor in so many fragments that are about equally large: every value is in one of them.

    Parameter after parameter goes to the fragment that is the smallest so far. Where layers are equally large,
    those with the same remainder by `count` come together: fragments are strided through the depth of
    the model. A parameter that is larger than its share is cut between rows. A model that is too small for so many
    has fewer.
    """
    if count == 1:
        return [(slice(0, size),)]
    found: list[list[slice]] = [[] for _ in range(count)]
    sizes = [0] * count
    for piece in _pieces(layout, size, -(-size // count)):
        smallest = sizes.index(min(sizes))
        found[smallest].append(piece)
        sizes[smallest] += piece.stop - piece.start
    return [tuple(pieces) for pieces in found if pieces]


def _pieces(layout: Layout, size: int, share: int) -> Iterator[slice]:
    """Parameters with the padding behind them, none larger than its share by more than a row."""
    ends = [segment.start for segment in layout.segments[1:]] + [size]
    for segment, end in zip(layout.segments, ends, strict=True):
        cuts = layout.part(segment.start, segment.stop).cuts(-(-(end - segment.start) // share))
        edges = [segment.start + cut.start for cut in cuts] + [end]
        yield from (slice(a, b) for a, b in pairwise(edges) if b > a)
