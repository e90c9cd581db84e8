"""The clauses of a scenario: what is done, by whom or to which letters, and when. Each prints as its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fast.errors import UsageError
from fast.sim.faults.parties import ALWAYS, EVERYWHERE, Group, Route, Span, Step, When
from fast.sim.faults.quantities import check_ns, check_number, show_number, show_time

# What somebody does


class Deed(Enum):
    """A change in who is there: the verb for one, and for several."""

    STOP = ("stops", "stop")
    DIE = ("dies", "die")
    RETURN = ("returns", "return")
    JOIN = ("joins", "join")


@dataclass(frozen=True)
class Moves:
    """Somebody stops (leaves in order), dies (without a word), returns, or joins late.

    A step is that of the one who stops or dies; who returns or joins does it when the first of the
    others has come that far.
    """

    who: Group
    deed: Deed
    when: When

    def __str__(self) -> str:
        return f"{self.who} {self.deed.value[self.who.several]} at {self.when}"


@dataclass(frozen=True)
class Freezes:
    """Somebody does nothing for a while and then goes on as if nothing had happened."""

    who: Group
    when: When
    for_ns: int

    def __post_init__(self) -> None:
        check_ns(self.for_ns, f"{self.who} frozen for")

    def __str__(self) -> str:
        verb = "freeze" if self.who.several else "freezes"
        return f"{self.who} {verb} at {self.when} for {show_time(self.for_ns)}"


# What hostile workers send


@dataclass(frozen=True)
class Flip:
    """The opposite of everything."""

    words = ("flips signs", "flip signs")

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Noise:
    """Everything plus normal noise of this standard deviation."""

    of: float
    words = ("sends noise of ", "send noise of ")

    def __post_init__(self) -> None:
        check_number(self.of, "noise of", least=0)

    def __str__(self) -> str:
        return show_number(self.of)


@dataclass(frozen=True)
class Scale:
    """Everything times this."""

    by: float
    words = ("scales by ", "scale by ")

    def __post_init__(self) -> None:
        check_number(self.by, "scaling by")

    def __str__(self) -> str:
        return show_number(self.by)


@dataclass(frozen=True)
class NotANumber:
    """NaN everywhere."""

    words = ("sends NaN", "send NaN")

    def __str__(self) -> str:
        return ""


Lie: TypeAlias = Flip | Noise | Scale | NotANumber


@dataclass(frozen=True)
class Lies:
    """Workers that send something else than they have; their own replicas stay as they are."""

    who: Group
    lie: Lie
    span: Span = ALWAYS

    def __str__(self) -> str:
        return f"{self.who} {self.lie.words[self.who.several]}{self.lie}{self.span}"


# What happens to letters


@dataclass(frozen=True)
class Cut:
    """No way from one group to another, or (both ways) between them."""

    one: Group
    other: Group
    both_ways: bool = False
    span: Span = ALWAYS

    def __post_init__(self) -> None:
        _check_by_time(self.span)
        if self.one.overlaps(self.other):
            raise UsageError(f"{self}: a participant is on both sides, and none can be cut off from itself")

    def __str__(self) -> str:
        plain = not self.one.servers and not self.other.servers
        other = self.other.bare if plain else str(self.other)
        verb = f"and {other} are cut apart" if self.both_ways else f"can't reach {other}"
        return f"{self.one} {verb}{self.span}"


@dataclass(frozen=True)
class Late:
    """Letters that take longer: by this time, or (`up_to`) by a random part of it."""

    by_ns: int
    up_to: bool = False
    route: Route = EVERYWHERE
    span: Span = ALWAYS

    def __post_init__(self) -> None:
        _check_by_time(self.span)
        check_ns(self.by_ns, "letters late by")

    def __str__(self) -> str:
        return f"letters{self.route} take {'up to ' * self.up_to}{show_time(self.by_ns)} longer{self.span}"


class Mishap(Enum):
    """What may befall a letter."""

    LOST = "lost"
    DOUBLED = "doubled"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True)
class Mishaps:
    """A share of the letters, each for itself at random, meets with one."""

    percent: float
    mishap: Mishap
    route: Route = EVERYWHERE
    span: Span = ALWAYS

    def __post_init__(self) -> None:
        _check_by_time(self.span)
        if not 0 < self.percent <= 100:
            raise UsageError(
                f"{self.percent:g}% of letters can't be {self.mishap.value}; it is above 0 and at most 100"
            )

    def __str__(self) -> str:
        return f"{show_number(self.percent)}% of letters{self.route} are {self.mishap.value}{self.span}"


def _check_by_time(span: Span) -> None:
    if isinstance(span.length, Step):
        raise UsageError(
            f"letters{span}: steps are those of one worker, so only what one worker does lasts for steps. "
            "Say how long in time, such as `for 1s`."
        )


# How things are in general


@dataclass(frozen=True)
class Datagrams:
    """Letters go one by one: what is lost stays lost, and later ones may be faster."""

    def __str__(self) -> str:
        return "letters travel as datagrams"


@dataclass(frozen=True)
class Resends:
    """When a stream sends again what was not confirmed."""

    after_ns: int

    def __post_init__(self) -> None:
        check_ns(self.after_ns, "sent again after")

    def __str__(self) -> str:
        return f"lost letters are sent again after {show_time(self.after_ns)}"


@dataclass(frozen=True)
class Notices:
    """When the others know of a death."""

    after_ns: int

    def __post_init__(self) -> None:
        check_ns(self.after_ns, "deaths noticed after", least=0)

    def __str__(self) -> str:
        return f"deaths are noticed after {show_time(self.after_ns)}"


Clause: TypeAlias = Moves | Freezes | Lies | Cut | Late | Mishaps | Datagrams | Resends | Notices
