"""Models in words: what a simulation takes for granted, so that nobody has to guess it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fast.sim.cluster.compute import Compute, ComputeModel, Straggler
from fast.sim.cluster.network import Network
from fast.sim.cluster.work import Work

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TOLD = 0.25
"""A way that adds less than this to the copying of a letter can't be told from none: measurements differ by as much."""


def words_of(compute: ComputeModel, network: Network, work: Work, workers: int, servers: int) -> list[str]:
    """A line for each: who is where, what connects them, how long a step takes, what work costs."""
    everybody = workers + servers
    return [
        _who(workers, servers) + _where(network, workers, servers),
        *_ways(network, work, everybody),
        *_racks(network, everybody),
        *_own_links(network),
        _step(compute, workers),
        *_work(work),
    ]


def time_in_words(seconds: float) -> str:
    """
    >>> time_in_words(0.02), time_in_words(1.5e-6), time_in_words(0)
    ('20 ms', '1.5 µs', '0 s')
    """
    scale, unit = next((each for each in _TIMES if seconds >= each[0]), (1.0, "s"))
    return f"{seconds / scale:.4g} {unit}"


def rate_in_words(bytes_per_s: float, unit: str = "bit/s") -> str:
    """
    >>> rate_in_words(125e6), rate_in_words(2e9, "B/s"), rate_in_words(math.inf)
    ('1 Gbit/s', '2 GB/s', 'any rate')
    """
    if math.isinf(bytes_per_s):
        return "any rate"
    amount = bytes_per_s * 8 if unit == "bit/s" else bytes_per_s
    scale, prefix = next((each for each in _SIZES if amount >= each[0]), (1.0, ""))
    return f"{amount / scale:.4g} {prefix}{unit}"


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "worker"), counted(4, "worker")
    ('1 worker', '4 workers')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def _who(workers: int, servers: int) -> str:
    return counted(workers, "worker") + (f" and {counted(servers, 'server')}" if servers else "")


def _where(network: Network, workers: int, servers: int) -> str:
    hosts = network.hosts
    used = {network.host(who) for who in range(workers + servers)}
    if workers + servers == 1:
        return " alone"
    if len(used) == workers + servers:
        return ", each on a host of its own"
    if len(used) == 1:
        return " on one host"
    each = "as told" if hosts.of else f"{hosts.each} to a host"
    beside = ", servers beside workers" if servers and hosts.beside else ""
    return f", {each}, on {len(used)} hosts{beside}"


def _ways(network: Network, work: Work, participants: int) -> Iterator[str]:
    hosts = len({network.host(who) for who in range(participants)})
    if hosts > 1:
        yield _across(network) + _letter(network)
    if hosts < participants:
        yield f"two on one host {_inside(network.within, work)}{_letter(network.within)}"


def _inside(link: Network, work: Work) -> str:
    if not lost_in_copying(link, work):
        return f"have {_rate(link)} between them"
    return (
        "copy letters through its memory, which is local work, and what is left of the way is too fast to be told from "
        f"nothing ({_rate(link)})"
    )


def lost_in_copying(link: Network, work: Work) -> bool:
    """Whether the bytes on this link take next to nothing beside what sending and reading them takes: through memory
    that both ends share there is nothing else to do, and a rate that was measured all the same is mostly noise.

    >>> copying = Work(send_rate=8e9, read_rate=40e9)
    >>> lost_in_copying(Network(60e9, 1e-5), copying), lost_in_copying(Network(3e9, 1e-5), copying)
    (True, False)
    """
    copying_s = 1 / work.send_rate + 1 / work.read_rate
    return 1 / min(link.rate_bytes_per_s, link.receives) < _TOLD * copying_s


def _across(network: Network) -> str:
    if not network.shared:
        return f"any two have {_rate(network)} to themselves"
    out, in_ = rate_in_words(network.rate_bytes_per_s), rate_in_words(network.receives)
    return f"a host sends at {out} and receives at {in_}, all its letters together"


def _letter(link: Network) -> str:
    cost = (
        f" and keeps its sender's interface busy for {time_in_words(link.message_s)}"
        if link.message_s
        else ""
    )
    return f"; a letter is {time_in_words(link.latency_s)} on the way{cost}, besides its bytes"


def _rate(link: Network) -> str:
    return rate_in_words(min(link.rate_bytes_per_s, link.receives))


def _racks(network: Network, participants: int) -> Iterator[str]:
    if network.racks is not None:
        hosts = {network.host(who) for who in range(participants)}
        racks = len({network.racks.rack(host) for host in hosts})
        uplink = rate_in_words(network.racks.rate_bytes_per_s)
        extra = time_in_words(network.racks.latency_s)
        yield (
            f"{counted(racks, 'rack')} of up to {counted(network.racks.hosts, 'host')}, each with {uplink} each way "
            f"to the others; a letter between racks is {extra} longer on the way"
        )


def _own_links(network: Network) -> Iterator[str]:
    links = sorted(network.links.items())
    for (sender, to), link in links[:3]:
        yield f"from {sender} to {to} there is a link of {_rate(link)}{_letter(link)}"
    if len(links) > 3:
        yield f"{counted(len(links) - 3, 'more pair')} with links of their own"


def _step(compute: ComputeModel, workers: int) -> str:
    if not isinstance(compute, Compute):
        return f"a step takes what {type(compute).__name__} says"
    words = [_usual_step(compute, workers)]
    if compute.spread:
        low, high = math.exp(-compute.spread), math.exp(compute.spread)
        words.append(f"log-normal, two of three steps {low:.2g} to {high:.2g} times that")
    if compute.speeds:
        words.append(
            "speeds " + ", ".join(map(str, compute.speeds[:4])) + ", ..." * (len(compute.speeds) > 4)
        )
    if compute.pace_s is not None:
        words.append(f"padded to {time_in_words(compute.pace_s)} by sleeping")
    if compute.straggler is not None:
        words.append(_straggler(compute.straggler, workers))
    return "; ".join(words)


def _usual_step(compute: Compute, workers: int) -> str:
    if compute.trace:
        steps = [step_s for own in compute.trace for step_s in own]
        mean = time_in_words(sum(steps) / len(steps))
        lists = f"{counted(len(compute.trace), 'list')} of {counted(len(steps), 'measured step')}"
        return f"steps take their times from {lists}, {mean} in the mean"
    others = [
        f"{time_in_words(s)} on worker {who}" for who, s in sorted(compute.workers_s.items()) if who < workers
    ]
    more = [f"another time on {len(others) - 3} more"] if len(others) > 3 else []
    return ", ".join([f"a step takes {time_in_words(compute.step_s)}", *others[:3], *more])


def _straggler(straggler: Straggler, workers: int) -> str:
    slower = f"{straggler.factor:g} times slower"
    if straggler.share is None:
        return f"worker {workers - 1} is always {slower}"
    what = "steps" if straggler.stretch == 1 else f"stretches of {straggler.stretch} steps"
    return f"each worker is {slower} in a random {straggler.share:.4g} of its {what}"


def _work(work: Work) -> Iterator[str]:
    own = ", ".join(_costs(work))
    if own:
        yield f"local work: {own}"
    if work.servers is not None:
        yield f"on servers: {', '.join(_costs(work.servers)) or 'nothing takes time'}"
    if work.means:
        yield f"means on one host as in {counted(len(work.means), 'measurement')}"
    if work.cores is not None:
        yield f"a host has {counted(work.cores, 'core')}, handed on after {time_in_words(work.slice_s)}"
    if work.cold:
        slept, extra = work.cold[-1]
        yield (
            f"after a sleep of {time_in_words(slept)} or more work takes {time_in_words(extra)} longer, until "
            f"{time_in_words(work.warm_s)} of it is done"
        )
    if work.crowding:
        factors = ", ".join(f"{factor:.3g} times as long with {many}" for many, factor in work.crowding)
        yield f"computing and work on crowded hosts take {factors} on a host"


def _costs(work: Work) -> Iterator[str]:
    costs = (
        ("a turn", work.turn_s, math.inf),
        ("applying", work.apply_s, work.apply_rate),
        ("sending a letter", work.send_s, work.send_rate),
        ("each further receiver", work.message_s, math.inf),
        ("reading a letter", work.read_s, work.read_rate),
        ("an operation on tensors", work.op_s, work.op_rate),
        ("going on after a wait", work.wake_s, math.inf),
    )
    for what, fixed_s, rate in costs:
        parts = [time_in_words(fixed_s)] if fixed_s else []
        parts += [f"its bytes at {rate_in_words(rate, 'B/s')}"] if rate < math.inf else []
        if parts:
            yield f"{what} {' and '.join(parts)}"
