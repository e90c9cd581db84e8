"""Where participants are: which host, and which rack the host stands in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from fast.errors import UsageError
from fast.sim.cluster.units import seconds_to_ns
from fast.view import Groups


@dataclass(frozen=True)
class Hosts:
    """`each` workers to a host, one after another; None for everybody on one host.

    Servers have hosts of their own, or (`beside`) stand on those of the workers, from the first on.
    `of` names the host of each participant by its id instead; who isn't named is alone on a further one.
    `colocated`: server number j stands where worker j does, whatever else holds (unless `of` names it).
    """

    each: int | None = 1
    of: tuple[int, ...] = ()
    beside: bool = False
    workers: int | None = None
    """How many ids are workers; None until a simulation is built: then all of them are."""
    colocated: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.each is not None and self.each < 1:
            raise UsageError(f"{self.each} workers to a host can't be; at least 1, or all on one host")
        if any(host < 0 for host in self.of):
            raise UsageError(f"hosts have numbers from 0 on, and {min(self.of)} is below")

    def known(self, workers: int, *, colocated: bool = False) -> Hosts:
        """The same, now that the number of workers is known, and where the strategy wants its servers."""
        return replace(self, workers=workers, colocated=colocated or self.colocated)

    @cached_property
    def alone(self) -> bool:
        """Whether everybody has a host to itself."""
        return self.each == 1 and not self.of and not self.beside and not self.colocated

    def host(self, who: int) -> int:
        if self.colocated and self.workers is not None and who >= max(self.workers, len(self.of)):
            return self.host((who - self.workers) % self.workers)
        if self.of:
            return self.of[who] if who < len(self.of) else max(self.of) + 1 + who - len(self.of)
        if self.each is None:
            return 0
        if self.workers is None or who < self.workers:
            return who // self.each
        hosts, server = math.ceil(self.workers / self.each), who - self.workers
        return server % hosts if self.beside else hosts + server

    def groups(self, workers: int) -> Groups:
        """The workers of each host; () for the plain order, where all share one host or each has its own."""
        if self.each is None and not self.of:
            return ()
        found: dict[int, list[int]] = {}
        for worker in range(workers):
            found.setdefault(self.host(worker), []).append(worker)
        return () if len(found) in (1, workers) else tuple(map(tuple, found.values()))


@dataclass(frozen=True)
class Racks:
    """So many hosts to a rack; what leaves or enters a rack shares its uplink, and takes longer."""

    hosts: int
    rate_bytes_per_s: float
    latency_s: float = 0.0
    """In addition, between hosts of different racks."""

    def __post_init__(self) -> None:
        if self.hosts < 1 or not self.rate_bytes_per_s > 0 or not 0 <= self.latency_s < math.inf:
            raise UsageError(
                f"racks of {self.hosts} hosts with an uplink of {self.rate_bytes_per_s} bytes/s and "
                f"{self.latency_s} s can't be: at least 1 host, a rate above 0, a latency of 0 or more."
            )

    def rack(self, host: int) -> int:
        return host // self.hosts

    @cached_property
    def latency_ns(self) -> int:
        return seconds_to_ns(self.latency_s)
