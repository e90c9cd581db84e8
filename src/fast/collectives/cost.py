"""What a sum over P members costs, by Ben-Nun and Hoefler's model: L + n G for a letter of n bytes.

    direct         2 L + 2 n G (P - 1) / P         exchange       L + n G (P - 1)
    ring           2 (P - 1) (L + n G / P)         doubling       log2 P (L + n G)
    rabenseifner   2 L log2 P + 2 n G (P - 1) / P  tree           2 log2 P (L + n G)
    lower bound    L log2 P + 2 n G (P - 1) / P

L is the latency of a link, G = 1 / rate. Handing over a letter costs nothing in this model, and links
don't disturb each other; that is why the two that talk to everybody at once are the cheapest in
it. For numbers of members that are no power of two the hops are counted that really happen.

T. Ben-Nun and T. Hoefler, Demystifying parallel and distributed deep learning, section 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fast.core.world import Link

Cost = Callable[[int, float, Link], float]
"""Seconds for this many members, each with a tensor of so many bytes, over such links."""


def direct(members: int, nbytes: float, link: Link) -> float:
    """Two hops: slices to their owners, sums to everybody."""
    return _hops(2, link) + 2 * _share(members) * _moving(nbytes, link) if members > 1 else 0.0


def exchange(members: int, nbytes: float, link: Link) -> float:
    """One hop in which everybody gets everything; also the cost of gathering, with `nbytes` each."""
    return _hops(1, link) + (members - 1) * _moving(nbytes, link) if members > 1 else 0.0


def ring(members: int, nbytes: float, link: Link) -> float:
    """2 (P - 1) hops with a slice each."""
    return 2 * ring_gather(members, nbytes / members, link)


def ring_gather(members: int, nbytes: float, link: Link) -> float:
    """P - 1 hops, each with what one member has brought."""
    return (members - 1) * (link.latency_s + _moving(nbytes, link))


def doubling(members: int, nbytes: float, link: Link) -> float:
    """log2 P hops with everything; two more if there is a surplus."""
    whole, surplus = _core(members)
    return (math.log2(whole) + 2 * surplus) * (link.latency_s + _moving(nbytes, link))


def rabenseifner(members: int, nbytes: float, link: Link) -> float:
    """log2 P hops with halves of halves, and back; two more with everything if there is a surplus."""
    whole, surplus = _core(members)
    outside = 2 * surplus * (link.latency_s + _moving(nbytes, link))
    return _hops(2 * math.log2(whole), link) + 2 * _share(whole) * _moving(nbytes, link) + outside


def tree(members: int, nbytes: float, link: Link) -> float:
    """Up to the root and down again, everything in each hop."""
    return 2 * (members - 1).bit_length() * (link.latency_s + _moving(nbytes, link))


def lower_bound(members: int, nbytes: float, link: Link) -> float:
    """What no sum without redundant work can go below, as long as a hop only doubles who knows."""
    return _hops(math.log2(members), link) + 2 * _share(members) * _moving(nbytes, link)


def across(sizes: Sequence[int], nbytes: float, link: Link) -> float:
    """Among groups of these sizes, each of which has one link that its members share: within a group in place,
    between groups by letters. Groups tell who takes part, and a piece goes to its group and back."""
    return _hops(3, link) + 2 * _share(len(sizes)) * _moving(nbytes, link)


def in_pairs(sizes: Sequence[int], nbytes: float, link: Link) -> float:
    """The same where each member writes to all others: the cheaper one of `exchange` and `direct`."""
    members = sum(sizes)
    letters = max(size * (members - size) for size in sizes)
    whole = _hops(1, link) + letters * _moving(nbytes, link)
    return min(whole, _hops(2, link) + 2 * letters * _moving(nbytes / members, link))


COSTS: Mapping[str, Cost] = MappingProxyType(
    {
        "direct": direct,
        "exchange": exchange,
        "ring": ring,
        "doubling": doubling,
        "rabenseifner": rabenseifner,
        "tree": tree,
    }
)


def choose(algorithms: Iterable[str], members: int, nbytes: float, link: Link) -> str:
    """The cheapest of these; the first of several that cost the same."""
    return min(algorithms, key=lambda name: COSTS[name](members, nbytes, link))


@dataclass(frozen=True)
class Sparsity:
    """What a sum of sparse tensors moves, as far as it can be known before."""

    packed_bytes: int
    """What one member's codec has made of its tensor."""
    sent: int
    """How many values of how many one member brings; the most, if they differ."""
    size: int
    value_bytes: int
    index_bytes: int

    def nbytes(self, members: float) -> float:
        """Of the sum over so many members, if their indices are drawn at random: pairs, or all values."""
        if not self.size:
            return 0.0
        together = self.size * (1.0 - math.pow(1.0 - self.sent / self.size, members))
        return min(together * (self.value_bytes + self.index_bytes), self.size * self.value_bytes)


SparseCost = Callable[[int, Sparsity, Link], float]


def sparse_exchange(members: int, tensors: Sparsity, link: Link) -> float:
    """One hop in which everybody gets everybody's bytes."""
    return exchange(members, tensors.packed_bytes, link)


def sparse_doubling(members: int, tensors: Sparsity, link: Link) -> float:
    """log2 P hops, each with all that was merged so far; two more if there is a surplus."""
    whole, surplus = _core(members)
    merged = [1 << hop for hop in range(whole.bit_length() - 1)] + [1, members] * surplus
    return sum(link.latency_s + _moving(tensors.nbytes(count), link) for count in merged)


def sparse_split(members: int, tensors: Sparsity, link: Link) -> float:
    """Two hops: the pairs of a slice to its owner, the sum of a slice to everybody."""
    moved = _share(members) * (tensors.nbytes(1) + tensors.nbytes(members))
    return _hops(2, link) + _moving(moved, link) if members > 1 else 0.0


SPARSE_COSTS: Mapping[str, SparseCost] = MappingProxyType(
    {"exchange": sparse_exchange, "sparse_split": sparse_split, "sparse_doubling": sparse_doubling}
)


def choose_sparse(members: int, tensors: Sparsity, link: Link) -> str:
    """The cheapest way to add sparse tensors; the first of several that cost the same."""
    return min(SPARSE_COSTS, key=lambda name: SPARSE_COSTS[name](members, tensors, link))


def _hops(count: float, link: Link) -> float:
    return count * link.latency_s


def _moving(nbytes: float, link: Link) -> float:
    return nbytes / link.rate_bytes_per_s


def _share(members: int) -> float:
    """Of a tensor, what isn't in one's own slice."""
    return (members - 1) / members


def _core(members: int) -> tuple[int, bool]:
    """The largest power of two, and whether anybody is left over."""
    whole = 1 << (members.bit_length() - 1)
    return whole, whole < members
