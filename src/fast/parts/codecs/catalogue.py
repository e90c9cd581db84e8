"""All codecs by name, and codecs from plain data.

The names are those of `calls`. What comes over the wire only names things: a codec, and arguments of the kinds
that it takes. Everything else is refused before anything is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from reprlib import repr as shortened
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from fast.errors import UsageError, WireError
from fast.parts.codecs import calls
from fast.parts.codecs.base import Codec
from fast.parts.codecs.chains import chain
from fast.parts.codecs.transformations import Transformation

DEPTH = 8
"""So many codecs may be inside one another."""
MOST_PARTS = 8
WHOLE_LIMIT = 1 << 63

_CALLS: Mapping[str, Any] = MappingProxyType(
    {name: vars(calls)[name] for name in calls.__all__ if name != "Codec"}
)
_BUILT: Mapping[str, type[Codec] | type[Transformation]] = MappingProxyType(
    {name: part for name, part in _CALLS.items() if isinstance(part, type)}
)
"""What plain data may name, besides chains: a recipe is written as what it consists of."""
TRANSFORMATIONS: Mapping[str, Callable[..., Transformation]] = MappingProxyType(
    {name: part for name, part in _BUILT.items() if issubclass(part, Transformation)}
)
"""What may stand in front of a codec in a chain."""
CODECS: Mapping[str, Callable[..., Codec]] = MappingProxyType(
    {name: part for name, part in _CALLS.items() if name not in TRANSFORMATIONS}
)
"""Codecs, and recipes with the names of papers, by the name that the command line uses."""


def codec_of(spec: object) -> Codec:
    """The codec of what `spec()` gave. WireError for everything that no codec would give."""
    return _codec(spec, DEPTH)


def _codec(spec: object, depth: int) -> Codec:
    part = _part(spec, depth)
    if not isinstance(part, Codec):
        raise WireError(f"{shortened(spec)} stands where a codec is needed")
    return part


def _part(spec: object, depth: int) -> Codec | Transformation:
    if depth == 0:
        raise WireError(f"codecs are at most {DEPTH} deep, and these are deeper")
    match spec:
        case [str(name), dict(arguments)] if name == "chain":
            return _built(chain, _parts(arguments, depth - 1), {})
        case [str(name), dict(arguments)] if name in _BUILT:
            return _built(_BUILT[name], [], _checked(_BUILT[name], arguments, depth - 1))
    raise WireError(f"{shortened(spec)} is not a codec that is known here")


def _parts(arguments: dict[Any, Any], depth: int) -> list[Codec | Transformation]:
    match arguments:
        case {"parts": [*parts], **rest} if not rest and len(parts) <= MOST_PARTS:
            return [_part(part, depth) for part in parts]
    raise WireError(f"a chain has a list of at most {MOST_PARTS} parts, and this is {shortened(arguments)}")


def _checked(build: type[Codec] | type[Transformation], given: dict[Any, Any], depth: int) -> dict[str, Any]:
    """The arguments, if they are those that this codec takes."""
    kinds, required = _arguments(build)
    if not required <= given.keys() <= kinds.keys():
        raise WireError(
            f"{build.name} takes {', '.join(kinds) or 'nothing'}, and got {shortened(list(given))}"
        )
    return {key: _argument(build.name, key, value, kinds[key], depth) for key, value in given.items()}


@cache
def _arguments(build: type[Codec] | type[Transformation]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The arguments of a codec with their kinds, and which must be given."""
    hints, known = get_type_hints(build), fields(build)  # type: ignore[arg-type]
    kinds = {each.name: hints[each.name] for each in known}
    return kinds, frozenset(each.name for each in known if each.default is MISSING)


def _argument(name: str, key: str, value: object, kind: Any, depth: int) -> Any:
    if kind is Codec:
        return _codec(value, depth)
    kinds = get_args(kind) or (kind,)
    whole = type(value) is int and -WHOLE_LIMIT <= value < WHOLE_LIMIT
    if (type(value) is not int and type(value) in kinds) or (whole and (int in kinds or float in kinds)):
        return value
    raise WireError(f"{name}'s {key} is {shortened(value)}, which it can't be")


def _built(
    build: Callable[..., Codec | Transformation], parts: list[Any], named: dict[str, Any]
) -> Codec | Transformation:
    try:
        return build(*parts, **named)
    except UsageError as error:
        raise WireError(f"a codec that can't be: {error}") from error
