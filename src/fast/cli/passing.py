"""Arguments after the script: they belong to the script, and the user is told where that may surprise."""

from __future__ import annotations

from collections.abc import Iterator

import typer

_COMMON = ("-m", "-h", "--help")
"""Options that scripts have too, and that nobody expects to reach FAST from behind the script."""


def passed_on(context: typer.Context, script: str, arguments: list[str]) -> Iterator[str]:
    """Sentences about arguments that the script gets and that FAST would have understood.

    `script` is what the user typed for it, with -m if it is a module.
    An option that was given to FAST as well, before the script, is not mentioned.
    """
    if arguments[:1] == ["--"]:
        yield f"-- was passed to {script} like everything after it; `fast run` needs no --"
    for parameter in context.command.params:
        names = [name for name in parameter.opts if name not in _COMMON]
        found = _find(arguments, names)
        if found and not was_given(context, str(parameter.name)):
            ran = (
                f", which runs {parameter.default} workers by default" if parameter.name == "workers" else ""
            )
            yield (
                f"{found} comes after {script}, so it was passed to the script and not to FAST{ran}. "
                f"To give it to FAST: fast run {found} {script}"
            )


def _find(arguments: list[str], names: list[str]) -> str | None:
    """The first argument with one of these names, with its value."""
    for index, argument in enumerate(arguments):
        if argument in names:
            return " ".join(arguments[index : index + 2])
        if argument.partition("=")[0] in names:
            return argument
    return None


def was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
