"""Carrying letters between participants: `memory` (threads of one process), `shm` (one host), `tcp` (hosts), and
`pairwise`, which takes shared memory within a host and TCP between hosts.

Job: move letters, hold what peers publish, say who is alive, reduce in place where it can.
May import: collectives, core, wire, view, errors.
Never: knows a strategy, folds or counts letters (the runtime does), or waits longer than it is told.
"""

from fast.transport.base import Phase, Status, Transport
from fast.transport.memory import MemoryHub, MemoryTransport
from fast.transport.shm import ShmTransport, create_arenas

__all__ = [
    "MemoryHub",
    "MemoryTransport",
    "Phase",
    "ShmTransport",
    "Status",
    "Transport",
    "create_arenas",
]
