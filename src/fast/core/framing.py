"""A letter as a frame: its header for the wire, and back.

A stranger's header only names things: its dtype is looked up in a table of those that travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.errors import UsageError, WireError
from fast.wire import Header, encode_frame

DTYPES = MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2,
            torch.float8_e5m2fnuz,
            torch.float8_e8m0fnu,
            torch.complex128,
            torch.complex64,
            torch.complex32,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint64,
            torch.uint32,
            torch.uint16,
            torch.uint8,
            torch.bool,
        )
    }
)
"""What travels, by the name that it has on the wire."""
_NAMES = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
_RUNS = 200
"""Of so many the header keeps track; they fit beside a note."""


def header_of(letter: Letter) -> Header:
    """All that the wire says about a letter; its values travel beside it."""
    present = letter.present
    return Header(
        sender=letter.sender,
        tag=letter.tag,
        dtype=dtype_name(letter.tensor),
        shape=tuple(letter.tensor.shape),
        steps=_runs(letter.steps),
        view=letter.view,
        version=letter.version,
        weight=letter.weight,
        note=letter.note,
        present=None if present is None else present.to_bytes(present.bit_length() // 8 + 1, "little"),
        codec=letter.codec,
        value_dtype=None if letter.dtype is None else _NAMES.get(letter.dtype, str(letter.dtype)),
        value_shape=letter.shape,
        part=letter.part,
    )


def dtype_name(tensor: Tensor) -> str:
    """By which the wire knows this kind of tensor."""
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.layout != torch.strided:
        raise UsageError(
            f"a {tensor.layout} tensor of {tensor.dtype} can't be sent. Dense tensors of {', '.join(DTYPES)} "
            "can; convert it first."
        )
    return name


def _runs(steps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of consecutive steps. A letter into which thousands were folded keeps their number, and
    which they were as far as it fits: the oldest count as one run."""
    runs: list[tuple[int, int]] = []
    for step in steps:
        if runs and step == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((step, 1))
    if len(runs) > _RUNS:
        old = runs[: 1 - _RUNS]
        runs = [(old[0][0], sum(count for _, count in old)), *runs[1 - _RUNS :]]
    return runs


def letter_of(header: Header, payload: Tensor, sender: int | None = None) -> Letter:
    """A letter whose tensor reads `payload`, flat bytes, in place. `sender` is whom they came from."""
    if sender is not None and header.sender != sender:
        raise WireError(f"participant {sender} brings a letter that says it is from {header.sender}")
    if header.payload_bytes != payload.numel():
        raise WireError(f"a letter announces {header.payload_bytes} bytes and brings {payload.numel()}")
    return Letter(
        sender=header.sender,
        tag=header.tag,
        tensor=typed(payload, DTYPES[header.dtype], header.shape),
        steps=tuple(first + k for first, count in header.steps for k in range(count)),
        view=header.view,
        version=header.version,
        weight=header.weight,
        note=header.note,
        present=None if header.present is None else int.from_bytes(header.present, "little"),
        codec=header.codec,
        dtype=None if header.value_dtype is None else DTYPES[header.value_dtype],
        shape=header.value_shape,
        part=header.part,
    )


# Values as bytes


def nbytes_of(tensor: Tensor) -> int:
    """What its values take on their way."""
    return tensor.numel() * tensor.element_size()


def copied_into(memory: Tensor, tensor: Tensor) -> Tensor:
    """The values in `memory`, flat bytes of just the right number, as a tensor like this one. It may
    have any strides and lie on any device: there is one copy, straight to its place."""
    return typed(memory, tensor.dtype, tensor.shape).copy_(tensor.detach())


def typed(memory: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """These flat bytes as a tensor; the memory stays the same."""
    flat = memory.view(dtype)
    return flat if len(shape) == 1 else flat.view(shape)


def lies_flat(tensor: Tensor) -> bool:
    """Whether its values are the bytes of its memory, one after the other, where others can read them."""
    as_they_are = not tensor.is_conj() and not tensor.is_neg()
    return tensor.is_contiguous() and as_they_are and tensor.device.type == "cpu"


def flat_copy(tensor: Tensor) -> Tensor:
    """Its values as flat bytes in memory of their own."""
    memory = torch.empty(nbytes_of(tensor), dtype=torch.uint8)
    copied_into(memory, tensor)
    return memory


def frame_of(letter: Letter) -> tuple[bytes, memoryview]:
    """For a stream: header and payload, to be written one after the other. What lies flat is not copied."""
    tensor, header = letter.tensor.detach(), header_of(letter)
    flat = tensor.view(-1).view(torch.uint8) if lies_flat(tensor) else flat_copy(tensor)
    return encode_frame(header, memoryview(flat.numpy()))  # type: ignore[arg-type]


def letter_from(header: Header, memory: memoryview, sender: int | None = None) -> Letter:
    """The letter of a frame that came in a stream; it reads `memory` in place, which is its own."""
    payload = (
        torch.frombuffer(memory, dtype=torch.uint8) if len(memory) else torch.zeros(0, dtype=torch.uint8)
    )
    letter = letter_of(header, payload, sender)
    letter.private = True
    return letter
