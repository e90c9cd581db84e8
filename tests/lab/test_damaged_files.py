"""Damaged and hostile files of a comparison, a sweep, a cluster and a scenario: read, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from damage import DEEP, damaged, overwritten
from fast.cli.comparing import carry_out
from fast.cli.options import Asked
from fast.cli.report import report_command
from fast.errors import UsageError
from fast.lab import Folder, Plan, Simulated, run_plan, settings_of
from fast.lab.report import write_report
from fast.lab.sweep.record import Record
from fast.sim.cluster import read_cluster
from fast.sim.faults import read_scenario

SHORT = 900
"""Characters of a message: a file is not printed as a whole."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small comparison."""
    path = tmp_path_factory.mktemp("finished") / "run"
    plan = Plan.of(
        "quadratic", "allreduce,gossip", 2, epochs=0.1, seeds=[0], tune=1, ticks=2, world=Simulated()
    )
    with Folder.create(path) as folder:
        run_plan(plan, journal=folder)
    return path


def refusals(read: Callable[[int], object], tries: range) -> int:
    """How many of these are refused. Everything but a UsageError is a failure of the test."""
    refused = longest = 0
    for seed in tries:
        try:
            read(seed)
        except UsageError as error:
            refused += 1
            longest = max(longest, len(str(error)))
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
    assert longest < SHORT
    return refused


def test_settings_in_a_damaged_run_json(finished: Path, tmp_path: Path) -> None:
    settings = json.dumps({"settings": json.loads((finished / "run.json").read_text())["settings"]}).encode()

    def read(seed: int) -> None:
        (tmp_path / "run.json").write_bytes(damaged(settings, seed))
        Plan.again(settings_of(tmp_path))

    assert refusals(read, range(500)) > 300


def test_the_report_of_a_damaged_run_json(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pictures of the few that can be read take a second each, so they are not many."""
    content = (finished / "run.json").read_bytes()

    def read(seed: int) -> None:
        (tmp_path / "run.json").write_bytes(damaged(content, seed))
        report_command(str(tmp_path))

    assert refusals(read, range(15)) > 5
    for key in ("curve", "participants", "graph"):
        data = json.loads(content)
        data["results"][0][key] = [[None]]
        (tmp_path / "run.json").write_text(json.dumps(data))
        with pytest.raises(UsageError, match=r"is damaged: no report can be made of it .*--resume"):
            report_command(str(tmp_path))


def test_a_damaged_journal_that_is_to_go_on(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "metrics.jsonl").read_bytes().splitlines()
    plan = Plan.again(settings_of(finished))

    def read(seed: int) -> None:
        spoilt = [*lines]
        place = Random(seed).randrange(len(lines))
        spoilt[place] = damaged(lines[place], seed)
        path = tmp_path / str(seed)
        path.mkdir()
        (path / "metrics.jsonl").write_bytes(b"\n".join(spoilt) + b"\n")
        with Folder.resume(path) as folder:
            run_plan(plan, journal=folder)

    assert refusals(read, range(150)) > 10


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"kind": "run", "key": 3, "values": {}}, "line 1: .*Remove that line"),
        ({"kind": "run", "key": "x"}, "line 1: .*missing required field `values`"),
        (
            {"kind": "run", "key": "run of x with seed 0", "values": {"strategy": 1}},
            "Expected `str`, got `int`",
        ),
        ({"kind": "trial", "key": "trial 0 of x", "values": {}}, "missing required field `strategy`"),
        ({"kind": "started", "key": "started", "values": {}}, "missing required field `at`"),
        ({"kind": "alone", "key": "alone", "values": {"samples_per_s": "x"}}, "Expected `float"),
    ],
)
def test_a_line_that_can_not_be_is_named(
    line: dict[str, object], why: str, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match=why), Folder.resume(tmp_path) as folder:
        run_plan(Plan.again(settings_of(finished)), journal=folder)


def test_the_report_after_going_on_from_a_damaged_journal(finished: Path, tmp_path: Path) -> None:
    """A curve that no report can draw comes from the journal, and is not ours."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "run":
            line["values"]["graph"] = {"a": 1}
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UsageError, match="is damaged: no report can be made of it"):
        carry_out(
            Asked(),
            lambda: pytest.fail("resumed"),
            name=None,
            runs=None,
            again=None,
            resume=str(path),
            json=None,
        )


def test_a_whole_one_is_still_read(finished: Path, tmp_path: Path) -> None:
    assert write_report(json.loads((finished / "run.json").read_text()), tmp_path).exists()


@pytest.mark.parametrize("content", DEEP, ids=["open", "lists", "tables"])
def test_deep_nesting(content: bytes, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    (tmp_path / "trials.jsonl").write_bytes(content + b"\n")
    with pytest.raises(UsageError, match=r"is not a run\.json"):
        settings_of(tmp_path)
    with pytest.raises(UsageError, match="doesn't begin like a sweep"):
        Record.resume(tmp_path)


# Clusters and scenarios

CLUSTER = """schema = 1
[compute]
step = "20ms"
speeds = "0-1:1,2-3:0.5"
straggler = "5x@0.1"
[network]
rate = "1gbit"
latency = "50us"
hosts = [0, 0, 1, 1]
[[network.links]]
from = 0
to = 1
rate = "10mbit"
latency = "1ms"
[work]
turn = "10us"
means = [[4, 1000000, "0.5ms"]]
cold = [["2ms", "100us"]]
cores = 2
warm = "1ms"
"""
SCENARIO = "worker 3 dies at 2s; 1% of letters are lost from 2s for 1s; workers 0-3 and 4-7 are cut apart"
ODD = (
    "-1",
    "0",
    "1e400",
    "9" * 5000,
    '"-3s"',
    '"x"',
    "[]",
    "{}",
    "true",
    "nan",
    "[" * 500,
    '"1e400s"',
    '"9e99gbit"',
)


def test_damaged_cluster_files() -> None:
    read_cluster(CLUSTER)

    def read(seed: int) -> None:
        random, lines = Random(seed), CLUSTER.splitlines()
        place = random.randrange(len(lines))
        if seed % 3 == 0:
            text = overwritten(CLUSTER.encode(), random).decode(errors="replace")
        else:
            lines[place] = f"{lines[place].partition('=')[0]} = {random.choice(ODD)}" if seed % 3 == 1 else ""
            text = "\n".join(lines)
        read_cluster(text)

    assert refusals(read, range(600)) > 200


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, "a = " + "{a = " * 3000, "[" + "a." * 3000 + "a]", f"schema = {'9' * 5000}"],
)
def test_cluster_files_that_are_deep_or_have_huge_numbers(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_cluster(text)
    assert len(str(raised.value)) < SHORT


def test_damaged_scenarios() -> None:
    def read(seed: int) -> None:
        random = Random(seed)
        text = overwritten(SCENARIO.encode(), random).decode(errors="replace")
        read_scenario(text if seed % 2 else text.replace("3", random.choice(("9" * 5000, "-1", "1e400"))))

    assert refusals(read, range(400)) > 300


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\0\0", b"[" * 100_000, b"a" * 100_000, b"worker " + b"9" * 6000 + b" dies at 2s"]
)
def test_a_scenario_file_of_anything_else(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "scenario.txt").write_bytes(content)
    with pytest.raises(UsageError) as raised:
        read_scenario(str(tmp_path / "scenario.txt"))
    assert len(str(raised.value)) < SHORT
