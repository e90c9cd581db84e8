"""The model of the links: each carries one letter at a time, at its rate and with its latency."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from fast.errors import UsageError
from fast.sim.units import NS_PER_S, parse_duration, parse_rate, seconds_to_ns


@dataclass(frozen=True)
class Network:
    """One link between each ordered pair of participants.

    Links don't disturb each other: a letter leaves when the ones before it on the *same* link
    have left. `links` has the pairs (sender, receiver) that differ from the rest.
    """

    rate_bytes_per_s: float
    latency_s: float
    links: Mapping[tuple[int, int], Network] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rate_bytes_per_s > 0 or not 0 <= self.latency_s < float("inf"):
            raise UsageError(
                f"a network of {self.rate_bytes_per_s} bytes/s and {self.latency_s} s can't be: "
                "the rate is more than 0 (inf for no limit), the latency 0 or more."
            )

    def between(self, sender: int, to: int) -> Network:
        """The link from `sender` to `to`."""
        return self.links.get((sender, to), self)

    @property
    def latency_ns(self) -> int:
        return seconds_to_ns(self.latency_s)

    def sending_ns(self, nbytes: float) -> int:
        """How long these bytes keep a link busy."""
        return round(nbytes / self.rate_bytes_per_s * NS_PER_S)

    def mean_ns(self, members: Collection[int], nbytes: int) -> int:
        """Direct reduce-scatter and all-gather of `nbytes`: 2 (n-1)/n bytes / rate + 2 latency.

        With unequal links the slowest one among the members sets the pace.
        """
        links = self._among(members)
        moved = _moved(len(members), nbytes)
        return max((link.sending_ns(moved) + 2 * link.latency_ns for link in links), default=0)

    def moving_ns(self, members: Collection[int], nbytes: int) -> int:
        """How long that keeps the links busy."""
        moved = _moved(len(members), nbytes)
        return max((link.sending_ns(moved) for link in self._among(members)), default=0)

    def _among(self, members: Collection[int]) -> list[Network]:
        """The kinds of links between these."""
        if len(members) < 2:
            return []
        inside = set(members)
        return [self, *(link for (a, b), link in self.links.items() if a in inside and b in inside)]


def _moved(members: int, nbytes: int) -> float:
    return 2 * (members - 1) / members * nbytes


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "loopback": Network(3e9, 15e-6),
        "1gbit": Network(125e6, 100e-6),
        "10gbit": Network(1.25e9, 50e-6),
        "infiniband": Network(7e9, 2e-6),
        "wan": Network(12.5e6, 30e-3),
    }
)
"""Stated constants, orders of magnitude of what such networks do; measure yours and give it."""


def parse_network(text: str) -> Network:
    """A profile's name, or `rate,latency`; plain numbers are bits per second and seconds.

    >>> parse_network("100mbit,1ms") == parse_network("100e6,1e-3") == Network(12.5e6, 1e-3)
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
    return Network(parse_rate(rate), parse_duration(latency) / NS_PER_S)
