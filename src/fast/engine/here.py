"""Which seat this process has."""

from __future__ import annotations

from fast.engine.attached import attached_seat
from fast.engine.seat import Seat, seat_alone, seat_taken, take


def current_seat() -> Seat:
    """The seat of the participant that runs here. A script that neither we nor a known launcher has started sits
    alone."""
    return seat_taken() or take(attached_seat() or seat_alone())
