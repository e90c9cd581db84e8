"""Who has which training samples: alike for all, or unequal by class or by number.

    iid              every step is cut out of one common order of all samples
    dirichlet(0.3)   by class: the samples of each class go to the workers in proportions drawn from
                     Dirichlet(0.3); the smaller the number, the fewer classes a worker sees
                     (Hsu, Qi and Brown 2019)
    sizes(0.5)       by number: one such draw for all samples, so that workers differ in how many
                     they have and not in which

All is drawn from the seed of the run, the same in every process.
"""

from __future__ import annotations

import ast
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fast.core import Task
from fast.core.seeds import stream_seed
from fast.errors import UsageError

Assignment = list[list[int]]
"""Indices of training samples, worker by worker; each sample belongs to exactly one."""


class Split(ABC):
    """How training samples are divided. `str` gives the text that reads back as the same split."""

    @abstractmethod
    def assign(self, task: Task, workers: int, seed: int) -> Assignment | None:
        """Each worker's own samples; None if nobody has samples of its own."""


@final
@dataclass(frozen=True)
class Iid(Split):
    """No worker has samples of its own."""

    def __str__(self) -> str:
        return "iid"

    def assign(self, task: Task, workers: int, seed: int) -> None:
        return None


class _Drawn(Split):
    """Groups of samples, each divided in proportions drawn from Dirichlet(alpha)."""

    name: ClassVar[str]
    alpha: float

    def __str__(self) -> str:
        return f"{self.name}({_plain(self.alpha)})"

    def assign(self, task: Task, workers: int, seed: int) -> Assignment:
        generator = np.random.default_rng(stream_seed(seed, "split", self.name))
        mine = [[np.empty(0, np.int64)] for _ in range(workers)]
        for group in self._groups(task):
            for worker, piece in enumerate(_cut(group, workers, self.alpha, generator)):
                mine[worker].append(piece)
        assignment = [np.sort(np.concatenate(pieces)).tolist() for pieces in mine]
        _check_nobody_is_empty(self, assignment)
        return assignment

    @abstractmethod
    def _groups(self, task: Task) -> list[NDArray[np.int64]]: ...


@final
@dataclass(frozen=True)
class ByClass(_Drawn):
    """Unequal in content: each class is divided in proportions of its own."""

    name: ClassVar[str] = "dirichlet"
    alpha: float

    def _groups(self, task: Task) -> list[NDArray[np.int64]]:
        labels = task.labels()
        if labels is None:
            raise UsageError(
                f"{self} divides by class, and {type(task).__name__} has no labels(). "
                f"Write that method, or use sizes({_plain(self.alpha)}) or iid."
            )
        classes = np.asarray(labels)
        samples = len(task.train())
        if classes.shape != (samples,):
            raise UsageError(
                f"{type(task).__name__}.labels() has the shape {classes.shape}, and one label for each of "
                f"the {samples} training samples is needed"
            )
        return [np.flatnonzero(classes == each) for each in np.unique(classes)]


@final
@dataclass(frozen=True)
class BySize(_Drawn):
    """Unequal in number, alike in content."""

    name: ClassVar[str] = "sizes"
    alpha: float

    def _groups(self, task: Task) -> list[NDArray[np.int64]]:
        return [np.arange(len(task.train()))]


def _cut(
    group: NDArray[np.int64], workers: int, alpha: float, generator: Generator
) -> list[NDArray[np.int64]]:
    """A shuffled group in pieces, in proportions that are drawn."""
    shares = generator.dirichlet(np.full(workers, alpha))
    cuts = np.rint(np.cumsum(shares)[:-1] * len(group)).astype(np.int64)
    return np.split(generator.permutation(group), cuts)


def _plain(number: float) -> str:
    """As short as it reads back: 0.3, 1."""
    return repr(float(number)).removesuffix(".0")


def _check_nobody_is_empty(split: Split, assignment: Assignment) -> None:
    empty = [str(worker) for worker, samples in enumerate(assignment) if not samples]
    if empty:
        who = f"worker {empty[0]}" if len(empty) == 1 else f"workers {', '.join(empty)}"
        raise UsageError(
            f"{split} leaves {who} of {len(assignment)} without a single training sample. "
            "Try a larger number in it, fewer workers, or another seed."
        )


def batches(assignment: Assignment, worker: int, seed: int, batch_size: int) -> Iterator[list[int]]:
    """Without end: this worker's own epochs one after another, each in an order of its own, cut into
    full batches. A batch may hold the end of one epoch and the beginning of the next."""
    samples = itertools.chain.from_iterable(_epochs(assignment[worker], worker, seed))
    while True:
        yield list(itertools.islice(samples, batch_size))


def _epochs(samples: Sequence[int], worker: int, seed: int) -> Iterator[list[int]]:
    for epoch in itertools.count():
        generator = np.random.default_rng(stream_seed(seed, "own order", worker, epoch))
        yield generator.permutation(samples).tolist()


# Splits as text

_DRAWN: Mapping[str, type[ByClass | BySize]] = MappingProxyType({"dirichlet": ByClass, "sizes": BySize})
_FORMS = "iid, dirichlet(0.3) or sizes(0.5)"
_SMALLEST, _LARGEST = 1e-3, 1e6
"""Of alpha: below, a worker gets all or nothing; above, there is nothing unequal left."""


def parse_split(text: str) -> Split:
    """The split that a text names, read with `ast` and never evaluated."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"the split {text!r} can't be read. Write {_FORMS}.") from error
    match tree:
        case ast.Name(id=name):
            return _built(text, name, [], [])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _built(text, name, args, keywords)
    raise UsageError(f"{text!r} isn't a split. Write {_FORMS}.")


def _built(text: str, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Split:
    if name not in ("iid", *_DRAWN):
        near = get_close_matches(name, ("iid", *_DRAWN), n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Write {_FORMS}."
        raise UsageError(f"there is no split {name!r}. {hint}")
    if name == "iid":
        if args or keywords:
            raise UsageError(f"{text}: iid takes no arguments; write just iid")
        return Iid()
    for keyword in keywords:
        if keyword.arg != "alpha":
            raise UsageError(f"{text}: {name} has no argument {keyword.arg!r}. Its one argument is alpha.")
    given = [*args, *(keyword.value for keyword in keywords)]
    if len(given) != 1:
        raise UsageError(f"{text}: {name} takes one number, and this has {len(given)}. Write {name}(0.3).")
    return _DRAWN[name](_alpha(text, given[0]))


def _alpha(text: str, given: ast.expr) -> float:
    number = given.value if isinstance(given, ast.Constant) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not _SMALLEST <= number <= _LARGEST:
        raise UsageError(
            f"{text}: alpha is a number from {_SMALLEST:g} to {_LARGEST:,.0f}; around 0.3 workers differ "
            "a lot, at 100 hardly at all"
        )
    return float(number)
