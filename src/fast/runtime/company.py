"""What workers show each other beside a strategy's letters: in a pause of the training, or after its end."""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor

from fast.runtime.world import RealWorld
from fast.transport import Phase

_NAP_S = 0.1


class Sharing(Protocol):
    """Whoever shows something to each other."""

    def share(self, mine: Tensor, why: str) -> dict[int, Tensor]:
        """What everybody shows, by worker."""


@final
class Nobody:
    """Who asks nobody has its own only."""

    def __init__(self, worker: int) -> None:
        self._worker = worker

    def share(self, mine: Tensor, why: str) -> dict[int, Tensor]:
        return {self._worker: mine}


@final
class Company:
    """All workers show something and see what the others show, again and again, in the same order everywhere.

    What is shown lies in two places in turn. Nobody fills a place again before it has seen what everybody
    showed in between, and whoever has shown that has read what lay here. Who reaches the phase `gone` without
    having shown anything this time is left out, by all of them alike.
    """

    def __init__(self, world: RealWorld, name: str, gone: Phase, *, call: str = "") -> None:
        self._world, self._name, self._gone, self._call = world, name, gone, call
        self._times = 0

    def share(self, mine: Tensor, why: str) -> dict[int, Tensor]:
        """What everybody shows this time, by worker; `why` says what is waited for."""
        self._times += 1
        self._show(mine)
        there = self._await_others(f"{self._call} ({why})" if self._call else why)
        place = self._place
        shown = {peer: self._world.transport.peek(peer, place) for peer in there}
        return {peer: tensor.clone() for peer, tensor in sorted(shown.items()) if tensor is not None}

    @property
    def _place(self) -> str:
        return f"{self._name} {self._times % 2}"

    def _show(self, mine: Tensor) -> None:
        """The values first, then that they are there; whoever sleeps is woken by a phase that stays the same."""
        transport = self._world.transport
        transport.publish(self._place, mine)
        transport.publish(self._name, torch.tensor([self._times]))
        transport.set_phase(transport.phase(transport.id))

    def _await_others(self, why: str) -> list[int]:
        world, workers = self._world, self._world.start_view.workers
        with world.patience:
            while True:
                token = world.transport.listen()
                gone = [peer for peer in workers if world.transport.phase(peer) >= self._gone]
                there = [peer for peer in workers if self._has_shown(peer)]  # after the phases: see above
                missing = tuple(peer for peer in workers if peer not in there and peer not in gone)
                if not missing:
                    return there
                world.pump()
                world.transport.sleep(token, _NAP_S)
                world.patience.check(missing, why)

    def _has_shown(self, peer: int) -> bool:
        times = self._world.transport.peek(peer, self._name)
        return times is not None and int(times) >= self._times
