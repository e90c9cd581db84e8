"""What can be tried: the values of a strategy's knobs, and factors on the learning rate.

Values are kept as the text that stands in a call. A codec or a topology is a value like any other then,
and everything goes into a file as it is.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fast.core import Strategy
from fast.errors import UsageError
from fast.lab.plan import Plan
from fast.lab.settings import Simulated
from fast.lab.tuning import Setting, knobs_for
from fast.loop.loading import strategy_from
from fast.sim.simulation import check_hosts
from fast.strategies.binding import nearest
from fast.strategies.calls import arguments_of, parsed, with_argument
from fast.strategies.files import covered, uncovered


@dataclass(frozen=True)
class Written:
    """A value as it stands in a call, and will stand there again: `with_argument` writes what `repr` says."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Space(msgspec.Struct, frozen=True):
    """What is tried of one strategy."""

    asked: str
    knobs: dict[str, list[str]]
    """The values of each; the first is the strategy's own, or the first that was asked for."""
    rates: list[float]

    def combinations(self) -> Iterator[dict[str, str]]:
        """Every value of each knob with every value of the others."""
        for values in itertools.product(*self.knobs.values()):
            yield dict(zip(self.knobs, values, strict=True))


def call_with(plan: Plan, asked: str, values: Mapping[str, str]) -> str:
    """The canonical call with these values; a UsageError if it can't be built, or not be run like this."""
    call = asked
    for name, value in values.items():
        call = with_argument(call, name, Written(value))
    strategy = strategy_from(call)
    _check(plan, strategy)
    return repr(strategy)


def _check(plan: Plan, strategy: Strategy) -> None:
    """As a plan checks the strategies that it is given."""
    workers, world = plan.settings.workers, plan.settings.world
    strategy.check(workers)
    if isinstance(world, Simulated):
        world.faults().check(strategy, workers, strategy.servers(workers))
        check_hosts(strategy, world.model(), workers)


def possible_call(plan: Plan, asked: str, values: Mapping[str, str]) -> str | None:
    """The same, or None: knobs that can each be turned may still exclude one another."""
    try:
        return call_with(plan, asked, values)
    except UsageError:
        return None


def grid(plan: Plan, space: Space) -> list[Setting]:
    """The product of all values and all rates, without what can't be built."""
    calls = (possible_call(plan, space.asked, values) for values in space.combinations())
    return [Setting(call, rate) for call in dict.fromkeys(calls) if call is not None for rate in space.rates]


# What the user asks for


@dataclass(frozen=True)
class Turned:
    """`local_sgd.tau=2,8,32`: the values of a knob of one strategy, or without its name of all that have it."""

    text: str
    strategy: str
    knob: str
    values: tuple[str, ...]

    def names(self, asked: str) -> bool:
        return self.strategy in ("", name_of(asked))

    def means(self, asked: str) -> bool:
        return self.names(asked) and self.knob in arguments_of(asked)


def name_of(call: str) -> str:
    return call.partition("(")[0]


def parse_knob(text: str) -> Turned:
    left, equals, right = text.partition("=")
    strategy, _, knob = left.strip().rpartition(".")
    values = _values(right) if equals else []
    if not knob.isidentifier() or not values:
        raise UsageError(
            f"--knob {text}: write strategy.argument=value,value, such as local_sgd.tau=2,8,32; "
            "texts go in quotes, such as torus.send='own'"
        )
    return Turned(text, strategy, knob, tuple(values))


def _values(text: str) -> list[str]:
    """Separated by commas outside brackets; none if it can't be read."""
    try:
        tree = parsed(covered(f"[{text}]")).body
    except (SyntaxError, ValueError):
        return []
    return [uncovered(ast.unparse(each)) for each in tree.elts] if isinstance(tree, ast.List) else []


def parse_rates(text: str) -> list[float]:
    """`0.5,1,2`: factors on the task's learning rate."""
    try:
        rates = [float(each) for each in text.split(",") if each.strip()]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise UsageError(
            f"--rates {text}: factors on the task's own learning rate, each larger than 0, such as 0.5,1,2"
        )
    return list(dict.fromkeys(rates))


def spaces_of(plan: Plan, turned: Sequence[Turned], rates: Sequence[float]) -> list[Space]:
    """One for each strategy of a plan. Where nobody says otherwise its own knobs are turned."""
    for each in turned:
        _check_meant(each, [repr(strategy) for strategy in plan.strategies])
    return [_space(plan, strategy, turned, rates) for strategy in plan.strategies]


def _space(plan: Plan, strategy: Strategy, turned: Sequence[Turned], rates: Sequence[float]) -> Space:
    if not strategy.call:
        raise UsageError(
            f"{strategy!r} was built here, and a sweep builds each from a call. "
            "Give it as text: a preset, or 'file.py:Name(arguments)'."
        )
    asked = repr(strategy)
    given = arguments_of(asked)
    knobs = {
        name: list(dict.fromkeys([given[name], *map(repr, values)]))
        for name, values in knobs_for(strategy, plan.settings.workers).items()
    }
    wanted = [each for each in turned if each.means(asked)]
    twice = [each for each in wanted if [other.knob for other in wanted].count(each.knob) > 1]
    if twice:
        raise UsageError(f"--knob {twice[-1].text}: {twice[-1].knob} is given twice; put all values into one")
    return Space(asked, {**knobs, **{each.knob: _checked(plan, asked, each) for each in wanted}}, list(rates))


def _checked(plan: Plan, asked: str, turned: Turned) -> list[str]:
    """In the words of canonical calls, each once."""
    try:
        calls = [call_with(plan, asked, {turned.knob: value}) for value in turned.values]
    except UsageError as error:
        raise UsageError(f"--knob {turned.text}: {error}") from error
    return list(dict.fromkeys(arguments_of(call)[turned.knob] for call in calls))


def _check_meant(turned: Turned, asked: Sequence[str]) -> None:
    named = [call for call in asked if turned.names(call)]
    if not named:
        known = [name_of(call) for call in asked]
        near = nearest(turned.strategy, known) or f" There are: {', '.join(known)}."
        raise UsageError(
            f"--knob {turned.text}: no strategy of this sweep is called {turned.strategy}.{near}"
        )
    if not any(turned.means(call) for call in named):
        arguments = list(dict.fromkeys(name for call in named for name in arguments_of(call)))
        near = nearest(turned.knob, arguments) or f" There are: {', '.join(arguments) or 'none'}."
        who = turned.strategy or "no strategy of this sweep"
        has = "has no" if turned.strategy else "has an"
        raise UsageError(f"--knob {turned.text}: {who} {has} argument {turned.knob}.{near}")
