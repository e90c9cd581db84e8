"""Runs on several hosts, as a user starts them by hand: hosts are network namespaces."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fast.engine.namespaces import Cluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
PORT = 7077
LONG_S = 300

TRAINING = """
import hashlib, sys, threading
import torch, fast
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = [torch.randn(4, 3) for _ in range(int(sys.argv[1]))]
print("begins", flush=True)
for step, batch in enumerate(fast.shard(data)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    {body}
    optimizer.step()
fast.consolidate(model)
if fast.is_main():
    print("bits", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


@dataclass
class Started:
    """A command, and what it has printed so far."""

    process: subprocess.Popen[str]
    text: str = ""

    def until(self, words: str) -> str:
        """Read on until these words have come; returns the line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if words in line:
                return line
        raise AssertionError(f"{words!r} never came:\n{self.text}")

    def end(self) -> int:
        assert self.process.stdout is not None
        self.text += self.process.stdout.read()
        return self.process.wait(LONG_S)

    @property
    def sentences(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith("fast: ")]


class Hosts:
    """Two or more hosts that share a folder, and commands on them."""

    def __init__(self, cluster: Cluster, folder: Path, pipes: ExitStack) -> None:
        self.cluster, self.folder, self._pipes = cluster, folder, pipes
        self.names = [cluster.address(host) for host in range(cluster.hosts)]

    def start(self, host: int, *words: str, **environ: str) -> Started:
        process = self.cluster.run(
            host,
            [sys.executable, "-m", "fast", *words],
            cwd=self.folder,
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._pipes.enter_context(process.stdout)
        return Started(process)

    def run(self, *words: str, log: str = "--no-log") -> Started:
        return self.start(0, "run", "--hosts", ",".join(self.names), log, *words)

    def worker(self, host: int, *words: str) -> Started:
        at = ("--coordinator", f"{self.names[0]}:{PORT}", "--host-number", str(host))
        return self.start(host, "worker", *at, *words)

    def reaches(self, host: int) -> bool:
        """Whether somebody listens where a coordinator was; the calling thread is on one of the hosts."""
        try:
            socket.create_connection((self.names[host], PORT), timeout=60).close()
        except ConnectionRefusedError:
            return False
        return True

    def script(self, body: str = "pass") -> str:
        path = self.folder / "train.py"
        path.write_text(TRAINING.format(body=body))
        return str(path.name)

    def secret(self, name: str = "job.secret") -> tuple[str, str]:
        if not (self.folder / name).exists():
            subprocess.run([sys.executable, "-m", "fast", "secret", name], cwd=self.folder, check=True)
        return "--secret", name


@pytest.fixture
def make_hosts(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    with ExitStack() as stack:
        yield lambda hosts: Hosts(make_cluster(hosts), tmp_path, stack)


def bits(text: str) -> str:
    found = re.search(r"bits (\w+)", text)
    assert found is not None, text
    return found[1]


def on_one_host(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fast", "run", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return bits(done.stdout)


# It works

WAITS = 'while not (step < 3 or __import__("os").path.exists("go")): threading.Event().wait(0.02)'
"""At its third step a worker waits for the test."""


def test_the_printed_command_starts_the_other_host_and_the_bits_are_those_of_one_host(make_hosts) -> None:
    """Three workers on two hosts. The coordinator has gone before the run goes on."""
    hosts = make_hosts(2)
    script, secret = hosts.script(WAITS), hosts.secret()
    first = hosts.run("--workers", "3", *secret, script, "24")
    typed = first.until("type: ").partition("type: ")[2]
    second = hosts.start(1, *shlex.split(typed)[1:])
    first.until("begins")
    with hosts.cluster.inside(1):
        while hosts.reaches(0):
            pass
    (hosts.folder / "go").touch()
    assert (first.end(), second.end()) == (0, 0), first.text + second.text
    assert "[worker 2] begins" in second.text and "[worker 2]" not in first.text
    assert bits(first.text) == on_one_host(hosts.folder, "--workers", "3", script, "24")


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ssp(bound=1)"])
def test_servers_and_numbers_by_hand_over_ssh(make_hosts, strategy, tmp_path) -> None:
    """`ssh` is a program on PATH that runs the command on the host of that name. No command line shows the secret."""
    hosts = make_hosts(2)
    script, secret = hosts.script(), hosts.secret()
    text = (hosts.folder / "job.secret").read_text().strip()
    fake, shown = tmp_path / "bin" / "ssh", tmp_path / "shown"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {shown}\nexec ip netns exec {hosts.cluster.namespace(1)} sh -c "$4"\n'
    )
    fake.chmod(0o755)
    names = ",".join(f"{name}:{count}" for name, count in zip(hosts.names, (1, 2), strict=True))
    first = hosts.start(
        0, "run", "--hosts", names, "--ssh", *secret, "--strategy", strategy, script, "12",
        PATH=f"{fake.parent}:{os.environ['PATH']}",
    )  # fmt: skip
    assert first.end() == 0, first.text
    assert [f"[worker {n}] begins" in first.text for n in range(3)] == [True] * 3
    assert "worker --coordinator" in shown.read_text()
    assert text not in shown.read_text() + first.text


@pytest.mark.long
def test_a_record_of_several_hosts_is_replayed_and_nothing_shows_the_secret(make_hosts) -> None:
    """They share a folder here; elsewhere their files are put together."""
    hosts = make_hosts(2)
    script, secret = hosts.script(), hosts.secret()
    first = hosts.run("--workers", "4", *secret, "--record", "run.rec", script, "24", log="--log")
    first.until("waiting for")
    second = hosts.worker(1, *secret)
    second.until("begins")
    text = (hosts.folder / "job.secret").read_text().strip()
    shown = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            shown.append(path.read_bytes())
    assert (first.end(), second.end()) == (0, 0), first.text + second.text
    kept = [
        path.read_bytes() for place in ("run.rec", "runs") for path in (hosts.folder / place).rglob("*.*")
    ]
    assert len(kept) >= 4
    assert not [
        each for each in (*shown, *kept, first.text.encode(), second.text.encode()) if text.encode() in each
    ]
    again = subprocess.run(
        [sys.executable, "-m", "fast", "replay", "run.rec"], cwd=hosts.folder, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert bits(again.stdout) == bits(first.text)


# Something is wrong before it begins


def failed(*commands: Started) -> list[str]:
    """The one sentence of each; all have failed."""
    for command in commands:
        assert command.end() in (1, 2), command.text
        assert "Traceback" not in command.text
    return [command.sentences[-1] for command in commands]


def test_a_wrong_secret(make_hosts) -> None:
    hosts = make_hosts(2)
    right, wrong = hosts.secret(), hosts.secret("wrong.secret")
    first = hosts.run("--deadline", "15", *right, hosts.script(), "1")
    first.until("waiting for")
    second = hosts.worker(1, "--deadline", "15", *wrong)
    here, there = failed(first, second)
    assert "10.77.0.2 (host 1)" in here and "not of one job" in here
    assert "give all hosts the same secret" in there


@pytest.mark.long
def test_a_secret_on_one_side_only(make_hosts) -> None:
    hosts = make_hosts(2)
    first = hosts.run(*hosts.secret(), hosts.script(), "1")
    first.until("waiting for")
    (there,) = failed(hosts.worker(1, "--deadline", "1", "--plain-tcp"))
    assert "--plain-tcp" in there
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130


@pytest.mark.long
def test_a_firewall_before_the_coordinator(make_hosts) -> None:
    hosts = make_hosts(2)
    hosts.cluster.drop(1, 0)
    secret = hosts.secret()
    first = hosts.run("--deadline", "5", *secret, hosts.script(), "1")
    here, there = failed(first, hosts.worker(1, "--deadline", "5", *secret))
    assert "of 2 hosts 1 have come within 5 s" in here and "10.77.0.2 (host 1)" in here
    assert "could not be reached for 5 s: no answer comes back" in there and "firewall" in there


@pytest.mark.long
def test_nobody_at_the_coordinators_address(make_hosts) -> None:
    hosts = make_hosts(2)
    (there,) = failed(hosts.worker(1, "--deadline", "1", *hosts.secret()))
    assert "nobody listens at that port" in there


@pytest.mark.long
def test_a_host_that_is_not_there(make_hosts) -> None:
    hosts = make_hosts(2)
    away = hosts.start(1, "worker", "--coordinator", "10.99.0.1:7077", "--host-number", "1", "--deadline", "1",
                       *hosts.secret())  # fmt: skip
    (there,) = failed(away)
    assert "10.99.0.1:7077 could not be reached for 1 s: Network is unreachable" in there


@pytest.mark.long
def test_two_runs_at_one_port_and_a_command_typed_twice(make_hosts) -> None:
    hosts = make_hosts(3)
    script, secret = hosts.script(), hosts.secret()
    first = hosts.run("--deadline", "40", *secret, script, "1")
    first.until("waiting for")
    (other,) = failed(hosts.run(*secret, script, "1"))
    assert "can't listen at 10.77.0.1:7077" in other and "Another run or program uses that port" in other
    (strange,) = failed(hosts.worker(1, "--host-number", "7", *secret))
    assert "there is no host 7: this run has hosts 0 to 2" in strange
    once, twice = hosts.worker(1, *secret), hosts.worker(1, *secret)
    speaks, _, _ = select.select([once.process.stdout, twice.process.stdout], [], [], LONG_S)
    refused = once if once.process.stdout in speaks else twice
    (sentence,) = failed(refused)
    assert "typed twice" in sentence
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    (there,) = failed(twice if refused is once else once)
    assert "the run was interrupted on 10.77.0.1" in there


@pytest.mark.long
def test_another_script_on_the_other_host(make_hosts, tmp_path) -> None:
    hosts = make_hosts(2)
    script, secret = hosts.script(), hosts.secret()
    first = hosts.run(*secret, script, "1")
    first.until("waiting for")
    hosts.folder = tmp_path / "elsewhere"
    hosts.folder.mkdir()
    hosts.script("print('another one')")
    here, there = failed(first, hosts.worker(1, "--secret", str(tmp_path / "job.secret")))
    assert "differs from that of 10.77.0.1" in here and "10.77.0.2" in here
    assert "Copy the same script" in there


# Something goes wrong while it runs


def begun(hosts: Hosts, body: str, *options: str, steps: int = 100_000) -> list[Started]:
    """A run on all hosts, whose training has begun on each of them."""
    script, secret = hosts.script(body), hosts.secret()
    commands = [hosts.run(*secret, *options, script, str(steps))]
    commands[0].until("waiting for")
    commands += [hosts.worker(host, *secret, *options[:2]) for host in range(1, len(hosts.names))]
    for command in commands:
        command.until("begins")
    return commands


def test_a_worker_that_is_killed_ends_the_run_on_all_hosts(make_hosts) -> None:
    hosts = make_hosts(3)
    body = 'fast.whoami().worker == 1 and step == 2 and __import__("os").kill(__import__("os").getpid(), 9)'
    for command in begun(hosts, body):
        (sentence,) = failed(command)
        assert sentence.startswith(
            "fast: worker 1 on 10.77.0.2 was killed by signal 9 (SIGKILL) after 2 steps"
        )


@pytest.mark.long
def test_a_worker_that_raises_and_ctrl_c_on_another_host(make_hosts) -> None:
    hosts = make_hosts(2)
    body = "assert fast.whoami().worker < 1 or step < 2, 'it is broken'"
    first, second = begun(hosts, body)
    assert (first.end(), second.end()) == (1, 1)
    for command in (first, second):
        assert command.sentences[-1] == "fast: worker 1 on 10.77.0.2 failed: AssertionError: it is broken"
    assert "Traceback" in second.text and "Traceback" not in first.text

    first, second = begun(hosts, "pass")
    second.process.send_signal(signal.SIGINT)
    assert second.end() == 130
    assert failed(first) == ["fast: the run was interrupted on 10.77.0.2"]


def test_a_cable_that_is_out_for_five_seconds_changes_no_bit(make_hosts) -> None:
    hosts = make_hosts(2)
    first, second = begun(hosts, WAITS, steps=60)
    hosts.cluster.cut(1)
    (hosts.folder / "go").touch()
    with hosts.cluster.inside(0), pytest.raises(TimeoutError):
        socket.create_connection((hosts.names[1], 9), timeout=5)
    hosts.cluster.mend(1)
    assert (first.end(), second.end()) == (0, 0), first.text + second.text
    assert bits(first.text) == on_one_host(hosts.folder, "train.py", "60")


@pytest.mark.long
def test_a_cable_that_stays_out_ends_the_run_on_both_sides(make_hosts) -> None:
    hosts = make_hosts(2)
    first, second = begun(hosts, "pass", "--deadline", "20")
    hosts.cluster.cut(1)
    here, there = failed(first, second)
    for sentence, peer in ((here, 1), (there, 0)):
        assert f"participant {peer} has given no sign of life" in sentence
        assert "the network is cut" in sentence


@pytest.mark.long
def test_a_firewall_between_two_hosts_that_both_reach_the_coordinator(make_hosts) -> None:
    """News still go round by the third host, so nobody is silent, and yet nothing gets through."""
    hosts = make_hosts(3)
    for pair in ((1, 2), (2, 1)):
        hosts.cluster.drop(*pair)
    script, secret = hosts.script(), hosts.secret()
    commands = [hosts.run("--deadline", "20", *secret, script, "5")]
    commands[0].until("waiting for")
    commands += [hosts.worker(host, "--deadline", "20", *secret) for host in (1, 2)]
    for sentence in failed(*commands):
        assert re.search("participant [12]", sentence)
        assert "firewall" in sentence
