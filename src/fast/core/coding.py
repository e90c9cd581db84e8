"""Encoded letters: a codec per channel on the way out, and back to values on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, final

import msgspec
import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.core.seeds import stream_seed
from fast.errors import UsageError, WireError
from fast.parts.codecs.base import Codec, Coder, Workspace
from fast.parts.codecs.catalogue import codec_of
from fast.view import Layout

_GROWTH = 4096
"""So many values a stranger may make of a byte; else ten bytes could claim all memory."""


@final
class Coding:
    """The coders of one participant, one per channel: a name, and the layout of what it carries."""

    def __init__(self, seed: int, who: int, layout: Layout, device: torch.device) -> None:
        self._seed, self._who, self._layout, self._device = seed, who, layout, device
        self._coders: dict[tuple[str, str, str], Coder] = {}
        self._saved: dict[tuple[str, str, str], Any] = {}
        """From a checkpoint, for channels that have not been used since."""

    def coder(self, channel: str, codec: Codec, tensor: Tensor, start: int | None = None) -> Coder:
        """The coder of this channel; `start` says where a slice of the flat tensor begins."""
        _check_values(codec, tensor)
        layout = layout_for(tensor.shape, tensor.dtype, self._layout, start)
        key = (channel, repr(codec), f"{layout.fingerprint} {start}")
        if key not in self._coders:
            seed = stream_seed(self._seed, "codec", self._who, *key)
            self._coders[key] = coder = Coder(codec, layout, seed, self._device)
            if key in self._saved:
                coder.load_state_dict(self._saved.pop(key))
        return self._coders[key]

    def encoded(
        self, letter: Letter, codec: Codec, into: Tensor | None = None, start: int | None = None
    ) -> Letter:
        """The letter with bytes in the place of its values; they are valid until the next one.
        `into` gets the values that they stand for. `start` says where a slice of the flat tensor begins."""
        tensor = letter.tensor
        coder = self.coder(letter.tag, codec, tensor, start)
        if coder.state.steps == 0:
            _check_known(codec)
        if letter.weight == 0:  # it won't count at its receivers
            with coder.keeping():
                packed = coder.encode(tensor)
        else:
            packed = coder.encode(tensor)
        if into is not None:
            coder.decode(packed, into.view(-1))
        return replace(
            letter, tensor=packed, codec=codec.decoder.spec(), dtype=tensor.dtype, shape=tuple(tensor.shape)
        )

    def state_dict(self) -> dict[tuple[str, str, str], Any]:
        """Residuals, momenta and counters of all channels."""
        return {**self._saved, **{key: coder.state_dict() for key, coder in self._coders.items()}}

    def load_state_dict(self, saved: Mapping[tuple[str, str, str], Any]) -> None:
        self._coders, self._saved = {}, dict(saved)


@final
class Opener:
    """Decodes letters that are read in a turn, into memory that is used again after it."""

    def __init__(self) -> None:
        self._work = Workspace()
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self.lent: list[Tensor] = []
        """To letters that may still be read."""

    def open(self, letter: Letter, layout: Layout | None) -> Letter:
        """Decode what is a tensor of this layout."""
        if letter.codec is None or letter.dtype is None or letter.shape is None:
            return letter
        free = self._free.get((prod(letter.shape), letter.dtype))
        letter = opened(letter, layout, free.pop() if free else None, self._work)
        self.lent.append(letter.tensor.view(-1))
        return letter

    def recycle(self) -> None:
        """The turn is over: nobody reads its letters any more."""
        for memory in self.lent:
            self._free.setdefault((memory.numel(), memory.dtype), []).append(memory)
        self.lent.clear()


def opened(
    letter: Letter, flat: Layout | None, values: Tensor | None = None, work: Workspace | None = None
) -> Letter:
    """The letter with its values, in memory of its own. One that isn't encoded stays as it is."""
    if letter.codec is None or letter.dtype is None or letter.shape is None:
        return letter
    start = None if letter.part is None else letter.part[0]
    layout = layout_for(letter.shape, letter.dtype, flat, start)
    if layout.size > max(_GROWTH * max(letter.tensor.numel(), 1), 0 if flat is None else flat.size):
        raise WireError(
            f"peer {letter.sender} sent {letter.tensor.numel()} bytes that would become {layout.size} values; more "
            f"than {_GROWTH} for each byte are only taken for a tensor like the model's own"
        )
    if letter.tensor.is_meta:  # sizes only: bytes that stand for nothing
        values = letter.tensor.new_empty(layout.size, dtype=layout.dtype)
    else:
        if values is None:
            values = torch.empty(layout.size, dtype=layout.dtype, device=letter.tensor.device)
        codec = _codec(msgspec.msgpack.encode(letter.codec))
        codec.decode(letter.tensor, layout, values, work or Workspace())
    return replace(letter, tensor=values.view(letter.shape), codec=None, dtype=None, shape=None, private=True)


@lru_cache(maxsize=64)
def _codec(spec: bytes) -> Codec:
    return codec_of(msgspec.msgpack.decode(spec))


def layout_for(
    shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, flat: Layout | None, start: int | None
) -> Layout:
    """What is inside a tensor: the model's own layout if it is flat like the model, or a slice of it."""
    if flat is not None and len(shape) == 1 and dtype == flat.dtype:
        if start is not None:
            if start + shape[0] > flat.size:
                raise WireError(f"a piece of a letter ends at {start + shape[0]} of {flat.size} values")
            return _part(flat, start, start + shape[0])
        if shape[0] == flat.size:
            return flat
    return _single(tuple(shape), dtype)


@lru_cache(maxsize=256)
def _part(flat: Layout, start: int, stop: int) -> Layout:
    return flat.part(start, stop)


@lru_cache(maxsize=256)
def _single(shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
    return Layout.single(shape, dtype)


def _check_known(codec: Codec) -> None:
    """Receivers build the codec from its name, so it must be one of the package's."""
    try:
        codec_of(codec.decoder.spec())
    except WireError as error:
        raise UsageError(
            f"{codec!r} isn't one of fast.codecs, so the receivers of a letter can't know it ({error}). Use it in "
            "rounds, me.mean(x, codec=...) or allreduce(codec=...), where both ends have it, or add it to the package."
        ) from error


def _check_values(codec: Codec, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise UsageError(
            f"{codec!r} encodes floating point numbers and got {tensor.dtype}. Send it without a codec."
        )
