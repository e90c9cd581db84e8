"""Data that the user already has: files from a folder, instead of a download."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from fast.errors import UsageError
from fast.lab.datasets.idx import check_idx
from fast.lab.datasets.wheels import LARGEST_BYTES, Contents, unzipped

_FOLDERS = ("", "raw", "MNIST/raw")
"""Below the given folder; the others are where torchvision puts its files."""
_IDX_FILES = (
    ("train-images", "train-images", "idx3"),
    ("train-labels", "train-labels", "idx1"),
    ("test-images", "t10k-images", "idx3"),
    ("test-labels", "t10k-labels", "idx1"),
)
"""Our name, theirs, and how theirs goes on."""
SHORTEST_TEXT_BYTES = 100_000
"""A shorter text leaves too little to validate and test on."""


def idx_files(given: Path) -> Contents:
    """The four files of MNIST, plain or packed, under the names that are in use."""
    if not given.is_dir():
        raise UsageError(f"--from {given}: give the folder that has the four files of MNIST, or a wheel")
    parts = {ours: _file_of(given, f"{theirs}-{kind}-ubyte") for ours, theirs, kind in _IDX_FILES}
    missing = [f"{theirs}-{kind}-ubyte" for ours, theirs, kind in _IDX_FILES if parts[ours] is None]
    if missing:
        raise UsageError(f"{given} has no {', '.join(missing)} (with or without .gz)")
    contents = {ours: _unpacked(path) for ours, path in parts.items() if path is not None}
    for ours, theirs, kind in _IDX_FILES:
        check_idx(f"{theirs}-{kind}-ubyte", contents[ours], int(kind[-1]))
    return contents


def _file_of(folder: Path, name: str) -> Path | None:
    variants = (name, name.replace("-idx", ".idx"))
    names = [variant + packed for variant in variants for packed in ("", ".gz")]
    return _first(folder / below / each for below in _FOLDERS for each in names)


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _unpacked(path: Path) -> bytes:
    content = _read(path)
    if path.suffix != ".gz":
        return content
    try:
        return unzipped(content, path.name)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} can't be unpacked: {error}. Copy it again.") from error


def text_file(given: Path) -> Contents:
    """A text: the file itself, or the only .txt of a folder."""
    path = _only_text(given) if given.is_dir() else given
    content = _read(path)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} isn't UTF-8 text: {error.reason} at byte {error.start:,}") from error
    if b"\0" in content:
        raise UsageError(f"{path} isn't a text: it has zero bytes")
    if len(content) < SHORTEST_TEXT_BYTES:
        raise UsageError(
            f"{path} has {len(content):,} bytes, and a text to train on needs at least "
            f"{SHORTEST_TEXT_BYTES:,}"
        )
    return {"text": content}


def _only_text(folder: Path) -> Path:
    found = sorted(folder.glob("*.txt"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:5]) or "none"
        raise UsageError(f"{folder} should have one .txt file and has {len(found)} ({names}); name the file")
    return found[0]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path} has more than {LARGEST_BYTES >> 20} MB; that is too much for this set")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
