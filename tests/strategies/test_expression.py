"""Strategies as text: what is read, what comes back, what is refused and how it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.core import Letter, Strategy
from fast.errors import UsageError
from fast.parts import Channels, Full, Ring, Torus, mean, sum_
from fast.parts.merge import enough
from fast.rules import by_age
from fast.strategies import catalogue
from fast.strategies.calls import short_call, with_argument
from fast.strategies.central.bounded import StaleSynchronous
from fast.strategies.decentral.neighbours import MixNeighbours, NeighbourGradients
from fast.strategies.expression import MOST_CHARACTERS, parse_strategies, parse_strategy

ALLREDUCE = "allreduce(codec=None, algorithm='auto', order='canonical', bucket_mb=None, rule=mean)"
NO_CODEC = "codec=None, bucket_mb=None"
ONE_SERVER = f"servers=1, {NO_CODEC}, rule=mean, correction=None"


def calls(text: str) -> list[str]:
    return [strategy.call for strategy in parse_strategies(text)]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("allreduce", ALLREDUCE),
        ("allreduce()", ALLREDUCE),
        ("local_sgd", "local_sgd(tau=10, moments='keep', rule=mean)"),
        ("local_sgd(4)", "local_sgd(tau=4, moments='keep', rule=mean)"),
        ("  local_sgd( tau = 4 )\n", "local_sgd(tau=4, moments='keep', rule=mean)"),
        ("ssp(inf)", f"ssp(bound=inf, {ONE_SERVER})"),
        (
            "ssp(1, servers='workers', correction=chain(by_staleness, explicit_momentum(-0.2)))",
            "ssp(bound=1, servers='workers', codec=None, bucket_mb=None, rule=mean, "
            "correction=chain(by_staleness(), explicit_momentum(mu=-0.2)))",
        ),
        ("ssp(0, 4, rule=sum)", f"ssp(bound=0, {ONE_SERVER})".replace("=1,", "=4,").replace("mean", "sum")),
        ("mxnet(kvstore='dist_async')", "mxnet(kvstore='dist_async', codec=None, rule=mean)"),
        ("ssp(bound=+2)", f"ssp(bound=2, {ONE_SERVER})"),
        ("dpsgd(full)", "dpsgd(topology=full(), moments='keep', rule=mean)"),
        ("dpsgd(torus(2, 3))", "dpsgd(topology=torus(rows=2, columns=3), moments='keep', rule=mean)"),
        (
            "dpsgd(channels([(0, 1), (2, 1)]))",
            "dpsgd(topology=channels([(0, 1), (1, 2)]), moments='keep', rule=mean)",
        ),
        ("torus", f"torus(rule=mean, send='auto', topology=torus(rows=None, columns=None), {NO_CODEC})"),
        (
            "torus(rule=sum, send='own', topology=torus(rows=2))",
            f"torus(rule=sum, send='own', topology=torus(rows=2, columns=None), {NO_CODEC})",
        ),
        (
            "allreduce(codec=fp16)",
            "allreduce(codec=fp16(), algorithm='auto', order='canonical', bucket_mb=None, rule=mean)",
        ),
        ("allreduce(rule=krum(1))", ALLREDUCE.replace("mean", "krum(hostile=1)")),
        ("allreduce(rule=median)", ALLREDUCE.replace("mean", "median()")),
        ("allreduce(rule=multi_krum(2))", ALLREDUCE.replace("mean", "multi_krum(hostile=2, chosen=None)")),
        (
            "allreduce(rule=norm_clip(2, trimmed_mean(1)))",
            ALLREDUCE.replace("mean", "norm_clip(limit=2, then=trimmed_mean(hostile=1))"),
        ),
        ("allreduce(rule=norm_clip(1.5))", ALLREDUCE.replace("mean", "norm_clip(limit=1.5, then=mean)")),
        (
            "choco(chain(clip(1.0), top_k(0.1)))",
            "choco(codec=chain(clip(norm=1.0), top_k(ratio=0.1)), gamma=0.2, topology=ring(), moments='keep')",
        ),
    ],
)
def test_names_and_calls(text: str, call: str) -> None:
    assert parse_strategy(text).call == call
    assert parse_strategy(call).call == call


def test_arguments_become_the_parts_themselves() -> None:
    strategy = parse_strategy("torus(rule=sum, send='own', topology=ring)")
    assert isinstance(strategy, NeighbourGradients)
    assert (strategy.rule, strategy.what, type(strategy.topology)) == (sum_, "own", Ring)
    mixed = parse_strategy("dpsgd(torus(columns=2))")
    assert isinstance(mixed, MixNeighbours)
    assert isinstance(mixed.topology, Torus)
    assert mixed.topology.sides(8) == (4, 2)
    unbounded = parse_strategy("ssp(inf)")
    assert isinstance(unbounded, StaleSynchronous)
    assert unbounded.bound == inf


def test_a_list_is_one_expression() -> None:
    assert calls("allreduce,ssp(bound=2),torus(rule=sum, send='own'),dpsgd(torus(2,3))") == [
        ALLREDUCE,
        f"ssp(bound=2, {ONE_SERVER})",
        f"torus(rule=sum, send='own', topology=torus(rows=None, columns=None), {NO_CODEC})",
        "dpsgd(topology=torus(rows=2, columns=3), moments='keep', rule=mean)",
    ]
    assert calls("allreduce") == calls("allreduce,") == [ALLREDUCE]


def test_one_strategy_means_one() -> None:
    with pytest.raises(UsageError, match="names 2"):
        parse_strategy("allreduce,torus")


# What a strategy says of itself reads back as the same strategy


@pytest.mark.parametrize("name", catalogue())
def test_every_preset_reads_back(name: str) -> None:
    call = catalogue()[name]().call
    assert parse_strategy(call).call == parse_strategy(name).call == call


@given(st.integers(1))
def test_local_sgd_reads_back(tau: int) -> None:
    call = catalogue()["local_sgd"](tau=tau).call
    assert parse_strategy(call).call == call


@given(st.integers(0) | st.integers(0, 10**6).map(float) | st.just(inf))
def test_ssp_reads_back(bound: float) -> None:
    strategy = catalogue()["ssp"](bound=bound)
    again = parse_strategy(strategy.call)
    assert isinstance(strategy, StaleSynchronous)
    assert isinstance(again, StaleSynchronous)
    assert (again.call, again.bound) == (strategy.call, strategy.bound)


@given(st.floats(0, 1))
def test_gossip_reads_back(p: float) -> None:
    call = catalogue()["gossip"](p=p).call
    assert parse_strategy(call).call == call


sides = st.none() | st.integers(1, 9)
pairs = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1])
topologies = (
    st.builds(Ring) | st.builds(Full) | st.builds(Torus, sides, sides) | st.builds(Channels, st.lists(pairs))
)


passed_on = st.sampled_from(
    [(mean, "own"), (mean, "merged"), (sum_, "own"), (sum_, "auto"), (by_age(0.5), "auto")]
)


@given(passed_on, topologies)
def test_torus_reads_back(given_: tuple[object, str], topology: object) -> None:
    rule, send = given_
    call = catalogue()["torus"](rule=rule, send=send, topology=topology).call
    assert parse_strategy(call).call == call


# Strategies in files


class Mine(Strategy):
    def __init__(self, *, p: float = 0.1, names: object = ()) -> None:
        self.p, self.names = p, names


def make(k: int, **rest: object) -> Strategy:
    return Mine(p=k, names=rest)


def load(path: str, name: str) -> object:
    """A caller's way to files. Whoever asks for a file of another name has misread the text."""
    assert path in ("my.py", "./some-dir/my.v2.py", "/абс/my.py", "~/a+b/my.py")
    return {"Mine": Mine, "make": make, "number": 3, "Foreign": dict, "none": lambda: None,
            "spread": lambda *args: Mine(), "built": Mine(), "halves": halves}[name]  # fmt: skip


@pytest.mark.parametrize("path", ["my.py", "./some-dir/my.v2.py", "/абс/my.py", "~/a+b/my.py"])
def test_a_strategy_from_a_file(path: str) -> None:
    strategy = parse_strategy(f"{path}:Mine(p=-2)", load)
    assert isinstance(strategy, Mine)
    assert (strategy.p, strategy.call) == (-2, f"{path}:Mine(p=-2, names=())")
    assert parse_strategy(f"{path}:Mine", load).call == f"{path}:Mine(p=0.1, names=())"
    assert parse_strategy(strategy.call, load).call == strategy.call


def test_a_function_from_a_file() -> None:
    strategy = parse_strategy("my.py:make(3, deep=[1, (None, True)], topology=ring)", load)
    assert strategy.call == "my.py:make(k=3, deep=[1, (None, True)], topology=ring())"
    assert parse_strategy(strategy.call, load).call == strategy.call


def test_a_list_mixes_files_and_names() -> None:
    strategies = parse_strategies("/абс/my.py:Mine, torus ,my.py:make(1),./some-dir/my.v2.py:Mine(p=2)", load)
    assert [strategy.call.split("(")[0] for strategy in strategies] == [
        "/абс/my.py:Mine", "torus", "my.py:make", "./some-dir/my.v2.py:Mine",
    ]  # fmt: skip


def test_a_file_name_inside_quotes_is_text() -> None:
    strategy = parse_strategy("""my.py:Mine(names=['other.py:Mine', "it's.py:Mine"])""", load)
    assert isinstance(strategy, Mine)
    assert strategy.names == ["other.py:Mine", "it's.py:Mine"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("my.py:number", "is 3. Name a subclass of Strategy"),
        ("my.py:Foreign", "Name a subclass of Strategy"),
        ("my.py:built", "Name a subclass of Strategy"),
        ("my.py:none", "returned None"),
        ("my.py:spread(1)", "can't be written as name=value"),
        ("my.py:make", r"missing a required argument: 'k'.*takes: k, rest"),
        ("my.py:make(k='3')", "k needs int, and this is str"),
        ("my.py:Mine(q=3)", r"no argument 'q'.*takes: p=0.1, names=\(\)"),
        ("torus(rule=my.py:make)", r"a function of \(own, weight, arrived\)"),
        ("torus(rule=my.py:Mine)", "as an argument only a merge rule is read from a file"),
        ("torus(rule=my.py:number)", "my.py:number is 3"),
        ("torus(rule=my.py:halves())", "a rule isn't called here"),
        ("torus(topology=my.py:make(1))", "only a strategy or a merge rule is read from a file"),
        ("torus(topology=my.py:halves)", "topology needs a topology .* and this is a rule"),
        ("my.py", "written file.py:Name"),
        ("./my.py", "written file.py:Name"),
    ],
)
def test_what_files_may_not_hold(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_strategy(text, load)


def test_without_a_loader_files_are_refused() -> None:
    for text in ("my.py:Mine", "torus(rule=my.py:halves)"):
        with pytest.raises(UsageError, match="files aren't read here"):
            parse_strategy(text)


def halves(own: Tensor, weight: float, arrived: Sequence[Letter]) -> Tensor:
    """Of one's own, to begin with."""
    return own / 2


halves.needs = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["my.py", "./some-dir/my.v2.py", "/абс/my.py", "~/a+b/my.py"])
def test_a_rule_from_a_file(path: str) -> None:
    strategy = parse_strategy(f"torus(rule={path}:halves, topology=ring)", load)
    assert isinstance(strategy, NeighbourGradients)
    assert strategy.rule(torch.tensor([4.0]), 1.0, []).tolist() == [2.0]
    assert enough(strategy.rule, 1.0, []) is False  # what it says about itself is heard
    assert strategy.call == f"torus(rule={path}:halves, send='auto', topology=ring(), {NO_CODEC})"
    assert parse_strategy(strategy.call, load).call == strategy.call
    assert short_call(strategy.call) == f"torus(rule={path}:halves, topology=ring)"
    assert parse_strategy(with_argument(strategy.call, "send", "own"), load).rule == strategy.rule  # type: ignore[attr-defined]


def test_a_rule_from_a_file_goes_where_rules_go() -> None:
    first, second = parse_strategies(
        "allreduce(rule=norm_clip(1.0, then=my.py:halves)),my.py:Mine(names=my.py:halves)", load
    )
    assert "then=my.py:halves" in first.call
    assert parse_strategy(first.call, load).call == first.call
    assert second.call == "my.py:Mine(p=0.1, names=my.py:halves)"


# Wrong texts and their answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("allreduc", "Did you mean allreduce?"),
        (
            "local_sgd(tua=3)",
            "has no argument 'tua'. Did you mean tau? local_sgd takes: tau=10, moments='keep', rule=mean.",
        ),
        ("allreduce(tau=3)", "allreduce takes: codec=None, algorithm='auto'"),
        (
            "local_sgd(1, 'keep', mean, 2)",
            "too many positional arguments. local_sgd takes: tau=10, moments='keep', rule=mean.",
        ),
        ("local_sgd(1, tau=2)", "multiple values for argument 'tau'"),
        ("local_sgd(tau=1, tau=2)", "each argument is given once"),
        ("torus(topology=torus(row=2))", "Did you mean rows? torus takes: rows=None, columns=None."),
        ("torus(topology=torus(rows=0))", "a side is at least 1"),
        ("dpsgd(toru)", "nothing is called 'toru'. Did you mean torus"),
        ("torus(send=merged)", "A text goes in quotes: 'merged'."),
        ("local_sgd(tau=0)", "a whole number from 1 on"),
        # the wrong kind
        (
            "torus(rule=ring)",
            "torus(rule=ring()): rule needs a rule (mean, sum, by_age, momentum_corrected, median, trimmed_mean, ",
        ),
        ("torus(rule=ring)", "multi_krum, norm_clip), and this is a topology"),
        ("dpsgd(krum(1))", "channels, rotating), and this is a rule"),
        ("torus(rule=norm_clip(1.0, then=fp16))", "then needs a rule (mean, sum, "),
        ("torus(rule=krum)", "missing a required argument: 'hostile'. krum takes: hostile."),
        ("torus(rule=krum(hostil=1))", "krum has no argument 'hostil'. Did you mean hostile?"),
        ("torus(rule=krum(1.5))", "hostile needs int, and this is float"),
        ("torus(rule=kru(1))", "nothing is called 'kru'. Did you mean krum"),
        ("torus(rule=trimmed_mean(-1))", "trimmed_mean(hostile=-1): a whole number"),
        ("dpsgd(mean)", "channels, rotating), and this is a rule"),
        ("dpsgd(topology=3)", "topology needs a topology"),
        ("dpsgd(None)", "topology needs a topology"),
        ("local_sgd(tau='4')", "tau needs int, and this is str"),
        ("local_sgd(tau=True)", "tau needs int, and this is bool"),
        ("local_sgd(tau=4.0)", "tau needs int, and this is float"),
        ("gossip(p=True)", "p needs float, and this is bool"),
        ("torus(send=1)", "send needs str, and this is int"),
        ("torus(rule=mean())", "mean is a rule and takes no arguments; write just mean"),
        ("dpsgd(channels(3))", "channels needs Iterable[tuple[int, int]], and this is int"),
        ("dpsgd(channels([(0, 1, 2)]))", "can't be built"),
        # not of this language
        ("", "names no strategy"),
        ("  ", "names no strategy"),
        ("()", "a strategy is a name or a call"),
        ("3", "a strategy is a name or a call"),
        ("'torus'", "a strategy is a name or a call"),
        ("local_sgd(tau=1 + 2)", "found 1 + 2; an argument is a number"),
        ("local_sgd(tau=b'x')", "an argument is a number"),
        ("local_sgd(tau=-'x')", "only numbers have a sign"),
        ("local_sgd(tau=-True)", "only numbers have a sign"),
        ("local_sgd(*tau)", "found *tau"),
        ("local_sgd(**tau)", "by its name"),
        ("gossip(p=1j)", "found 1j"),
        ("gossip(p=nan)", "nothing is called 'nan'"),
        ("a.b()", "found a.b()"),
        ("__import__('os').system('true')", "a strategy is a name or a call"),
        ("local_sgd(tau=__import__('os'))", "nothing is called '__import__'"),
        ("torus(rule=lambda *a: 1)", "found lambda"),
        ("local_sgd(tau=" + "(" * 300 + ")" * 300 + ")", "too many nested parentheses"),
    ],
)
def test_wrong_texts_are_answered(text: str, answer: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_strategies(text)
    assert answer in str(raised.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [("torus(rule=", 5), ("allreduce, torus)", 16), ("torus torus", 6), ("my-dir/my.py:Mine(p=1]", 21)],
)
def test_syntax_errors_show_where(text: str, place: int) -> None:
    with pytest.raises(UsageError) as raised:
        parse_strategies(text, load)
    _, shown, mark = str(raised.value).split("\n")
    assert shown.strip() == text
    assert mark.index("^") - shown.index(text) == place


HUGE = MOST_CHARACTERS // 6


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("allreduce," * HUGE, f"{10 * HUGE:,} characters, and 100,000 is the most"),
        ("a" * 5 * HUGE, "no name is that long"),
        ("torus(rule=" + "a" * 5 * HUGE + ")", "no name is that long"),
        ("a." * 2 * HUGE, "invalid syntax"),
        ("a/" * 2 * HUGE, "invalid syntax"),
        ("a.py:" * HUGE, "invalid syntax"),
        ("'" * 5 * HUGE, "a strategy is a name or a call"),
        ("local_sgd(tau=" + "9" * 5 * HUGE + ")", "Exceeds the limit"),
        ("local_sgd(tau=" + "-" * 5 * HUGE + "1)", "nested more than 30 levels"),
        ("local_sgd(tau=" + "-" * 70 + "1)", "nested more than 30 levels"),
        ("local_sgd(tau=" + "1+" * 2 * HUGE + "1)", "nested more than 30 levels"),
        ("torus(rule=" * 100 + "mean" + ")" * 100, "nested more than 30 levels"),
        ("dpsgd(" + "[" * 5 * HUGE, "too many nested parentheses"),
    ],
    ids=lambda text: text[:20],
)
def test_huge_and_deep_texts_are_answered_briefly(text: str, answer: str) -> None:
    """Not after a time that grows with the square of their length: each test has a limit."""
    with pytest.raises(UsageError) as raised:
        parse_strategies(text)
    assert answer in str(raised.value) and len(str(raised.value)) < 600


def test_a_mistake_far_inside_a_long_text_is_shown_with_its_surroundings() -> None:
    with pytest.raises(UsageError) as raised:
        parse_strategies(f"allreduce,{'torus,' * 100}torus(1 2),{'torus,' * 100}")
    _, shown, mark = str(raised.value).split("\n")
    assert "..." in shown and shown[mark.index("^") :].startswith("1 2),torus")


def test_what_is_used_is_neither_too_long_nor_too_deep() -> None:
    pairs = [(place, place + 1) for place in range(2000)]
    assert str(pairs) in parse_strategy(f"dpsgd(channels({pairs}))").call
    deep = "allreduce(codec=chain(clip(1.0), error_feedback(chain(top_k(0.1), int8))))"
    assert parse_strategy(deep).call == parse_strategy(parse_strategy(deep).call).call
