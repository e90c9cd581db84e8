"""Packing of small codes in compiled loops; see `packing.py`.

Eight codes of a byte each are one word of 64 bits, and so on: words are packed with a few shifts,
which is faster than going through the codes. The lowest byte comes first, as in all that is sent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fast.parts.kernels.compiling import compiled

Bytes = NDArray[np.uint8]

GATHER = np.uint64(0x0102040810204080)
"""Multiplied by it, the lowest bits of eight bytes meet in the highest byte, in their order."""
SPREAD, DIAGONAL = np.uint64(0x0101010101010101), np.uint64(0x8040201008040201)
"""A byte in all eight places, and of each copy the one bit that belongs there."""
TOP = np.uint64(56)


@compiled
def pack_flags(flags: Bytes, packed: Bytes) -> None:
    """A bit for each of these bytes, which are 0 or 1, eight for each byte of `packed`."""
    words = flags.view(np.uint64)
    for i in range(len(packed)):
        packed[i] = np.uint8((words[i] * GATHER) >> TOP)


@compiled
def unpack_flags(packed: Bytes, flags: Bytes) -> None:
    """A byte for each bit: not 0 where the bit is 1."""
    words = flags.view(np.uint64)
    for i in range(len(packed)):
        words[i] = (np.uint64(packed[i]) * SPREAD) & DIAGONAL


@compiled
def pack_codes(codes: NDArray[np.int8], bits: int, packed: Bytes) -> None:
    """The low 2 or 4 bits of each of these, as many as fill `packed`."""
    if bits == 4:
        pairs = codes.view(np.uint16)
        for i in range(len(packed)):
            word = np.uint32(pairs[i])
            packed[i] = np.uint8((word & 0x0F) | ((word >> 4) & 0xF0))
    else:
        fours = codes.view(np.uint32)
        for i in range(len(packed)):
            word = fours[i]
            packed[i] = np.uint8(
                (word & 0x03) | ((word >> 6) & 0x0C) | ((word >> 12) & 0x30) | ((word >> 18) & 0xC0)
            )


@compiled
def unpack_codes(packed: Bytes, bits: int, codes: NDArray[np.int8]) -> None:
    """The codes of 2 or 4 bits in these bytes, as numbers in two's complement."""
    if bits == 4:
        pairs = codes.view(np.uint16)
        for i in range(len(packed)):
            byte = np.uint32(packed[i])
            pairs[i] = np.uint16((byte & 0x0F) | ((byte & 0xF0) << 4))
    else:
        fours = codes.view(np.uint32)
        for i in range(len(packed)):
            byte = np.uint32(packed[i])
            fours[i] = np.uint32(
                (byte & 0x03) | ((byte & 0x0C) << 6) | ((byte & 0x30) << 12) | ((byte & 0xC0) << 18)
            )
    half = np.int8(1 << (bits - 1))
    for i in range(len(codes)):
        codes[i] = np.int8(np.int8(codes[i] ^ half) - half)
