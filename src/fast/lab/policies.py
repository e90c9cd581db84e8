"""What the model of each policy is worth, found out after the run: the policies of `fast.consolidate`.

average       the consolidated model: the mean of the replicas, or the servers' weights
reestimated   the same with the statistics of BatchNorm estimated anew on training data; only where there are any
best          the replica with the highest score on validation data, if the task has such data
first         worker 0's replica
ema           a moving average of the consolidated model over the ticks, which were copied anyway
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from fast.core import Task
from fast.lab.measures import Run, State, live_state, one_thread
from fast.loop.reestimating import estimate, layers_of
from fast.runtime.moving import MovingAverage

TICK_DECAY = 0.8
"""From tick to tick: with 50 of them it looks back about a tenth of the run."""
BATCHES = 64
"""So many batches are enough for the statistics of BatchNorm."""
Score = Callable[[State], float | None]


def policy_scores(task: Task, run: Run, test: Score, validation: Score | None) -> dict[str, float | None]:
    """The score of each policy's model on test data; None for one that isn't to be had or isn't finite."""
    has_statistics = bool(layers_of(task.model()))
    first = run.replicas.get(0)
    best = best_of(run, validation)
    ema = moving_state([tick.state for tick in run.ticks])
    if ema is not None and has_statistics:
        ema = reestimated(task, ema)
    models = {"average": run.final, "best": best, "first": first, "ema": ema}
    if has_statistics:
        models["reestimated"] = reestimated(task, run.final)
    return {name: None if state is None else test(state) for name, state in models.items()}


def best_of(run: Run, validation: Score | None) -> State | None:
    """Of equal ones the first; one without a score is no candidate."""
    if validation is None:
        return None
    scores = {worker: validation(state) for worker, state in sorted(run.replicas.items())}
    known = {worker: score for worker, score in scores.items() if score is not None}
    return run.replicas[max(known, key=known.__getitem__)] if known else None


def moving_state(states: Sequence[State]) -> State | None:
    """The moving average of a model's values; counters are those of the last."""
    if not states:
        return None
    averages = {
        name: MovingAverage(TICK_DECAY) for name, value in states[0].items() if value.is_floating_point()
    }
    for state in states:
        for name, average in averages.items():
            average.take(state[name])
    last = states[-1]
    return {
        name: averages[name].of(value).to(value.dtype) if name in averages else value
        for name, value in last.items()
    }


def reestimated(task: Task, state: State) -> State:
    """The same model with statistics of its own."""
    model = task.model()
    model.load_state_dict(state)
    with one_thread(), torch.no_grad():
        forwards = (partial(task.loss, model, task.batch(indices)) for indices in _batches(task))
        estimate(model, forwards, lambda mine: {0: mine})
    return live_state(model)


def _batches(task: Task) -> Iterator[Sequence[int]]:
    """Training samples from all over the data."""
    samples, size = len(task.train()), task.batch_size
    stride = max(1, samples // size)
    for first in range(min(BATCHES, stride)):
        yield range(first, min(samples, stride * size), stride)
