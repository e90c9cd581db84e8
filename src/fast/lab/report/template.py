"""The frame of every page: one file with title, contents, style and script, which opens offline.

A page's own template extends `base.html` and fills its block `main`. Each section there has an `h2` with
an id; the table of contents is made from those. `base.css` and `base.js` come first, so a page adds only
what it alone needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fast.lab.report.look import css_variables
from fast.lab.report.swatch import swatch
from fast.lab.report.words import BYTES, COUNT, MEMORY, SCORE, SECONDS, exact, plural

_HEADING = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>', re.DOTALL)
_BREAK = re.compile(r"(?<=[,/:])(?=[^\s])|(?<==)(?=[A-Za-z\"'])")


def render(template: str, context: Mapping[str, Any], styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The page of this template, with these style sheets and scripts after those of the base."""
    environment = Environment(
        loader=PackageLoader("fast.lab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(swatch=swatch, plural=plural, exact=exact)
    environment.filters.update(
        seconds=SECONDS.write, size=BYTES.write, count=COUNT.write, memory=MEMORY.write, score=SCORE.write,
        headings=headings, breakable=breakable,
    )  # fmt: skip
    colours = ":root {\n" + css_variables() + "\n}\n"
    style = Markup(colours + "\n".join(map(_text, ["base.css", *styles])))
    script = Markup("\n".join(map(_text, ["base.js", *scripts])))
    return environment.get_template(template).render(style=style, script=script, **context)


def headings(body: str) -> list[tuple[str, Markup]]:
    """Id and text of each section's heading. One of a class of its own, such as a hidden one, is left out."""
    return [(name, Markup(text)) for name, text in _HEADING.findall(body)]


def breakable(name: str) -> Markup:
    """A name that wraps after its first bracket and between its arguments, rather than inside a word."""
    call, bracket, arguments = name.partition("(")
    parts = [call + bracket, *_BREAK.split(arguments)] if arguments else [name]
    return Markup("<wbr>").join(map(escape, parts))


def _text(name: str) -> str:
    return (files("fast.lab.report") / name).read_text(encoding="utf-8")
