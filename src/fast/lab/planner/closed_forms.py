"""How long all workers of a cluster need to exchange one model, by pattern: the closed forms of the taxonomy.

    naive server     2 n T + (n - 1) R + U           binomial server  2 ⌈log2(n + 1)⌉ T + ⌈log2 n⌉ R + U
    scatter server   (2 + 2 (n-1)/n) T + (n-1)/n R + U               sharded server   2 (n-1)/n T + (n-1)/n R + U/n
    async one        2 T + U                         async all        n T + U
    doubling         ⌈log2 n⌉ (T + R) + U            ring             2 (n-1)/n T + (n-1)/n R + U

n workers; T seconds to transmit the model once, R to add two copies of it, U for one step of the optimizer. They are
lower bounds: links have no latency, a host sends and receives at the same time, and nothing stands in its way but
what it sends and receives itself. `fast.collectives.cost` has those with latency.

M. Langer, Z. He, W. Rahayu and Y. Xue, Distributed Training of Deep Learning Models: A Taxonomic Perspective, IEEE
Transactions on Parallel and Distributed Systems, 2020, section 3.4 and figure 14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fast.errors import UsageError

REDUCE_BYTES_PER_S = 10 * 2**30
"""At which two copies of a model are added: what figure 14 is drawn with. Likewise for updating."""
UPDATE_BYTES_PER_S = 2 * 2**30

Pattern = Callable[[int, float, float, float], float]
"""Seconds for this many workers; T, R and U in seconds."""


def naive_server_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """One server gets n gradients one after another, adds them, steps, and sends the weights n times."""
    return 2 * workers * transmit_s + (workers - 1) * reduce_s + update_s


def binomial_server_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """Sums go up a binomial tree of the workers and the server, which is one more than they are; weights down."""
    return 2 * _doublings(workers + 1) * transmit_s + _doublings(workers) * reduce_s + update_s


def scatter_server_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """Workers reduce slices among themselves and hand the sum to one server; its weights come back likewise."""
    share = _others(workers)
    return (2 + 2 * share) * transmit_s + share * reduce_s + update_s


def async_one_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """A worker whom nobody disturbs: its gradient up, one step, the weights down."""
    return 2 * transmit_s + update_s


def async_all_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """All workers at one server that receives and sends at the same time and is never idle."""
    return workers * transmit_s + update_s


def sharded_server_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """A server beside every worker, with a slice of the model each: every slice is updated once, by its owner."""
    share = _others(workers)
    return 2 * share * transmit_s + share * reduce_s + update_s / workers


def doubling_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """Recursive doubling: pairs, pairs of pairs and so on exchange all that they have; everybody updates."""
    return _doublings(workers) * (transmit_s + reduce_s) + update_s


def ring_s(workers: int, transmit_s: float, reduce_s: float, update_s: float) -> float:
    """A slice at a time around a ring, twice; everybody updates."""
    share = _others(workers)
    return 2 * share * transmit_s + share * reduce_s + update_s


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "naive server": naive_server_s,
        "binomial server": binomial_server_s,
        "scatter server": scatter_server_s,
        "async one": async_one_s,
        "async all": async_all_s,
        "sharded server": sharded_server_s,
        "doubling": doubling_s,
        "ring": ring_s,
    }
)
WHOLE = ("naive server", "binomial server", "scatter server", "sharded server", "doubling", "ring")
"""Those after which everybody has everybody's update: what a synchronous step waits for."""


@dataclass(frozen=True)
class Exchange:
    """T, R and U of one model on one kind of link."""

    transmit_s: float
    reduce_s: float
    update_s: float

    @staticmethod
    def of(
        nbytes: float,
        rate_bytes_per_s: float,
        *,
        reduce_bytes_per_s: float = REDUCE_BYTES_PER_S,
        update_bytes_per_s: float = UPDATE_BYTES_PER_S,
    ) -> Exchange:
        """Of a model of so many bytes.

        >>> Exchange.of(125e6, 125e6).transmit_s
        1.0
        """
        rates = (rate_bytes_per_s, reduce_bytes_per_s, update_bytes_per_s)
        if not 0 <= nbytes < math.inf or not all(rate > 0 for rate in rates):
            raise UsageError(
                f"{nbytes} bytes at {', '.join(f'{rate:g}' for rate in rates)} bytes/s (to send, add and update) "
                "can't be: 0 bytes or more, and rates above 0"
            )
        return Exchange(*(nbytes / rate for rate in rates))

    def seconds(self, pattern: str, workers: int) -> float:
        """Of one exchange among so many workers.

        >>> Exchange(8.0, 1.0, 2.0).seconds("ring", 4)
        14.75
        """
        if workers < 1:
            raise UsageError(f"an exchange among {workers} workers can't be; at least 1")
        if pattern not in PATTERNS:
            raise UsageError(f"there is no pattern {pattern!r}. Known: {', '.join(PATTERNS)}.")
        return PATTERNS[pattern](workers, self.transmit_s, self.reduce_s, self.update_s)

    def fastest(self, workers: int) -> tuple[str, float]:
        """The best of the patterns after which everybody has everybody's update, and its seconds.

        >>> Exchange(8.0, 1.0, 2.0).fastest(4)
        ('sharded server', 13.25)
        """
        best = min(WHOLE, key=lambda pattern: self.seconds(pattern, workers))
        return best, self.seconds(best, workers)


# What moves through the busiest interface


def server_bytes(workers: int, nbytes: float) -> float:
    """Sent and received by a single server in one exchange: n gradients and n times the weights."""
    return 2 * workers * nbytes


def spread_bytes(workers: int, nbytes: float) -> float:
    """Sent by each host in one exchange over a ring, or over a server beside every worker; it receives as much."""
    return 2 * _others(workers) * nbytes


def local_bytes(nbytes: float, tau: int) -> float:
    """Sent per local step by a worker that hands its model over every `tau` steps; it gets back as much."""
    return nbytes / tau


def _doublings(count: int) -> int:
    """The logarithm to the base 2, rounded up: exact for any number."""
    return (count - 1).bit_length()


def _others(workers: int) -> float:
    """Of a model cut in n, what isn't one's own."""
    return (workers - 1) / workers
