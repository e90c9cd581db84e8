"""How long a strategy's steps would take in a situation and what it would send: seen in a short simulation.

The strategy's own program runs, with sizes only, so whoever writes a new one gets its prediction without a line more.
The simulation is as long as the program needs to show its rhythm: until what the first worker sends has repeated
itself three times (every step, every tau steps, fragment after fragment), or, where it never does (gossip with random
peers at random times), until many letters have been seen. What happens before everybody has taken its first
steps isn't counted, and what is counted are whole periods.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

from fast.adapters.sizes import no_values
from fast.core import Strategy
from fast.errors import UsageError
from fast.lab.planner.rhythm import Watch, together
from fast.lab.planner.situation import Situation
from fast.lab.tally import Tally
from fast.sim import Compute, Simulation, SimWorker

BEATS = 24
"""So many steps of the first worker are listened to before a rhythm is believed, unless all of them are alike."""
_STRETCHES = 6
"""So often a straggler that comes and goes may come, at least."""
_SETTLED = 2_000
"""After so many events a rhythm is known well enough; where each step is an exchange, a few steps tell it, and
one if it is long."""
_LONG = 4 * _SETTLED
_EVENTS, _EVENTS_EACH, _EVENTS_MOST = 20_000, 60, 60_000
"""After so many, or so many for each worker up to the last of these, what was seen has to do."""
_TOO_MANY = 60_000
"""Where two steps take more than so many, nothing is predicted."""
_FEW = 16
"""So many workers are always simulated as they are."""


class Refused(UsageError):
    """What a strategy does in this situation can't be seen from sizes, or can't be at all."""


@dataclass(frozen=True)
class Prediction:
    """What one strategy does in the long run. Bytes are per step and worker, with headers."""

    step_s: float
    """Virtual time per step of one worker."""
    sent_bytes: float
    """By a worker."""
    server_bytes: float
    """By the servers."""
    busiest_bytes: float
    """Sent and received by the busiest participant, while every worker takes one step."""
    computing: float
    """Of the workers' time, the share in which they compute gradients."""
    staleness: int | None
    """The median of all updates that were included; None if there were none."""
    period: int | None
    """After so many steps it does the same again; None where that depends on chance, or was not seen."""
    workers: int
    """So many were simulated: fewer than asked for, where many workers rarely talk."""
    steps: int
    """Of the first worker, that this was seen in."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def predict(strategy: Strategy, situation: Situation, *, seed: int = 0) -> Prediction:
    """Of a strategy on the machines of a situation. `Refused` where that can't be, with the reason."""
    workers = situation.workers
    events = max(_EVENTS, min(_EVENTS_EACH * workers, _EVENTS_MOST))
    watch = _watched(strategy, situation, workers, events, seed)
    while watch.period is None and watch.seldom and workers > _FEW:
        workers = max(_FEW, workers // 4)
        try:
            watch = _watched(strategy, situation, workers, events, seed)
        except Refused:  # it can be on so many workers only, so what was seen of them has to do
            break
    return _summed_up(watch, workers)


def _summed_up(watch: Watch, workers: int) -> Prediction:
    began_ns, beats = watch.window()
    total = together(beats)
    steps, span_ns = _steps(total.steps, len(beats)), max(1, total.ends_ns - began_ns)
    return Prediction(
        step_s=span_ns / 1e9 * workers / steps,
        sent_bytes=watch.sent_per_step(len(beats)) or total.sent_bytes / steps,
        server_bytes=total.server_bytes / steps,
        busiest_bytes=max(total.traffic.values(), default=0) * workers / steps,
        computing=min(1.0, total.computed_ns / (span_ns * workers)),
        staleness=_median(total.staleness),
        period=watch.period,
        workers=workers,
        steps=len(beats),
    )


def _steps(counts: Counter[int], beats: int) -> int:
    """Of all workers. Who has taken one more or one less than the first goes along with it: it only ended its last
    step a moment before or after the time that counts."""
    return sum(beats if abs(count - beats) <= 1 else count for count in counts.values())


def _median(counts: Counter[int]) -> int | None:
    """The lower one of two in the middle."""
    half, seen = (counts.total() + 1) // 2, 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= half:
            return value
    return None


# The simulation


class _Seen(Exception):
    """Enough. The simulation would go on for ever, so this is how it ends."""


def _watched(strategy: Strategy, situation: Situation, workers: int, events: int, seed: int) -> Watch:
    """A simulation of so many workers, until its rhythm is known or so many events have happened."""
    with _refusing(strategy), _tidying_up():
        return _seen_of(strategy, situation, workers, events, seed)


def _seen_of(strategy: Strategy, situation: Situation, workers: int, events: int, seed: int) -> Watch:
    tally = Tally(workers)
    least = _least(situation.compute)
    watch = Watch(workers, tally, max(BEATS, least))

    def look(simulation: Simulation) -> None:
        happened = simulation.events.happened
        if happened < _SETTLED or not watch.counts:
            if happened + simulation.events.ahead > _TOO_MANY:  # each letter on its way is one of those ahead
                raise _too_many(strategy, workers)
        elif happened > events or watch.knows(1 if happened > _LONG else least):
            raise _Seen

    simulation = _simulation(strategy, situation, workers, seed, tally, watch)
    try:
        simulation.run(after_event=look)
    except _Seen:
        watch.close()
        return watch
    raise AssertionError("workers whose batches never end have left")


def _too_many(strategy: Strategy, workers: int) -> UsageError:
    return UsageError(
        f"two steps of {strategy!r} on {workers:,} workers are more than {_TOO_MANY:,} events. Predict it for fewer "
        "workers, or simulate it: fast simulate --sizes-only."
    )


def _least(compute: Compute) -> int:
    """So many steps, even if all of them are alike: more where how long they take is left to chance."""
    straggler = compute.straggler
    if straggler is not None and straggler.share is not None:
        return max(BEATS, _STRETCHES * straggler.stretch)
    return BEATS if compute.spread else 3


def _simulation(
    strategy: Strategy, situation: Situation, workers: int, seed: int, tally: Tally, watch: Watch
) -> Simulation:
    sizes, cluster = situation.sizes, situation.cluster()
    sizes.check(strategy, workers)
    counted = cluster.work.counts
    replicas = [sizes.replica(counted=counted) for _ in range(workers)]
    return Simulation(
        strategy,
        [SimWorker(replica, repeat(sizes.samples), replica.compute) for replica in replicas],
        server_replicas=sizes.servers(strategy, workers, counted=counted),
        cluster=cluster,
        seed=seed,
        observers=[watch, tally],
        seed_torch=False,
    )


@contextmanager
def _tidying_up() -> Iterator[None]:
    """Garbage is looked for at the end, and only in what has come since the beginning: to look at torch and all else
    that was there before takes as long as some of these simulations do."""
    enabled, ours = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if ours:
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextmanager
def _refusing(strategy: Strategy) -> Iterator[None]:
    """What can't be, and what torch says of tensors without values, as one kind of error."""
    try:
        yield
    except UsageError as error:
        raise Refused(str(error)) from error
    except (RuntimeError, TypeError) as error:
        if "meta" not in str(error):
            raise
        raise Refused(str(no_values(f"{strategy!r}"))) from error
