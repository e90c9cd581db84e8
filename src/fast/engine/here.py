"""Which seat this process has."""

from __future__ import annotations

import os

from fast.engine.seat import Seat, seat_alone, seat_taken, take

_LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""A process that a launcher has started has one of these in its environment."""


def current_seat() -> Seat:
    """The seat of the participant that runs here. A script that neither we nor a known launcher has started sits
    alone."""
    return seat_taken() or take(_attached() or seat_alone())


def _attached() -> Seat | None:
    if os.environ.keys().isdisjoint(_LAUNCHERS):
        return None
    # TLS and all that belongs to it is imported where it is needed only.
    from fast.engine.attached import attached_seat

    return attached_seat()
