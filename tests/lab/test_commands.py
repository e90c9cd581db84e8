"""`fast compare`, `fast simulate` and `fast report`: what is printed, written and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_plans import BROKEN, OWN, TUNED

from fast.cli.compare import compare_command
from fast.cli.options import parse_seeds
from fast.cli.progress import Remaining
from fast.cli.report import report_command
from fast.cli.simulate import simulate_command
from fast.cli.table import print_table
from fast.engine import LocalEngine
from fast.errors import UsageError
from fast.lab import Comparison, Result, worlds
from fast.strategies.calls import short_call
from running import Lent

LONG = "torus(rule=sum, send='merged', topology=torus(rows=2, columns=2))"


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to ./runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAST_TEST_SEAL", str(tmp_path / "seal"))


def result(**figures: Any) -> Result:
    fields = {
        "strategy": "allreduce()", "label": "allreduce", "seed": 0, "reached_target": True, "time_to_target_s": 1234.5,
        "final_score": 0.94321, "steps": 123456.5, "samples": 10, "bytes_sent_per_worker": 987_654_321_000,
        "mean_staleness": 123.456, "max_staleness": 12345, "consensus_distance": 12.3456, "compute_fraction": 0.734,
        **figures,
    }  # fmt: skip
    return Result(**{"asked": fields["strategy"], **fields})


def test_the_table_fits_100_columns_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        result(),
        result(strategy=LONG, label=LONG, time_to_target_s=None),
        result(strategy="gossip(p=0.02)", label="gossip", error="no"),
        result(strategy="dpsgd()", label="dpsgd", final_score=None),
    ]
    comparison = Comparison(task="digits", workers=4, world="real", target=0.94, results=rows)
    print_table(comparison, "digits: 4 workers", to_stderr=False)
    table = capsys.readouterr().out
    assert max(map(len, table.split("gossip failed")[0].splitlines()[:12])) <= 100
    assert "\x1b" not in table and "…" not in table
    for cell in ("1234 s", "0.943", "987.7 GB", "123.46/12345", "12.3456", "73%", "not reached", "diverged",
                 "gossip failed: no"):  # fmt: skip
        assert cell in table, cell


def test_the_table_has_one_row_per_strategy_over_its_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        result(time_to_target_s=1.0, seed=0),
        result(time_to_target_s=2.5, seed=1),
        result(time_to_target_s=None, reached_target=False, seed=2),
    ]
    tuning = [{"asked": "allreduce()", "trials": []}]
    comparison = Comparison(task="x", workers=4, world="sim", target=0.9, results=rows, tuning=tuning)
    print_table(comparison, "x", to_stderr=False)
    (row,) = [
        line for line in capsys.readouterr().out.splitlines() if line.split()[:3] == ["allreduce", "x", "1"]
    ]
    assert row.split()[1:8] == ["x", "1", "1.75", "±1.06", "s", "2", "of"]


def test_an_error_is_printed_once_whoever_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    """By the verdict if all failed, else in a line of its own; two seeds that fail alike share it."""
    rows = [result(error="no", seed=seed) for seed in (0, 1)]
    other = [result(strategy="dpsgd()", label="dpsgd", error="not at all")]
    fine = [result(strategy="gossip()", label="gossip")]
    for results, lines in (
        (rows, []),
        ([*rows, *other], ["dpsgd failed: not at all"]),
        ([*other, *rows, *fine], ["dpsgd failed: not at all", "allreduce failed: no"]),
    ):
        comparison = Comparison(task="x", workers=4, world="sim", target=0.9, results=results)
        print_table(comparison, "x", to_stderr=False)
        said = capsys.readouterr().out
        assert [line for line in said.splitlines() if " failed: " in line] == lines
        assert all(said.count(f": {each.error}\n") == 1 for each in results if each.error is not None)


@pytest.mark.parametrize(
    ("call", "short"),
    [
        (
            "allreduce(codec=None, algorithm='auto', order='canonical', bucket_mb=None, rule=mean)",
            "allreduce",
        ),
        ("allreduce(rule=norm_clip(limit=1.0, then=mean))", "allreduce(rule=norm_clip(1.0))"),
        ("torus(rule=multi_krum(hostile=1, chosen=2))", "torus(rule=multi_krum(1, chosen=2))"),
        ("local_sgd(tau=10)", "local_sgd"),
        ("local_sgd(tau=3)", "local_sgd(tau=3)"),
        (
            "torus(rule=mean, send='merged', topology=torus(rows=None, columns=None), codec=None, bucket_mb=None)",
            "torus(send='merged')",
        ),
        ("ideas.py:Broken(p=1)", "ideas.py:Broken(p=1)"),
    ],
)
def test_a_short_call_leaves_out_defaults(call: str, short: str) -> None:
    assert short_call(call) == short


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = simulate_command(
        OWN, "allreduce,gossip(p=0.3)", workers=2, epochs=2, network="wan", step="5ms", json="-", name="a"
    )
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert code == 0 and [row["strategy"] for row in data["results"]] == [
        "allreduce(codec=None, algorithm='auto', order='canonical', bucket_mb=None, rule=mean)",
        "gossip(p=0.3, moments='keep')",
    ]
    assert "simulated workers, wan, step 5ms" in captured.err and "1 of 2: allreduce" in captured.err
    assert json.loads(Path("runs/a/run.json").read_text()) == data


def test_everything_is_in_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce,gossip(p=0.3)", workers=2, epochs=1, name="a")
    folder = Path("runs/a")
    assert {"run.json", "metrics.jsonl", "trace.json", "report.html"} < {
        path.name for path in folder.iterdir()
    }
    assert "report: runs/a/report.html" in capsys.readouterr().err
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert kinds.count("run") == 2 and kinds.count("tick") > 2
    processes = {event["args"]["name"] for event in json.loads((folder / "trace.json").read_text())
                 if event.get("name") == "process_name"}  # fmt: skip
    assert processes == {"allreduce", "gossip(p=0.3)"}


def test_the_same_again_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever command repeats it, and whether the file is named or its folder; what was tuned is tuned again."""
    tuned = {"workers": 2, "epochs": 1.0, "seeds": "2", "tune": 7, "straggler": "2x", "split": "sizes(2)"}
    simulate_command(TUNED, "allreduce,local_sgd", name="a", **tuned)  # type: ignore[arg-type]
    simulate_command(OWN, "gossip,ssp", name="b", workers=3, epochs=1.0, network="wan")
    for command, again, name in (
        (compare_command, "runs/a/run.json", "a"),
        (simulate_command, "runs/b", "b"),
    ):
        command(again=again, name=f"{name}2", json="again.json")
        first, second = (
            json.loads(Path(file).read_text()) for file in (f"runs/{name}/run.json", "again.json")
        )
        assert first.pop("timestamps") and second.pop("timestamps")
        assert first == second


@pytest.mark.parametrize("option", ["again", "resume"])
def test_what_is_run_again_is_run_as_it_was(option: str) -> None:
    simulate_command(OWN, "allreduce", workers=2, epochs=1, name="a")
    with pytest.raises(UsageError, match=f"--{option} takes all settings.*leave out --workers"):
        simulate_command(workers=3, **{option: "runs/a"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave out --network"):
        simulate_command(network="wan", **{option: "runs/a"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave out a task"):
        simulate_command(OWN, **{option: "runs/a"})  # type: ignore[arg-type]


def test_a_comparison_that_has_ended_is_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    simulate_command(OWN, "allreduce", workers=2, epochs=1, name="a")
    before = Path("runs/a/run.json").read_text()
    simulate_command(resume="runs/a")
    assert Path("runs/a/run.json").read_text() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "is not a run.json"), ("no json", "is not a run.json"), (None, "can't be read")],
)
@pytest.mark.parametrize("command", [lambda file: simulate_command(again=file), report_command])
def test_a_file_that_is_no_run_is_refused(command: Any, content: str | None, says: str) -> None:
    if content is not None:
        Path("run.json").write_text(content)
    with pytest.raises(UsageError, match=says):
        command("run.json")


def test_a_report_can_be_made_anew() -> None:
    simulate_command(OWN, "allreduce", workers=2, epochs=1, name="a")
    page = Path("runs/a/report.html").read_text()
    Path("runs/a/report.html").unlink()
    report_command("runs/a")
    assert Path("runs/a/report.html").read_text() == page


def test_exit_code_1_for_a_failed_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    code = simulate_command(OWN, f"{BROKEN},allreduce", workers=2, epochs=1, json="out.json")
    assert code == 1
    failed, fine = json.loads(Path("out.json").read_text())["results"]
    assert "error" in failed and "error" not in fine
    captured = capsys.readouterr()
    assert "failed: ValueError: an idea that doesn't work" in captured.out
    assert "Traceback" in captured.err


def test_a_target_that_nobody_reaches_is_said_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_command(OWN, "allreduce", workers=2, epochs=1, target=1.0, json="out.json") == 1
    assert "no strategy reached the target 1" in capsys.readouterr().err
    (row,) = json.loads(Path("out.json").read_text())["results"]
    assert row["final_score"] > 0 and row["time_to_target_s"] is None
    assert simulate_command(OWN, "allreduce", workers=2, epochs=0.1, seed=3) == 0, "nobody asked for a target"


def test_virtual_time_follows_the_step() -> None:
    """Four times the step: four times the time, where links cost next to nothing."""
    times = []
    for step in ("10ms", "40ms"):
        simulate_command(
            OWN, "allreduce", workers=2, target=0.3, network="infiniband", step=step, json="out.json"
        )
        times.append(json.loads(Path("out.json").read_text())["results"][0]["time_to_target_s"])
    assert times[1] == pytest.approx(4 * times[0], rel=0.01)


@pytest.mark.real
def test_compare_runs_real_workers(
    capsys: pytest.CaptureFixture[str], engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seeds by default, and no tuning for a task that has no validation data."""
    monkeypatch.setattr(worlds, "LocalEngine", lambda: Lent(engine))
    assert compare_command(OWN, "ssp,gossip", workers=2, epochs=2, json="out.json", name="a") == 0
    data = json.loads(Path("out.json").read_text())
    assert data["world"] == "real" and all(row["samples"] >= 220 for row in data["results"])
    assert [row["seed"] for row in data["results"]] == [0, 0, 1, 1, 2, 2] and data["tuning"] == []
    assert data["facts"]["reference_samples_per_s"] > 0
    assert all(each["peak_memory_bytes"] > 10e6 for row in data["results"] for each in row["participants"])
    assert "2 workers on this machine" in capsys.readouterr().out
    ticks = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    who = {tick["who"] for tick in ticks if tick["kind"] == "tick"}
    assert who == {"worker 0", "worker 1", "server 0"}


@pytest.mark.long
@pytest.mark.real
def test_a_pace_pads_every_step() -> None:
    compare_command(OWN, "allreduce", workers=2, epochs=2, pace="30ms", seed=0, json="out.json")
    data = json.loads(Path("out.json").read_text())
    (row,) = data["results"]
    assert data["settings"]["pace_s"] == 0.03 and not data["facts"]["oversubscribed"]
    for each in row["participants"]:
        assert each["compute_s"] >= row["steps"] * 0.03, "a sleep never ends early"
    assert 0 <= row["pace_exceeded"] <= 1


@pytest.mark.long
@pytest.mark.real
def test_a_comparison_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Really killed, after its first run was written down."""
    call = [sys.executable, "-c", "from fast.cli import main; main()", "compare"]
    asked = [
        OWN,
        "-s",
        "allreduce,gossip(p=0.5)",
        "--workers",
        "2",
        "--epochs",
        "40",
        "--seeds",
        "2",
        "--name",
        "a",
    ]
    process = subprocess.Popen([*call, *asked], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "1 of 4" in line and "score" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    before = json.loads(Path("runs/a/run.json").read_text())
    assert before["timestamps"]["ended"] is None and 1 <= len(before["results"]) < 4
    done = subprocess.run([*call, "--resume", "runs/a"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = json.loads(Path("runs/a/run.json").read_text())
    assert after["results"][: len(before["results"])] == before["results"]
    assert [(row["label"], row["seed"]) for row in after["results"]] == [
        ("allreduce", 0), ("gossip(p=0.5)", 0), ("allreduce", 1), ("gossip(p=0.5)", 1),
    ]  # fmt: skip


@pytest.mark.real
def test_ctrl_c_says_how_to_go_on() -> None:
    call = [sys.executable, "-c", "from fast.cli import main; main()", "compare", OWN, "-s", "allreduce",
            "--workers", "2", "--epochs", "100000", "--name", "a"]  # fmt: skip
    process = subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "2 workers, strategy" in line:  # what worker 0 says when it joins
            break
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 130
    assert "go on with: fast compare --resume runs/a" in said and "Traceback" not in said


WRONG = [
    ({"task": None}, "which task"),
    ({"workers": 0}, "--workers 0"),
    ({"target": 0.0}, "target 0"),
    ({"target": 1.01}, "target 1.01"),
    ({"epochs": -1.0}, "-1 epochs"),
    ({"strategies": "allreduc"}, "Did you mean allreduce"),
    ({"strategies": "local_sgd(tua=3)"}, "tau"),
    ({"task": "digts"}, "Did you mean digits"),
    ({"json": "/nowhere/at/all.json"}, "no folder /nowhere/at"),
    ({"json": "/"}, "is a folder"),
    ({"name": "a/b"}, "without slashes"),
    ({"seed": 1, "seeds": "2"}, "give one of them"),
    ({"seeds": "many"}, "--seeds many"),
    ({"seeds": "0"}, "--seeds 0"),
    ({"again": "x", "resume": "y"}, "give one of them"),
    ({"resume": "y", "runs": "runs"}, "goes on in y; leave out --runs"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
@pytest.mark.parametrize("command", [compare_command, simulate_command])
def test_wrong_calls_are_refused(command: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        command(**{"task": OWN, "strategies": "allreduce", "workers": 2, **options})
    assert not os.path.exists("runs"), "nothing has started"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"network": "1gbti"}, "Did you mean 1gbit"),
        ({"step": "20 apples"}, "duration"),
        ({"straggler": "4"}, "4x"),
    ],
)
def test_wrong_models_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        simulate_command(OWN, "allreduce", **options)


@pytest.mark.parametrize(
    ("options", "says"), [({"deadline": 0.0}, "--deadline 0"), ({"pace": "fast"}, "duration")]
)
def test_wrong_times_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compare_command(OWN, **options)


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3") == [0, 1, 2] and parse_seeds("5,7") == [5, 7] and parse_seeds("5,") == [5]


def test_the_time_left_is_that_of_the_trainings_before() -> None:
    left = Remaining(4)
    assert left.left_s() is None
    assert left.left_s(share=0.5, elapsed_s=3.0) == pytest.approx(4 * 6 - 3)
    left.ended(10.0)
    left.ended(20.0)
    assert left.left_s() == pytest.approx(2 * 15)
    assert left.left_s(share=0.9, elapsed_s=5.0) == pytest.approx(2 * 15 - 5)
    left.skipped()
    assert left.left_s() == pytest.approx(15)
    assert "about 15 s left" in left.words()
