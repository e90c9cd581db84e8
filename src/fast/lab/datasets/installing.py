"""Putting a set into the cache: checked first, then file by file, each renamed into its place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Set
from pathlib import Path

import msgspec

from fast.errors import UsageError
from fast.lab.datasets.catalogue import DataSet
from fast.lab.datasets.store import MANIFEST, Stored, StoredPart, cache_folder, files_of, path_of
from fast.lab.datasets.wheels import Contents


def install(dataset: DataSet, contents: Contents, *, own: bool = False, licences: str = "") -> Stored:
    """Put a set into the cache. What isn't the catalogue's is refused, unless it is the user's own."""
    stored = Stored(dataset.name, {part.name: _stored(contents[part.name]) for part in dataset.parts})
    if not (own and dataset.open):
        _check_pinned(dataset, stored)
    cache = cache_folder()
    folder = cache / dataset.name
    before = files_of(dataset, cache)
    written = {path_of(dataset, cache, name, part.sha256): name for name, part in stored.parts.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, name in written.items():
            _write(path, contents[name])
        _write(folder / "LICENCE.txt", _notice(dataset, stored, licences).encode())
        _write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(stored)))
    except OSError as error:
        _remove(written.keys() - files_of(dataset, cache))
        raise UsageError(_why_not(dataset, folder, error)) from error
    _remove(before - written.keys())
    return stored


def _stored(content: bytes) -> StoredPart:
    return StoredPart(hashlib.sha256(content).hexdigest(), len(content))


def _check_pinned(dataset: DataSet, stored: Stored) -> None:
    for part in dataset.parts:
        found = stored.parts[part.name]
        if found.sha256 != part.sha256:
            raise UsageError(
                f"these {part.name} aren't those of {dataset.name}: {found.size_bytes:,} bytes with sha256 "
                f"{found.sha256[:12]}…, and {part.size_bytes:,} with {part.sha256[:12]}… are needed. "
                "The cache stays as it was."
            )


def _notice(dataset: DataSet, stored: Stored, licences: str) -> str:
    if stored.sha256 != dataset.sha256:
        return f"A text that was given with `fast data {dataset.name} --from`; its licence isn't known.\n"
    return "\n\n".join(filter(None, (dataset.notice, licences))).rstrip() + "\n"


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _remove(paths: Set[Path]) -> None:
    """Files that belong to no set any more. One that can't be removed harms nobody."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _why_not(dataset: DataSet, folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"there is no room for {dataset.name} in {folder}: {error.strerror}. "
            "Make room, or set FAST_DATA to a folder elsewhere."
        )
    return (
        f"can't write {dataset.name} to {folder}: {error.strerror}. Set FAST_DATA to a folder that you own."
    )
