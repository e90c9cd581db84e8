"""The journal of a replay: it gives the answers of a record again, and notices who asks something else."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import final

from torch import Tensor

from fast.core import Letter, Strategy
from fast.errors import FastError, UsageError
from fast.runtime import answers
from fast.runtime.answers import Answer, Counts, Kind, Peers, in_words, lane_of
from fast.runtime.journal import Done, Journal, digest_of
from fast.runtime.record import Part
from fast.trace import Observer


class Halt(BaseException):
    """Ends a participant of a replay where its record ends. Not an error, and nobody's to catch."""


class Diverged(UsageError):
    """The program did something else than the record says."""


class Recalled(FastError):
    """A wait that ended in an error then ends in it again: nobody waits for the clock in a replay."""


AfterStep = Callable[[Done, answers.Stepped], None]
"""Called after each step, also with what the record says of it."""


@final
class Prompter(Journal):
    """One participant's.

    Letters that have come in are held back until the record says that they had come by this look; a
    look waits for those that it needs. So everything is read as it was then, in whatever order
    the participants run now.
    """

    def __init__(
        self,
        name: str,
        part: Part,
        *,
        strict: bool = True,
        after_step: AfterStep = lambda done, said: None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._name, self._complete, self._strict = name, part.complete, strict
        self._after_step, self.observers = after_step, observers
        self._lanes: dict[int, deque[Answer]] = defaultdict(deque)
        self._refusals: set[tuple[int, str, int]] = set()
        self._flushes: Counter[tuple[int, str, int]] = Counter()
        for answer in part.answers:
            if isinstance(answer, answers.Flushed):
                self._flushes[answer.to, answer.tag, answer.after] += 1
            elif isinstance(answer, answers.Refused):
                self._refusals.add((answer.to, answer.tag, answer.number))
            else:
                self._lanes[lane_of(answer)].append(answer)
        self._posts: Counter[tuple[int, str]] = Counter()
        """How many letters were sent to whom."""
        self._refusing: Peers = ()
        self._held: dict[tuple[str, int], deque[Letter]] = defaultdict(deque)
        self._shown: Counter[tuple[str, int]] = Counter()
        self._indices: list[int] | None = None
        self._equal_after: int | None = None
        self.steps = 0
        self.ended_well = False
        self.divergence: Diverged | None = None
        """The first one, also if the script caught it."""
        self.differs = ""
        """Where the weights first were others than those of the record."""
        self.members: Peers = ()
        """Of the mean in place that is about to begin; nobody if the record ends there."""

    def next_at_ns(self) -> int:
        """When this participant finished its next step in the record: in this order they are run."""
        return next((a.at_ns for a in self._lanes[0] if isinstance(a, answers.Stepped)), 0)

    # Asking the record

    def _next(self, kind: type[Kind], lane: int, asked: Kind) -> Kind:
        """The next answer in this lane, which must be one to what was asked."""
        waiting = self._lanes[lane]
        if not waiting:
            if not self._complete:
                raise Halt
            raise self._diverged("the record has nothing more", asked)
        answer = waiting.popleft()
        if isinstance(answer, answers.Raised) and kind in (answers.Waited, answers.Reduced):
            waiting.appendleft(answer)  # `raised` will ask for it
            raise Recalled(answer.message)
        if not isinstance(answer, kind):
            raise self._diverged(f"the record says that {in_words(self._in_short(answer))}", asked)
        return answer

    def _in_short(self, answer: Answer) -> Answer:
        """What to say of an answer that fits no question: after the last step, that the participant ended."""
        rest = self._lanes[0]
        if not self.steps or not rest or any(isinstance(each, answers.Stepped) for each in (answer, *rest)):
            return answer
        return rest[-1]

    def _diverged(self, found: str, asked: Answer | str) -> Diverged:
        now = asked if isinstance(asked, str) else f"now {in_words(asked)}"
        self.divergence = self.divergence or Diverged(
            f"the replay of {self._name} diverges in step {self.steps + 1}: {found}, and {now}. Something that it "
            "depends on has changed, or is different each time (a clock, a file, a set's order)."
        )
        return self.divergence

    def _check(self, said: Answer, asked: Answer) -> None:
        if said != asked:
            raise self._diverged(f"the record says that {in_words(said)}", asked)

    # Answers

    def joined(self, strategy: Strategy) -> None:
        asked = answers.Joined(repr(strategy))
        self._check(self._next(answers.Joined, 0, asked), asked)

    def drew(self, lane: int, value: float) -> None:
        asked = answers.Drew(lane, value)
        said = self._next(answers.Drew, lane, asked)
        if said.value != value:
            raise self._diverged(f"the record says that it drew {said.value}", f"now it drew {value}")

    def departures(self, lane: int, found: Mapping[int, int]) -> Mapping[int, int]:
        return self._next(answers.Departed, lane, answers.Departed(lane, dict(found))).gone

    def listening(self, lane: int, found: Peers) -> Peers:
        return self._next(answers.Listening, lane, answers.Listening(lane, found)).peers

    def addressed(self, lane: int, tag: str, to: Peers, here: Peers) -> Peers:
        asked = answers.Sent(lane, tag, to)
        said = self._next(answers.Sent, lane, asked)
        self._check(answers.Sent(lane, said.tag, said.to), asked)
        here = tuple(peer for peer in to if peer not in said.gone)
        self._posts.update((peer, tag) for peer in here)
        self._refusing = tuple(p for p in here if (p, tag, self._posts[p, tag]) in self._refusals)
        return here

    def refusing(self) -> Peers:
        return self._refusing

    def posted(self, refused: Peers) -> None:
        self._refusing = ()

    def may_flush(self, to: int, tag: str) -> bool:
        return self._flushes[to, tag, self._posts[to, tag]] > 0

    def flushed(self, to: int, tag: str) -> None:
        self._flushes[to, tag, self._posts[to, tag]] -= 1

    def keeps(self, letter: Letter) -> bool:
        self._held[letter.tag, letter.sender].append(letter)
        return True

    def looks(self, lane: int, tag: str, senders: Collection[int] | None) -> Counts:
        asked = answers.Looked(lane, tag, {})
        said = self._next(answers.Looked, lane, asked)
        self._check(answers.Looked(lane, said.tag, {}), asked)
        return said.seen

    def looks_for(self, lane: int, tag: str, sender: int, found: bool) -> Counts:
        asked = answers.TookOne(lane, tag, sender, None)
        said = self._next(answers.TookOne, lane, asked)
        self._check(answers.TookOne(lane, said.tag, said.sender, None), asked)
        return {} if said.seen is None else {sender: said.seen}

    def come(self, tag: str, seen: Counts) -> bool:
        return all(
            self._shown[tag, sender] + len(self._held[tag, sender]) >= count for sender, count in seen.items()
        )

    def due(self, tag: str, seen: Counts) -> list[Letter]:
        letters = []
        for sender, count in seen.items():
            missing = count - self._shown[tag, sender]
            if missing < 0:
                raise self._diverged(
                    f"the record says that {count} letters {tag!r} of {sender} had come", "now more were read"
                )
            letters += [self._held[tag, sender].popleft() for _ in range(missing)]
            self._shown[tag, sender] = count
        return letters

    def awaits(self, lane: int, tag: str) -> Counts | None:
        asked = answers.Waited(lane, tag, {})
        said = self._next(answers.Waited, lane, asked)
        self._check(answers.Waited(lane, said.tag, {}), asked)
        return said.seen

    def waited(self, lane: int, tag: str, there: Peers) -> None:
        """`awaits` has said all."""

    def reducing(self, lane: int) -> None:
        if self._complete or self._lanes[lane]:
            self.members = self._next(answers.Reduced, lane, answers.Reduced(lane, ())).members
        else:
            self.members = ()  # the others may need what this one brought, before it was ended

    def reduced(self, lane: int, members: Peers) -> None:
        """`reducing` has said all."""

    def goes_on(self, more: bool) -> bool:
        return self._next(answers.WentOn, 0, answers.WentOn(more)).more

    def stops(self, told: bool) -> bool:
        """Nobody tells it now: it leaves where it did then."""
        waiting = self._lanes[0]
        if not waiting or not isinstance(waiting[0], answers.Stopped):
            return False
        waiting.popleft()
        return True

    # Steps

    def sampled(self, indices: Sequence[int]) -> None:
        self._indices = [*(self._indices or ()), *indices]

    def stepped(self, done: Done) -> None:
        asked = answers.Stepped(done.steps, done.samples, done.view.number, 0)
        said = self._next(answers.Stepped, 0, asked)
        self._check(answers.Stepped(said.steps, said.samples, said.view, 0), asked)
        indices = None if self._indices is None else tuple(self._indices)
        if said.indices != indices:
            raise self._diverged(
                f"the record says that it used the samples {_some(said.indices)}",
                f"now it used {_some(indices)}",
            )
        self._indices, self.steps = None, done.steps
        self._compare(said.digest, done.weights, f"after step {done.steps}")
        self._after_step(done, said)
        if not self._complete and not self._lanes[0]:
            raise Halt  # what its script did next (it may have killed itself) is not repeated

    def ended(self, steps: int, weights: Callable[[], Tensor]) -> None:
        asked = answers.Ended(steps, b"")
        said = self._next(answers.Ended, 0, asked)
        self._check(answers.Ended(said.steps, b""), asked)
        self._compare(said.digest, weights, "at the end")
        self.ended_well = True

    def raised(self, message: str) -> None:
        said = self._next(answers.Raised, 0, answers.Raised(message))
        if _kind_of(said.message) != _kind_of(message):  # the rest may hold an address or a time
            raise self._diverged(f"the record says that it failed with {said.message}", f"now with {message}")

    def _compare(self, digest: bytes | None, weights: Callable[[], Tensor], when: str) -> None:
        if digest is None:
            return
        if digest_of(weights()) == digest:
            self._equal_after = self.steps
            return
        if not self.differs:
            before = f"; after step {self._equal_after} they still were" if self._equal_after else ""
            self.differs = f"the weights of {self._name} {when} are not those of the record{before}"
        if self._strict:
            raise Diverged(
                f"the replay diverges: {self.differs}. Something that the script computes with is different each "
                "time or has changed: its data, a generator of its own, a clock."
            )


def _kind_of(message: str) -> str:
    """What was raised, if the message begins with that."""
    return message.partition(":")[0]


def _some(indices: Sequence[int] | None) -> str:
    if indices is None:
        return "of unknown numbers"
    shown = " ".join(map(str, indices[:8]))
    return f"{shown} ..." if len(indices) > 8 else shown
