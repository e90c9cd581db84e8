"""Canonical calls as text: shown shorter, or with another value for one argument."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping

from fast.core import Strategy
from fast.parts import LATE, ROBUST, TOPOLOGIES
from fast.parts.codecs.catalogue import CODECS, TRANSFORMATIONS
from fast.parts.staleness import CORRECTIONS
from fast.strategies.catalogue import canonical_call, catalogue
from fast.strategies.files import covered, uncovered


def short_call(call: str) -> str:
    """A preset's call without the arguments that have their default value.

    >>> short_call("local_sgd(tau=10)"), short_call("local_sgd(tau=3)")
    ('local_sgd', 'local_sgd(tau=3)')
    >>> short_call("choco(codec=chain(clip(norm=1.0), top_k(ratio=0.05)), gamma=0.2, topology=ring())")
    'choco(codec=chain(clip(1.0), top_k(0.05)))'
    >>> short_call("allreduce(rule=norm_clip(limit=1.0, then=multi_krum(hostile=1, chosen=None)))")
    'allreduce(rule=norm_clip(1.0, then=multi_krum(1)))'
    >>> short_call("allreduce(rule=my.py:merge)")
    'allreduce(rule=my.py:merge)'
    """
    name = call.partition("(")[0]
    preset = catalogue().get(name)
    if preset is None:
        return call
    defaults = arguments_of(preset().call)
    differing = [
        f"{key}={uncovered(_short_part(parsed(covered(value)).body))}"
        for key, value in arguments_of(call).items()
        if defaults.get(key) != value
    ]
    return f"{name}({', '.join(differing)})" if differing else name


def _short_part(expr: ast.expr) -> str:
    """A part as somebody would write it: without defaults, and the first argument without its name."""
    if not isinstance(expr, ast.Call) or not isinstance(expr.func, ast.Name):
        return ast.unparse(expr)
    parts: dict[str, Callable[..., object]] = {
        **TOPOLOGIES,
        **LATE,
        **ROBUST,
        **CODECS,
        **TRANSFORMATIONS,
        **CORRECTIONS,
    }
    build = parts.get(expr.func.id)
    known = {} if build is None else dict(inspect.signature(build).parameters)
    shown = [_short_part(each) for each in expr.args]
    for each in expr.keywords:
        if _is_default(each, known.get(each.arg or "")):
            continue
        first = not shown and each.arg == next(iter(known), None)
        shown.append(_short_part(each.value) if first else f"{each.arg}={_short_part(each.value)}")
    return f"{expr.func.id}({', '.join(shown)})" if shown else expr.func.id


def _is_default(given: ast.keyword, parameter: inspect.Parameter | None) -> bool:
    if parameter is None or parameter.default is parameter.empty:
        return False
    default = canonical_call("", {str(given.arg): parameter.default})
    return default == f"({given.arg}={ast.unparse(given.value)})"


def arguments_of(call: str) -> dict[str, str]:
    """The arguments of a canonical call, each as text.

    >>> arguments_of("torus(send='own', topology=torus(rows=None))")
    {'send': "'own'", 'topology': 'torus(rows=None)'}
    """
    _, bracket, rest = call.partition("(")
    tree = parsed(covered(f"_({rest}")).body if bracket else None
    if not isinstance(tree, ast.Call):
        return {}
    return {each.arg: uncovered(ast.unparse(each.value)) for each in tree.keywords if each.arg}


def with_argument(call: str, name: str, value: object) -> str:
    """The same call with another value for one of its arguments.

    >>> with_argument("local_sgd(tau=10)", "tau", 4)
    'local_sgd(tau=4)'
    """
    called = call.partition("(")[0]
    arguments = {**arguments_of(call), name: repr(value)}
    return f"{called}({', '.join(f'{key}={text}' for key, text in arguments.items())})"


def open_knobs(strategy: Strategy) -> Mapping[str, tuple[object, ...]]:
    """Knobs that nobody has turned: those whose argument still has its default value."""
    given, defaults = arguments_of(strategy.call), _defaults(strategy)
    return {
        name: values
        for name, values in strategy.knobs.items()
        if name in given and given[name] == defaults.get(name)
    }


def _defaults(strategy: Strategy) -> dict[str, str]:
    preset = catalogue().get(strategy.call.partition("(")[0])
    signature = inspect.signature(type(strategy)) if preset is None else preset.signature
    known = {
        name: each.default for name, each in signature.parameters.items() if each.default is not each.empty
    }
    return arguments_of(canonical_call("_", known))


def parsed(text: str) -> ast.Expression:
    """The syntax tree of an expression. Python 3.11 sometimes fails where two threads parse at once, and
    not when asked again."""
    for _ in range(10):
        try:
            return ast.parse(text, mode="eval")
        except SystemError:
            continue
    return ast.parse(text, mode="eval")
