"""Optimizers of one's own: wherever the workers run them, a server beside them needn't know them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from preset_bodies import batches, loss_of, make_model
from running import as_text, parameters_of

STEPS = 12


class Own(torch.optim.SGD):
    """Somebody's own: only its name is known to nobody."""


def train(strategy: str, kind: type[torch.optim.SGD]) -> dict[str, Any]:
    seat, model = current_seat(), make_model()
    optimizer = kind(model.parameters(), lr=0.05, momentum=0.5)
    fast.join(model, optimizer, strategy)
    for batch in batches(seat.id, STEPS):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"own": as_text(parameters_of(model)), "final": as_text(parameters_of(final))}


def run(strategy: str, kind: type[torch.optim.SGD]) -> list[dict[str, Any]]:
    return run_threads(2, lambda id: train(strategy, kind), serve)


@pytest.mark.parametrize("strategy", ["sparknet(tau=3)", "easgd(tau=3, synchronous=True)"])
def test_in_lock_step_they_give_the_same_bits_as_torchs_own(strategy: str) -> None:
    assert run(strategy, Own) == run(strategy, torch.optim.SGD)


@pytest.mark.parametrize("strategy", ["easgd(tau=3)", "eamsgd(tau=3)", "mpca_sgd(tau=3)"])
def test_where_nobody_waits_they_train_too(strategy: str) -> None:
    start = as_text(parameters_of(make_model()))
    results = run(strategy, Own)
    assert len({result["final"] for result in results}) == 1
    assert all(result["own"] != start for result in results)


def test_where_the_server_runs_them_they_are_refused() -> None:
    with pytest.raises(UsageError, match="a server can't build Own"):
        run("ssp", Own)
