"""`fast simulate` on a cluster: options, files, what is said about it and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab_plans import OWN

from fast.cli.comparing import servers_in_words
from fast.cli.simulate import simulate_command
from fast.errors import UsageError
from fast.lab import Plan, Simulated, settings_of
from fast.loop.loading import strategies_from
from fast.sim.cluster import cluster_of, read_cluster
from fast.sim.cluster.options import check_speeds

FILE = """
schema = 1
[compute]
step = "5ms"           # a comment that nobody needs to keep
spread = 0.2
[network]
profile = "10gbit"
hosts = 2
[work]
turn = "1ms"
"""


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to ./runs."""
    monkeypatch.chdir(tmp_path)
    Path("cluster.toml").write_text(FILE)


def kept(name: str) -> dict[str, Any]:
    return json.loads(Path("runs", name, "run.json").read_text())


def test_the_model_is_said_in_words_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce", workers=4, epochs=1, hosts="2", spread=0.3, name="a")
    out, words = capsys.readouterr().out, cluster_of(hosts="2", spread=0.3).in_words(4)
    assert "4 simulated workers, 1gbit, step 20ms, hosts 2, spread 0.3" in out
    before_table = out.partition("strategy")[0]
    assert all(line in before_table for line in words) and "4 workers, 2 to a host, on 2 hosts" in words
    assert kept("a")["facts"]["model"] == words
    report = Path("runs/a/report.html").read_text()
    assert "4 workers, 2 to a host, on 2 hosts" in report


def test_groups_are_said_in_words_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce", workers=4, epochs=1, groups="2x2", name="a")
    assert "step 20ms, groups 2x2" in capsys.readouterr().out
    assert kept("a")["settings"]["groups"] == "2x2"
    for groups, sentence in (
        ("2x3", "that is 6 workers, and there are 4"),
        ("0-2", "worker 3 is in no group"),
    ):
        with pytest.raises(UsageError, match=sentence):
            simulate_command(OWN, "allreduce", workers=4, epochs=1, groups=groups, name="b")


def test_what_was_kept_before_there_were_groups_is_run_again_plainly() -> None:
    simulate_command(OWN, "allreduce", workers=4, epochs=1, hosts="2", name="a")
    file = Path("runs/a/run.json")
    data = json.loads(file.read_text())
    assert data["settings"].pop("groups") is None and settings_of(file).order is None
    file.write_text(json.dumps(data))
    assert settings_of(file).groups == "all" and settings_of(file).order == ((0, 1, 2, 3),)


def test_servers_are_counted_where_a_strategy_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce,ssp", workers=2, epochs=1, name="a")
    said = capsys.readouterr().out
    who, whose = said.splitlines()[1:3]
    assert who == "  2 workers and 1 server, each on a host of its own"
    assert whose == "  servers of each: ssp has 1, the others have none"


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ("allreduce,gossip", []),
        ("ssp,easgd", []),
        (
            "ssp,gossip,tensorflow(servers=2)",
            ["ssp has 1, tensorflow(servers=2) has 2, the others have none"],
        ),
        ("ssp(servers=3),easgd", ["ssp(servers=3) has 3, easgd has 1"]),
    ],
)
def test_it_is_said_whose_servers_they_are_where_not_all_have_as_many(calls: str, says: list[str]) -> None:
    found = servers_in_words(strategies_from(calls), 4)
    assert found == [f"servers of each: {words}" for words in says]


def test_a_file_and_options_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce", workers=4, epochs=1, cluster="cluster.toml", name="a")
    simulate_command(OWN, "allreduce", workers=4, epochs=1, cluster="cluster.toml", step="50ms", name="b")
    assert "4 simulated workers, a cluster file, step 50ms" in capsys.readouterr().out
    first, second = kept("a"), kept("b")
    assert read_cluster(first["settings"]["world"]["cluster"]) == read_cluster(FILE)
    assert any("a step takes 5 ms" in line for line in first["facts"]["model"])
    assert any("a step takes 50 ms" in line for line in second["facts"]["model"])
    took = [data["results"][0]["duration_s"] for data in (first, second)]
    assert took[1] > 5 * took[0]


def test_the_same_again_without_the_file() -> None:
    """run.json holds all that is needed."""
    simulate_command(OWN, "allreduce", workers=4, epochs=1, cluster="cluster.toml", name="a")
    Path("cluster.toml").unlink()
    simulate_command(again="runs/a", name="b")
    first, second = kept("a"), kept("b")
    assert first.pop("timestamps") and second.pop("timestamps")
    assert first == second


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hosts": "some"}, "Write 4, or all"),
        ({"racks": "8"}, "are no racks"),
        ({"speeds": "fast"}, "are no speeds"),
        ({"speeds": "1,1,0.5"}, "there is no worker 2, only 2 workers, 0 to 1.*--workers 3"),
        ({"speeds": "0-7:2", "workers": None}, "there is no worker 7, only 4 workers, 0 to 3.*--workers 8"),
        ({"speeds": "1:2", "workers": 1}, "there is no worker 1, only worker 0"),
        ({"speeds": "2:2", "sizes_only": True}, "there is no worker 2, only 2 workers"),
        ({"spread": -1.0}, "a spread of -1"),
        ({"straggler": "5x@0.1/x"}, "5x@0.1/50"),
        ({"cluster": "none.toml"}, "none.toml can't be read"),
        ({"cluster": "wrong.toml"}, r"wrong.toml: \[compute\] has no key 'stop'. Did you mean step"),
    ],
)
def test_wrong_clusters_are_refused(options: dict[str, Any], says: str) -> None:
    Path("wrong.toml").write_text('schema = 1\n[compute]\nstop = "5ms"\n')
    with pytest.raises(UsageError, match=says):
        simulate_command(OWN, "allreduce", **{"workers": 2, **options})
    assert not Path("runs").exists(), "nothing has started"


def test_speeds_of_all_that_are_there_are_taken() -> None:
    check_speeds("0:2", 1)
    check_speeds("0-2:1,3:0.5", 4)
    check_speeds("1,1,0.5", 3)


@pytest.mark.parametrize("option", ["cluster", "hosts", "racks", "speeds", "spread"])
def test_what_is_run_again_has_the_cluster_that_it_had(option: str) -> None:
    given: Any = {option: "cluster.toml" if option == "cluster" else 0.5 if option == "spread" else "1"}
    with pytest.raises(UsageError, match=f"leave out --{option}"):
        simulate_command(again="runs/a", **given)


def test_the_reference_is_the_mean_time_of_a_step() -> None:
    assert Simulated(step="10ms").step_s == 0.01
    assert Simulated(cluster='schema = 1\n[compute]\npace = "50ms"').step_s == 0.05
    assert Simulated(step="10ms", spread=1.0).step_s == pytest.approx(0.01 * 2.718281828459045**0.5)
    assert Simulated(cluster='schema = 1\n[compute]\ntrace = ["1ms", "3ms"]').step_s == pytest.approx(0.002)


def test_old_settings_are_still_read() -> None:
    """A run.json from before there were files and hosts."""
    plan = Plan.of(OWN, "allreduce", 2, epochs=1, world=Simulated("1gbit", "20ms"))
    assert plan.settings.world == Simulated("1gbit", "20ms", None)
    assert Simulated().model() == Simulated("1gbit", "20ms").model()
