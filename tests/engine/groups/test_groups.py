"""Workers that add within their groups first: the same bits on threads, processes, two hosts, and simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import grouped_bodies as bodies
from fast.engine.namespaces import Cluster
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.sim import Network
from fast.sim.cluster import Hosts
from fast.transport.tcp import new_secret
from running import Runner, as_text, parameters_of

pytestmark = pytest.mark.real
PAIRS = ((0, 1), (2, 3))
CROSSED = ((0, 2), (1, 3))
UNEQUAL = ((0,), (1, 2, 3))
CALLS = ["allreduce", "local_sgd(tau=2)"]
STEPS = [6, 3, 6, 5]
"""So a worker of each of two hosts leaves early."""
LIMIT_S = 100


def on_hosts(
    cluster: Cluster, folder: Path, placed: tuple[int, ...], name: str, **arguments: Any
) -> list[Any]:
    """What each worker found; worker i runs on host `placed[i]`. All of it goes through TLS."""
    secret = folder / "job.secret"
    secret.touch(mode=0o600)
    secret.write_text(new_secret().text())
    shared = {
        "OMP_NUM_THREADS": "1",
        "FAST_SEED": "0",
        "FAST_DEADLINE": "60",
        "FAST_SECRET_FILE": str(secret),
        "WORLD_SIZE": str(len(placed)),
        "MASTER_ADDR": cluster.address(placed[0]),
        "MASTER_PORT": "29500",
    }
    command = [sys.executable, bodies.__file__, name, json.dumps(arguments)]
    processes = [
        cluster.run(
            host,
            command,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(placed)
    ]
    ended = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(placed), "\n".join(e for _, e in ended)
    lines = [next(line for line in out.splitlines() if line.startswith("found ")) for out, _ in ended]
    return [json.loads(line.removeprefix("found ")) for line in lines]


@pytest.fixture(scope="module")
def locally(runner: Runner) -> Callable[..., list[Any]]:
    """Trainings and rounds on processes of this host, each once."""

    @cache
    def found(groups: Any, name: str, said: str) -> list[Any]:
        return runner.results(f"grouped_bodies:{name}", 4, groups=groups, **json.loads(said))

    return lambda groups, name, **arguments: found(groups, name, json.dumps(arguments))


@pytest.mark.parametrize("call", CALLS)
def test_groups_change_the_bits_of_a_run(locally, call):
    found = [locally(groups, "train", strategy=call, steps=STEPS) for groups in ((), PAIRS, CROSSED)]
    assert len({each[0]["final"] for each in found}) == 3


@pytest.mark.parametrize("call", CALLS)
def test_one_group_and_a_group_for_each_worker_are_the_plain_order(locally, call):
    plain = locally((), "train", strategy=call, steps=STEPS)
    for groups in (((0, 1, 2, 3),), ((0,), (1,), (2,), (3,))):
        assert locally(groups, "train", strategy=call, steps=STEPS) == plain


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("groups", [PAIRS, CROSSED, UNEQUAL], ids=str)
def test_simulated_workers_have_the_bits_of_processes(locally, call, groups):
    simulated = bodies.simulation(call, STEPS, groups, Network(1e9, 1e-4))
    simulated.run()
    expected = [as_text(parameters_of(worker.me.model)) for worker in simulated.workers]
    assert [each["own"] for each in locally(groups, "train", strategy=call, steps=STEPS)] == expected


def test_the_workers_of_a_simulated_host_are_a_group():
    found = []
    for groups, hosts in ((PAIRS, Hosts(1)), (None, Hosts(2)), ((), Hosts(2))):
        simulated = bodies.simulation("allreduce", STEPS, groups, Network(1e9, 1e-4, hosts=hosts))
        simulated.run()
        found.append(as_text(parameters_of(simulated.workers[0].me.model)))
    assert found[0] == found[1] != found[2]


def test_threads_have_the_bits_of_processes(locally):
    """They have no memory reduction: there all pairs write letters."""
    found = run_threads(
        4, lambda id: bodies.train("allreduce", STEPS), serve, groups=CROSSED, deadline_s=60.0
    )
    expected = locally(CROSSED, "train", strategy="allreduce", steps=STEPS)
    assert [each["own"] for each in found] == [each["own"] for each in expected]


@pytest.mark.parametrize(
    "call",
    [*(pytest.param(call, marks=pytest.mark.long) for call in CALLS), "allreduce(bucket_mb=0.16)"],
)
def test_two_hosts_have_the_bits_of_groups_on_one(locally, make_cluster, tmp_path, call):
    """Although workers leave early, one of them on each host; also where rounds over slices are under way at once."""
    found = on_hosts(make_cluster(2), tmp_path, (0, 0, 1, 1), "train", strategy=call, steps=STEPS)
    expected = locally(PAIRS, "train", strategy=call.partition("(bucket")[0], steps=STEPS)
    for key in ("own", "final"):
        assert [each[key] for each in found] == [each[key] for each in expected]


@pytest.mark.parametrize(
    ("placed", "groups"),
    [
        ((0, 1, 0, 1), CROSSED),
        pytest.param((0, 1, 1, 1), UNEQUAL, marks=pytest.mark.long),
        pytest.param((0, 1, 2, 0), ((0, 3), (1,), (2,)), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_every_kind_of_mean_between_hosts(locally, make_cluster, tmp_path, placed, groups):
    """All have the bits of one host; and N bytes of a mean make 2 N (H - 1) / H leave each host, as the kernel counts
    them with the headers of Ethernet, IP, TCP and TLS. In pairs it would be at least 1.5 times as much."""
    count = len(groups)
    found = on_hosts(make_cluster(count), tmp_path, placed, "rounds", leaves=1)
    expected = locally(groups, "rounds", leaves=1)
    for each, local in zip(found, expected, strict=True):
        assert {**each, "sent": None} == {**local, "sent": None}
    assert found[0]["groups"] == [list(group) for group in groups]
    assert [each["after"][0][1] for each in found if "after" in each] == [[0, 2, 3]] * 3
    moved = 10 * bodies.LENGTH * torch.float32.itemsize * 2 * (count - 1) / count
    assert all(0.8 * moved < each["sent"] < 1.4 * moved for each in found)
