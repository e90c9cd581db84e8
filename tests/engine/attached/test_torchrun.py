"""torchrun starts the workers, on one host and on two."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fast.engine.namespaces import Cluster
from launching import Ended, Launch, free_port, torchrun
from running import Runner

pytestmark = pytest.mark.real
Place = Callable[[Cluster, int], list[object]]
SYNCHRONOUS = [
    "allreduce",
    pytest.param("local_sgd(tau=4)", marks=pytest.mark.long),
    pytest.param("dpsgd", marks=pytest.mark.long),
]


def one_host(launch: Launch, *arguments: object, options: tuple[str, ...] = ()) -> Ended:
    place = ("--nproc-per-node", 3, "--master-addr", "127.0.0.1", "--master-port", free_port())
    launch.start([*torchrun(*place, *options), *map(str, arguments)], {})
    (ended,) = launch.ended()
    return ended


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_one_host_has_the_bits_of_fast_run(launch: Launch, runner: Runner, strategy: str) -> None:
    expected = runner.results("attached_bodies:train", 3, strategy=strategy)
    ended = one_host(launch, strategy)
    assert ended.code == 0, ended.err
    assert ended.finals == expected and "warning: no secret" not in ended.err


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["gossip", "ssp(bound=2)", "downpour(push=2)"])
def test_one_host_runs_asynchronous_strategies_to_their_end(launch: Launch, strategy: str) -> None:
    ended = one_host(launch, strategy)
    assert ended.code == 0, ended.err
    assert len(ended.finals) == 3 and len({*ended.finals}) == 1


def test_an_error_ends_torchrun_with_its_cause(launch: Launch) -> None:
    ended = one_host(launch, "allreduce", "raises", 1)
    assert ended.code == 1 and ended.finals == []
    assert ended.err.count("\nValueError: a bad sample") == 1
    assert {*ended.sentences} <= {"worker 1 failed: ValueError: a bad sample"}, "or torchrun was faster"


@pytest.mark.long
def test_a_worker_that_does_not_come_is_stopped_with_the_others(launch: Launch) -> None:
    ended = one_host(launch, "allreduce", "raises before join", 1)
    assert ended.code == 1 and ended.finals == []


@pytest.mark.long
def test_a_group_that_is_started_again_meets_again(launch: Launch) -> None:
    """In the same store, which still holds what the first group has left in it."""
    ended = one_host(launch, "allreduce", "raises once", 1, options=("--max-restarts", "1"))
    assert ended.code == 0, ended.err
    assert ended.err.count("\nValueError: a bad sample") == 1
    assert len(ended.finals) == 3 and len({*ended.finals}) == 1


@pytest.mark.long
def test_a_script_without_fast_runs_as_ever(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("scripts") / "plain.py"
    script.write_text("import fast\nprint('final', fast.whoami().workers)\n")
    command = torchrun("--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", free_port())
    launch.start([*command[:-1], str(script)], {})
    (ended,) = launch.ended()
    assert (ended.code, ended.sentences, ended.finals) == (0, [], ["2", "2"]), ended.err


# Two hosts


def two_hosts(
    launch: Launch, cluster: Cluster, arguments: tuple[object, ...], place: Place, *options: object
) -> list[Ended]:
    """An agent on each of two hosts; two workers each."""
    for host in range(2):
        command = torchrun("--nnodes", 2, "--nproc-per-node", 2, *place(cluster, host), *options)
        launch.start(
            [*command, *map(str, arguments)], {}, start=lambda *a, h=host, **b: cluster.run(h, *a, **b)
        )
    return launch.ended()


def static(cluster: Cluster, host: int) -> list[object]:
    return ["--node-rank", host, "--master-addr", cluster.address(0), "--master-port", 29500]


def dynamic(cluster: Cluster, host: int) -> list[object]:
    """These hosts have no names, by which torchrun finds out which of them is meant, and what to call it."""
    named = ["--local-addr", cluster.address(host), "--rdzv-conf", f"is_host={host == 0}"]
    place = f"{cluster.address(0)}:29500"
    return ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", place, *named]


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_two_hosts_have_the_bits_of_fast_run(launch, runner, make_cluster, strategy: str) -> None:
    expected = runner.results("attached_bodies:train", 4, strategy=strategy, groups=((0, 1), (2, 3)))
    cluster = make_cluster(2)
    ended = two_hosts(launch, cluster, (strategy,), static)
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    assert [final for each in ended for final in each.finals] == expected
    assert ended[0].err.count("warning: no secret was given") == 1


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["gossip", "ssp(bound=2)"])
def test_two_hosts_run_asynchronous_strategies_to_their_end(launch, make_cluster, strategy: str) -> None:
    cluster = make_cluster(2)
    ended = two_hosts(launch, cluster, (strategy,), dynamic)
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    assert len({*ended[0].finals, *ended[1].finals}) == 1


@pytest.mark.long
def test_both_hosts_start_their_workers_again(launch, make_cluster) -> None:
    """The agents count their restarts apart."""
    cluster = make_cluster(2)
    ended = two_hosts(launch, cluster, ("allreduce", "raises once", 3), dynamic, "--max-restarts", 1)
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    finals = ended[0].finals + ended[1].finals
    assert len(finals) == 4 and len({*finals}) == 1


@pytest.mark.long
def test_a_killed_worker_of_the_other_host_is_named(launch, make_cluster) -> None:
    cluster = make_cluster(2)
    ended = two_hosts(launch, cluster, ("allreduce", "is killed", 3), static)
    assert [each.code for each in ended] == [1, 1]
    for sentence in ended[0].sentences:
        assert sentence.startswith(f"participant 3 at {cluster.address(1)}:") and "is lost" in sentence
    assert len(ended[0].sentences) == 2
