"""Hosts that are network namespaces, joined by a switch that is one too.

    host0: eth0 10.77.0.1/24 ----- port0 +--------+ port1 ----- eth0 10.77.0.2/24 :host1
                                         | switch |
    host2: eth0 10.77.0.3/24 ----- port2 +--------+

Each line is a veth pair, made inside these namespaces: the machine's own network never sees one. There is no way
out either, so all clusters can have the same addresses. Rates are limited by `tbf` at both ends of a line: at eth0
what a host sends, at its port what it receives. Delays are not among what every kernel can do (`netem`): see `relay`.

Needs Linux, root, and the package iproute2.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from fast.engine.namespaces.iproute import bits_per_second, call, inside, ip, reported, shape
from fast.engine.namespaces.owners import namespaces, new_prefix, remove, sweep
from fast.errors import UsageError

HOSTS = range(2, 9)
_SUBNET = "10.77.0"
_NOWHERE = "02:00:00:00:00:01"
"""The switch's own address. It has no network of its own behind it, so a packet to it is lost without an answer."""


def available() -> str | None:
    """Why there can't be a cluster on this machine; None if there can. Tries for real."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [command for command in ("ip", "tc") if shutil.which(command) is None]:
        return f"the command {missing[0]} is missing: apt-get install iproute2"
    try:
        with Cluster(2, rate="10mbit"):
            return None
    except (UsageError, OSError) as found:
        return f"network namespaces don't work here: {found}"


class Cluster:
    """Two to eight hosts on one switch: `with Cluster(3, rate="100mbit") as cluster: ...`.

    All that runs in them is killed at the end, and they are removed: also if the block fails or the process exits. What
    a killed process left is removed by the next `Cluster`.
    """

    def __init__(self, hosts: int, rate: str | None = None) -> None:
        if hosts not in HOSTS:
            raise UsageError(f"a cluster has {HOSTS[0]} to {HOSTS[-1]} hosts, and {hosts} are asked for")
        if rate is not None:
            bits_per_second(rate)
        self.hosts = hosts
        self._rate = rate
        self._prefix = new_prefix()
        self._maker = os.getpid()
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        sweep()
        atexit.register(self.close)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self.hosts} hosts, {self._prefix})"

    def close(self) -> None:
        """Kill what runs inside and remove all. May be repeated, even when interrupted. A forked child does nothing."""
        if os.getpid() != self._maker:
            return
        remove(namespaces(self._prefix))
        for process in self._started:
            process.wait()
        self._started.clear()
        atexit.unregister(self.close)

    # Hosts

    def address(self, host: int) -> str:
        """The IPv4 address of a host, inside the cluster."""
        return f"{_SUBNET}.{self._checked(host) + 1}"

    def namespace(self, host: int) -> str:
        """Its name for `ip netns exec NAME ...`, to look around by hand."""
        return f"{self._prefix}-host{self._checked(host)}"

    def inside(self, host: int) -> AbstractContextManager[None]:
        """The calling thread is on this host while the block runs. Sockets, threads and processes made there stay."""
        return inside(self.namespace(host))

    def run(self, host: int, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on a host; further arguments are those of `subprocess.Popen`."""
        with self.inside(host):
            process = subprocess.Popen(argv, **popen)
        self._started.append(process)
        return process

    # Links

    def set_rate(self, host: int, rate: str | None) -> None:
        """Limit what a host sends, and what it receives, each to this rate (such as 100mbit); None: no limit."""
        shape(self.namespace(host), "eth0", rate)
        shape(self._switch, f"port{host}", rate)

    def rates(self, host: int) -> tuple[int | None, int | None]:
        """What a host may send and receive, in bits per second, as the kernel reports it."""
        return reported(self.namespace(host), "eth0"), reported(self._switch, f"port{host}")

    def cut(self, host: int) -> None:
        """Pull a host's cable: packets from and to it are lost, and nobody is told."""
        ip(self._switch, f"link set port{self._checked(host)} down")

    def mend(self, host: int) -> None:
        """Plug the cable in again."""
        ip(self._switch, f"link set port{self._checked(host)} up")

    def drop(self, sender: int, receiver: int) -> None:
        """Lose every packet from one host to another without a word, as a firewall does that drops. For both directions
        call it twice; a TCP connection stalls with one."""
        ip(
            self.namespace(sender),
            f"neigh replace {self.address(receiver)} lladdr {_NOWHERE} dev eth0 nud permanent",
        )

    def let(self, sender: int, receiver: int) -> None:
        """Undo `drop`."""
        ip(self.namespace(sender), f"neigh del {self.address(receiver)} dev eth0")

    # Building

    @property
    def _switch(self) -> str:
        return f"{self._prefix}-switch"

    def _checked(self, host: int) -> int:
        if host not in range(self.hosts):
            raise UsageError(f"there is no host {host}: this cluster has hosts 0 to {self.hosts - 1}")
        return host

    def _build(self) -> None:
        for name in (self._switch, *map(self.namespace, range(self.hosts))):
            call("ip", "netns", "add", name)
        ports = [
            line
            for host in range(self.hosts)
            for line in (
                f"link add port{host} type veth peer name eth0 netns {self.namespace(host)}",
                f"link set port{host} master bridge up",
            )
        ]
        ip(self._switch, f"link add bridge address {_NOWHERE} type bridge", "link set bridge up", *ports)
        for host in range(self.hosts):
            address = f"address add {self.address(host)}/24 dev eth0"
            ip(self.namespace(host), "link set lo up", address, "link set eth0 up")
            if self._rate is not None:
                self.set_rate(host, self._rate)
