"""The environment that srun gives its tasks, set by hand: there is no scheduler here."""

from __future__ import annotations

import os

import pytest

from fast.engine.attached.surroundings import first_host, place_in
from launching import Launch, script
from running import Runner


def as_srun(
    tasks: int, hosts: str = "127.0.0.1", job: int | None = None, step: int = 0
) -> list[dict[str, str]]:
    shared = {
        "SLURM_JOB_ID": str(os.getpid() if job is None else job),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": hosts,
    }
    return [shared | {"SLURM_PROCID": str(task)} for task in range(tasks)]


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu003", "gpu003"),
        ("alpha,beta", "alpha"),
        ("gpu[003-007,9],login1", "gpu003"),
        ("gpu[3]", "gpu3"),
        ("rack[1-2]-node[05-08]", "rack1-node05"),
        ("rack2-node[5,7],rack3", "rack2-node5"),
        ("a[1-3]b", "a1b"),
        ("10.0.0.7,10.0.0.8", "10.0.0.7"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_a_batch_script_is_no_task_of_a_step() -> None:
    """`sbatch` sets these, and `srun` inside of it the rest."""
    assert place_in({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


def test_one_task_is_a_plain_script() -> None:
    assert place_in(as_srun(1)[0]) is None


def test_torchrun_inside_of_a_step_comes_first() -> None:
    inner = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500"}
    place = place_in(as_srun(2)[1] | inner)
    assert place is not None and (place.engine, place.worker, place.workers) == ("torchrun", 5, 8)


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ssp(bound=0)", marks=pytest.mark.long)])
def test_tasks_meet_and_have_the_bits_of_fast_run(launch: Launch, runner: Runner, strategy: str) -> None:
    expected = runner.results("attached_bodies:train", 3, strategy=strategy)
    for environ in as_srun(3):
        launch.start(script(strategy), environ)
    ended = launch.ended()
    assert [each.code for each in ended] == [0, 0, 0], ended[0].err
    assert [final for each in ended for final in each.finals] == expected


@pytest.mark.real
@pytest.mark.long
def test_tasks_on_two_hosts_meet_at_the_first_one(launch: Launch, runner: Runner, make_cluster) -> None:
    expected = runner.results("attached_bodies:train", 2, strategy="dpsgd")
    cluster = make_cluster(2)
    hosts = f"{cluster.address(0)},{cluster.address(1)}"
    for host, environ in enumerate(as_srun(2, hosts)):
        launch.start(script("dpsgd"), environ, start=lambda *a, h=host, **b: cluster.run(h, *a, **b))
    ended = launch.ended()
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    assert [final for each in ended for final in each.finals] == expected


@pytest.mark.real
@pytest.mark.long
def test_two_steps_of_one_allocation_dont_disturb_each_other(launch: Launch) -> None:
    for step in range(2):
        for environ in as_srun(2, step=step):
            launch.start(script("allreduce" if step else "dpsgd"), environ)
    ended = launch.ended()
    assert [each.code for each in ended] == [0] * 4, ended[0].err
    finals = [final for each in ended for final in each.finals]
    assert finals[0] == finals[1] and finals[2] == finals[3] and finals[0] != finals[2]
