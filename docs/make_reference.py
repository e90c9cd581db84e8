"""Writes docs/reference.md from the docstrings of the public surface, `fast.__all__`.

    python docs/make_reference.py

Nothing is said here that the source doesn't say; tests/test_docs.py checks that the page is up to date.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import fast
from fast.parts.codecs import Codec, Transformation
from fast.rules import Robust
from fast.strategies import Preset

PAGE = Path(__file__).resolve().parent / "reference.md"
INTERNAL = (
    "world", "replica", "account", "coding", "open_turn", "close_turn", "retire", "check_known", "present_in",
    "present_for", "in_turn", "in_use",
)  # fmt: skip
"""Of `Me`, public in Python's sense only: worlds use them, strategies don't."""
INTRODUCTION = """\
# Reference

Made from the docstrings by `python docs/make_reference.py`: don't edit it here. The strategies are
explained, with pictures, in [strategies.md](strategies.md); the ideas behind all of this are in
[architecture.md](architecture.md).
"""
CALLED = (Codec, Transformation, Robust)
"""Whose subclasses are only ever called: what they all offer is said once, with the class itself."""
ORDER = (
    "join", "final_backward", "shard", "own", "consolidate", "snapshot", "is_main", "whoami", "launch", "log",
    "LargeBatch", "SyncBatchNorm", "Worker",
    "Strategy", "Me", "Letter", "Tag", "GRADIENT", "WEIGHTS", "fold_sum", "fold_newest", "Task",
    "presets", "codecs", "topologies", "rules", "corrections", "policies",
    "FastError", "UsageError", "PeerError", "PeerLost", "WireError",
)  # fmt: skip
"""From what everybody needs to what few do."""


def page() -> str:
    """The whole page."""
    missing = set(fast.__all__) ^ set(ORDER)
    assert not missing, f"ORDER in docs/make_reference.py and fast.__all__ differ by {sorted(missing)}"
    contents = " · ".join(f"[{name}](#{f'fast.{name}'.lower().replace('.', '')})" for name in ORDER)
    return "\n".join([INTRODUCTION, contents, "", *(block for name in ORDER for block in entry(name))])


def entry(name: str) -> Iterator[str]:
    thing = getattr(fast, name)
    yield f"## fast.{name}\n"
    if isinstance(thing, ModuleType):
        yield prose(inspect.getdoc(thing))
        for part_name, part in parts_of(thing):
            yield from of_part(f"fast.{name}.{part_name}", part)
    elif isinstance(thing, str):
        yield f"What a tag's letters carry: `{thing!r}`.\n"
    elif inspect.isclass(thing):
        yield from of_class(f"fast.{name}", thing)
    else:
        yield from of_function(f"fast.{name}", thing)


def parts_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module defines itself: presets, or else its public classes and functions."""
    presets = [(name, value) for name, value in vars(module).items() if isinstance(value, Preset)]
    if presets:
        yield from presets
        return
    listed = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__ if listed is None else name in listed
        if own and not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


def of_part(name: str, part: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(part, Preset):
        yield code(f"{part()!r}", "text")
        yield prose(inspect.getdoc(part))
    elif inspect.isclass(part) and issubclass(part, CALLED) and part not in CALLED:
        yield code(f"{name}{signature(part.__init__, bound=True)}")
        yield prose(inspect.getdoc(part))
    elif inspect.isclass(part):
        yield from of_class(name, part)
    else:
        yield from of_function(name, part)


def of_function(name: str, function: Any) -> Iterator[str]:
    yield code(f"{name}{signature(function)}")
    yield prose(inspect.getdoc(function))


def of_class(name: str, kind: type) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base.__module__.startswith("fast")]
    protocol = getattr(kind, "_is_protocol", False)
    made_by_users = "__init__" in vars(kind) and not protocol and kind is not fast.Me
    if made_by_users:
        yield code(f"{name}{signature(kind.__init__, bound=True)}")  # type: ignore[misc]
    if bases and kind is not fast.Me:
        yield f"A `{'`, `'.join(bases)}`.\n"
    yield prose(inspect.getdoc(kind))
    members = list(members_of(kind))
    if members:
        yield "\n".join(members) + "\n"


def members_of(kind: type) -> Iterator[str]:
    """One list item for each public attribute and method that the class itself defines."""
    hidden = INTERNAL if kind is fast.Me else ()
    for attribute, text in attributes_of(kind):
        if attribute not in hidden:
            yield item(f"`{attribute}`", text)
    for name, member in (_of_all_parts(kind) if kind is fast.Me else vars(kind)).items():
        if name.startswith("_") or name in hidden or is_inherited(kind, name):
            continue
        if isinstance(member, property | cached_property):
            yield item(f"`{name}`", inspect.getdoc(member))
        elif isinstance(member, staticmethod) or inspect.isfunction(member):
            function = member.__func__ if isinstance(member, staticmethod) else member
            waits = "await " if inspect.iscoroutinefunction(function) else ""
            bound = not isinstance(member, staticmethod)
            yield item(f"`{waits}{name}{signature(function, bound=bound)}`", inspect.getdoc(function))


def _of_all_parts(kind: type) -> dict[str, Any]:
    """What a class has by itself, and then what it gets from its bases, the lowest first."""
    lineage = [each for each in kind.__mro__ if each.__module__.startswith("fast")]
    names = dict.fromkeys(name for each in (kind, *reversed(lineage)) for name in vars(each))
    return {name: inspect.getattr_static(kind, name) for name in names}


def is_inherited(kind: type, name: str) -> bool:
    """Whether a base says already what this is, and the class itself adds no word."""
    known = any(hasattr(base, name) for base in kind.__bases__)
    return known and name in vars(kind) and not getattr(vars(kind)[name], "__doc__", None)


def attributes_of(kind: type) -> Iterator[tuple[str, str | None]]:
    """Fields of the class and of `self`, with the string that follows them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    bodies = [tree.body]
    bodies += [
        each.body for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    for body in bodies:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            for name in assigned_names(statement):
                if not name.startswith("_"):
                    yield name, string_of(following)


def assigned_names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.AnnAssign(target=target):
            targets: list[ast.expr] = [target]
        case ast.Assign(targets=[ast.Tuple(elts=targets)]) | ast.Assign(targets=targets):
            pass
        case _:
            targets = []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    own = [t.attr for t in targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"]
    return names + own


def string_of(statement: ast.stmt | None) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return inspect.cleandoc(text)
    return None


class Written:
    """An annotation or a function as it stands in the source, without quotes around it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def signature(function: Any, *, bound: bool = False) -> str:
    """As it is written, without `self`."""
    found = inspect.signature(function)
    parameters = [
        each.replace(annotation=Written(each.annotation)) if isinstance(each.annotation, str) else each
        for each in list(found.parameters.values())[1 if bound else 0 :]
    ]
    parameters = [
        each.replace(default=Written(each.default.__name__)) if inspect.isfunction(each.default) else each
        for each in parameters
    ]
    returned = found.return_annotation
    gives = Written(returned) if isinstance(returned, str) and returned != "None" else found.empty
    return str(found.replace(parameters=parameters, return_annotation=gives))


def item(head: str, text: str | None) -> str:
    return f"- {head}" + (f": {' '.join(text.split())}" if text else "")


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"


def prose(text: str | None) -> str:
    """Paragraphs as they are; equations, examples and what is indented as they stand."""
    blocks = []
    for paragraph in (text or "").split("\n\n"):
        equation = "<-" in paragraph or paragraph.startswith(("push ", "on ("))
        if paragraph.startswith(">>>"):
            blocks.append(f"```python\n{paragraph}\n```")
        elif equation or paragraph.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            blocks.append(paragraph)
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print("docs/reference.md")


if __name__ == "__main__":
    main()
