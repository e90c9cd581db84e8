"""`fast doctor`: this host, and the ways between hosts that are network namespaces."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fast.cli import main
from fast.engine.namespaces import Cluster
from fast.transport.tcp import new_secret, read_secret


def findings(path: Path) -> dict[str, dict]:
    return {each["check"]: each for each in json.loads(path.read_text())["findings"]}


def doctor(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fast", "doctor", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code)


def test_this_host(monkeypatch, capsys, tmp_path):
    assert doctor(monkeypatch, "--json", str(tmp_path / "found")) in (0, 1)
    found = findings(tmp_path / "found")
    assert {"versions", "shared memory", "open files", "cores", "own name"} <= found.keys()
    printed = capsys.readouterr().out
    for each in found.values():
        assert f"{'ok   ' if each['ok'] else 'WRONG'} {each['check']}: {each['found']}" in printed


def test_too_few_open_files_are_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert doctor(monkeypatch, "--json", str(tmp_path / "found")) == 1
    found = findings(tmp_path / "found")["open files"]
    assert not found["ok"] and found["found"] == "256 allowed" and "ulimit -n" in found["advice"]


def test_without_a_secret_nothing_is_asked(monkeypatch, capsys):
    monkeypatch.delenv("FAST_SECRET", raising=False)
    assert doctor(monkeypatch, "--hosts", "a,b") == 2
    assert "fast secret job.secret" in capsys.readouterr().err


def test_a_secret_is_private_and_never_overwritten(monkeypatch, capsys, tmp_path):
    path = tmp_path / "job.secret"
    for code in (0, 2):
        monkeypatch.setattr(sys, "argv", ["fast", "secret", str(path)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code
    assert path.stat().st_mode & 0o777 == 0o600
    assert "exists" in capsys.readouterr().err
    assert read_secret(path).text() == path.read_text().strip()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as pipes:

        def started(cluster: Cluster, host: int, *words: str, **environ: str) -> subprocess.Popen[str]:
            process = cluster.run(
                host, [sys.executable, "-m", "fast", "doctor", *words], cwd=tmp_path, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            pipes.enter_context(process.stderr)
            return process

        yield started


def listening(start: Start, cluster: Cluster, host: int, secret: str = "job.secret") -> None:
    process = start(cluster, host, "--listen", cluster.address(host), "--secret", secret)
    assert "listening at" in process.stderr.readline()


def write_secret(path: Path) -> None:
    path.touch(0o600)
    path.write_text(new_secret().text())


@pytest.mark.timeout(300)
def test_hosts_firewalls_and_secrets(make_cluster, start, tmp_path):
    """All is well with host 1; between 1 and 2 a firewall drops packets; 3 has another secret; one has no name."""
    write_secret(tmp_path / "job.secret")
    write_secret(tmp_path / "wrong.secret")
    cluster = make_cluster(4)
    cluster.drop(1, 2)
    for host in (1, 2):
        listening(start, cluster, host)
    listening(start, cluster, 3, "wrong.secret")
    names = [cluster.address(host) for host in range(4)]
    asking = start(
        cluster,
        0,
        "--hosts",
        ",".join([*names, "no.such.host.invalid"]),
        "--secret",
        "job.secret",
        "--json",
        "found",
    )
    assert asking.wait(200) == 1, asking.stderr.read()
    found = findings(tmp_path / "found")
    a, b, c, d = names
    assert found[f"way to {b}"]["ok"] and found[f"way to {c}"]["ok"]
    assert found[f"large packets to {b}"]["ok"] and "MTU 1500" in found[f"large packets to {b}"]["found"]
    assert found[f"versions of {b}"]["ok"] and found[f"clock of {b}"]["ok"]
    assert found[f"from {b}: way to {a}"]["ok"] and found[f"from {c}: way to {a}"]["ok"]
    for here, there in ((b, c), (c, b)):
        lost = found[f"from {here}: way to {there}"]
        assert not lost["ok"] and "firewall" in lost["found"] and "open TCP port 7077" in lost["advice"]
    assert (
        not found[f"way to {d}"]["ok"]
        and found[f"way to {d}"]["advice"] == "copy the same secret to all hosts"
    )
    nameless = found["name no.such.host.invalid"]
    assert not nameless["ok"] and "can't be resolved" in nameless["found"]


@pytest.mark.timeout(300)
def test_nobody_listens_and_small_packets_only(make_cluster, start, tmp_path):
    write_secret(tmp_path / "job.secret")
    cluster = make_cluster(3)
    listening(start, cluster, 1)
    switch = cluster.namespace(0).replace("host0", "switch")  # full packets vanish there, and no host is told
    subprocess.run(["ip", "-n", switch, "link", "set", "port1", "mtu", "1400"], check=True)
    for host in range(2):  # several packets in one, as a sender's own host passes them on, would come through
        namespace = cluster.namespace(host)
        subprocess.run(["ip", "-n", namespace, "link", "set", "eth0", "gso_max_segs", "1"], check=True)
    asking = start(
        cluster, 0, "--hosts", ",".join(cluster.address(host) for host in range(3)), "--secret", "job.secret",
        "--json", "found", "--patience", "3",
    )  # fmt: skip
    assert asking.wait(200) == 1, asking.stderr.read()
    found = findings(tmp_path / "found")
    closed = found[f"way to {cluster.address(2)}"]
    assert "nobody listens at port 7077" in closed["found"] and "fast doctor --listen" in closed["advice"]
    small, large = (found[f"{way} to {cluster.address(1)}"] for way in ("way", "large packets"))
    assert small["ok"], small
    assert not large["ok"] and "small packets come back and large ones don't (MTU 1500)" in large["found"]
    assert "same MTU" in large["advice"]
