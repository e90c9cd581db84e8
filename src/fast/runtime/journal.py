"""A journal: all that may turn out differently in the next run passes through it.

A `Recorder` writes the answers of a world down. A `Prompter` (in `prompting.py`) gives them again.
"""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import final

import numpy
import torch
from torch import Tensor

from fast.collectives.sums import SUMS
from fast.core import Letter, Strategy
from fast.core.seeds import stream_seed
from fast.core.world import Round
from fast.errors import UsageError
from fast.runtime import answers
from fast.runtime.answers import Answer, Counts, Peers
from fast.runtime.record import SCHEMA, FrameFile, processor
from fast.trace import Observer
from fast.view import View

_DIGEST_EVERY = 100
_DIGEST_AT = (1, 10)
"""And in these early steps, so that a run that differs from the start is caught soon."""


@dataclass(frozen=True)
class Done:
    """A participant has finished a step: a worker one of its own, a server a turn."""

    steps: int
    samples: int
    view: View
    weights: Callable[[], Tensor]


class Journal(ABC):
    """One participant's. A world asks it wherever the surroundings decide."""

    observers: Sequence[Observer] = ()
    """Who else hears what this participant does."""

    @abstractmethod
    def joined(self, strategy: Strategy) -> None:
        """The training begins."""

    @abstractmethod
    def drew(self, lane: int, value: float) -> None: ...

    @abstractmethod
    def departures(self, lane: int, found: Mapping[int, int]) -> Mapping[int, int]:
        """Who has left, given who is found to have."""

    @abstractmethod
    def listening(self, lane: int, found: Peers) -> Peers:
        """Who has left and still receives letters, given who is found to."""

    # Letters that go out

    @abstractmethod
    def addressed(self, lane: int, tag: str, to: Peers, here: Peers) -> Peers:
        """A letter is about to be sent: which of its receivers count as here."""

    @abstractmethod
    def refusing(self) -> Peers:
        """Who must have no room for the letter that is being sent."""

    @abstractmethod
    def posted(self, refused: Peers) -> None:
        """It has been sent; for these it waits."""

    @abstractmethod
    def may_flush(self, to: int, tag: str) -> bool:
        """Whether a letter that waited may go out now."""

    @abstractmethod
    def flushed(self, to: int, tag: str) -> None:
        """It has."""

    # Letters that come in

    @abstractmethod
    def keeps(self, letter: Letter) -> bool:
        """Whether a letter that has come in is held back from the mailbox."""

    @abstractmethod
    def looks(self, lane: int, tag: str, senders: Collection[int] | None) -> Counts:
        """All letters of a tag are about to be read: so many must have come before that."""

    @abstractmethod
    def looks_for(self, lane: int, tag: str, sender: int, found: bool) -> Counts:
        """The oldest letter of one sender is about to be read, if one was found."""

    @abstractmethod
    def due(self, tag: str, seen: Counts) -> list[Letter]:
        """The letters that were held back and must be in the mailbox now; all of them have come."""

    @abstractmethod
    def awaits(self, lane: int, tag: str) -> Counts | None:
        """A wait begins: what ends it; None if the surroundings decide."""

    @abstractmethod
    def waited(self, lane: int, tag: str, there: Peers) -> None:
        """It is over, and of these something is there."""

    def come(self, tag: str, seen: Counts) -> bool:
        """Whether so many have come in, held back or not."""
        return True

    # Rounds and turns

    @abstractmethod
    def reducing(self, lane: int) -> None:
        """A mean in place is about to begin."""

    @abstractmethod
    def reduced(self, lane: int, members: Peers) -> None: ...

    @abstractmethod
    def goes_on(self, more: bool) -> bool:
        """Whether a server serves another turn, or a pass over data goes on, given whether there is a reason to."""

    @abstractmethod
    def stops(self, told: bool) -> bool:
        """Whether a worker leaves after its step, given whether it was told to."""

    def sampled(self, indices: Sequence[int]) -> None:  # noqa: B027 (only for those who tell)
        """These samples go into the step that is being computed."""

    @abstractmethod
    def stepped(self, done: Done) -> None:
        """A step (a server's turn) is done."""

    @abstractmethod
    def ended(self, steps: int, weights: Callable[[], Tensor]) -> None:
        """The participant has come to its end."""

    @abstractmethod
    def raised(self, message: str) -> None:
        """It has ended with an error."""


@final
class Recorder(Journal):
    """Writes down what the world answers, before anybody else can see what came of it."""

    def __init__(self, folder: Path, id: int, threads: int) -> None:
        self._file = FrameFile(folder, id)
        self._pending: list[Answer] = [opening(id, threads)]
        self._come: dict[str, Counts] = {}
        self._told: dict[str, Counts] = {}
        """What the looks so far have said of it."""
        self._posts: Counter[tuple[int, str]] = Counter()
        self._sending = ""
        """The tag of the letter that is being sent."""
        self._indices: list[int] | None = None
        self._write()

    def _note(self, answer: Answer) -> None:
        self._pending.append(answer)

    def _write(self) -> None:
        """What was answered so far must be in the file before others see what came of it."""
        if self._pending:
            self._file.append(self._pending)
            self._pending.clear()

    def joined(self, strategy: Strategy) -> None:
        check_recordable(strategy)
        self._note(answers.Joined(repr(strategy)))
        self._write()  # the others see it join, and may end the run before it writes again

    def drew(self, lane: int, value: float) -> None:
        self._note(answers.Drew(lane, value))

    def departures(self, lane: int, found: Mapping[int, int]) -> Mapping[int, int]:
        self._note(answers.Departed(lane, dict(found)))
        return found

    def listening(self, lane: int, found: Peers) -> Peers:
        self._note(answers.Listening(lane, found))
        return found

    def addressed(self, lane: int, tag: str, to: Peers, here: Peers) -> Peers:
        self._note(answers.Sent(lane, tag, to, tuple(peer for peer in to if peer not in here)))
        self._write()
        self._posts.update((peer, tag) for peer in here)
        self._sending = tag
        return here

    def refusing(self) -> Peers:
        return ()

    def posted(self, refused: Peers) -> None:
        for peer in refused:
            self._note(answers.Refused(peer, self._sending, self._posts[peer, self._sending]))

    def may_flush(self, to: int, tag: str) -> bool:
        return True

    def flushed(self, to: int, tag: str) -> None:
        self._note(answers.Flushed(to, tag, self._posts[to, tag]))
        self._write()

    def keeps(self, letter: Letter) -> bool:
        come = self._come.setdefault(letter.tag, {})
        come[letter.sender] = come.get(letter.sender, 0) + 1
        return False

    def looks(self, lane: int, tag: str, senders: Collection[int] | None) -> Counts:
        come, told = self._come.get(tag, {}), self._told.setdefault(tag, {})
        wanted = come if senders is None else [sender for sender in senders if sender in come]
        fresh = {sender: come[sender] for sender in wanted if told.get(sender) != come[sender]}
        told.update(fresh)
        self._note(answers.Looked(lane, tag, fresh))
        return {}

    def looks_for(self, lane: int, tag: str, sender: int, found: bool) -> Counts:
        seen = self._come[tag][sender] if found else None
        if seen is not None:
            self._told.setdefault(tag, {})[sender] = seen
        self._note(answers.TookOne(lane, tag, sender, seen))
        return {}

    def due(self, tag: str, seen: Counts) -> list[Letter]:
        return []

    def awaits(self, lane: int, tag: str) -> Counts | None:
        return None

    def waited(self, lane: int, tag: str, there: Peers) -> None:
        come = self._come.get(tag, {})
        self._note(answers.Waited(lane, tag, {peer: come[peer] for peer in there}))

    def reducing(self, lane: int) -> None:
        self._write()

    def reduced(self, lane: int, members: Peers) -> None:
        self._note(answers.Reduced(lane, members))

    def goes_on(self, more: bool) -> bool:
        self._note(answers.WentOn(more))
        return more

    def stops(self, told: bool) -> bool:
        if told:
            self._note(answers.Stopped())
            self._write()
        return told

    def sampled(self, indices: Sequence[int]) -> None:
        self._indices = [*(self._indices or ()), *indices]

    def stepped(self, done: Done) -> None:
        digest = digest_of(done.weights()) if has_digest(done.steps) else None
        indices = None if self._indices is None else tuple(self._indices)
        at_ns, view = time.monotonic_ns(), done.view.number
        self._note(answers.Stepped(done.steps, done.samples, view, at_ns, indices, digest))
        self._indices = None
        self._write()

    def ended(self, steps: int, weights: Callable[[], Tensor]) -> None:
        self._note(answers.Ended(steps, digest_of(weights())))
        self._write()

    def raised(self, message: str) -> None:
        self._note(answers.Raised(message))
        self._write()


def opening(id: int, threads: int) -> answers.Opened:
    """Who begins here, and on what."""
    seed, hash_seed = torch.initial_seed(), os.environ.get("PYTHONHASHSEED")
    return answers.Opened(SCHEMA, id, processor(), str(torch.__version__), threads, seed, hash_seed)


def has_digest(steps: int) -> bool:
    """Whether the weights are compared after this step."""
    return steps % _DIGEST_EVERY == 0 or steps in _DIGEST_AT


def digest_of(weights: Tensor) -> bytes:
    """Equal for equal bits."""
    flat = weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(memoryview(flat.numpy()), digest_size=16).digest()  # type: ignore[arg-type]


# What can be recorded


def check_recordable(strategy: Strategy) -> None:
    """Refuse a strategy whose runs promise no bits."""
    if strategy.racy:
        raise UsageError(
            f"{strategy!r} reads its peers' memory while they write, so no run of it can be repeated bit for "
            "bit. Run it without --record."
        )
    check_order(getattr(strategy, "algorithm", "auto"), getattr(strategy, "order", "canonical") == "any")


def check_round(round_: Round) -> None:
    """The same for a round that a program asks for."""
    check_order(round_.algorithm, round_.any_order)


def check_order(algorithm: str, any_order: bool) -> None:
    by_name = SUMS.get(algorithm)
    if any_order or (by_name is not None and not by_name.canonical):
        asked = 'order="any"' if any_order else f"algorithm={algorithm!r}"
        raise UsageError(
            f"{asked} adds in an order of its own, which no promise about equal bits includes, so it can't be "
            "recorded. Leave it out (the canonical order), or run without --record."
        )


# Random numbers of the script


def seed_script(seed: int | None, worker: int) -> None:
    """Start the script's own generators from known numbers, which a replay starts from again.

    They stay as alike or unlike between the workers as they are without a record: numpy's are forked
    from one process and equal, Python's differ, and torch's always begins with the same number.
    """
    numpy.random.seed(stream_seed(seed or 0, "numpy") % (1 << 32))
    random.seed(stream_seed(seed or 0, "python", worker))
