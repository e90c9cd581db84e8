"""The small pictures of a line with its marker that stand beside a strategy's name."""

from __future__ import annotations

from types import MappingProxyType

from markupsafe import Markup

from fast.lab.report.look import Look

SHAPES = MappingProxyType(
    {
        "o": "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
        "s": "M-3.3-3.3h6.6v6.6h-6.6z",
        "^": "M0-4.2L4 3.2H-4z",
        "D": "M0-4.4L4.4 0L0 4.4L-4.4 0z",
        "v": "M0 4.2L4-3.2H-4z",
        "P": "M-1.5-4.2h3v2.7h2.7v3h-2.7v2.7h-3v-2.7h-2.7v-3h2.7z",
        "X": "M0-2L2.2-4.2L4.2-2.2L2 0L4.2 2.2L2.2 4.2L0 2L-2.2 4.2L-4.2 2.2L-2 0L-4.2-2.2L-2.2-4.2z",
        "*": "M0-4.8L1.2-1.5H4.6L1.9.6L2.9 4L0 2L-2.9 4L-1.9.6L-4.6-1.5H-1.2z",
        "p": "M0-4.4L4.2-1.3L2.6 3.6H-2.6L-4.2-1.3z",
    }
)
"""The shapes of matplotlib's markers, around the origin."""


def swatch(look: Look) -> Markup:
    dashes = " ".join(f"{2 * dash:g}" for dash in look.dashes) or "none"
    return Markup(
        '<svg class="swatch" viewBox="-15 -6 30 12" aria-hidden="true">'
        '<path d="M-15 0H15" fill="none" style="stroke:{colour};stroke-width:2;stroke-dasharray:{dashes}"/>'
        '<path d="{shape}" style="fill:{colour};stroke:var(--ground);stroke-width:1"/></svg>'
    ).format(colour=look.colour.css, dashes=dashes, shape=SHAPES[look.marker])
