"""What a mean asks of a network, as loads of queues: sums within hosts, reduce-scatter and all-gather between them.

Each ordered pair of the H hosts carries 2/H of the tensor: the host's sum of a slice to the slice's owner, the sum
of a slice back. So a host sends and receives 2 (H-1)/H of it, however many members it has, and the uplink of a
rack with r hosts 2 r (H-r)/H. Within a host each ordered pair of its members carries 2/n, of n members in all. The
queue that needs longest sets the pace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fast.sim.cluster.network import Network
from fast.sim.cluster.units import NS_PER_S

Place = tuple[str, int]
"""Which interface or uplink: out or in and the host, up or down and the rack."""


@dataclass(frozen=True)
class Demand:
    """Each of these queues carries `share` of the tensor's bytes, in so many letters.

    Without places: links that nobody else uses."""

    places: tuple[Place, ...]
    share: float
    rate_bytes_per_s: float
    latency_ns: int
    messages_ns: int = 0

    def busy_ns(self, nbytes: int) -> int:
        return round(self.share * nbytes / self.rate_bytes_per_s * NS_PER_S) + self.messages_ns


def demands(network: Network, members: Collection[int]) -> list[Demand]:
    """All that a mean among these asks for."""
    if len(members) < 2:
        return []
    hosts = Counter(map(network.host, members))
    found = [*_inside(network, hosts), *_own_links(network, members)]
    if len(hosts) > 1:
        latency_ns = network.latency_ns + _uplink_latency_ns(network, hosts)
        found += (
            _interfaces(network, hosts, latency_ns) if network.shared else _pairs(network, hosts, latency_ns)
        )
        found += _uplinks(network, hosts, latency_ns)
    return found


def _inside(network: Network, hosts: Counter[int]) -> Iterator[Demand]:
    """Between members of one host."""
    most, total, link = max(hosts.values()), hosts.total(), network.within
    if most > 1:
        share, messages = 2 * (most - 1) / total, 2 * (most - 1)
        yield Demand((), share, link.rate_bytes_per_s, link.latency_ns, messages * link.message_ns)


def _own_links(network: Network, members: Collection[int]) -> Iterator[Demand]:
    """Pairs with a link to themselves count as if all of a member's bytes went over it."""
    inside, total = set(members) if network.links else set(), len(members)
    for (sender, to), link in network.links.items():
        if sender in inside and to in inside:
            yield Demand(
                (), 2 * (total - 1) / total, link.rate_bytes_per_s, link.latency_ns, 2 * link.message_ns
            )


def _pairs(network: Network, hosts: Counter[int], latency_ns: int) -> Iterator[Demand]:
    """Links that don't disturb each other: each member has its rate to itself, and those of a host share its part."""
    count, rate = len(hosts), min(network.rate_bytes_per_s, network.receives)
    share = 2 * (count - 1) / count / min(hosts.values())
    yield Demand((), share, rate, latency_ns, 2 * (count - 1) * network.message_ns)


def _interfaces(network: Network, hosts: Counter[int], latency_ns: int) -> Iterator[Demand]:
    """All hosts are asked for the same, in letters for each member of the largest one."""
    count, slices = len(hosts), max(hosts.values())
    share, messages_ns = 2 * (count - 1) / count, 2 * slices * (count - 1) * network.message_ns
    out, in_ = tuple(("out", host) for host in hosts), tuple(("in", host) for host in hosts)
    yield Demand(out, share, network.rate_bytes_per_s, latency_ns, messages_ns)
    yield Demand(in_, share, network.receives, latency_ns)


def _uplinks(network: Network, hosts: Counter[int], latency_ns: int) -> Iterator[Demand]:
    racks = _by_rack(network, hosts)
    if network.racks is None or len(racks) < 2:
        return
    total = len(hosts)
    for many, places in _alike(racks).items():
        both = tuple((way, rack) for rack in places for way in ("up", "down"))
        yield Demand(both, 2 * many * (total - many) / total, network.racks.rate_bytes_per_s, latency_ns)


def _uplink_latency_ns(network: Network, hosts: Counter[int]) -> int:
    far = len(_by_rack(network, hosts)) > 1
    return network.racks.latency_ns if network.racks is not None and far else 0


def _by_rack(network: Network, hosts: Counter[int]) -> Counter[int]:
    """The number of these hosts in each rack."""
    racks: Counter[int] = Counter()
    for host in hosts:
        racks[network.racks.rack(host) if network.racks is not None else 0] += 1
    return racks


def _alike(counted: Counter[int]) -> dict[int, list[int]]:
    """Which have the same number."""
    alike: dict[int, list[int]] = {}
    for which, many in counted.items():
        alike.setdefault(many, []).append(which)
    return alike
