"""Strategies as text: a name or a call, read with `ast` and never evaluated.

    torus
    local_sgd(tau=4)
    torus(rule=sum, send='merged', topology=torus(rows=2))
    allreduce,ssp(inf),./my-ideas/sparse.py:Sparse(p=0.1)

A list is one expression, so commas inside calls are safe. Names in argument position are parts
(rules and topologies; a bare topology is built with its defaults) or the number `inf`. What a
strategy says of itself in `call` reads back as the same strategy.

A path is not Python, so `file.py:Name` is covered up by a name of equal length before `ast` sees
the text, and found again by its position. Opening the file is the caller's business: `load`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import RULES, TOPOLOGIES, Rule, Topology
from fast.strategies.catalogue import canonical_call, find

Load = Callable[[str, str], object]
"""Opens a Python file and gives back what has this name in it: load(path, name)."""

_QUOTED_OR_FILE = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | (?P<path>[^\s,()\[\]'"=]+\.py):(?P<name>[^\W\d]\w*)""",
    re.VERBOSE,
)
_LITERALS = ("inf", "True", "False", "None")


def parse_strategy(text: str, load: Load | None = None) -> Strategy:
    """The one strategy that `text` names."""
    strategies = parse_strategies(text, load)
    if len(strategies) != 1:
        raise UsageError(f"one strategy is needed here, and {text!r} names {len(strategies)}")
    return strategies[0]


def parse_strategies(text: str, load: Load | None = None) -> list[Strategy]:
    """The strategies of a comma-separated list, each a name or a call."""
    reader = _Reader.of(text, load)
    tree = reader.tree()
    members = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    if not members:
        reader.refuse(tree, "a strategy is a name or a call")
    return [reader.strategy(member) for member in members]


@dataclass(frozen=True)
class _Reader:
    """One text being read. `files` has the covered `file.py:Name`s by the place where they start."""

    text: str
    covered: str
    files: Mapping[int, tuple[str, str]]
    load: Load | None

    @staticmethod
    def of(text: str, load: Load | None) -> _Reader:
        text = re.sub(r"\s", " ", text.strip())
        files: dict[int, tuple[str, str]] = {}

        def cover(found: re.Match[str]) -> str:
            if found["path"] is None:
                return found[0]
            files[found.start()] = (found["path"], found["name"])
            return "_" * len(found[0])

        return _Reader(text, _QUOTED_OR_FILE.sub(cover, text), files, load)

    def tree(self) -> ast.expr:
        if not self.text:
            raise UsageError(
                "the text names no strategy. Write one or several, such as allreduce,local_sgd(tau=4)"
            )
        try:
            return ast.parse(self.covered, mode="eval").body
        except SyntaxError as error:
            place = min(max((error.offset or 1) - 1, 0), len(self.text))
            raise UsageError(self._pointing(place, error.msg)) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"the strategy can't be read: {error or 'it is nested too deeply'}") from error

    # What stands where

    def strategy(self, expr: ast.expr) -> Strategy:
        """A name or a call in the place of a strategy."""
        called, args, kwargs = self._call(expr)
        if called is None:
            self.refuse(expr, "a strategy is a name or a call, such as torus or local_sgd(tau=4)")
        file = self.files.get(self._start(called))
        if file is None:
            preset = find(called.id)
            return preset(**_bind(preset.name, preset, args, kwargs))
        target = self._loaded(*file)
        name = ":".join(file)
        arguments = _bind(name, target, args, kwargs)
        strategy = target(**arguments)
        if not isinstance(strategy, Strategy):
            raise UsageError(f"{name} returned {strategy!r}, and a Strategy is needed")
        strategy.call = canonical_call(name, arguments)
        return strategy

    def value(self, expr: ast.expr) -> Any:
        """An argument: a literal, a list of arguments, or a part."""
        match expr:
            case ast.Constant(value=None | bool() | int() | float() | str() as constant):
                return constant
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = self.value(operand)
                if isinstance(number, bool) or not isinstance(number, int | float):
                    self.refuse(expr, "only numbers have a sign")
                return -number if isinstance(sign, ast.USub) else number
            case ast.List(elts=elts):
                return [self.value(each) for each in elts]
            case ast.Tuple(elts=elts):
                return tuple(self.value(each) for each in elts)
            case ast.Name() if self._start(expr) in self.files:
                self._refuse_file(expr)
            case ast.Name(id="inf"):
                return inf
            case ast.Name(id=name) if name in RULES:
                return RULES[name]
            case ast.Name() | ast.Call():
                return self._topology(expr)
        self.refuse(expr, "an argument is a number, a 'text', True, False, None, a list of those, or a part")

    def _topology(self, expr: ast.expr) -> Topology:
        called, args, kwargs = self._call(expr)
        if called is None:
            self.refuse(expr, "only topologies are called here, by name")
        if self._start(called) in self.files:
            self._refuse_file(called)
        name = called.id
        if name in RULES:
            self.refuse(expr, f"{name} is a rule and takes no arguments; write just {name}")
        if name not in TOPOLOGIES:
            known = (*RULES, *TOPOLOGIES, *_LITERALS)
            near = _nearest(name, known) or f" Known: {', '.join(known)}."
            raise UsageError(f"nothing is called {name!r}.{near} A text goes in quotes: {name!r}.")
        build = TOPOLOGIES[name]
        try:
            return build(**_bind(name, build, args, kwargs))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self._shown(expr)} can't be built: {error}") from error

    def _call(self, expr: ast.expr) -> tuple[ast.Name | None, list[Any], dict[str, Any]]:
        """Who is called with what. A bare name is a call without arguments."""
        match expr:
            case ast.Name():
                return expr, [], {}
            case ast.Call(func=ast.Name() as called, args=positional, keywords=keywords):
                kwargs: dict[str, Any] = {}
                for keyword in keywords:
                    if keyword.arg is None or keyword.arg in kwargs:
                        self.refuse(expr, "each argument is given once, by its name")
                    kwargs[keyword.arg] = self.value(keyword.value)
                return called, [self.value(each) for each in positional], kwargs
        return None, [], {}

    def _loaded(self, path: str, name: str) -> Callable[..., object]:
        if self.load is None:
            raise UsageError(
                f"{path}:{name} is in a file, and files aren't read here. Name a preset instead."
            )
        found = self.load(path, name)
        foreign_class = isinstance(found, type) and not issubclass(found, Strategy)
        if callable(found) and not foreign_class:
            return found
        raise UsageError(
            f"{path}:{name} is {found!r}. Name a subclass of Strategy, or a function that returns a Strategy."
        )

    # Where it stands

    def _place(self, column_bytes: int) -> int:
        """`ast` counts bytes and we count characters."""
        return len(self.covered.encode()[:column_bytes].decode())

    def _start(self, expr: ast.expr) -> int:
        return self._place(expr.col_offset)

    def _shown(self, expr: ast.expr) -> str:
        return self.text[self._start(expr) : self._place(expr.end_col_offset or 0)]

    def _pointing(self, place: int, why: str) -> str:
        hint = " A strategy from a file is written file.py:Name." if ".py" in self.covered else ""
        return f"the strategy can't be read: {why}.{hint}\n    {self.text}\n    {' ' * place}^"

    def refuse(self, expr: ast.expr, why: str) -> NoReturn:
        raise UsageError(self._pointing(self._start(expr), f"found {self._shown(expr)}; {why}"))

    def _refuse_file(self, expr: ast.expr) -> NoReturn:
        self.refuse(
            expr,
            "only a strategy is read from a file, not an argument. Write a function there that returns the "
            "strategy with this argument, and name that function",
        )


def _bind(
    name: str, target: Callable[..., object], args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """All arguments of the call by name, defaults included, each of the kind that is asked for."""
    signature = _named_parameters(name, target)
    known = signature.parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for key in kwargs:
        if key not in known and not open_ended:
            near = _nearest(key, known)
            raise UsageError(f"{name} has no argument {key!r}.{near} {_takes(name, signature)}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{name} can't be called like this: {error}. {_takes(name, signature)}") from error
    _check_kinds(name, target, bound.arguments)
    bound.apply_defaults()
    return _by_name(bound)


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Like `bound.arguments`, with the collected extra keywords beside the others."""
    arguments: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        extra = bound.signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD
        arguments.update(value if extra else {key: value})
    return arguments


def _named_parameters(name: str, target: Callable[..., object]) -> inspect.Signature:
    """The signature, if each of its parameters can be written as name=value."""
    signature = inspect.signature(target)
    for each in signature.parameters.values():
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
            raise UsageError(
                f"{name} takes {str(each)!r}, which can't be written as name=value. Give each a name."
            )
    return signature


def _takes(name: str, signature: inspect.Signature) -> str:
    if not signature.parameters:
        return f"{name} takes no arguments."
    default_or_not = (
        key if each.default is each.empty else canonical_call("", {key: each.default})[1:-1]
        for key, each in signature.parameters.items()
    )
    return f"{name} takes: {', '.join(default_or_not)}."


def _check_kinds(name: str, target: Callable[..., object], arguments: Mapping[str, Any]) -> None:
    """Refuse a topology where a rule belongs, a text where a number belongs, and so on."""
    hints = _hints(target)
    for key, value in arguments.items():
        if key in hints and not _fits(value, hints[key]):
            found = canonical_call(name, {key: value})
            raise UsageError(f"{found}: {key} needs {_kind(hints[key])}, and this is {_kind(type(value))}")


def _hints(target: Callable[..., object]) -> dict[str, Any]:
    """What the annotations say; of a foreign file they may not be readable, and then say nothing."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if isinstance(value, bool) and origin in (int, float):
        return False
    if origin is float:
        return isinstance(value, int | float)
    if hint is None or not isinstance(origin, type):
        return True
    return isinstance(value, origin)


def _kind(hint: Any) -> str:
    """In words: 'a rule (mean, sum)', 'a topology (ring, ...)', or the type's own name."""
    if hint == Rule or hint is type(RULES["mean"]):
        return f"a rule ({', '.join(RULES)})"
    if inspect.isclass(hint) and issubclass(hint, Topology):
        return f"a topology ({', '.join(TOPOLOGIES)})"
    return hint.__name__ if inspect.isclass(hint) else str(hint).replace("collections.abc.", "")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
