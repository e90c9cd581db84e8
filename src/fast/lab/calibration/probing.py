"""The bodies of the workers of a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import msgspec
import torch

from fast.adapters import ServerReplica, TorchReplica
from fast.engine import current_seat
from fast.lab.calibration import trials
from fast.lab.calibration.trials import Bench, Probe, Times
from fast.lab.data import batches_of
from fast.lab.measures import seed_model
from fast.lab.notebook import Notebook
from fast.lab.splits import parse_split
from fast.lab.tasks import load_task
from fast.lab.training import warm_up
from fast.loop import join
from fast.loop.session import Session, close_sessions

Trial = tuple[str, bool, Any]
"""Its name, whether this worker takes part, and how."""


class Orders(msgspec.Struct):
    """What every worker is told."""

    task: str
    cores: int
    repetitions: int
    rounds: int
    sizes: list[int]
    """Bytes of the tensors that are sent, added and averaged."""


def probe(orders: dict[str, Any]) -> dict[str, Times]:
    """All trials of one worker, by name: those of each repetition one after another."""
    told, seat = msgspec.convert(orders, Orders), current_seat()
    bench = _bench(told)
    found: dict[str, Times] = {"repetitions": {"of each": [told.repetitions]}}
    for repetition in range(told.repetitions + 1):
        trials.settle(bench)
        for name, takes_part, run in _trials(bench, told):
            bench.meet()
            if takes_part:
                times = run()
                if repetition:  # the first time is to warm up
                    _add(found.setdefault(name, {}), times)
    bench.meet()
    close_sessions(seat)
    return found


def _bench(told: Orders) -> Bench:
    seat, task = current_seat(), load_task(told.task)
    shares = parse_split("iid").assign(task, seat.workers, 0)
    warm_up(task)
    seed_model(0)
    model = task.model()
    optimizer = task.optimizer(model)
    notebook = Notebook("probe")  # a comparison observes too
    probing = Probe()
    join(model, optimizer, probing, observers=[notebook.collect])
    session: Session = seat.sessions[-1]
    assert session.runtime is not None, "a calibration has at least two workers"
    memory = session.runtime.transport.allocate(3 * max(told.sizes) + 64).view(torch.float32)
    batches = batches_of(task, shares, seat.id, 0)
    return Bench(session.runtime.me, probing, optimizer, task, batches, memory, told.rounds)


def _trials(bench: Bench, told: Orders) -> Iterator[Trial]:
    """Those in which workers sleep come last: see `trials.settle`."""
    everybody = len(bench.me.workers)
    crowded = everybody > told.cores
    yield "together", True, partial(trials.steps, bench)
    if crowded:
        yield "few", bench.me.id < told.cores, partial(trials.steps, bench)
    for nbytes in told.sizes:
        yield (
            f"means of {nbytes}",
            True,
            partial(trials.means, bench, nbytes, rest_s=trials.REST_S if crowded else 0),
        )
    if crowded:
        yield "spinning", True, trials.spinning
    if everybody > 2:
        yield "fanning", True, partial(trials.fanning, bench, told.sizes[0])
    if everybody == told.cores:
        yield from _trials_of_few(bench, told)
    for nap_s in trials.NAPS_S:
        yield f"waking after {nap_s}", True, partial(trials.waking, bench, nap_s)
    yield "rested", True, partial(trials.steps, bench, rest_s=trials.REST_S)


def _trials_of_few(bench: Bench, told: Orders) -> Iterator[Trial]:
    """Where everybody has a core."""
    me = bench.me
    first, pair = me.id == 0, me.id < 2
    yield "alone", first, partial(trials.steps, bench)
    spec = cast(TorchReplica, me.replica).optimizer_spec()
    replica = ServerReplica(spec, me.replica.layout, me.weights.clone())
    yield "serving", True, partial(trials.serving, bench, replica)
    for nbytes in told.sizes:
        yield f"exchanging {nbytes}", True, partial(trials.exchanging, bench, nbytes)
        yield f"operations of {nbytes}", True, partial(trials.operations, bench, nbytes)
        trip = partial(trials.round_trips, bench, 1 - me.id, nbytes, first=first)
        yield f"round trips of {nbytes}", pair, trip


def _add(found: Times, times: Times) -> None:
    for name, values in times.items():
        found.setdefault(name, []).extend(values)
