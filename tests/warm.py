"""Imported by the host of real workers before it forks any: what it has loaded, each of them needn't load again.

Compiled loops are loaded when they run first, which takes a second or two. Those of the codec that most tests use are
loaded here; those of others still by workers themselves, as in a run of one's own.
"""

from __future__ import annotations

import torch

from fast.codecs import int8
from fast.parts.codecs.base import Coder
from fast.view import Layout


def load() -> None:
    layout = Layout.of([("w", (8,)), ("b", (1,))], torch.float32)
    coder = Coder(int8(), layout)
    coder.decode(coder.encode(torch.ones(layout.size)))


load()
