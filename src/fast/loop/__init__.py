"""The user's own loop: join, shard, own, consolidate, whoami, Worker; and how a script is run as a worker.

Job: put engine, adapters and runtime together behind a few functions.
May import: everything below lab.
Never: takes the loop away from the user.
"""

from fast.loop.consolidation import consolidate
from fast.loop.data import own, shard
from fast.loop.joining import final_backward, join
from fast.loop.session import whoami
from fast.loop.worker import Worker

__all__ = ["Worker", "consolidate", "final_backward", "join", "own", "shard", "whoami"]
