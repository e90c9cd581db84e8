"""Who comes while others train: it adopts a live peer's state before it contributes anything.

Where workers go in lock-step all must see a newcomer from the same step on. That step is one more
than anybody has done, and lies after every worker has heard of the newcomer's last departure. The
first worker to get there hands over its state.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, final

from fast.core import Me
from fast.errors import UsageError
from fast.membership import Change, Why, patience_of
from fast.sim.participant import Participant, Standing

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation


@final
class Newcomers:
    """Of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._due: dict[int, list[Participant]] = {}
        """By the step from which they take part."""
        self._lives = 0

    def admit(self, p: Participant) -> None:
        """Let it in, as soon as it can be."""
        simulation, strategy = self._simulation, self._simulation.strategy
        if p.alive:
            return
        if not strategy.admits:
            raise UsageError(
                f"{strategy!r} can't take in workers while others train: worker {p.me.id} can't come"
            )
        if p.me.id not in simulation.post.departures:
            raise UsageError(f"worker {p.me.id} can't come back before its death has been noticed")
        donor = self._ahead()
        if donor is None or any(p in due for due in self._due.values()):
            return  # nobody trains any more, or it is on its way already
        if not strategy.synchronous:
            simulation.post.announce(p.me.id, donor.me.steps)
            self._adopt(p, donor)
            return
        step = max(donor.me.steps + 1, self._forgotten(p))
        simulation.post.announce(p.me.id, step)
        self._due.setdefault(step, []).append(p)

    def _ahead(self) -> Participant | None:
        """The live worker that has done most steps; whoever is behind adopts from whoever is ahead."""
        live = [p for p in self._simulation.workers if p.alive and p.started]
        return max(live, key=lambda p: (p.me.steps, -p.me.id), default=None)

    def _forgotten(self, p: Participant) -> int:
        """From this step on nobody waits for what this worker sent in its life before. Workers in
        lock-step are never more steps apart than the news of a departure takes."""
        topology, view = self._simulation.strategy.topology, self._simulation.view
        if topology is None:  # means only: who had come to one was counted, and nobody waits for the next
            return 0
        patience = patience_of(view, topology.period(len(view.workers)))
        left = [c for c in self._simulation.post.changes if c.who == p.me.id and c.why is Why.LEFT]
        return left[-1].step + 2 * patience if left else 0

    def reached(self, donor: int, steps: int) -> None:
        """A worker has come to a step from which others take part, and has sent nothing of it yet."""
        due = self._due.pop(steps, ()) if self._due else ()
        if due:
            p = self._simulation.participants[donor]
            p.world.effort.pause()
            for newcomer in due:
                self._adopt(newcomer, p)
            p.world.effort.resume()

    def withdraw(self, p: Participant) -> None:
        """Who was to come doesn't: it has died, or was stopped, before it was there."""
        for step, due in self._due.items():
            if p in due:
                due.remove(p)
                self._simulation.post.changes.append(Change(p.me.id, step, Why.ABSENT))

    def reconsider(self) -> None:
        """Somebody has gone: nobody may be left who comes to the steps that newcomers wait for."""
        if not self._due or any(p.alive for p in self._simulation.workers):
            return
        self._due.clear()

    def _adopt(self, p: Participant, donor: Participant) -> None:
        """Take over weights, optimizer and steps. They travel as a letter of that size would."""
        simulation = self._simulation
        saved = deepcopy(donor.me.replica.state_dict())
        steps, version, versions = donor.me.steps, donor.me.version, dict(donor.me.versions)
        self._lives += 1
        simulation.welcome(p.me.id)
        p.standing, p.leaving, p.started = Standing.THERE, False, False
        p.frozen_until_ns = p.silent_until_ns = p.lost_ns = 0
        p.me, p.world = simulation.embody(p.me.id, p.me.replica, life=self._lives)
        p.me.steps, p.me.version, p.me.versions, p.me.fresh = steps, version, versions, True
        me, nbytes = p.me, p.me.replica.layout.nbytes
        leaves_ns = donor.world.now()
        simulation.post.traffic.carry(
            donor.me.id, me.id, nbytes, lambda: self._begin(p, me, saved), leaves_ns
        )

    def _begin(self, p: Participant, me: Me, saved: dict[str, Any]) -> None:
        if p.alive and p.me is me:  # else it has died on its way here, and may be on its way again
            p.me.replica.load_state_dict(saved)
            self._simulation.play_on(p)
