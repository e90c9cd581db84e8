"""A session: one model that has been joined to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fast.engine import Seat, current_seat
from fast.loop.orders import Orders
from fast.loop.passes import Books
from fast.loop.remarks import Remarks
from fast.loop.totals import Totals
from fast.runtime import WorkerRuntime
from fast.runtime.moving import MovingAverage, wide


@dataclass
class Session:
    """What `join` leaves behind for `shard`, `own` and `consolidate`."""

    model: nn.Module
    optimizer: Any
    runtime: WorkerRuntime | None
    """None with one worker and a strategy that is the identity then: nothing has to run."""
    pending_samples: int | None = field(default=None)
    """Samples that `shard` or `own` has handed out since the last step; None if neither is used."""
    latest_samples: int | None = field(default=None)
    """Those of the latest batch among them."""
    divided: bool = field(default=False)
    """Whether `shard` hands them out, so that the others have as many in a step."""
    totals: Totals | None = field(default=None)
    """The sums over all workers that layers of the model ask for; None if it has no such layers."""
    passes: dict[int, Books] = field(default_factory=dict)
    """How far everybody is in its passes over data that end for all at once, by the data's identity."""
    orders: Orders | None = field(default=None)
    """The orders that loaders with a generator have in common with the other workers."""
    remarks: Remarks | None = field(default=None)
    """What is said of a training that ends without an error; None if nobody wants to hear it."""
    at_end: Callable[[], None] = field(default=lambda: None)
    """Called when the work is over and no runtime has to be closed."""
    moving: MovingAverage | None = field(default=None)
    """Of this worker's weights, if one is kept."""
    say: Callable[[str], None] = field(default=lambda line: None)
    """One line for the user."""

    @property
    def moving_average(self) -> Tensor | None:
        """Its value: laid out as the replica's flat weights, or with no runtime one parameter after another."""
        if self.moving is None:
            return None
        return self.moving.of(
            flat_weights(self.model) if self.runtime is None else self.runtime.replica.weights
        )

    def count(self, samples: int, *, divided: bool = True) -> None:
        self.divided = divided
        self.pending_samples, self.latest_samples = samples + (self.pending_samples or 0), samples

    def peek_samples(self) -> int:
        """For the step that is being computed."""
        return 1 if self.pending_samples is None else self.pending_samples

    def take_samples(self) -> int:
        """For one step; without `shard` or `own` every step weighs the same."""
        samples = self.peek_samples()
        self.pending_samples = self.latest_samples = None
        return samples


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters one after another, in the widest of their dtypes, 32 bits at least."""
    return torch.cat([wide(parameter).cpu().reshape(-1) for parameter in model.parameters()])


def parameters_in(model: nn.Module) -> int:
    """Number of values in all its parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


class Place(NamedTuple):
    """Which worker runs here, and among how many."""

    worker: int
    workers: int


def whoami() -> Place:
    """Which worker this is: `fast.whoami().worker` of `fast.whoami().workers`. A plain script is 0 of 1.

    To print or save something only once, ask `fast.is_main()`.
    """
    seat = current_seat()
    return Place(seat.id, seat.workers)


def is_main() -> bool:
    """Whether this is worker 0, or a plain script: the one process that prints, logs and saves for all.

        if fast.is_main():
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")

    Only print, log or save inside such a block. Calls in which workers wait for each other, such as `fast.join`,
    `optimizer.step()` and `fast.consolidate`, belong outside of it: every worker has to reach them. `fast.whoami()`
    gives the worker's number.
    """
    return current_seat().id == 0


def session_of(seat: Seat, model: nn.Module) -> Session | None:
    """The session of this very model."""
    return next((session for session in seat.sessions if session.model is model), None)


def close_sessions(seat: Seat) -> None:
    """The participant's work is over."""
    for session in seat.sessions:
        if session.runtime is not None:
            session.runtime.leave()
            if session.remarks is not None:
                session.remarks.ended()
            session.runtime.close()
        else:
            session.at_end()
