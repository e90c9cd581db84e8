"""Workers that somebody else has started: torchrun, mpiexec, srun, Ray, or a person on several hosts.

Job: see from the environment which worker this process is, let all of them find each other, give it its seat.
May import: as engine.
Never: starts or places the workers, or needs whoever started them once they have met.
"""

from fast.engine.attached.meeting import Meeting, meet
from fast.engine.attached.rendezvous import Rendezvous
from fast.engine.attached.seating import attached_seat

__all__ = ["Meeting", "Rendezvous", "attached_seat", "meet"]
