"""Where one way to make a sum overtakes another, and what none of them can go below.

Every cost in `cost.COSTS` is a L + b n G: so many latencies, and so many times the bytes of the tensor. So two
of them are equal at one x = n G / L, for any link. For powers of two

    doubling gives way to rabenseifner at   x = log2 P / (log2 P - 2 (P - 1) / P)
    doubling gives way to the ring at       x = (2 (P - 1) - log2 P) / (log2 P - 2 (P - 1) / P)

T. Ben-Nun and T. Hoefler, Demystifying parallel and distributed deep learning.
"""

from __future__ import annotations

import math

from fast.collectives.cost import COSTS
from fast.core.world import Link

_ONLY_LATENCY, _ONLY_BYTES = Link(1.0, 1.0), Link(0.0, 1.0)
_ROUNDING = 1e-9
"""Of the tensor: what the same number of bytes may differ by when it is counted in two ways."""
GOSSIP_STEPS = 1.639
"""Per doubling of the members, with high probability, until a rumour has come to all."""


def crossover(small: str, large: str, members: int) -> float:
    """The x = n G / L beyond which `large` is cheaper than `small`: inf for never, 0 for always.

    >>> crossover("doubling", "rabenseifner", 4), crossover("doubling", "ring", 4)
    (4.0, 8.0)
    """
    more_hops = _latencies(large, members) - _latencies(small, members)
    fewer_bytes = _tensors(small, members) - _tensors(large, members)
    if fewer_bytes > _ROUNDING:
        return max(0.0, more_hops / fewer_bytes)
    return 0.0 if fewer_bytes > -_ROUNDING and more_hops < 0 else math.inf


def crossover_bytes(small: str, large: str, members: int, link: Link) -> float:
    """The same as the size of a tensor on such links; without latency 0 or inf."""
    x = crossover(small, large, members)
    return x * link.latency_s * link.rate_bytes_per_s if 0 < x < math.inf else x


def _latencies(name: str, members: int) -> float:
    return COSTS[name](members, 0.0, _ONLY_LATENCY)


def _tensors(name: str, members: int) -> float:
    return COSTS[name](members, 1.0, _ONLY_BYTES)


# What nothing can go below; for sums without redundant work see `cost.lower_bound`


def latency_bound_s(members: int, link: Link) -> float:
    """A hop only doubles who knows: L log2 P."""
    return link.latency_s * math.log2(members)


def rate_bound_s(nbytes: float, link: Link) -> float:
    """All that one member has must leave it: n G."""
    return nbytes / link.rate_bytes_per_s


def gossip_steps(members: int) -> float:
    """After so many steps of asynchronous gossip all members have heard it, with high probability."""
    return GOSSIP_STEPS * math.log2(members)


# A reduction as work and depth


def reduction_work(count: int) -> int:
    """How many operations it takes to reduce so many numbers."""
    return count - 1


def reduction_depth(count: int) -> int:
    """How many of them must follow each other: ⌈log2 n⌉."""
    return (count - 1).bit_length()


def reduction_steps(count: int, processors: int) -> tuple[float, float]:
    """At least and at most so many steps on p processors, by the survey: min(W / p, D) and W / p + D.

    (The larger of W / p and D is a bound from below, too.)
    """
    each, depth = reduction_work(count) / processors, reduction_depth(count)
    return min(each, depth), each + depth


# A fully connected layer as its factors


def factor_values(workers: int, samples: int, inputs: int, outputs: int) -> int:
    """On the wire if every worker sends the activations and errors of its samples: m N (Cout + Cin)."""
    return workers * samples * (outputs + inputs)


def dense_values(workers: int, inputs: int, outputs: int) -> int:
    """On the wire if every worker sends its gradient: m Cout Cin."""
    return workers * outputs * inputs


def factors_pay_below(inputs: int, outputs: int) -> float:
    """With fewer samples per worker than this the factors are less than the gradient."""
    return inputs * outputs / (inputs + outputs)
