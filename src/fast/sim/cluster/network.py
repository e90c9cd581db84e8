"""The model of the network: interfaces, links, hosts and racks, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType

from fast.errors import UsageError
from fast.sim.cluster.hosts import Hosts, Racks
from fast.sim.cluster.units import NS_PER_S, parse_duration, parse_rate, seconds_to_ns


@dataclass(frozen=True)
class Network:
    """What letters travel over. How they do is in `Traffic`.

    Unless `shared`, there is one link between each ordered pair of participants, and links don't
    disturb each other. `shared`: all that a host sends goes through one interface, all that it
    receives through another. Hosts that hold several participants have links inside, and racks
    have uplinks. `links` has the pairs (sender, receiver) with a link to themselves.
    """

    rate_bytes_per_s: float
    latency_s: float
    links: Mapping[tuple[int, int], Network] = field(default_factory=dict)
    message_s: float = 0.0
    """How long each letter keeps its sender's interface busy, apart from its bytes."""
    receive_bytes_per_s: float | None = None
    """The rate at which a host receives, where it differs."""
    shared: bool = False
    hosts: Hosts = field(default_factory=Hosts)
    inside: Network | None = None
    """The link between two participants of one host; None for that of the profile `loopback`."""
    racks: Racks | None = None

    def __post_init__(self) -> None:
        rates = (self.rate_bytes_per_s, self.receives)
        times = (self.latency_s, self.message_s)
        if not all(rate > 0 for rate in rates) or not all(0 <= time < math.inf for time in times):
            raise UsageError(
                f"a network of {self.rate_bytes_per_s} bytes/s and {self.latency_s} s can't be: "
                "the rate is more than 0 (inf for no limit), the latency 0 or more."
            )
        for link in (*self.links.values(), *([self.inside] if self.inside else [])):
            if link.links or link.inside or link.racks or link.shared or not link.hosts.alone:
                raise UsageError("a single link has a rate, a latency and a message overhead, and no hosts")

    @property
    def receives(self) -> float:
        """The rate at which a host receives."""
        return self.rate_bytes_per_s if self.receive_bytes_per_s is None else self.receive_bytes_per_s

    @cached_property
    def latency_ns(self) -> int:
        return seconds_to_ns(self.latency_s)

    @cached_property
    def message_ns(self) -> int:
        return seconds_to_ns(self.message_s)

    @property
    def within(self) -> Network:
        """The link between two participants of one host."""
        return self.inside or NETWORKS["loopback"]

    @property
    def plain(self) -> bool:
        """Whether the way between any two is the same, but for `links`."""
        return self.hosts.alone and self.racks is None

    def sending_ns(self, nbytes: float) -> int:
        """How long these bytes keep a link busy."""
        return round(nbytes / self.rate_bytes_per_s * NS_PER_S)

    def host(self, who: int) -> int:
        return self.hosts.host(who)

    def between(self, sender: int, to: int) -> Network:
        """The way from `sender` to `to` as one link, as if nobody else used it."""
        own = self.links.get((sender, to))
        if own is not None:
            return own
        if self.plain and self.receives >= self.rate_bytes_per_s:
            return self
        start, end = self.host(sender), self.host(to)
        return self.within if start == end else self._across(start, end)

    def _across(self, start: int, end: int) -> Network:
        rate, latency_s = min(self.rate_bytes_per_s, self.receives), self.latency_s
        if self.racks is not None and self.racks.rack(start) != self.racks.rack(end):
            rate, latency_s = min(rate, self.racks.rate_bytes_per_s), latency_s + self.racks.latency_s
        return Network(rate, latency_s, message_s=self.message_s)

    def placed(self, workers: int, *, colocated: bool = False) -> Network:
        """The same for this number of workers: servers come after them, or (`colocated`) stand with them."""
        return replace(self, hosts=self.hosts.known(workers, colocated=colocated))


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "loopback": Network(3e9, 15e-6),
        "1gbit": Network(125e6, 100e-6, message_s=5e-6, shared=True),
        "10gbit": Network(1.25e9, 50e-6, message_s=3e-6, shared=True),
        "infiniband": Network(7e9, 2e-6, message_s=0.5e-6, shared=True),
        "wan": Network(12.5e6, 30e-3, message_s=5e-6, shared=True),
        "wifi": Network(2.5e6, 5e-3, message_s=100e-6, receive_bytes_per_s=6.25e6, shared=True),
    }
)
"""Stated constants, orders of magnitude of what such networks do; measure yours and give it."""


def parse_network(text: str) -> Network:
    """A profile's name, or `rate,latency`; plain numbers are bits per second and seconds.

    >>> parse_network("100mbit,1ms") == parse_network("100e6,1e-3s") == Network(12.5e6, 1e-3, shared=True)
    True
    """
    name = text.strip().lower()
    if name in NETWORKS:
        return NETWORKS[name]
    if text.count(",") != 1:
        near = get_close_matches(name, NETWORKS, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(NETWORKS)}."
        raise UsageError(f"there is no network {text!r}. {hint} Or give rate,latency such as 100mbit,1ms.")
    rate, latency = text.split(",")
    return Network(parse_rate(rate), parse_duration(latency) / NS_PER_S, shared=True)
