"""The cache: what has been fetched, checked by hash when it goes in and when it is read.

    <cache>/mnist/train-images-ba891046e650.idx     named by its contents
                  ...
                  set.json                          which files belong to the set, and their hashes
                  LICENCE.txt

Every file is written under another name first and then renamed, and `set.json` comes last. So a reader
sees the whole set before or the whole set after, whoever writes at the same time and wherever a
writer is interrupted.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import msgspec

from fast.errors import UsageError
from fast.lab.datasets.catalogue import DataSet, find, set_hash
from fast.lab.datasets.wheels import Contents

MANIFEST = "set.json"
"""Names the files of a set and their hashes."""
_CHUNK_BYTES = 1 << 20
OWN_LICENCE = "not known: a text of your own, not the catalogue's"


class State(Enum):
    """How a set is found in the cache."""

    PRESENT = "present"
    OWN = "your own"
    MISSING = "missing"
    BROKEN = "broken"
    BUNDLED = "bundled"


class StoredPart(msgspec.Struct, frozen=True):
    """One file of a set in the cache."""

    sha256: str
    size_bytes: int


class Stored(msgspec.Struct, frozen=True):
    """What `set.json` says."""

    name: str
    parts: dict[str, StoredPart]
    schema: int = 1

    @property
    def sha256(self) -> str:
        return set_hash(part.sha256 for part in self.parts.values())


def cache_folder() -> Path:
    """$FAST_DATA, or `fast/data` in the user's folder for caches."""
    if own := os.environ.get("FAST_DATA"):
        return Path(own).expanduser().absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).expanduser().absolute() / "fast" / "data"
    try:
        return Path.home() / ".cache" / "fast" / "data"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder to keep data in. Set FAST_DATA to a folder."
        ) from error


# Reading


def require(dataset: DataSet) -> None:
    """Say what to run if a set isn't there. This is cheap: contents are checked when they are read."""
    if dataset.bundled is None:
        _manifest(dataset, cache_folder())


def load(dataset: DataSet) -> Mapping[str, Path]:
    """The files of a set by the names of its parts; their hashes are checked once per process."""
    return _loaded(dataset, cache_folder())


@functools.cache
def _loaded(dataset: DataSet, cache: Path) -> Mapping[str, Path]:
    return MappingProxyType(_checked(dataset, cache))


def _checked(dataset: DataSet, cache: Path) -> dict[str, Path]:
    stored = _manifest(dataset, cache)
    paths = _paths(dataset, cache, stored)
    for name, path in paths.items():
        if _hash_of(path) != stored.parts[name].sha256:
            _refuse_broken(dataset, f"{path} is missing or was changed")
    return paths


def files_of(dataset: DataSet, cache: Path) -> set[Path]:
    """The files that `set.json` names at this moment."""
    try:
        return set(_paths(dataset, cache, _manifest(dataset, cache)).values())
    except UsageError:
        return set()


def _paths(dataset: DataSet, cache: Path, stored: Stored) -> dict[str, Path]:
    return {name: path_of(dataset, cache, name, part.sha256) for name, part in stored.parts.items()}


def _manifest(dataset: DataSet, cache: Path) -> Stored:
    path = cache / dataset.name / MANIFEST
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=Stored)
    except FileNotFoundError as error:
        raise UsageError(
            f"the data set {dataset.name} isn't here yet. Run: fast data {dataset.name}"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_broken(dataset, f"{path} can't be read ({error})")
    if list(stored.parts) != [part.name for part in dataset.parts]:
        _refuse_broken(dataset, f"{path} names other files than the set has")
    if stored.sha256 != dataset.sha256 and not dataset.open:
        _refuse_broken(dataset, f"{path} is of another version of the set")
    return stored


def _refuse_broken(dataset: DataSet, why: str) -> NoReturn:
    raise UsageError(f"the data set {dataset.name} is broken: {why}. Run again: fast data {dataset.name}")


def _hash_of(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def path_of(dataset: DataSet, cache: Path, part: str, sha256: str) -> Path:
    """Where a file with these contents lies."""
    return cache / dataset.name / f"{part}-{sha256[:12]}{dataset.part(part).suffix}"


def bundled(dataset: DataSet) -> Contents:
    """A set that comes with another package, checked like the others."""
    assert dataset.bundled is not None
    contents = dataset.bundled()
    for part in dataset.parts:
        if hashlib.sha256(contents[part.name]).hexdigest() != part.sha256:
            raise UsageError(
                f"the data set {dataset.name} that is installed isn't the one that results here are measured "
                "on. Install another version of the package that brings it."
            )
    return contents


# What is there


def state_of(dataset: DataSet) -> State:
    """Found out by reading all of it."""
    if dataset.bundled is not None:
        return State.BUNDLED
    cache = cache_folder()
    if not (cache / dataset.name / MANIFEST).exists():
        return State.MISSING
    try:
        _checked(dataset, cache)
    except UsageError:
        return State.BROKEN
    return State.PRESENT if _manifest(dataset, cache).sha256 == dataset.sha256 else State.OWN


def size_of(dataset: DataSet, part: str) -> int:
    """The bytes of one file: as stored, or, where there is nothing, as the catalogue says."""
    try:
        return _manifest(dataset, cache_folder()).parts[part].size_bytes
    except UsageError:
        return dataset.part(part).size_bytes


def provenance(name: str) -> dict[str, str]:
    """What a run's record says about a set: its name, the hash of what was read, its licence."""
    dataset = find(name)
    if dataset.bundled is not None:
        bundled(dataset)
        return {"name": name, "sha256": dataset.sha256, "licence": dataset.licence}
    load(dataset)
    sha256 = _manifest(dataset, cache_folder()).sha256
    licence = dataset.licence if sha256 == dataset.sha256 else OWN_LICENCE
    return {"name": name, "sha256": sha256, "licence": licence}
