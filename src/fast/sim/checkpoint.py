"""A participant between two turns, as data: what a checkpoint holds of it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from fast.core import Letter
from fast.errors import UsageError
from fast.sim.participant import Participant


def save(participant: Participant) -> dict[str, Any]:
    """Everything that this participant's future depends on, with memory of its own."""
    me, world = participant.me, participant.world
    return {
        "steps": me.steps,
        "version": me.version,
        "versions": dict(me.versions),
        "view": me.view,
        "state": deepcopy(me.state),
        "codecs": me.coding.state_dict(),
        "replica": deepcopy(me.replica.state_dict()),
        "samples": me.replica.samples,
        "present": me.replica.present,
        "letters": [_own(letter) for letter in world.inbox.mailbox.letters()],
        "noticed": dict(world.inbox.noticed),
        "remaining": dict(world.performer.remaining),
        "random": world.random.getstate(),
        "batches_taken": participant.batches_taken,
        "started": participant.started,
        "standing": participant.standing,
    }


def load(participant: Participant, saved: dict[str, Any]) -> None:
    """Put it back. The same checkpoint may be loaded several times."""
    me, world = participant.me, participant.world
    me.steps, me.version, me.state = saved["steps"], saved["version"], deepcopy(saved["state"])
    me.versions, me.view = dict(saved["versions"]), saved["view"]
    me.coding.load_state_dict(deepcopy(saved["codecs"]))
    me.replica.load_state_dict(deepcopy(saved["replica"]))
    me.replica.samples, me.replica.present = saved["samples"], saved["present"]
    for letter in saved["letters"]:
        world.inbox.mailbox.deliver(_own(letter))
    world.inbox.noticed.update(saved["noticed"])
    world.performer.remaining.update(saved["remaining"])
    world.random.setstate(saved["random"])
    participant.started, participant.standing = saved["started"], saved["standing"]
    _skip_batches(participant, saved["batches_taken"])


def _own(letter: Letter) -> Letter:
    return replace(letter, tensor=letter.tensor.clone(), note=deepcopy(letter.note), private=True)


def _skip_batches(participant: Participant, count: int) -> None:
    if participant.worker is None:
        return
    for number in range(count):
        if next(participant.worker.batches, None) is None:
            raise UsageError(
                f"{participant.name} had taken {count} batches when it was saved, and its data ends after "
                f"{number}. Build the simulation with the same data."
            )
    participant.batches_taken = count
