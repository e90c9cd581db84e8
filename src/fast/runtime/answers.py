"""What a world answered, as it is written down: small typed values, no tensors.

Everything that may turn out differently in the next run is one of these. A lane is the program that
asked: 0 is the turn itself, the others are rounds that go on beside it. In one lane questions and
answers always come in the same order, however the lanes are interleaved.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

Peers = tuple[int, ...]
Counts = dict[int, int]
"""By sender: so many of its letters with this tag had come in since the start."""


class Answer(Struct, frozen=True, array_like=True):
    """The root; which kind it is comes first in its bytes."""


class Opened(Answer, frozen=True, tag=0):
    """The first of every file: who writes, and on what."""

    schema: int
    id: int
    processor: str
    torch: str
    threads: int
    torch_seed: int
    hash_seed: str | None = None
    """PYTHONHASHSEED, on which the order of a set of strings depends."""


class Joined(Answer, frozen=True, tag=1):
    """It takes part, with this strategy."""

    strategy: str


class Looked(Answer, frozen=True, tag=2):
    """It read all letters of a tag: of these senders more had come than at the look before."""

    lane: int
    tag: str
    seen: Counts


class TookOne(Answer, frozen=True, tag=3):
    """It read the oldest letter of one sender; None if nothing was there."""

    lane: int
    tag: str
    sender: int
    seen: int | None


class Waited(Answer, frozen=True, tag=4):
    """A wait was over: of these senders something was there."""

    lane: int
    tag: str
    seen: Counts


class Drew(Answer, frozen=True, tag=5):
    """A random number."""

    lane: int
    value: float


class Departed(Answer, frozen=True, tag=6):
    """Who had left, with its steps."""

    lane: int
    gone: Counts


class Sent(Answer, frozen=True, tag=7):
    """A letter was about to be handed over: for whom, and who of them had left already."""

    lane: int
    tag: str
    to: Peers
    gone: Peers = ()


class Flushed(Answer, frozen=True, tag=8):
    """A letter that had waited for room went out, when this many of its tag had been sent there."""

    to: int
    tag: str
    after: int


class Reduced(Answer, frozen=True, tag=9):
    """A mean that was made in place, among these."""

    lane: int
    members: Peers


class WentOn(Answer, frozen=True, tag=10):
    """Whether a server had to serve another turn, or a worker's pass over its data went on."""

    more: bool


class Stepped(Answer, frozen=True, tag=11):
    """A worker had done so many steps, or a server so many turns."""

    steps: int
    samples: int
    view: int
    at_ns: int
    indices: tuple[int, ...] | None = None
    """Of this step's samples, where they are known."""
    digest: bytes | None = None
    """Of the weights; not of every step."""


class Ended(Answer, frozen=True, tag=12):
    """The participant came to its end."""

    steps: int
    digest: bytes


class Refused(Answer, frozen=True, tag=13):
    """There was no room for a letter: the so manieth with its tag that was sent there."""

    to: int
    tag: str
    number: int


class Raised(Answer, frozen=True, tag=14):
    """The participant ended with an error of its own."""

    message: str


class Stopped(Answer, frozen=True, tag=15):
    """A worker was told to stop, and left after the step that it had just done."""


class Listening(Answer, frozen=True, tag=16):
    """Who of those that had left still received letters."""

    lane: int
    peers: Peers


AnyAnswer = (
    Opened
    | Joined
    | Looked
    | TookOne
    | Waited
    | Drew
    | Departed
    | Sent
    | Flushed
    | Reduced
    | WentOn
    | Stepped
    | Ended
    | Raised
    | Refused
    | Stopped
    | Listening
)
Kind = TypeVar("Kind", bound=Answer)


def in_words(answer: Answer) -> str:
    """What an answer says that the program did."""
    match answer:
        case Joined(strategy):
            return f"it joined with {strategy}"
        case Looked(tag=tag):
            return f"it read its letters {tag!r}"
        case TookOne(tag=tag, sender=sender):
            return f"it took a letter {tag!r} of {sender}"
        case Waited(tag=tag):
            return f"it waited for letters {tag!r}"
        case Drew():
            return "it drew a random number"
        case Departed():
            return "it asked who had left"
        case Listening():
            return "it asked who still received letters"
        case Sent(tag=tag, to=to):
            return f"it sent a letter {tag!r} to {', '.join(map(str, to))}"
        case Reduced(members=members):
            return f"it took part in a mean among {', '.join(map(str, members))}"
        case WentOn(more):
            return "it went on" if more else "it stopped"
        case Stepped(steps, samples, view):
            return f"it had done {steps} steps, the last one on {samples} samples in view {view}"
        case Ended(steps):
            return f"it ended after {steps} steps"
        case Raised(message):
            return f"it failed with: {message}"
        case Stopped():
            return "it was told to stop"
    return type(answer).__name__


def lane_of(answer: Answer) -> int:
    """The program that asked; what belongs to none comes from the turn itself."""
    lane: int = getattr(answer, "lane", 0)
    return lane
