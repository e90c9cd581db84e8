"""Scenarios: sentences in, the same sentences out, and what can't be is refused before the run."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

from fast.core import Strategy
from fast.errors import UsageError
from fast.sim.faults import Scenario, parse_scenario, read_scenario
from fast.sim.faults.deeds import (
    Cut,
    Datagrams,
    Deed,
    Flip,
    Freezes,
    Late,
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
from fast.sim.faults.letters import DETOUR_NS
from fast.sim.faults.parties import Group, Route, Span, Step, Time, only
from fast.sim.faults.reading import FORMS, read_clause

from .scenarios import SCENARIOS

S, MS = 10**9, 10**6

SENTENCES = {
    "worker 3 stops at step 40": Moves(only(3), Deed.STOP, Step(40)),
    "worker 3 dies at 2s": Moves(only(3), Deed.DIE, Time(2 * S)),
    "workers 3,4 die at 2s": Moves(only(3, 4), Deed.DIE, Time(2 * S)),
    "worker 5 freezes at 1.5s for 500ms": Freezes(only(5), Time(1500 * MS), 500 * MS),
    "server 0 freezes at 2s for 1s": Freezes(Group(servers=(0,)), Time(2 * S), S),
    "worker 3 returns at 6s": Moves(only(3), Deed.RETURN, Time(6 * S)),
    "worker 7 joins at 10s": Moves(only(7), Deed.JOIN, Time(10 * S)),
    "workers 0,1 can't reach 2,3 from 4s for 1s": Cut(
        only(0, 1), only(2, 3), False, Span(Time(4 * S), Time(S))
    ),
    "workers 0-3 and 4-7 are cut apart from 4s for 1s": Cut(
        only(0, 1, 2, 3), only(4, 5, 6, 7), True, Span(Time(4 * S), Time(S))
    ),
    "worker 2 can't reach server 0 for 1s": Cut(only(2), Group(servers=(0,)), False, Span(length=Time(S))),
    "workers 0,1 with server 0 and workers 2,3 are cut apart from step 5 for 1s": Cut(
        Group((0, 1), (0,)), only(2, 3), True, Span(Step(5), Time(S))
    ),
    "letters from 1 to 2 take 50ms longer from 2s for 1s": Late(
        50 * MS, False, Route(only(1), only(2)), Span(Time(2 * S), Time(S))
    ),
    "letters take up to 5ms longer": Late(5 * MS, True),
    "letters to server 0 take 1us longer": Late(1000, False, Route(None, Group(servers=(0,)))),
    "1% of letters are lost": Mishaps(1.0, Mishap.LOST),
    "0.25% of letters from 1 are lost from step 3": Mishaps(0.25, Mishap.LOST, Route(only(1)), Span(Step(3))),
    "2% of letters are doubled": Mishaps(2.0, Mishap.DOUBLED),
    "5% of letters are overtaken": Mishaps(5.0, Mishap.OVERTAKEN),
    "letters travel as datagrams": Datagrams(),
    "lost letters are sent again after 50ms": Resends(50 * MS),
    "worker 2 flips signs from step 10": Lies(only(2), Flip(), Span(Step(10))),
    "workers 2,4-6 flip signs": Lies(only(2, 4, 5, 6), Flip()),
    "worker 2 sends noise of 0.5": Lies(only(2), Noise(0.5)),
    "worker 2 scales by 100 from 3s for 2s": Lies(only(2), Scale(100.0), Span(Time(3 * S), Time(2 * S))),
    "worker 2 scales by -0.5 from step 3 for 4 steps": Lies(only(2), Scale(-0.5), Span(Step(3), Step(4))),
    "worker 2 sends NaN at step 7": Lies(only(2), NotANumber(), Span(Step(7), Step(1))),
    "deaths are noticed after 300ms": Notices(300 * MS),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_a_clause_and_the_clause_is_the_sentence(sentence):
    clause = SENTENCES[sentence]
    assert read_clause(sentence) == clause
    assert str(clause) == sentence


@settings(max_examples=300)
@given(SCENARIOS)
def test_what_is_printed_reads_back_exactly(scenario):
    assert parse_scenario(str(scenario)) == scenario
    assert parse_scenario(str(scenario).replace("; ", "\n")) == scenario


@pytest.mark.parametrize("example", [example for form in FORMS for example in form.examples])
def test_the_examples_in_hints_are_right_and_printed_as_they_are(example):
    assert str(parse_scenario(example)) == example


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ("  Worker 3  DIES at 2000 ms".replace("2000 ms", "2000ms") + ".", "worker 3 dies at 2s"),
        ("workers 1, 0 cannot reach workers 3, 2", "workers 0,1 can't reach 2,3"),
        ("workers 0 and 1 are cut apart", "worker 0 and 1 are cut apart"),
        ("worker 1 stop at step 3", "worker 1 stops at step 3"),
        ("workers 0,1,2,4 freeze at 1s for 0.5s", "workers 0-2,4 freeze at 1s for 500ms"),
        ("worker 2 sends nan from step 7 for 1 step", "worker 2 sends NaN at step 7"),
        ("worker 2 flips signs for 3 steps", "worker 2 flips signs from step 0 for 3 steps"),
        ("1e-1% of the letters are lost from 0s", "0.1% of letters are lost"),
        ("worker 1 dies at 2s;; \n ; # nobody else", "worker 1 dies at 2s"),
        ("# a comment\nworker 1 dies at 2s # why not\n\n5% of letters are lost",
         "worker 1 dies at 2s; 5% of letters are lost"),
        ("", ""),
    ],
)  # fmt: skip
def test_other_ways_to_say_it(loose, strict):
    assert str(parse_scenario(loose)) == strict


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("worker 3 dies after 2s", "worker 3 dies at 2s"),
        ("worker 3 dies at 2", "worker 3 dies at 2s"),
        ("worker 4 crashes at 3s", "worker 4 dies at 3s"),
        ("3% letters get lost", "3% of letters are lost"),
        ("letters are datagrams", "letters travel as datagrams"),
        ("letters from 3 to 4 are 20ms late from 1s for 2s",
         "letters from 3 to 4 take 20ms longer from 1s for 2s"),
    ],
)  # fmt: skip
def test_wrong_words_are_answered_with_the_nearest_right_sentence(wrong, right):
    with pytest.raises(
        UsageError, match=re.escape(f"'{wrong}' is no sentence of a scenario. Nearest is: {right}")
    ):
        parse_scenario(f"worker 1 dies at 1s; {wrong}")


@pytest.mark.parametrize(
    ("wrong", "word", "meant", "right"),
    [
        ("worker 3 dyes at 2s", "dyes", "dies", "worker 3 dies at 2s"),
        ("workers 4,5 retrun at step 9", "retrun", "return", "workers 4,5 return at step 9"),
        ("workers 0,1 frezze at 1s for 3s", "frezze", "freeze", "workers 0,1 freeze at 1s for 3s"),
        ("worker 9 flip sign", "sign", "signs", "worker 9 flip signs"),
        ("worker 9 scals by 7", "scals", "scales", "worker 9 scales by 7"),
        ("3% of lettres are lots", "lettres", "letters", "3% of letters are lost"),
        ("worker 4 dyes", "dyes", "dies", "worker 4 dies at 2s"),
    ],
)
def test_a_misspelt_word_is_named_with_the_one_that_was_meant(wrong, word, meant, right):
    with pytest.raises(UsageError) as refused:
        parse_scenario(f"worker 1 dies at 1s; {wrong}")
    said = str(refused.value)
    assert f"There is no '{word}' in one; did you mean '{meant}'?" in said
    assert said.endswith(f" Nearest is: {right}")


@pytest.mark.parametrize("sentence", ["worker 1 bursts at 2s", "worker 1 dies after 2s"])
def test_what_is_like_no_word_is_not_guessed(sentence):
    with pytest.raises(UsageError) as refused:
        parse_scenario(sentence)
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("worker 5 freezes at 1s for 0s", "longer than 0"),
        ("0% of letters are lost", "above 0 and at most 100"),
        ("101% of letters are lost", "above 0 and at most 100"),
        ("worker 1 and 1 are cut apart", "a participant is on both sides"),
        ("workers 3-1 die at 1s", "a range goes upwards"),
        ("worker 1 dies at 0.5ns", "whole nanoseconds"),
        ("worker 2 flips signs from 3s for 2 steps", "steps are counted from a step"),
        ("letters take 5ms longer from step 3 for 2 steps", "only what one worker does lasts for steps"),
        ("worker 2 sends noise of 0", "above 0"),
        ("letters take 5ms longer for 0s", "a span of no length"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_read(text, why):
    with pytest.raises(UsageError, match=why):
        parse_scenario(text)


def test_the_general_clauses_have_defaults():
    plain = Scenario()
    assert (plain.datagrams, plain.resend_ns, plain.notice_ns, plain.absent) == (
        False,
        200 * MS,
        S,
        frozenset(),
    )
    told = parse_scenario(
        "letters travel as datagrams; lost letters are sent again after 1ms; deaths are noticed after 2ms; "
        "workers 3,5 join at 1s"
    )
    assert (told.datagrams, told.resend_ns, told.notice_ns, told.absent) == (True, MS, 2 * MS, {3, 5})


# From a file


def test_a_scenario_may_be_in_a_file(tmp_path):
    file = tmp_path / "faults.txt"
    file.write_text("# a bad day\nworker 1 dies at 2s\n5% of letters are lost\n")
    assert str(read_scenario(str(file))) == "worker 1 dies at 2s; 5% of letters are lost"
    assert str(read_scenario("worker 1 dies at 2s")) == "worker 1 dies at 2s"
    assert read_scenario("letters travel as datagrams; " * 400) == Scenario((Datagrams(),) * 400)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="neither a file nor a sentence"):
        read_scenario(str(tmp_path / "nothing.txt"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="can't be read as a scenario"):
        read_scenario(str(tmp_path / "bytes"))


# Refusals


class Hardy(Strategy):
    """Stands everything."""

    survives_loss = True
    admits = True


class Delicate(Strategy):
    """Stands nothing but workers that stop."""

    survives_death = False


class Lockstep(Strategy):
    synchronous = True
    admits = True


@pytest.mark.parametrize("text", [*SENTENCES])
def test_what_a_hardy_strategy_stands_is_not_refused(text):
    also = ("letters travel as datagrams; " if "doubled" in text or "overtaken" in text else "") + (
        "worker 3 dies at 1s; " if "returns" in text else ""
    )
    parse_scenario(also + text).check(Hardy(), 9, 1)


REFUSED = [
    ("worker 4 dies at 1s", Hardy, "there is no worker 4; there are 4, from 0 to 3"),
    ("workers 2-6 can't reach 0", Hardy, "there is no worker 4-6"),
    ("letters from 9 take 1ms longer", Hardy, "there is no worker 9"),
    ("server 1 freezes at 1s for 1s", Hardy, "there is no server 1; there is only server 0"),
    ("server 0 dies at 1s", Hardy, "a server owns the weights"),
    ("server 0 flips signs", Hardy, "a server owns the weights"),
    ("worker 1 joins at 1s", Strategy, "doesn't take workers in while others train"),
    ("worker 1 dies at 1s; worker 1 returns at 9s", Strategy, "doesn't take workers in while others train"),
    ("worker 1 returns at 9s", Hardy, "worker 1 is still there. Only a worker that has stopped or died can return"),
    ("worker 1 dies at 1s; worker 1 returns at 3s; worker 1 returns at 4s", Hardy, "worker 1 is still there"),
    ("worker 1 dies at 1s; worker 1 dies at 3s", Hardy, "worker 1 has left before: `worker 1 dies at 1s`"),
    ("worker 1 dies at 1s; worker 1 joins at 3s", Hardy, "a worker that joins wasn't there before"),
    ("worker 1 returns at 3s; worker 1 dies at 2500ms", Hardy, "that is noticed at 3.5s"),
    ("worker 1 dies at 1s", Delicate, "can't go on when a worker dies .* `worker 1 stops at 1s`"),
    ("letters travel as datagrams", Strategy, "a datagram may never come"),
    ("2% of letters are doubled", Hardy, "which drops doubles, so nothing would happen"),
    ("2% of letters are overtaken", Hardy, "which keeps the order, so nothing would happen"),
    ("100% of letters are lost", Hardy, "send them again for ever"),
    ("worker 0 can't reach 1", Strategy, "this cut is never healed"),
    ("letters travel as datagrams; lost letters are sent again after 1s", Hardy, "datagrams are never sent again"),
    ("deaths are noticed after 1s; deaths are noticed after 2s", Hardy, "say it once"),
    ("workers 0-3 die at 1s", Hardy, "from 1s on it isn't certain that anybody would be there to train"),
    ("workers 0-2 die at 1s; worker 3 stops at step 5", Hardy, "it isn't certain that anybody would be there"),
    ("workers 0-3 join at 1s", Hardy, "at the start it isn't certain that anybody"),
    ("worker 0 joins at 2s; workers 1-3 die at 1s", Hardy, "from 1s on it isn't certain"),
    ("workers 0-3 flip signs", Hardy, "all 4 workers would be hostile at the same time"),
    ("workers 0-2 send NaN from 1s; worker 3 scales by 2 from step 3", Hardy, "all 4 workers would be hostile"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "strategy", "why"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_what_cannot_be_is_refused_before_the_run(text, strategy, why):
    with pytest.raises(UsageError, match=why):
        parse_scenario(text).check(strategy(), 4, 1)


@pytest.mark.parametrize(
    "text",
    [
        "worker 1 dies at 1s; worker 1 returns at 2s; worker 1 dies at 3s; worker 1 returns at 4s",
        "worker 1 returns at 2s; worker 1 dies at 1s",
        "worker 1 stops at 1s; worker 1 returns at 1100ms",
        "worker 1 dies at step 5; worker 1 returns at step 9",
        "worker 1 joins at 1s; worker 1 dies at 2s",
        "workers 0-2 die at 1s; workers 0-2 return at 3s",
        "worker 0 joins at 2s; workers 1-3 die at 3s",
        "workers 0,1 flip signs for 1s; workers 2,3 flip signs from 1s for 1s",
        "99% of letters are lost",
        "worker 0 can't reach 1 for 1s",
    ],
)
def test_what_can_be_is_not(text):
    parse_scenario(text).check(Lockstep(), 4, 1)


def test_a_run_without_servers_says_so():
    with pytest.raises(UsageError, match="this run has no servers"):
        parse_scenario("server 0 freezes at 1s for 1s").check(Hardy(), 4, 0)


# The page about it

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "faults.md"


def shown() -> list[str]:
    """The sentences in the tables of the page."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_shows_every_kind_of_sentence_as_it_is_printed():
    assert [str(parse_scenario(sentence)) for sentence in shown()] == shown()
    for form in FORMS:
        assert any(form.pattern.fullmatch(sentence.lower()) for sentence in shown()), form.examples[0]


def test_the_page_tells_the_times_that_go_without_saying():
    page = PAGE.read_text(encoding="utf-8")
    assert Scenario().notice_ns == S and "Until then the other workers wait. Default: 1 s" in page
    assert Scenario().resend_ns == DETOUR_NS == 200 * MS
    assert "the resend time; default: 200 ms" in page and "up to 200 ms longer" in page
