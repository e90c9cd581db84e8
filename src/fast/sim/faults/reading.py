"""A sentence becomes a clause; a wrong one is answered with the nearest right one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from fast.errors import UsageError
from fast.sim.faults.deeds import (
    Clause,
    Cut,
    Datagrams,
    Deed,
    Flip,
    Freezes,
    Late,
    Lie,
    Lies,
    Mishap,
    Mishaps,
    Moves,
    Noise,
    NotANumber,
    Notices,
    Resends,
    Scale,
)
from fast.sim.faults.parties import START, Group, Route, Span, Step, Time, When
from fast.sim.faults.quantities import read_ids, read_time

Found = re.Match[str]

_IDS = r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*"
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_TIME = r"(?:\d+(?:\.\d*)?|\.\d+)(?:s|ms|us|µs|ns)"
_NAMED = rf"(?:workers?|servers?) {_IDS}(?: with (?:workers?|servers?) {_IDS})*"
_WHEN = rf"at (?P<when>step \d+|{_TIME})"
_SPAN = (
    rf"(?: at step (?P<at>\d+)"
    rf"|(?: from (?P<start>step \d+|{_TIME}))?(?: for (?P<length>\d+ steps?|{_TIME}))?)"
)
_ROUTE = rf"(?: from (?P<senders>{_NAMED}|{_IDS}))?(?: to (?P<receivers>{_NAMED}|{_IDS}))?"
MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Form:
    """One kind of sentence: how it is recognized, what it becomes, and examples of it."""

    pattern: re.Pattern[str]
    build: Callable[[Found], Clause]
    examples: tuple[str, ...]


def _form(pattern: str, build: Callable[[Found], Clause], *examples: str) -> Form:
    return Form(re.compile(pattern), build, examples)


def _moves(deed: Deed, *examples: str) -> Form:
    verb = "|".join(deed.value)
    return _form(
        rf"(?P<who>{_NAMED}) (?:{verb}) {_WHEN}",
        lambda found: Moves(_group(found["who"]), deed, _when(found["when"])),
        *examples,
    )


def _lies(words: str, lie: Callable[[Found], Lie], *examples: str) -> Form:
    return _form(
        rf"(?P<who>{_NAMED}) {words}{_SPAN}",
        lambda found: Lies(_group(found["who"]), lie(found), _span(found)),
        *examples,
    )


def _cut(words: str, both_ways: bool, *examples: str) -> Form:
    other = rf"(?P<other>{_NAMED}|{_IDS})"
    return _form(
        rf"(?P<who>{_NAMED}) {words.format(other=other)}{_SPAN}",
        lambda found: Cut(_group(found["who"]), _group(found["other"]), both_ways, _span(found)),
        *examples,
    )


def _mishaps(mishap: Mishap, *examples: str) -> Form:
    return _form(
        rf"(?P<percent>{_NUMBER})% of (?:the )?letters{_ROUTE} are {mishap.value}{_SPAN}",
        lambda found: Mishaps(float(found["percent"]), mishap, _route(found), _span(found)),
        *examples,
    )


FORMS = (
    _moves(Deed.DIE, "worker 3 dies at 2s", "worker 3 dies at step 40"),
    _moves(Deed.STOP, "worker 3 stops at step 40", "worker 3 stops at 2s"),
    _moves(Deed.RETURN, "worker 3 returns at 6s", "worker 3 returns at step 60"),
    _moves(Deed.JOIN, "worker 7 joins at 10s", "worker 7 joins at step 100"),
    _form(
        rf"(?P<who>{_NAMED}) freezes? {_WHEN} for (?P<for>{_TIME})",
        lambda found: Freezes(_group(found["who"]), _when(found["when"]), read_time(found["for"])),
        "worker 5 freezes at 1.5s for 500ms",
        "worker 5 freezes at step 30 for 500ms",
        "server 0 freezes at 2s for 1s",
    ),
    _cut("can(?:'t|not) reach {other}", False, "workers 0,1 can't reach 2,3 from 4s for 1s"),
    _cut("and {other} are cut apart", True, "workers 0-3 and 4-7 are cut apart from 4s for 1s"),
    _form(
        rf"letters{_ROUTE} take (?P<upto>up to )?(?P<by>{_TIME}) longer{_SPAN}",
        lambda found: Late(read_time(found["by"]), found["upto"] is not None, _route(found), _span(found)),
        "letters from 1 to 2 take 50ms longer from 2s for 1s",
        "letters take up to 5ms longer",
    ),
    _mishaps(Mishap.LOST, "1% of letters are lost", "1% of letters from 1 to 2 are lost from 2s for 1s"),
    _mishaps(Mishap.DOUBLED, "2% of letters are doubled"),
    _mishaps(Mishap.OVERTAKEN, "5% of letters are overtaken"),
    _form("letters travel as datagrams", lambda found: Datagrams(), "letters travel as datagrams"),
    _form(
        rf"lost letters are sent again after (?P<after>{_TIME})",
        lambda found: Resends(read_time(found["after"])),
        "lost letters are sent again after 200ms",
    ),
    _lies("flips? signs", lambda found: Flip(), "worker 2 flips signs from step 10"),
    _lies(
        rf"sends? noise of (?P<of>{_NUMBER})",
        lambda found: Noise(float(found["of"])),
        "worker 2 sends noise of 0.5",
    ),
    _lies(
        rf"scales? by (?P<by>-?{_NUMBER})",
        lambda found: Scale(float(found["by"])),
        "worker 2 scales by 100 from 3s for 2s",
    ),
    _lies("sends? nan", lambda found: NotANumber(), "worker 2 sends NaN at step 7"),
    _form(
        rf"deaths are noticed after (?P<after>{_TIME})",
        lambda found: Notices(read_time(found["after"])),
        "deaths are noticed after 300ms",
    ),
)


def read_clause(sentence: str) -> Clause:
    """The clause that this sentence says.

    >>> read_clause("worker 3 dies at 2s")
    Moves(who=Group(workers=(3,), servers=()), deed=<Deed.DIE: ('dies', 'die')>, when=Time(ns=2000000000))
    """
    if len(sentence) > MOST_CHARACTERS:
        raise UsageError(
            f"{sentence.strip()[:60]!r}... has {len(sentence):,} characters, and a sentence of a scenario has at most "
            f'{MOST_CHARACTERS:,}. Write several, separated by ";", or name workers by ranges such as 0-99.'
        )
    text = _plain(sentence)
    for form in FORMS:
        found = form.pattern.fullmatch(text)
        if found is not None:
            return form.build(found)
    raise UsageError(
        f"{sentence.strip()!r} is no sentence of a scenario.{_spelling(text)} Nearest is: {nearest(text)}"
    )


def _plain(sentence: str) -> str:
    """Small letters, single blanks, no full stop."""
    text = " ".join(sentence.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").split())
    return re.sub(r"\s*,\s*", ",", text.removesuffix("."))


# The parts of a sentence


def _group(text: str) -> Group:
    workers: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    for part in text.split(" with "):
        noun, _, ids = part.rpartition(" ")
        if noun.startswith("server"):
            servers += read_ids(ids)
        else:
            workers += read_ids(ids)
    return Group(workers, servers)


def _route(found: Found) -> Route:
    sides = (found["senders"], found["receivers"])
    senders, receivers = (None if side is None else _group(side) for side in sides)
    return Route(senders, receivers)


def _when(text: str) -> When:
    return Step(int(text.removeprefix("step "))) if text.startswith("step ") else Time(read_time(text))


def _span(found: Found) -> Span:
    if found["at"] is not None:
        return Span(Step(int(found["at"])), Step(1))
    length = None if found["length"] is None else _length(found["length"])
    if found["start"] is None:
        return Span(Step(0) if isinstance(length, Step) else START, length)
    return Span(_when(found["start"]), length)


def _length(text: str) -> When:
    return Step(int(text.split()[0])) if " step" in text else Time(read_time(text))


# The nearest right sentence

_QUANTITY = re.compile(rf"(?:{_IDS}|{_NUMBER})(?:%|(?:s|ms|us|µs|ns)\b)?")
_WORD = re.compile(r"[a-z']+")
_PLURALS = ("workers", "servers", "steps", "freeze", "flip", "send", "scale", "cannot")
"""Words of right sentences that no example has, besides the verbs of deeds."""


def nearest(text: str) -> str:
    """This text with its misspelt words put right, if that is all that is wrong with it; else the example most
    like it, with its own numbers where they fit."""
    for wrong, right in misspelt(text):
        text = re.sub(rf"(?<![a-z']){re.escape(wrong)}(?![a-z'])", right, text)
    if _is_right(text):
        return text
    example = max(
        (example for form in FORMS for example in form.examples), key=lambda example: _likeness(text, example)
    )
    filled = _filled(example, _QUANTITY.findall(text))
    return filled if _is_right(filled) else example


def misspelt(text: str) -> list[tuple[str, str]]:
    """The words that no sentence has, each with the word that it is close to.

    >>> misspelt("worker 3 dyes at 2s"), misspelt("worker 3 crashes at 2s")
    ([('dyes', 'dies')], [])
    """
    known = _words_of_sentences()
    strange = dict.fromkeys(word for word in _words(text) if word not in known)
    near = ((word, get_close_matches(word, known, n=1, cutoff=0.7)) for word in strange)
    return [(word, found[0]) for word, found in near if found]


def _spelling(text: str) -> str:
    """With a blank before it, or nothing if no word is like one that there is."""
    return "".join(
        f" There is no {wrong!r} in one; did you mean {right!r}?" for wrong, right in misspelt(text)
    )


def _words_of_sentences() -> list[str]:
    examples = (word for form in FORMS for example in form.examples for word in _words(example))
    return sorted({*examples, *(verb for deed in Deed for verb in deed.value), *_PLURALS})


def _words(text: str) -> list[str]:
    return _WORD.findall(_QUANTITY.sub(" ", text.lower()))


def _likeness(text: str, example: str) -> float:
    """In words and in letters, whatever the numbers."""
    one, other = (_QUANTITY.sub("#", each.lower()) for each in (text, example))
    return (
        SequenceMatcher(None, one.split(), other.split()).ratio() + SequenceMatcher(None, one, other).ratio()
    )


def _filled(example: str, quantities: list[str]) -> str:
    left = iter(quantities)
    return _QUANTITY.sub(lambda found: next(left, found[0]), example)


def _is_right(sentence: str) -> bool:
    text = _plain(sentence)
    return any(form.pattern.fullmatch(text) for form in FORMS)
