"""From measurements to the cluster that simulations run on."""

from __future__ import annotations

import math
from dataclasses import replace

from fast.lab.calibration.fitting import Line, Spread, fit_line
from fast.lab.calibration.measuring import SIZES, Measurements
from fast.lab.calibration.trials import PASSES
from fast.sim.cluster import Cluster, Compute, Network, Work
from fast.sim.cluster.hosts import Hosts

_UNLIMITED = 1e12
"""A link that carries more bytes per second than this has no limit that anybody could measure."""


def cluster_of(found: Measurements) -> Cluster:
    """One host, as it was measured: all participants on it, servers too."""
    operation = operation_line(found.operations)
    sending = fit_line(_points(found.sending))
    reading = reading_line(found.reading, found.merging, operation)
    link = link_line(found.ways)
    work = Work(
        turn_s=_digits(found.turn.median_s),
        apply_s=_digits(found.applying.median_s),
        send_s=sending.fixed_s,
        send_rate=sending.rate,
        message_s=_per_receiver(found, sending),
        read_s=reading.fixed_s,
        read_rate=reading.rate,
        op_s=operation.fixed_s,
        op_rate=operation.rate,
        means=_means(found),
        cores=found.cores,
        slice_s=_slice_s(found),
        cold=coldness(found.usual.waking),
        warm_s=_digits(found.usual.waking[0.0].median_s),
        crowding=crowding(found),
    )
    servers = replace(
        work,
        turn_s=0.0,
        wake_s=_waking_s(found, link, reading, sending),
        apply_s=_digits(found.server_applying.median_s),
        means=(),
        cores=None,
        slice_s=Work().slice_s,
        cold=(),
        warm_s=0.0,
        crowding=(),
    )
    step = Compute(step_s=_digits(found.computing.median_s), spread=_digits(found.variation.sigma))
    return Cluster(step, _network(link), replace(work, servers=servers))


def operation_line(operations: dict[int, Spread]) -> Line:
    """One operation: each of those that were timed together reads and writes one tensor or two."""
    touched = sum(count for count, _ in PASSES)
    line = fit_line([(touched * nbytes, each.median_s) for nbytes, each in operations.items()])
    return Line(_digits(line.fixed_s / len(PASSES)), line.rate)


def reading_line(reading: dict[int, Spread], merging: dict[int, Spread], operation: Line) -> Line:
    """Taking a letter, and by how much a first operation with its values is slower than with one's own."""
    return fit_line(
        [
            (nbytes, each.median_s + max(0.0, merging[nbytes].median_s - operation.at(2 * nbytes)))
            for nbytes, each in reading.items()
        ]
    )


def link_line(ways: dict[int, Spread]) -> Line:
    """A way from one participant to another."""
    line = fit_line([(nbytes, max(1e-7, each.median_s)) for nbytes, each in sorted(ways.items())])
    return Line(_digits(line.fixed_s), line.rate if line.rate < _UNLIMITED else math.inf)


def coldness(waking: dict[float, Spread]) -> tuple[tuple[float, float], ...]:
    """By how much a step takes longer after a sleep; never less after a longer one."""
    (_, warm), *naps = sorted(waking.items())
    found, most = [], 0.0
    for nap_s, each in naps:
        most = max(most, _digits(each.median_s - warm.median_s))
        found.append((nap_s, most))
    return tuple(found)


def crowding(found: Measurements) -> tuple[tuple[int, float], ...]:
    """By how much computing and a turn take longer where more workers than cores share the caches."""
    return tuple(
        (crowd.workers, _digits(max(1.0, (crowd.computing.median_s + crowd.turn.median_s) / crowd.alone_s)))
        for crowd in found.crowds
        if crowd.alone_s is not None
    )


def _waking_s(found: Measurements, link: Line, reading: Line, sending: Line) -> float:
    """What a server needs until it answers, besides the ways there and back, reading and sending."""
    known = 2 * link.at(found.weights_bytes) + sum(
        line.at(found.weights_bytes) for line in (reading, sending)
    )
    return _digits(max(0.0, found.answering.median_s - known))


def _network(link: Line) -> Network:
    return Network(link.rate, link.fixed_s, hosts=Hosts(None), inside=Network(link.rate, link.fixed_s))


def _means(found: Measurements) -> tuple[tuple[int, int, float], ...]:
    return tuple(
        (crowd.workers, nbytes, _digits(took.median_s))
        for crowd in found.crowds
        for nbytes, took in sorted(crowd.means.items())
    )


def _per_receiver(found: Measurements, sending: Line) -> float:
    """What each further receiver of a letter costs; 0 if nobody had several."""
    costs = [
        (crowd.to_all.median_s - sending.at(SIZES[0])) / (crowd.workers - 2)
        for crowd in found.crowds
        if crowd.to_all is not None
    ]
    return _digits(max(0.0, costs[0])) if costs else 0.0


def _slice_s(found: Measurements) -> float:
    runs = [crowd.run.median_s for crowd in found.crowds if crowd.run is not None]
    return _digits(runs[0]) if runs else Work().slice_s


def _points(spreads: dict[int, Spread]) -> list[tuple[float, float]]:
    return [(nbytes, each.median_s) for nbytes, each in spreads.items()]


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
