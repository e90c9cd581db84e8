"""What a calibration found, in words, with how sure that is."""

from __future__ import annotations

from collections.abc import Iterator

from fast.lab.calibration.fitting import Spread
from fast.lab.calibration.measuring import Measurements
from fast.sim.cluster import Cluster
from fast.sim.cluster.words import counted, lost_in_copying, rate_in_words, time_in_words

BUSY_CORES = 0.15
"""Of all cores: so much may be at work on something else before it is worth a warning."""
UNSURE = 0.15
"""Half of the values may be so far from the median, up or down, before it is worth a warning."""


def found_in_words(found: Measurements, cluster: Cluster) -> list[str]:
    """A line for each thing that was measured."""
    work = cluster.work
    return [
        f"computing a step of {found.task}: {_sure(found.computing)} with {counted(found.cores, 'core')} at work, "
        f"{_sure(found.alone)} alone",
        f"a turn: {_sure(found.turn)}, after a sleep {_sure(found.rested_turn)}; applying: {_sure(found.applying)}",
        f"sending a letter: {time_in_words(work.send_s)} and {rate_in_words(work.send_rate, 'B/s')}; "
        f"each further receiver {time_in_words(work.message_s)}",
        f"on the way: {_way(cluster)} (round trip {_sure(min(found.trips.items())[1])})",
        f"reading a letter: {time_in_words(work.read_s)} and {rate_in_words(work.read_rate, 'B/s')}; an operation "
        f"on tensors: {time_in_words(work.op_s)} and {rate_in_words(work.op_rate, 'B/s')}",
        *_means(found),
        f"a server that {counted(found.usual.workers, 'worker')} ask answers in {_sure(found.answering)}; "
        f"applying: {_sure(found.server_applying)}",
        *_sharing(found, cluster),
        f"after a sleep the caches are cold: {_cold(cluster)}",
        f"a sleep takes {_sure(found.oversleeping)} longer than told",
        f"everything {found.repetitions} times in turn, after a first time that doesn't count",
    ]


def warnings(found: Measurements, busy: float) -> list[str]:
    """What speaks against believing it."""
    said = []
    if busy > BUSY_CORES * found.cores:
        said.append(
            f"{busy:.1f} of {counted(found.cores, 'core')} were busy with something else before the first "
            "measurement: times are too long. Calibrate again when nothing else runs."
        )
    unsure = {
        "computing a step": found.computing,
        "a turn": found.turn,
        "a round trip": min(found.trips.items())[1],
        **{f"a mean of {crowd.workers}": min(crowd.means.items())[1] for crowd in found.crowds},
    }
    said += [
        f"{what} varies much: half of the values lie between {time_in_words(each.low_s)} and "
        f"{time_in_words(each.high_s)}"
        for what, each in unsure.items()
        if each.uncertainty > UNSURE
    ]
    return said


def _way(cluster: Cluster) -> str:
    """What is neither sending nor reading: through shared memory no more than waking who sleeps."""
    link = cluster.network.within
    latency, rate = time_in_words(link.latency_s), rate_in_words(link.rate_bytes_per_s, "B/s")
    if not lost_in_copying(link, cluster.work):
        return f"{latency} and {rate}"
    return (
        f"{latency}; bytes are copied through memory when they are sent and read, and what is left of their way is too "
        f"fast to be told from nothing ({rate})"
    )


def _means(found: Measurements) -> Iterator[str]:
    for crowd in found.crowds:
        sizes = sorted(crowd.means)
        few, many = crowd.means[sizes[0]], crowd.means[sizes[-1]]
        yield (
            f"a mean of {crowd.workers} on this host: {_sure(few)} for {_kilobytes(sizes[0])}, {_sure(many)} for "
            f"{_kilobytes(sizes[-1])}, from when the last one has come"
        )


def _sharing(found: Measurements, cluster: Cluster) -> Iterator[str]:
    if cluster.work.crowding:
        factors = ", ".join(f"{factor:.2f} with {many}" for many, factor in cluster.work.crowding)
        yield (
            f"where workers share cores, one runs for {time_in_words(cluster.work.slice_s)} until it is another's "
            f"turn, and all work takes longer by a factor of {factors}"
        )


def _cold(cluster: Cluster) -> str:
    work = cluster.work
    naps = ", ".join(f"{time_in_words(extra)} after {time_in_words(slept)}" for slept, extra in work.cold)
    return f"a step of {time_in_words(work.warm_s)} with its turn takes longer by {naps}"


def _sure(spread: Spread) -> str:
    """
    >>> _sure(Spread(2e-3, 1.9e-3, 2.2e-3, 60))
    '2 ms (1.9 ms to 2.2 ms)'
    """
    return f"{_rounded(spread.median_s)} ({_rounded(spread.low_s)} to {_rounded(spread.high_s)})"


def _rounded(seconds: float) -> str:
    return time_in_words(float(f"{seconds:.3g}"))


def _kilobytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.3g} kB"
