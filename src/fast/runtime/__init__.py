"""The real world: drives a strategy over a transport.

Job: mailboxes and outboxes, waiting with one deadline, start and end of a training; recording and logging it.
May import: strategies' contracts in core, transport, collectives, parts (kernels), membership, wire, view, trace,
errors.
Never: starts processes (engine does), or knows torch modules (adapters do): it is handed a Replica.
"""

from fast.runtime.journal import Journal, Recorder
from fast.runtime.logbook import Logbook
from fast.runtime.rendezvous import Hello
from fast.runtime.server import run_server
from fast.runtime.worker import Stopped, WorkerRuntime, seed_gradient
from fast.runtime.world import RealWorld

__all__ = [
    "Hello",
    "Journal",
    "Logbook",
    "RealWorld",
    "Recorder",
    "Stopped",
    "WorkerRuntime",
    "run_server",
    "seed_gradient",
]
