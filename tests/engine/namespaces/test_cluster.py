"""A cluster of network namespaces: who reaches whom, rates, cuts, and that nothing is left, whatever happens."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fast.engine.namespaces import Cluster, available, sweep
from fast.engine.namespaces.iproute import bits_per_second
from fast.engine.namespaces.owners import Owner, namespaces, new_prefix, owner_of
from fast.errors import UsageError

Make = Callable[..., Cluster]


@pytest.fixture
def sockets() -> Iterator[Callable[[Cluster, int], socket.socket]]:
    """UDP sockets bound on hosts."""
    with ExitStack() as stack:

        def bound(cluster: Cluster, host: int) -> socket.socket:
            with cluster.inside(host):
                made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                made.bind((cluster.address(host), 0))
            made.settimeout(60)
            return made

        yield bound


def exchanged(one: socket.socket, two: socket.socket) -> bytes:
    """What the second got first, once something from the first one has come through."""
    one.sendto(b"after", two.getsockname())
    return two.recv(100)


def connected(cluster: Cluster, sender: int, receiver: int) -> tuple[socket.socket, socket.socket]:
    with cluster.inside(receiver):
        listener = socket.create_server((cluster.address(receiver), 0))
    with cluster.inside(sender), closing(listener):
        near = socket.create_connection(listener.getsockname(), timeout=60)
        far, _ = listener.accept()
    far.settimeout(60)
    return near, far


# Hosts


def test_every_host_reaches_every_other(make_cluster: Make) -> None:
    cluster = make_cluster(4)
    for sender in range(4):
        for receiver in range(4):
            near, far = connected(cluster, sender, receiver)
            with near, far:
                near.sendall(b"x")
                assert far.recv(1) == b"x"
                assert far.getpeername()[0] == cluster.address(sender)


def test_a_process_runs_on_its_host(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    found = cluster.run(1, ["ip", "-j", "address"], stdout=subprocess.PIPE, text=True)
    devices = {each["ifname"]: each for each in json.loads(found.communicate()[0])}
    assert sorted(devices) == ["eth0", "lo"]
    inet = next(each for each in devices["eth0"]["addr_info"] if each["family"] == "inet")
    assert (inet["local"], inet["prefixlen"]) == (cluster.address(1), 24)
    assert "UP" in devices["lo"]["flags"]


def test_there_is_no_way_out(make_cluster: Make) -> None:
    """Not even to the machine itself; and the machine has no way in."""
    cluster = make_cluster(2)
    with cluster.inside(0), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        assert outward.connect_ex(("192.0.2.1", 9)) == errno.ENETUNREACH
    before = os.stat("/proc/thread-self/ns/net").st_ino
    with cluster.inside(0):
        assert os.stat("/proc/thread-self/ns/net").st_ino != before
    assert os.stat("/proc/thread-self/ns/net").st_ino == before


def test_a_thread_started_on_a_host_stays_there(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    left, seen = threading.Event(), []

    def look() -> None:
        left.wait()
        seen.append(os.stat("/proc/thread-self/ns/net").st_ino)

    with cluster.inside(1):
        thread = threading.Thread(target=look)
        thread.start()
    left.set()
    thread.join()
    assert seen == [os.stat(f"/var/run/netns/{cluster.namespace(1)}").st_ino]


def test_two_clusters_have_the_same_addresses_and_nothing_else_in_common(make_cluster: Make) -> None:
    one, two = make_cluster(2), make_cluster(2)
    assert one.address(1) == two.address(1)
    with one.inside(1):
        listener = socket.create_server((one.address(1), 0))
    with listener, two.inside(0), socket.socket() as stranger:
        assert stranger.connect_ex(listener.getsockname()) == errno.ECONNREFUSED


@pytest.mark.parametrize("hosts", [1, 9])
def test_a_cluster_has_two_to_eight_hosts(hosts: int) -> None:
    with pytest.raises(UsageError, match="2 to 8 hosts"):
        Cluster(hosts)


def test_a_host_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no host 3: this cluster has hosts 0 to 2"):
        Cluster(3).address(3)


# Where there can't be one


@pytest.mark.skipif(os.geteuid() != 0, reason="without root that is the reason, whatever else is missing")
def test_it_says_why_it_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the commands, and with commands that aren't allowed to do it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available() == "the command ip is missing: apt-get install iproute2"
    for command in ("ip", "tc"):
        (tmp_path / command).write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    reason = available()
    assert reason is not None and reason.startswith("network namespaces don't work here: `ip netns ")
    assert reason.endswith("failed: Operation not permitted")


# Rates


@pytest.mark.parametrize("rate", ["10mbit", "100mbit", "1gbit"])
def test_rates_are_what_the_kernel_reports(make_cluster: Make, rate: str) -> None:
    cluster = make_cluster(2, rate=rate)
    expected = int(bits_per_second(rate))
    assert [cluster.rates(host) for host in range(2)] == [(expected, expected)] * 2
    print(f"\n{rate}: measured {measured_rate(cluster, round(expected / 8 * 0.3)) / 1e6:.1f} Mbit/s")


def measured_rate(cluster: Cluster, nbytes: int) -> float:
    """Bits per second of one TCP connection, as its receiver sees them."""
    near, far = connected(cluster, 0, 1)
    sender = threading.Thread(target=lambda: (near.sendall(bytes(nbytes)), near.shutdown(socket.SHUT_WR)))
    begun, received = time.perf_counter(), 0
    with near, far:
        sender.start()
        while got := len(far.recv(1 << 20)):
            received += got
        sender.join()
    assert received == nbytes
    return 8 * received / (time.perf_counter() - begun)


def test_rates_change_and_go_away(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    assert cluster.rates(0) == (None, None)
    cluster.set_rate(0, "20mbit")
    cluster.set_rate(0, "2.5mbit")
    assert cluster.rates(0) == (2_500_000, 2_500_000) and cluster.rates(1) == (None, None)
    cluster.set_rate(0, None)
    cluster.set_rate(1, None)
    assert cluster.rates(0) == cluster.rates(1) == (None, None)


@pytest.mark.parametrize("rate", ["fast", "100", "100 mbit", "-1mbit", "0mbit", "1mbyte", ""])
def test_what_is_no_rate_is_refused(rate: str) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        Cluster(2, rate=rate)


# Cuts


def test_what_is_sent_to_a_host_that_is_cut_off_is_lost(
    make_cluster: Make, sockets: Callable[[Cluster, int], socket.socket]
) -> None:
    """Host 2 answers after the lost one has reached the switch."""
    cluster = make_cluster(3)
    zero, one, two = (sockets(cluster, host) for host in range(3))
    assert exchanged(zero, one) == exchanged(zero, two) == b"after"
    cluster.cut(1)
    zero.sendto(b"lost", one.getsockname())
    assert exchanged(zero, two) == exchanged(two, zero) == b"after"
    cluster.mend(1)
    assert exchanged(zero, one) == b"after"


def test_a_connection_outlives_a_cut(make_cluster: Make) -> None:
    """TCP sends again what was lost."""
    cluster = make_cluster(2, rate="100mbit")
    near, far = connected(cluster, 0, 1)
    with near, far:
        cluster.cut(0)
        near.sendall(b"during")
        cluster.mend(0)
        assert far.recv(100) == b"during"
    assert cluster.rates(0) == (100_000_000, 100_000_000)


def test_a_firewall_that_drops_loses_one_direction_without_a_word(
    make_cluster: Make, sockets: Callable[[Cluster, int], socket.socket]
) -> None:
    cluster = make_cluster(3)
    zero, one, two = (sockets(cluster, host) for host in range(3))
    assert exchanged(zero, one) == exchanged(zero, two) == b"after"
    cluster.drop(0, 1)
    zero.sendto(b"lost", one.getsockname())
    assert exchanged(zero, two) == exchanged(two, zero) == b"after"
    assert exchanged(one, zero) == b"after", "the other direction is open"
    cluster.let(0, 1)
    assert exchanged(zero, one) == b"after"


def test_a_connection_stalls_while_its_packets_are_dropped(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    near, far = connected(cluster, 0, 1)
    with near, far:
        cluster.drop(0, 1)
        near.sendall(b"during")
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(100)
        cluster.let(0, 1)
        far.settimeout(60)
        assert far.recv(100) == b"during"


# Nothing is left


def own_devices() -> set[str]:
    """Devices of the machine's own network that have names as ours."""
    found = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    ours = {"bridge", "eth0", *(f"port{port}" for port in range(8))}
    return {f"{each['ifname']} {each.get('ifindex')}" for each in found if each["ifname"] in ours}


def own_namespaces() -> list[str]:
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, text=True).stdout
    return [name for name in found.split() if (owner := owner_of(name)) and owner.pid == os.getpid()]


def ended(pid: int) -> bool:
    """Gone, or waiting for a parent that will never ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_machine_is_as_before(make_cluster: Make) -> None:
    before = own_devices()
    cluster = make_cluster(3, rate="10mbit")
    assert len(own_namespaces()) == 4 and own_devices() == before
    cluster.close()
    assert own_namespaces() == [] and own_devices() == before
    cluster.close()


def test_processes_are_killed_with_those_that_they_started(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    script = "sleep 1000 & setsid sleep 1000 & echo $!; trap '' TERM; wait"
    process = cluster.run(0, ["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        grandchild = int(process.stdout.readline())
    assert not ended(grandchild)
    cluster.close()
    assert process.returncode == -signal.SIGKILL and ended(grandchild)


def test_a_cluster_that_cannot_be_built_leaves_nothing(make_cluster: Make) -> None:
    """The rate is one to us and too much for tc."""
    with pytest.raises(UsageError, match="failed"):
        make_cluster(2, rate=f"{'9' * 30}gbit")
    assert own_namespaces() == []


def script(body: str) -> list[str]:
    imports = "import os, sys; from fast.engine.namespaces import Cluster; from fast.engine.namespaces.owners import *"
    return [sys.executable, "-c", f"{imports}\n{body}"]


def test_what_a_killed_process_left_is_swept(make_cluster: Make) -> None:
    """By the next cluster of anybody, with the processes inside; what has an owner stays."""
    staying = make_cluster(2)
    body = """
cluster = Cluster(2).__enter__()
process = cluster.run(0, ["sleep", "1000"])
print(os.getpid(), process.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(script(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        pid, inside = map(int, child.stdout.readline().split())
        left = [name for name in namespaces() if owner_of(name).pid == pid]
        assert len(left) == 3 and not ended(inside)
        child.kill()
    assert {*left} <= {*namespaces()}, "they outlive their owner, so there is something to sweep"
    make_cluster(2)
    assert not {*left} & {*namespaces()} and ended(inside)
    assert len(namespaces(staying.namespace(0).removesuffix("-host0"))) == 3
    assert not {*left} & {*sweep()}, "a second time there is nothing to do"


def test_a_process_that_ends_leaves_nothing_and_a_forked_child_of_it_everything(make_cluster: Make) -> None:
    """Both end with SystemExit, through the same `with` and the same exit handlers."""
    body = """
with Cluster(2) as kept:
    Cluster(2).__enter__()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(os.getpid(), len([name for name in namespaces() if owner_of(name).pid == os.getpid()]), flush=True)
    sys.exit(3)
"""
    done = subprocess.run(script(body), capture_output=True, text=True, timeout=100)
    pid, there_after_the_child = map(int, done.stdout.split())
    assert done.returncode == 3 and there_after_the_child == 6, done.stderr
    assert not [name for name in namespaces() if owner_of(name).pid == pid], done.stderr


# Owners


def test_names_tell_their_owner() -> None:
    owner = owner_of(f"{new_prefix()}-host0")
    assert owner is not None and owner.pid == os.getpid() and owner.alive


@pytest.mark.parametrize(
    "name", ["blue", "fast-host0", "fast-12345678-1-2-abcdef", "xfast-12345678-1-2-abcdef-host0"]
)
def test_other_peoples_namespaces_have_no_owner(name: str) -> None:
    assert owner_of(name) is None


def test_an_owner_of_another_boot_or_start_is_gone() -> None:
    own = owner_of(f"{new_prefix()}-host0")
    assert own is not None
    assert not Owner("00000000", own.pid, own.start).alive
    assert not Owner(own.boot, own.pid, own.start - 1).alive
    assert not Owner(own.boot, 2**22 + 1, own.start).alive


def test_an_owner_that_nobody_waited_for_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        owner = Owner(owner_of(f"{new_prefix()}-host0").boot, process.pid, start)
        assert owner.alive
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.alive
