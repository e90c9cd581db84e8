"""Clusters as small files: TOML with units in the values. docs/how-to/clusters.md explains every key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fast.errors import UsageError
from fast.sim.cluster.cluster import Cluster
from fast.sim.cluster.compute import Compute
from fast.sim.cluster.hosts import Hosts, Racks
from fast.sim.cluster.kinds import (
    BYTE_RATE,
    COLD,
    CROWDING,
    DURATION,
    MEANS,
    NUMBER,
    RATE,
    SPEEDS,
    STRAGGLER,
    SWITCH,
    TRACE,
    WHOLE,
    WORKERS,
    Entry,
)
from fast.sim.cluster.network import Network, parse_network
from fast.sim.cluster.work import Work

SCHEMA = 1

_COMPUTE = (
    Entry("step", "step_s", DURATION),
    Entry("spread", "spread", NUMBER),
    Entry("speeds", "speeds", SPEEDS),
    Entry("straggler", "straggler", STRAGGLER),
    Entry("trace", "trace", TRACE),
    Entry("workers", "workers_s", WORKERS),
    Entry("pace", "pace_s", DURATION),
)
_LINK = (
    Entry("rate", "rate_bytes_per_s", RATE),
    Entry("latency", "latency_s", DURATION),
    Entry("message", "message_s", DURATION),
)
_NETWORK = (
    *_LINK,
    Entry("receive", "receive_bytes_per_s", RATE),
    Entry("shared", "shared", SWITCH),
)
_RACKS = (
    Entry("hosts", "hosts", WHOLE),
    Entry("rate", "rate_bytes_per_s", RATE),
    Entry("latency", "latency_s", DURATION),
)
_COSTS = (
    Entry("turn", "turn_s", DURATION),
    Entry("apply", "apply_s", DURATION),
    Entry("apply_rate", "apply_rate", BYTE_RATE),
    Entry("send", "send_s", DURATION),
    Entry("send_rate", "send_rate", BYTE_RATE),
    Entry("message", "message_s", DURATION),
    Entry("read", "read_s", DURATION),
    Entry("read_rate", "read_rate", BYTE_RATE),
    Entry("op", "op_s", DURATION),
    Entry("op_rate", "op_rate", BYTE_RATE),
    Entry("wake", "wake_s", DURATION),
)
_WORK = (
    *_COSTS,
    Entry("means", "means", MEANS),
    Entry("cores", "cores", WHOLE),
    Entry("slice", "slice_s", DURATION),
    Entry("cold", "cold", COLD),
    Entry("warm", "warm_s", DURATION),
    Entry("crowding", "crowding", CROWDING),
)


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that a file describes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from error
    return read_cluster(text, str(path))


def read_cluster(text: str, name: str = "the cluster file") -> Cluster:
    """The cluster that this text describes; `name` is what errors call it."""
    try:
        return _cluster(tomllib.loads(text))
    except (UsageError, ValueError) as error:  # what TOML can't be, and numbers too long to be read
        raise UsageError(f"{name}: {error}") from error
    except RecursionError as error:
        raise UsageError(
            f"{name} is nested too deeply; a cluster file has tables in tables at most"
        ) from error


def to_toml(cluster: Cluster) -> str:
    """The file that `read_cluster` reads as this cluster."""
    if not isinstance(cluster.compute, Compute):
        raise UsageError(f"{type(cluster.compute).__name__} has no place in a file; give a Compute")
    compute = _lines(_COMPUTE, cluster.compute, Compute(), always=("step",))
    parts = [_section("compute", compute), *_network_sections(cluster.network), *_work_sections(cluster.work)]
    return "\n".join([f"schema = {SCHEMA}\n", *parts])


# Reading


def _cluster(data: dict[str, Any]) -> Cluster:
    _check_keys(data, ("schema", "compute", "network", "work"), "the file")
    if data.get("schema") != SCHEMA:
        raise UsageError(f"schema = {data.get('schema')}, and this version reads schema = {SCHEMA}")
    compute = Compute(**_values(_COMPUTE, _table(data, "compute"), "[compute]"))
    network = _network(_table(data, "network")) if "network" in data else Cluster().network
    return Cluster(compute, network, _work(_table(data, "work")))


def _network(table: dict[str, Any]) -> Network:
    apart = ("profile", "hosts", "servers", "inside", "racks", "links")
    given = _values(_NETWORK, table, "[network]", apart)
    if "profile" in table:
        base = parse_network(str(table["profile"]))
    elif {"rate", "latency"} <= set(table):
        base = Network(given["rate_bytes_per_s"], given["latency_s"], shared=True)
    else:
        raise UsageError('[network] needs a profile such as "1gbit", or a rate and a latency')
    return replace(
        base,
        **given,
        hosts=_hosts(table),
        inside=_link(table, "inside") if "inside" in table else None,
        racks=_racks(table) if "racks" in table else None,
        links=_links(table.get("links", [])),
    )


def _hosts(table: dict[str, Any]) -> Hosts:
    where, servers = table.get("hosts", 1), table.get("servers", "apart")
    if servers not in ("apart", "beside"):
        raise UsageError(f'servers = {servers!r}: "apart" on hosts of their own, or "beside" the workers')
    beside = servers == "beside"
    if isinstance(where, list):
        return Hosts(of=tuple(WHOLE.read(host) for host in where), beside=beside)
    return Hosts(None if where == "all" else WHOLE.read(where), beside=beside)


def _link(table: dict[str, Any], name: str) -> Network:
    values = _values(_LINK, _table(table, name), f"[network.{name}]", ())
    return Network(**_complete(values, ("rate_bytes_per_s", "latency_s"), f"[network.{name}]"))


def _racks(table: dict[str, Any]) -> Racks:
    values = _values(_RACKS, _table(table, "racks"), "[network.racks]")
    return Racks(**_complete(values, ("hosts", "rate_bytes_per_s"), "[network.racks]"))


def _links(rows: Any) -> dict[tuple[int, int], Network]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("links are tables of their own, each headed [[network.links]]")
    found = {}
    for row in rows:
        values = _values(_LINK, row, "[[network.links]]", ("from", "to"))
        if "from" not in row or "to" not in row:
            raise UsageError("[[network.links]] needs from and to: the ids of sender and receiver")
        link = Network(**_complete(values, ("rate_bytes_per_s", "latency_s"), "[[network.links]]"))
        found[WHOLE.read(row["from"]), WHOLE.read(row["to"])] = link
    return found


def _work(table: dict[str, Any]) -> Work:
    values = _values(_WORK, table, "[work]", ("servers",))
    servers = (
        Work(**_values(_COSTS, _table(table, "servers"), "[work.servers]")) if "servers" in table else None
    )
    return Work(**values, servers=servers)


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{key} = {table!r} should be a table, headed [{key}]")
    return table


def _values(
    entries: Sequence[Entry], table: dict[str, Any], where: str, apart: Iterable[str] = ()
) -> dict[str, Any]:
    """What stands in a table, by field."""
    _check_keys(table, (*(entry.key for entry in entries), *apart), where)
    found = {}
    for entry in entries:
        if entry.key in table:
            try:
                found[entry.field] = entry.kind.read(table[entry.key])
            except UsageError as error:
                raise UsageError(f"{where} {entry.key}: {error}") from error
    return found


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise UsageError(f"{where} has no key {key!r}. {hint}")


def _complete(values: dict[str, Any], needed: Iterable[str], where: str) -> dict[str, Any]:
    if not set(needed) <= set(values):
        names = {entry.field: entry.key for entry in (*_NETWORK, *_RACKS)}
        raise UsageError(f"{where} needs {' and '.join(names[field] for field in needed)}")
    return values


# Writing


def _network_sections(network: Network) -> list[str]:
    lines = _lines(_NETWORK, network, Network(1.0, 0.0), always=("rate", "latency", "shared"))
    sections = [_section("network", [*lines, *_hosts_lines(network.hosts)])]
    always = ("rate", "latency")
    if network.inside is not None:
        sections.append(_section("network.inside", _lines(_LINK, network.inside, Network(1.0, 0.0), always)))
    if network.racks is not None:
        racks = _lines(_RACKS, network.racks, Racks(1, 1.0), ("hosts", *always))
        sections.append(_section("network.racks", racks))
    for (sender, to), link in network.links.items():
        ends = [f"from = {sender}", f"to = {to}"]
        sections.append(_section("[network.links]", [*ends, *_lines(_LINK, link, Network(1.0, 0.0), always)]))
    return sections


def _hosts_lines(hosts: Hosts) -> list[str]:
    where = str(list(hosts.of)) if hosts.of else '"all"' if hosts.each is None else str(hosts.each)
    return [f"hosts = {where}"] * (where != "1") + ['servers = "beside"'] * hosts.beside


def _work_sections(work: Work) -> list[str]:
    sections = []
    if work != Work():
        sections.append(_section("work", _lines(_WORK, work, Work())))
    if work.servers is not None:
        sections.append(_section("work.servers", _lines(_COSTS, work.servers, Work())))
    return sections


def _lines(entries: Sequence[Entry], values: object, usual: object, always: Sequence[str] = ()) -> list[str]:
    """What differs from the usual, and what always stands there."""
    return [
        f"{entry.key} = {entry.kind.write(getattr(values, entry.field))}"
        for entry in entries
        if entry.key in always or getattr(values, entry.field) != getattr(usual, entry.field)
    ]


def _section(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"[{name}]", *lines, ""])
