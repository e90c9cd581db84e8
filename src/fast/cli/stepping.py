"""What a replay shows: the workers' lines, and one worker step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from fast.engine import current_seat
from fast.engine.replay import Watch
from fast.runtime.answers import Stepped
from fast.runtime.journal import Done, digest_of
from fast.trace import Received, Record, Reduced, Sent

_QUIET_S = 10.0
"""A line about the progress at most this often."""
_SHOWN = 12
"""So many numbers of samples are shown."""


@final
class ReplayDisplay:
    """A listener of a replay. It keeps the real streams, because a replay lays out others."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._in, self._out, self._err = sys.stdin, sys.stdout, sys.stderr
        self._said: set[str] = set()
        self._spoke = time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "line", "who": who, "text": text, "stream": stream} if not self._quiet:
                print(f"[{who}] {text}", file=self._err if stream == 2 else self._out, flush=True)
            case {"event": "say", "text": text} if text not in self._said:
                self._said.add(text)
                self.say(text)
            case {"event": "progress", "steps": steps} if time.monotonic() - self._spoke > _QUIET_S:
                self.say(f"steps per worker: {' '.join(map(str, steps))}")

    def say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(f"fast: {text}", file=self._err, flush=True)

    def show(self, lines: list[str]) -> None:
        self._spoke = time.monotonic()
        print("\n".join(lines), file=self._out, flush=True)

    def wants_more(self) -> bool:
        """On a terminal: wait for Enter; anything else before it ends the replay."""
        if not (self._out.isatty() and self._in.isatty()):
            return True
        print("Enter: the next step; q and Enter: stop ", end="", file=self._out, flush=True)
        return self._in.readline() == "\n"


@final
class Shoulder(Watch):
    """Looks over one worker's shoulder: what it read and sent in a step, and what its weights became."""

    def __init__(self, worker: int, display: ReplayDisplay, *, each: bool, until: int | None) -> None:
        self.worker, self._display, self._each, self._until = worker, display, each, until
        self.asked = each or until is not None
        self.losses: list[float] = []
        self._records: list[Record] = []
        self.observers = (self._records.append,) if self.asked else ()

    def stepped(self, done: Done, said: Stepped) -> bool:
        enough = self._until is not None and done.steps >= self._until
        if self._each or enough:
            self._display.show(self._lines(done, said))
        self._records.clear()
        self.losses.clear()
        return enough or (self._each and not self._display.wants_more())

    def _lines(self, done: Done, said: Stepped) -> list[str]:
        shown = [
            ("view", f"{done.view.number}: workers {_listed(done.view.workers)}"),
            ("samples", _samples(done.samples, said.indices)),
            ("loss", ", ".join(f"{loss:.6g}" for loss in self.losses)),
            *(_in_words(record) for record in self._records),
            ("weights", _weights(done.weights())),
        ]
        lines = [f"  {what:<8} {words}" for what, words in shown if words]
        return [f"worker {self.worker}, step {done.steps}", *lines]


@contextmanager
def watching_losses(shoulder: Shoulder) -> Iterator[None]:
    """Know the losses from which the watched worker's gradients are computed."""
    if not shoulder.asked:
        yield
        return
    original = torch.Tensor.backward

    def backward(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if self.numel() == 1 and current_seat().id == shoulder.worker:
            shoulder.losses.append(float(self.detach()))
        return original(self, *arguments, **options)  # type: ignore[no-untyped-call]

    torch.Tensor.backward = backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = original  # type: ignore[method-assign]


def _in_words(record: Record) -> tuple[str, str]:
    match record:
        case Received(sender=sender, tag=tag, steps=steps):
            return "read", f"{tag!r} of {sender}, sent when it had done {_listed(steps)} steps"
        case Sent(to=to, tag=tag, nbytes=nbytes):
            return "sent", f"{tag!r} to {_listed(to)}, {nbytes:,} bytes"
        case Reduced(members=members):
            return "mean", f"among {_listed(members)}"
    return "", ""


def _samples(count: int, indices: tuple[int, ...] | None) -> str:
    return f"{count}" if indices is None else f"{count}: {_listed(indices)}"


def _listed(numbers: tuple[int, ...]) -> str:
    shown = " ".join(map(str, numbers[:_SHOWN]))
    return f"{shown} ..." if len(numbers) > _SHOWN else shown


def _weights(values: torch.Tensor) -> str:
    norm = f"norm {float(values.norm()):.9g}, " if values.is_floating_point() else ""
    return f"{norm}hash {digest_of(values).hex()}"
