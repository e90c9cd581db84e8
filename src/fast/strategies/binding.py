"""Arguments of a call that was read from text: matched with what is called, and checked by kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fast.errors import UsageError
from fast.parts import LATE, ROBUST, RULES, TOPOLOGIES, Rule, Topology
from fast.parts.codecs.base import Codec
from fast.parts.codecs.catalogue import CODECS
from fast.parts.staleness import CORRECTIONS, Correction
from fast.strategies.catalogue import canonical_call
from fast.strategies.files import RuleFromFile


def takes_a_row(target: Callable[..., object]) -> bool:
    """Whether it is called with any number of arguments in a row, as `chain` is."""
    return any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(target).parameters.values())


def bind(name: str, target: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of the call by name, defaults included, each of the kind that is asked for."""
    signature = _named_parameters(name, target)
    known = signature.parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for key in kwargs:
        if key not in known and not open_ended:
            near = nearest(key, known)
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
    """In words: 'a rule (mean, sum)', 'a topology (ring, ...)', 'a codec (fp16, ...)', or the type's own name."""
    if hint == Rule or hint in (type(RULES["mean"]), RuleFromFile, *LATE.values(), *ROBUST.values()):
        return f"a rule ({', '.join((*RULES, *LATE, *ROBUST))})"
    if inspect.isclass(hint) and issubclass(hint, Topology):
        return f"a topology ({', '.join(TOPOLOGIES)})"
    if inspect.isclass(hint) and issubclass(hint, Codec):
        return f"a codec ({', '.join(CODECS)})"
    if inspect.isclass(hint) and issubclass(hint, Correction):
        return f"a staleness correction ({', '.join(CORRECTIONS)})"
    options = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) in (Union, UnionType) and len(options) == 1:
        return _kind(options[0])
    return hint.__name__ if inspect.isclass(hint) else str(hint).replace("collections.abc.", "")


def nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
