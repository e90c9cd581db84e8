"""Logged values as TensorBoard events, where TensorBoard is installed (`pip install fast-training[tensorboard]`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

EVENTS = "tensorboard"


@final
class EventFile:
    """One participant's events. The file is made with the first value; without TensorBoard nothing is made."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / EVENTS / name.replace(" ", "-")
        self._wanted = importlib.util.find_spec("tensorboard") is not None
        self._writer: Any = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        if not self._wanted:
            return
        if self._writer is None:
            from tensorboard.summary import Writer

            self._writer = Writer(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
