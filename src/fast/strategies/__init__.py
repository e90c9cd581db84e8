"""The programs and the presets.

Job: say how workers talk, each strategy as short as its paper's pseudo-code.
May import: collectives, core, parts, view, errors.
Never: reads a clock, draws a random number, opens anything. `me` has all of that; what is behind it (`me.world`,
`me.replica`) is not for strategies.
"""

from fast.strategies.catalogue import Preset, catalogue, find

__all__ = ["Preset", "catalogue", "find"]
