"""The user's own loop: join, shard, own, consolidate, snapshot, is_main, whoami, log, Worker; scripts and functions
as workers.

Job: put engine, adapters and runtime together behind a few functions.
May import: everything below lab.
Never: takes the loop away from the user.
"""

from fast.loop.batchnorm import SyncBatchNorm
from fast.loop.consolidation import consolidate, snapshot
from fast.loop.data import own, shard
from fast.loop.joining import final_backward, join
from fast.loop.large_batch import LargeBatch
from fast.loop.launching import launch
from fast.loop.logging import log
from fast.loop.session import is_main, whoami
from fast.loop.worker import Worker

__all__ = [
    "LargeBatch",
    "SyncBatchNorm",
    "Worker",
    "consolidate",
    "final_backward",
    "is_main",
    "join",
    "launch",
    "log",
    "own",
    "shard",
    "snapshot",
    "whoami",
]
