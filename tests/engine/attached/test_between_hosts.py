"""What looks at other workers beside a strategy's letters, on two hosts with two workers each."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from fast.engine.namespaces import Cluster
from fast.transport.tcp import new_secret
from launching import BODIES, Launch, as_torchrun
from running import Runner

pytestmark = pytest.mark.real
WORKERS = 4


def on_two_hosts(launch: Launch, cluster: Cluster, body: str, folder) -> list[Any]:
    """What each worker has in the end; they share a secret that comes in a file."""
    secret = folder / "job.secret"
    secret.touch(mode=0o600)
    secret.write_text(new_secret().text())
    for rank, environ in enumerate(as_torchrun(WORKERS, 29500, cluster.address(0))):
        command = [sys.executable, str(BODIES / "hosts_bodies.py"), body]
        more = environ | {"FAST_SECRET_FILE": str(secret)}
        launch.start(command, more, start=lambda *a, h=rank // 2, **b: cluster.run(h, *a, **b))
    ended = launch.ended()
    assert [each.code for each in ended] == [0] * WORKERS, "\n".join(each.err for each in ended)
    assert "warning" not in ended[0].err
    return [json.loads(final) for each in ended for final in each.finals]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("secret")


def test_lockstep_gives_the_same_as_on_one_host(launch, runner: Runner, make_cluster, folder) -> None:
    """Shuffled orders, BatchNorm over all workers, scaled rates, snapshots, averages and their statistics."""
    expected = runner.results("hosts_bodies:lockstep", WORKERS, groups=((0, 1), (2, 3)))
    assert on_two_hosts(launch, make_cluster(2), "lockstep", folder) == expected


def test_where_nobody_waits_workers_look_at_each_other(launch, make_cluster, folder) -> None:
    """Passes that end for all at once, snapshots of live memory, and one final model."""
    found = on_two_hosts(launch, make_cluster(2), "at_will", folder)
    assert all(each["finite"] for each in found)
    assert len({each["final"] for each in found}) == 1
    assert all(0 <= batches <= 30 for each in found for batches in each["batches"])
    assert sum(each["batches"][0] for each in found) >= 60, "half of a pass of 120 batches"


def test_the_replica_of_who_has_left_early_still_counts(launch, runner: Runner, make_cluster, folder) -> None:
    expected = runner.results("hosts_bodies:leaving", WORKERS, groups=((0, 1), (2, 3)))
    assert on_two_hosts(launch, make_cluster(2), "leaving", folder) == expected
    assert len({each["final"] for each in expected}) == 2 and expected[1]["final"] == ""
