"""Sparse codecs: few of the values travel, with their places.

`Sparse` is what they have in common for a receiver: a *stream*, places ascending and the values
there. `Pairs` are those whose bytes are just that, so that streams can be merged and packed again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs.base import Codec, NonFinite, State, Workspace, check_size, sections
from fast.parts.kernels.selecting import ascending, clear, gather, put
from fast.view import Layout

Stream = tuple[Tensor, Tensor]
"""Places, int32 and ascending, and the values there."""
PLACE_BYTES = torch.int32.itemsize
MOST_PLACES = 1 << 31


class Sparse(Codec):
    """A codec whose bytes stand for a stream."""

    sparse = True
    non_finite = NonFinite.KEPT

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        if layout.size > MOST_PLACES:
            raise UsageError(
                f"{self!r} counts places with 31 bits, and this tensor has {layout.size} values. Send it in "
                "several pieces."
            )
        return State(seed)

    @abstractmethod
    def stream(self, packed: Tensor, layout: Layout, work: Workspace | None = None) -> Stream:
        """Places and values of these bytes: views where they are there as such, else in memory of
        `work`. Places that can't be right are a WireError."""

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        indices, values = self.stream(packed, layout, work)
        out.zero_()
        put(out, indices, values)

    def check_indices(self, indices: Tensor, layout: Layout) -> None:
        if not ascending(indices, layout.size):
            raise WireError(f"the places of {self!r} must ascend and lie within {layout.size} values")


class Pairs(Sparse):
    """A sparse codec that sends each value in the dtype of the tensor, and 4 bytes for its place.

    Subclasses choose. `places` are what a receiver needs to know where the values belong: the
    places themselves, or less.
    """

    fixed: ClassVar[bool] = True
    """Whether the number of values depends on the layout only."""

    @abstractmethod
    def most(self, layout: Layout) -> int:
        """How many values are sent, or can be."""

    @abstractmethod
    def choose(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Stream:
        """Places and values to send, in memory of `work` and both free to be changed."""

    # Bytes

    def section(self, count: int) -> tuple[torch.dtype, int]:
        """The kind and number of the numbers in the section of places."""
        return torch.int32, count

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        """(4 + itemsize) k: 8 k in float32."""
        count = self.most(layout) if sent is None or self.fixed else sent
        kind, number = self.section(count)
        return number * kind.itemsize + count * layout.dtype.itemsize

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        return None if self.fixed else packed.numel() // (PLACE_BYTES + layout.dtype.itemsize)

    def pack(self, places: Tensor, values: Tensor, work: Workspace) -> Tensor:
        """These places and values as bytes."""
        count = values.numel()
        nbytes = places.numel() * places.dtype.itemsize + count * values.dtype.itemsize
        packed = work.take("sparse.packed", nbytes, torch.uint8, values.device)
        place_section, value_section = self._open(packed, count, values.dtype)
        place_section.copy_(places)
        value_section.copy_(values)
        return packed

    def _open(self, packed: Tensor, count: int, dtype: torch.dtype) -> Stream:
        """Sections of places and of values: the wider ones come first, so that both are aligned."""
        places = self.section(count)
        if places[0].itemsize > dtype.itemsize:
            first, second = sections(packed, places, (dtype, count))
            return first, second
        first, second = sections(packed, (dtype, count), places)
        return second, first

    # Both ends

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return self.pack(*self.choose(values, layout, state, work), work)

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        """Nothing is done where nothing was sent. What isn't finite and had no room stays, too: it
        counts as largest and goes with the next bytes."""
        places, chosen = self.choose(values, layout, state, work)
        self.leave_rest(values, self.indices(places, chosen.numel(), layout, work), chosen, work)
        return self.pack(places, chosen, work)

    def leave_rest(self, values: Tensor, indices: Tensor, chosen: Tensor, work: Workspace) -> None:
        """Leave in `values` what remains after these were sent: nothing, if they are the values."""
        clear(values, indices)

    def indices(self, places: Tensor, count: int, layout: Layout, work: Workspace) -> Tensor:
        """The places that the section of places stands for, as they are on the sender's side."""
        return places

    def stream(self, packed: Tensor, layout: Layout, work: Workspace | None = None) -> Stream:
        count = self._count(packed, layout)
        places, values = self._open(packed, count, layout.dtype)
        indices = self.indices(places, count, layout, work or Workspace())
        self.check_indices(indices, layout)
        return indices, values

    def _count(self, packed: Tensor, layout: Layout) -> int:
        """How many values these bytes hold. WireError if there can't be so many bytes."""
        most, sent = self.most(layout), self.sent(packed, layout)
        check_size(self, packed, self.nbytes(layout, None if sent is None else min(sent, most)))
        return most if sent is None else sent


def subtract(values: Tensor, indices: Tensor, taken: Tensor, work: Workspace) -> None:
    """Take these values away at these places; what isn't finite then becomes 0."""
    rest = work.take("sparse.rest", indices.numel(), values.dtype, values.device)
    gather(values, indices, rest)
    rest.sub_(taken).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    put(values, indices, rest)
