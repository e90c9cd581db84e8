"""From a drawn figure to SVG: as a file for paper, and as a part of the page.

Both come from the same drawing. For the page its title and legend are cut off, colours become CSS
variables (so that dark mode works), fonts become the page's, and names are made unique, because many
figures share one document. An artist whose gid is `series-s3-…` belongs to strategy s3: the page can
hide it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from io import StringIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from fast.lab.report.canvas import POINTS, Drawn
from fast.lab.report.look import EVERY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

XLINK = "http://www.w3.org/1999/xlink"
_VARIABLES = tuple((each.light, each.css) for each in EVERY)


def both_svgs(drawn: Drawn, name: str, alt: str) -> tuple[Markup, str]:
    """For the page and for paper, from one drawing."""
    root = _drawing(drawn.figure)
    return _inline(deepcopy(root), drawn, name, alt), _paper(root)


def _paper(root: ElementTree.Element) -> str:
    """A file of its own: text as text, no background, the same bytes for the same drawing."""
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("xmlns:xlink", XLINK)
    for element in root.iter():
        if "href" in element.attrib:
            element.set("xlink:href", element.attrib.pop("href"))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _inline(root: ElementTree.Element, drawn: Drawn, name: str, alt: str) -> Markup:
    """A part of the page."""
    for size in ("width", "height"):
        del root.attrib[size]
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    above, below = drawn.above_in * POINTS, drawn.below_in * POINTS
    root.attrib.update(viewBox=f"0 {above:g} {width:g} {height - above - below:g}", role="img")
    root.set("aria-label", alt)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "style" or child.get("id", "").startswith("paper-"):
                parent.remove(child)
    for element in root.iter():
        _belong(element, name, drawn.tips)
        if "style" in element.attrib:
            element.set("style", _themed(element.attrib["style"]))
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _drawing(figure: Figure) -> ElementTree.Element:
    text = StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    root = ElementTree.fromstring(text.getvalue())
    for part in list(root):
        if part.tag.endswith("}metadata"):
            root.remove(part)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            element.attrib[key.rpartition("}")[2]] = _rounded(key, element.attrib.pop(key))
        if element.tag not in ("text", "style"):
            element.text = element.tail = None
    return root


def _rounded(key: str, value: str) -> str:
    """A hundredth of a point can't be seen, and six decimals double the file."""
    if key not in ("d", "x", "y", "transform", "points", "width", "height"):
        return value
    return re.sub(
        r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value
    ).replace("\n", "")


def _belong(element: ElementTree.Element, figure: str, tips: Mapping[str, str]) -> None:
    """Names unique in the page; a strategy's artists marked as its own."""
    name = element.attrib.pop("id", None)
    for key in ("href", "clip-path", "style", "fill"):
        if "#" in element.get(key, ""):
            element.set(key, re.sub(r"^#|(?<=url\()#", f"#{figure}-", element.attrib[key]))
    if name is None:
        return
    if name in tips:
        ElementTree.SubElement(element, "title").text = tips[name]
    if name.startswith("series-"):
        element.set("data-series", name.split("-")[1])
    elif element.tag in ("path", "clipPath", "pattern"):
        element.set("id", f"{figure}-{name}")


def _themed(style: str) -> str:
    for colour, variable in _VARIABLES:
        style = style.replace(colour, variable)
    return re.sub(r"'DejaVu Sans'(, sans-serif)?", "var(--font)", style)
