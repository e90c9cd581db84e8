"""How workers are started and found: processes on this machine, or threads for tests and replays.

Job: start participants, give each its seat, watch them, and leave nothing behind; repeat a recorded run.
May import: runtime, transport, strategies, collectives, core, view, trace, errors.
Never: knows what runs inside a worker; it is told the name of a function.
"""

from fast.engine.here import current_seat
from fast.engine.limits import check_room, fill_standard_streams
from fast.engine.local import Failure, Job, LocalEngine, Outcome
from fast.engine.seat import Seat, seated

__all__ = [
    "Failure",
    "Job",
    "LocalEngine",
    "Outcome",
    "Seat",
    "check_room",
    "current_seat",
    "fill_standard_streams",
    "seated",
]
