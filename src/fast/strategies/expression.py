"""Strategies as text: a name or a call, read with `ast` and never evaluated.

    torus
    local_sgd(tau=4)
    torus(rule=sum, send='merged', topology=torus(rows=2))
    allreduce,ssp(inf),./my-ideas/sparse.py:Sparse(p=0.1)
    allreduce(codec=chain(clip(1.0), error_feedback(top_k(0.01))))
    allreduce(rule=krum(1)),torus(rule=norm_clip(1.0, then=median)),torus(rule=my_rules.py:halves)

A list is one expression, so commas inside calls are safe. Names in argument position are parts
(rules, topologies, codecs, staleness corrections; a bare one is built with its defaults) or the number `inf`.
What a strategy says of itself in `call` reads back as the same strategy.

A path is not Python, so `file.py:Name` is covered up by a name of equal length before `ast` sees
the text, and found again by its position. In argument position it is a merge rule. Opening the file is
the caller's business: `load`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NoReturn

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import LATE, ROBUST, RULES, TOPOLOGIES
from fast.parts.codecs.catalogue import CODECS, TRANSFORMATIONS
from fast.parts.staleness import CORRECTIONS, Correction
from fast.parts.staleness import chain as corrections_in_a_chain
from fast.strategies.binding import bind, nearest, takes_a_row
from fast.strategies.calls import parsed
from fast.strategies.catalogue import canonical_call, find
from fast.strategies.files import QUOTED_OR_FILE, rule_from_file

Load = Callable[[str, str], object]
"""Opens a Python file and gives back what has this name in it: load(path, name)."""

_LITERALS = ("inf", "True", "False", "None")
MOST_CHARACTERS, MOST_NESTED, _SHOWN = 100_000, 30, 100
"""Limits for a text and its nesting. An error shows up to `_SHOWN` characters on each side of a mistake."""
_TOO_DEEP = f"it is nested more than {MOST_NESTED} levels deep"


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

        return _Reader(text, QUOTED_OR_FILE.sub(cover, text), files, load)

    def tree(self) -> ast.expr:
        if not self.text:
            raise UsageError(
                "the text names no strategy. Write one or several, such as allreduce,local_sgd(tau=4)"
            )
        if len(self.text) > MOST_CHARACTERS:
            raise UsageError(
                f"the text of the strategy has {len(self.text):,} characters, and {MOST_CHARACTERS:,} is the most. "
                "Give a shorter list, or write a function in a file that returns the strategy: file.py:Name"
            )
        try:
            return _shallow(parsed(self.covered).body)
        except SyntaxError as error:
            place = min(max((error.offset or 1) - 1, 0), len(self.text))
            raise UsageError(self._pointing(place, error.msg)) from error
        except (ValueError, RecursionError, MemoryError) as error:
            why = str(error) if isinstance(error, ValueError) else _TOO_DEEP
            raise UsageError(f"the strategy can't be read: {why}") from error

    # What stands where

    def strategy(self, expr: ast.expr) -> Strategy:
        """A name or a call in the place of a strategy."""
        called, args, kwargs = self._call(expr)
        if called is None:
            self.refuse(expr, "a strategy is a name or a call, such as torus or local_sgd(tau=4)")
        file = self.files.get(self._start(called))
        if file is None:
            self._check_length(called)
            preset = find(called.id)
            return preset(**bind(preset.name, preset, args, kwargs))
        target = self._loaded(*file)
        name = ":".join(file)
        arguments = bind(name, target, args, kwargs)
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
                path, name = self.files[self._start(expr)]
                return rule_from_file(f"{path}:{name}", self._opened(path, name))
            case ast.Name(id="inf"):
                return inf
            case ast.Name(id=name) if name in RULES:
                return RULES[name]
            case ast.Name() | ast.Call():
                return self._part(expr)
        self.refuse(expr, "an argument is a number, a 'text', True, False, None, a list of those, or a part")

    def _part(self, expr: ast.expr) -> object:
        called, args, kwargs = self._call(expr)
        if called is None:
            self.refuse(expr, "only parts (a topology, a codec, a correction) are called here, by name")
        if self._start(called) in self.files:
            self._refuse_file(called)
        self._check_length(called)
        name = called.id
        if name in RULES:
            self.refuse(expr, f"{name} is a rule and takes no arguments; write just {name}")
        build = self._named_part(name)
        try:
            if takes_a_row(build) and not kwargs:
                return build(*args)
            return build(**bind(name, build, args, kwargs))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self._shown(expr)} can't be built: {error}") from error

    def _named_part(self, name: str) -> Callable[..., object]:
        parts: dict[str, Callable[..., object]] = {
            **TOPOLOGIES,
            **LATE,
            **ROBUST,
            **CODECS,
            **TRANSFORMATIONS,
            **CORRECTIONS,
            "chain": _chain,
        }
        if name not in parts:
            known = (*RULES, *parts, *_LITERALS)
            near = nearest(name, known) or f" Known: {', '.join(known)}."
            raise UsageError(f"nothing is called {name!r}.{near} A text goes in quotes: {name!r}.")
        return parts[name]

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

    def _check_length(self, called: ast.Name) -> None:
        if len(called.id) > _SHOWN:
            self.refuse(called, "no name is that long")

    def _opened(self, path: str, name: str) -> object:
        if self.load is None:
            raise UsageError(
                f"{path}:{name} is in a file, and files aren't read here. Name a preset instead."
            )
        return self.load(path, name)

    def _loaded(self, path: str, name: str) -> Callable[..., object]:
        found = self._opened(path, name)
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
        text = self.text[self._start(expr) : self._place(expr.end_col_offset or 0)]
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

    def _pointing(self, place: int, why: str) -> str:
        hint = " A strategy from a file is written file.py:Name." if ".py" in self.covered else ""
        before, after = self.text[:place], self.text[place:]
        if len(before) > _SHOWN:
            before = f"...{before[-_SHOWN:]}"
        after = after if len(after) <= _SHOWN else f"{after[:_SHOWN]}..."
        return f"the strategy can't be read: {why}.{hint}\n    {before}{after}\n    {' ' * len(before)}^"

    def refuse(self, expr: ast.expr, why: str) -> NoReturn:
        raise UsageError(self._pointing(self._start(expr), f"found {self._shown(expr)}; {why}"))

    def _refuse_file(self, expr: ast.expr) -> NoReturn:
        self.refuse(
            expr,
            "only a strategy or a merge rule is read from a file, and a rule isn't called here. Write a function "
            "there that returns the strategy with this argument, and name that function",
        )


def _shallow(tree: ast.expr) -> ast.expr:
    """The same tree, unless it is deep: those who walk it call themselves."""
    level: list[ast.AST] = [tree]
    for _ in range(2 * MOST_NESTED):  # a call's named argument is a level of its own
        if not level:
            return tree
        level = [child for each in level for child in ast.iter_child_nodes(each)]
    raise RecursionError


def _chain(*parts: Any) -> object:
    """Of staleness corrections, or of what makes a codec."""
    corrections = any(isinstance(part, Correction) for part in parts)
    return corrections_in_a_chain(*parts) if corrections else CODECS["chain"](*parts)
