"""The contract of a codec: values in, bytes out, and back.

A codec is a frozen value that only says *how*. What changes from call to call (residuals, a
momentum, how many tensors were encoded) is in an explicit `State`; memory to compute in is in a
`Workspace` and means nothing afterwards. A `Coder` is the three of them together at work.

The bytes are one flat tensor of uint8, made of sections of numbers without padding between them:
first those of 4 or 8 bytes, then the smaller ones. So their number is a formula, `nbytes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, final
from zlib import crc32

import torch
from torch import Tensor

from fast.errors import WireError
from fast.view import Layout


class NonFinite(Enum):
    """What becomes of NaN and infinities. Whatever it is, nothing crashes."""

    KEPT = "they travel as they are"
    SPREADS = "the block, bucket or row that holds one arrives as NaN"
    DROPPED = "they count as some finite number, and nothing remembers them"


@final
class Workspace:
    """Memory to compute in: made once per name, then used again."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, torch.device], Tensor] = {}

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """`count` numbers of this kind, with whatever is in them. They start at 64 bytes' boundary."""
        key, needed = (name, torch.device(device)), count * dtype.itemsize
        memory = self._memory.get(key)
        if memory is None or memory.numel() < needed:
            memory = self._memory[key] = torch.empty(max(needed, 64), dtype=torch.uint8, device=device)
        return memory[:needed].view(dtype)

    def owns(self, tensor: Tensor) -> bool:
        """Whether this tensor lies in memory that was taken from here."""
        at = tensor.untyped_storage().data_ptr()
        return any(memory.untyped_storage().data_ptr() == at for memory in self._memory.values())


RESTS = ("residual", "u", "v")
"""The tensors of a state that hold what was not sent yet."""


@dataclass
class State:
    """All that a codec remembers from one call to the next, to be checkpointed as a whole."""

    seed: int = 0
    steps: int = 0
    """How many tensors were encoded: with the seed and an index it makes the random numbers."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    inner: list[State] = field(default_factory=list)
    """Of the codecs that this one is composed of."""

    def rests(self) -> Iterator[Tensor]:
        """What is to be sent later."""
        yield from (self.tensors[name] for name in RESTS if name in self.tensors)
        for state in self.inner:
            yield from state.rests()

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "steps": self.steps,
            "tensors": {name: tensor.clone() for name, tensor in self.tensors.items()},
            "inner": [state.state_dict() for state in self.inner],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.seed, self.steps = saved["seed"], saved["steps"]
        for name, tensor in saved["tensors"].items():
            self.tensors[name].copy_(tensor)
        for state, inner in zip(self.inner, saved["inner"], strict=True):
            state.load_state_dict(inner)


class Codec(ABC):
    """Subclasses are frozen dataclasses; their fields are the arguments of the call that makes them."""

    name: ClassVar[str]
    """By which the command line and the wire know it."""
    unbiased: bool = False
    """Whether the expectation of what is decoded is what was encoded."""
    summable: bool = False
    """Whether bytes of several workers can be added without decoding: see `summands`."""
    sparse: bool = False
    """Whether the bytes are indices and values: see `Sparse`."""
    rounds: bool = False
    """Whether a mean of it takes several rounds, each made from the one before: see `InRounds`."""
    remembers: bool = False
    """Whether it keeps what it didn't send, so that error feedback around it would send it twice."""
    has_momentum: bool = False
    """Whether it is part of the optimizer: then it does its work also where nothing is sent."""
    non_finite: NonFinite = NonFinite.SPREADS

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        """What it remembers before its first call on tensors of this layout."""
        return State(seed)

    @abstractmethod
    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        """The size formula. A codec whose size depends on the values gets the number of values
        that were `sent`; without it, the most that it can be."""

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        """How many values are in these bytes, where their number is not fixed."""
        return None

    def expected(self, layout: Layout, step: int) -> int:
        """The number of bytes for values that nobody knows: `nbytes`, or where it depends on the values what
        is to be expected in this encoding, counted from 0; UsageError if that can't be said."""
        return self.nbytes(layout)

    @abstractmethod
    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        """Bytes for these values, in memory of `work`: valid until the next call. The values, a flat
        contiguous tensor of `layout.size` elements of `layout.dtype`, stay intact."""

    @abstractmethod
    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        """Write the values that these bytes stand for into `out`. WireError where they can't be right."""

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        """Encode, and leave in `values` what the bytes don't say: values - decode(bytes).

        What isn't finite there becomes 0, or it would be remembered for ever.
        """
        packed = self.encode(values, layout, state, work)
        decoded = work.take("rest", layout.size, layout.dtype, values.device)
        self.decode(packed, layout, decoded, work)
        values.sub_(decoded).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return packed

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        """Of a summable codec: a view of its bytes as floating point numbers. Their mean, written back
        into the bytes, decodes to the mean."""
        raise NotImplementedError(f"{self!r} is not summable")

    def spec(self) -> list[Any]:
        """As plain data, [name, {argument: value}], for the wire: see `codec_of` in the catalogue."""
        arguments = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return [self.name, {key: _plain(value) for key, value in arguments.items()}]

    @property
    def decoder(self) -> Codec:
        """The codec that a receiver needs; composed ones drop what only a sender remembers."""
        return self

    def __repr__(self) -> str:
        arguments = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))  # type: ignore[arg-type]
        return f"{self.name}({', '.join(arguments)})"


def _plain(value: object) -> Any:
    match value:
        case Codec():
            return value.spec()
        case tuple() | list():
            return [_plain(each) for each in value]
        case _:
            return value


@final
class Coder:
    """A codec at work on tensors of one layout: with its state and its memory."""

    def __init__(
        self, codec: Codec, layout: Layout, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.codec, self.layout = codec, layout
        self._seed, self._device = seed, torch.device(device)
        values = self._device.type != "meta"  # without values there is nothing to remember but the steps
        self.state = codec.begin(layout, seed, self._device) if values else State(seed)
        self.work = Workspace()
        self._pieces: dict[tuple[str, int], list[Coder]] = {}

    def encode(self, values: Tensor) -> Tensor:
        """Bytes for a tensor of this layout; valid until the next call. Of one without values (on the
        meta device) bytes without values, as many as are to be expected."""
        if values.is_meta:
            packed = values.new_empty(self.codec.expected(self.layout, self.state.steps), dtype=torch.uint8)
        else:
            packed = self.codec.encode(values.reshape(-1), self.layout, self.state, self.work)
        self.state.steps += 1
        return packed

    def decode(self, packed: Tensor, out: Tensor | None = None) -> Tensor:
        """The values; without `out` in memory of this coder, valid until the next call."""
        if out is None:
            out = self.work.take("decoded", self.layout.size, self.layout.dtype, packed.device)
        if not packed.is_meta:
            self.codec.decode(packed, self.layout, out, self.work)
        return out

    def pieces(self, count: int, stage: str = "") -> list[Coder]:
        """One coder for each of `layout.cuts(count)`, with a state of its own; the same ones every time.
        Another `stage` has others: the owner of a slice that it adds up remembers its own rest."""
        if (stage, count) not in self._pieces:
            # Two stages that drew the same random numbers would round the same values the same way.
            seed = (self._seed + crc32(stage.encode()) * 1_000_003) % (1 << 62)
            self._pieces[stage, count] = [
                Coder(self.codec, self.layout.part(cut.start, cut.stop), seed + number, self._device)
                for number, cut in enumerate(self.layout.cuts(count))
            ]
        return self._pieces[stage, count]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Afterwards it remembers what it did before: for values that won't count. What an owner
        remembers of sums, and what all workers have in common, goes on."""
        rests = [
            (tensor, tensor.clone())
            for coder in (
                self,
                *(each for (stage, _), all_ in self._pieces.items() if not stage for each in all_),
            )
            for tensor in coder.state.rests()
        ]
        try:
            yield
        finally:
            for tensor, before in rests:
                tensor.copy_(before)

    def state_dict(self) -> dict[str, Any]:
        pieces = [[*key, [coder.state_dict() for coder in coders]] for key, coders in self._pieces.items()]
        return {"state": self.state.state_dict(), "pieces": pieces}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.state.load_state_dict(saved["state"])
        for stage, count, states in saved["pieces"]:
            for coder, state in zip(self.pieces(count, stage), states, strict=True):
                coder.load_state_dict(state)


def sections(packed: Tensor, *parts: tuple[torch.dtype, int]) -> list[Tensor]:
    """Views of the bytes as so many numbers of these kinds, one section after the other."""
    if packed.storage_offset() % max(dtype.itemsize for dtype, _ in parts):
        packed = packed.clone()  # a slice of something larger, at a place where numbers can't begin
    found, at = [], 0
    for dtype, count in parts:
        section = packed[at : at + count * dtype.itemsize]
        found.append(section.view(dtype) if count else packed.new_empty(0, dtype=dtype))
        at += count * dtype.itemsize
    return found


def check_size(codec: Codec, packed: Tensor, expected: int) -> None:
    """Refuse bytes whose number isn't what the formula says."""
    if packed.numel() != expected:
        raise WireError(f"{codec!r} needs {expected} bytes for this tensor and got {packed.numel()}")


def as_float32(values: Tensor, work: Workspace, name: str = "float32") -> Tensor:
    """The values as float32: themselves, or a copy in `work`."""
    if values.dtype == torch.float32:
        return values
    return work.take(name, values.numel(), torch.float32, values.device).copy_(values)
