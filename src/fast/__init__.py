"""FAST: Flexible (A)synchronous Scalable Training.

One model, many workers, any way for them to talk:

    model, optimizer = fast.join(model, optimizer, strategy="torus")
    for x, y in fast.shard(loader):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(); optimizer.zero_grad()
    final = fast.consolidate(model)
"""

import sys

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag, Task, fold_newest, fold_sum
from fast.errors import FastError, PeerError, PeerLost, UsageError, WireError
from fast.loop import (
    LargeBatch,
    SyncBatchNorm,
    Worker,
    consolidate,
    final_backward,
    is_main,
    join,
    launch,
    log,
    own,
    policies,
    shard,
    snapshot,
    whoami,
)
from fast.parts import rules
from fast.parts import staleness as corrections
from fast.parts import topology as topologies
from fast.parts.codecs import calls as codecs
from fast.strategies import presets

__version__ = "0.1.0"

# So that `from fast.topologies import Ring` works like the attribute does.
_ROOMS = ("codecs", "corrections", "policies", "presets", "rules", "topologies")
sys.modules.update({f"{__name__}.{name}": globals()[name] for name in _ROOMS})

__all__ = [
    "GRADIENT",
    "WEIGHTS",
    "FastError",
    "LargeBatch",
    "Letter",
    "Me",
    "PeerError",
    "PeerLost",
    "Strategy",
    "SyncBatchNorm",
    "Tag",
    "Task",
    "UsageError",
    "WireError",
    "Worker",
    "codecs",
    "consolidate",
    "corrections",
    "final_backward",
    "fold_newest",
    "fold_sum",
    "is_main",
    "join",
    "launch",
    "log",
    "own",
    "policies",
    "presets",
    "rules",
    "shard",
    "snapshot",
    "topologies",
    "whoami",
]
