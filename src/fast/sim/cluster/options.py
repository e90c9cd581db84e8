"""A cluster by options, in the words of the command line; what a file says may stand beneath them."""

from __future__ import annotations

from dataclasses import replace

from fast.errors import UsageError
from fast.sim.cluster.cluster import Cluster
from fast.sim.cluster.compute import Compute, ComputeModel, parse_speeds, parse_straggler
from fast.sim.cluster.file import read_cluster
from fast.sim.cluster.hosts import Hosts, Racks
from fast.sim.cluster.network import Network, parse_network
from fast.sim.cluster.units import parse_rate, parse_seconds


def cluster_of(
    text: str | None = None,
    *,
    network: str | None = None,
    step: str | None = None,
    straggler: str | None = None,
    spread: float | None = None,
    speeds: str | None = None,
    hosts: str | None = None,
    racks: str | None = None,
) -> Cluster:
    """The cluster of a file's text, or the usual one; what else is given takes the place of what it says.

    >>> cluster_of(network="10gbit", step="5ms").compute.duration_ns(0, 4, 0, 0)
    5000000
    """
    base = Cluster() if text is None else read_cluster(text)
    compute = _computing(base.compute, step, straggler, spread, speeds)
    links = base.network if network is None else _with_links(base.network, parse_network(network))
    if hosts is not None:
        links = replace(links, hosts=replace(parse_hosts(hosts), beside=links.hosts.beside))
    if racks is not None:
        links = replace(links, racks=parse_racks(racks))
    return Cluster(compute, links, base.work)


def check_speeds(text: str, workers: int) -> None:
    """Refuse speeds of workers that aren't there.

    >>> check_speeds("0-3:1,4-7:0.5", 8)
    """
    last = max(speed.last for speed in parse_speeds(text))
    if last >= workers:
        there = "only worker 0" if workers == 1 else f"only {workers} workers, 0 to {workers - 1}"
        raise UsageError(
            f"speeds {text}: there is no worker {last}, {there}. Leave out workers that aren't there, "
            "or ask for more workers: "
            f"--workers {last + 1}"
        )


def parse_hosts(text: str) -> Hosts:
    """`4`: four workers to a host. `all`: everybody on one.

    >>> parse_hosts("4"), parse_hosts("all").each
    (Hosts(each=4, of=(), beside=False, workers=None), None)
    """
    name = text.strip().lower()
    if name == "all":
        return Hosts(None)
    if not name.isdecimal() or len(name) > 9:
        raise UsageError(f"{text!r} says not how many workers share a host. Write 4, or all.")
    return Hosts(int(name))


def parse_racks(text: str) -> Racks:
    """`8,10gbit`: eight hosts to a rack, whose uplink has that rate. `8,10gbit,50us`: and so much latency more.

    >>> parse_racks("8,10gbit,50us")
    Racks(hosts=8, rate_bytes_per_s=1250000000.0, latency_s=5e-05)
    """
    hosts, *rest = (part.strip() for part in text.split(","))
    if not hosts.isdecimal() or len(hosts) > 9 or len(rest) not in (1, 2):
        raise UsageError(
            f"{text!r} are no racks. Write hosts and uplink such as 8,10gbit, or 8,10gbit,50us with extra latency."
        )
    return Racks(int(hosts), parse_rate(rest[0]), parse_seconds(rest[1]) if len(rest) > 1 else 0.0)


def _computing(
    base: ComputeModel, step: str | None, straggler: str | None, spread: float | None, speeds: str | None
) -> ComputeModel:
    if not isinstance(base, Compute):
        return base
    if step is not None:
        base = replace(base, step_s=parse_seconds(step), trace=(), workers_s={})
    if straggler is not None:
        base = replace(base, straggler=parse_straggler(straggler))
    if spread is not None:
        base = replace(base, spread=spread)
    return base if speeds is None else replace(base, speeds=parse_speeds(speeds))


def _with_links(base: Network, links: Network) -> Network:
    """Other interfaces for the same hosts, racks and single links."""
    return replace(links, hosts=base.hosts, inside=base.inside, racks=base.racks, links=base.links)
