"""Sums over all workers in the middle of forward and backward, for layers that look at everybody's batch.

They have a lane of their own. A round is known by its members and its lane, so none of these can be
taken for one of the strategy's, not even for one that is under way while backward still runs. All
workers come through the same layers in the same order; that is all that has to hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from fast.core import drive
from fast.core.rounds import LANES
from fast.core.world import Round
from fast.runtime import WorkerRuntime
from fast.trace import Reduced

LANE = LANES + 1
"""Behind those of the strategy's own rounds."""


@final
class Totals:
    """The sums of one worker with all others who are still in.

    All go through one piece of memory that the others can read, always with its full length: so what a
    round prepares for the first sum serves for all of them, whatever layer they are for.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        layers: frozenset[nn.Module],
        longest: int,
        samples: Callable[[], int | None],
    ) -> None:
        self._runtime, self.layers = runtime, layers
        self._memory = runtime.transport.allocate(8 * longest).view(torch.float64)
        self.samples = samples
        """How many samples the batch counts that is being computed; None if nobody counts them."""

    @property
    def over(self) -> bool:
        """Whether this worker has left the training."""
        return self._runtime.finished

    def of(self, *values: Tensor) -> list[Tensor]:
        """The sum over the workers of each of these vectors, in float64, the same bits for all of them."""
        flat = torch.cat([each.detach().double().reshape(-1) for each in values])
        self._memory.zero_()
        self._memory[: flat.numel()] = flat
        world = self._runtime.world
        asked = Round(self._memory, world.start_view.workers, read_only=True, lane=LANE)
        reduction = drive(world.collective(asked))
        if world.observed:
            nbytes = reduction.nbytes
            if nbytes is None:
                nbytes = 2 * (len(reduction.members) - 1) * self._memory.nbytes // len(reduction.members)
            world.emit(Reduced(world.id, world.now(), nbytes, reduction.members, reduction.took_ns))
        total = reduction.tensor[: flat.numel()].to(flat.device) * len(reduction.members)
        return list(torch.split(total, [each.numel() for each in values]))
