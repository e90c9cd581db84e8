"""IDX, the format in which MNIST was published: a magic number, the dimensions, the bytes.

    0x00000803 | number | rows | columns | one byte per pixel        images
    0x00000801 | number | one byte per label                         labels

All numbers are 32 bits, most significant byte first. Files in the cache are mapped into memory, so
that workers of one machine share one copy of them.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fast.errors import UsageError

SIDE = 28
_UBYTE = 0x08
_IMAGES_HEADER_BYTES = 16
_LABELS_HEADER_BYTES = 8

Pixels = NDArray[np.uint8]


def pack_images(pixels: Pixels) -> bytes:
    """One image per row, as an IDX file."""
    return struct.pack(">4I", _UBYTE << 8 | 3, len(pixels), SIDE, SIDE) + pixels.tobytes()


def pack_labels(labels: Pixels) -> bytes:
    """One label per image, as an IDX file."""
    return struct.pack(">2I", _UBYTE << 8 | 1, len(labels)) + labels.tobytes()


def labels_in(file_bytes: int) -> int:
    """How many labels a file of this size has."""
    return file_bytes - _LABELS_HEADER_BYTES


def read_images(path: Path) -> Tensor:
    """One image per row, each pixel a byte, read from the file when it is looked at."""
    return _mapped(path)[_IMAGES_HEADER_BYTES:].view(-1, SIDE * SIDE)


def read_labels(path: Path) -> Tensor:
    return _mapped(path)[_LABELS_HEADER_BYTES:].long()


def _mapped(path: Path) -> Tensor:
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


def check_idx(name: str, content: bytes, dimensions: int) -> None:
    """Refuse what isn't a whole IDX file of bytes with this many dimensions."""
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise UsageError(f"{name} has {len(content)} bytes, less than the header of an IDX file")
    magic, *sizes = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != _UBYTE << 8 | dimensions:
        kind = "images" if dimensions == 3 else "labels"
        raise UsageError(f"{name} isn't an IDX file of {kind}: it begins with {content[:4]!r}")
    expected = header + math.prod(sizes)
    if len(content) != expected:
        raise UsageError(
            f"{name} has {len(content):,} bytes, and its header promises {expected:,}: it isn't whole"
        )
