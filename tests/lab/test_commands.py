"""`fast compare` and `fast simulate`: what is printed, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fast.cli.compare import compare_command
from fast.cli.comparing import report, short_call
from fast.cli.simulate import simulate_command
from fast.errors import UsageError
from fast.lab import Comparison, Result

HERE = Path(__file__).parent
OWN, BROKEN = f"{HERE / 'problems.py'}:Dropout", f"{HERE / 'ideas.py'}:Broken"
LONG = "torus(rule=sum, send='merged', topology=torus(rows=2, columns=2))"


def result(**figures: Any) -> Result:
    fields = {
        "strategy": "allreduce()", "seed": 0, "reached_target": True, "time_to_target_s": 1234.5,
        "final_score": 0.94321, "steps": 123456.5, "samples": 10, "bytes_sent_per_worker": 987_654_321_000,
        "mean_staleness": 123.456, "max_staleness": 12345, "consensus_distance": 12.3456, "wait_fraction": 0.734,
        **figures,
    }  # fmt: skip
    return Result(**fields)


def test_the_table_fits_100_columns_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        result(),
        result(strategy=LONG, seed=1, time_to_target_s=None),
        result(strategy="gossip(p=0.02)", error="no"),
    ]
    report(Comparison("digits", 4, "real", 0.94, rows), "digits: 4 workers", to_stderr=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out and "…" not in out
    for cell in (
        "1234 s",
        "0.943",
        "987.7 GB",
        "123.46",
        "12345",
        "12.3456",
        "73%",
        "not reached",
        "gossip failed: no",
    ):
        assert cell in out, cell


@pytest.mark.parametrize(
    ("call", "short"),
    [
        ("allreduce()", "allreduce"),
        ("local_sgd(tau=10)", "local_sgd"),
        ("local_sgd(tau=3)", "local_sgd(tau=3)"),
        ("torus(rule=mean, send='merged', topology=torus(rows=None, columns=None))", "torus(send='merged')"),
        ("ideas.py:Broken(p=1)", "ideas.py:Broken(p=1)"),
    ],
)
def test_a_short_call_leaves_out_defaults(call: str, short: str) -> None:
    assert short_call(call) == short


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = simulate_command(
        OWN, "allreduce,gossip(p=0.3)", workers=2, epochs=2, network="wan", step="5ms", json="-"
    )
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert code == 0 and [row["strategy"] for row in data["results"]] == ["allreduce()", "gossip(p=0.3)"]
    assert "simulated workers, wan, step 5ms" in captured.err and "1 of 2: allreduce" in captured.err


def test_json_in_a_file_and_exit_code_1_for_a_failed_strategy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "out.json"
    code = simulate_command(OWN, f"{BROKEN},allreduce", workers=2, epochs=1, json=str(to))
    assert code == 1
    failed, fine = json.loads(to.read_text())["results"]
    assert "error" in failed and "error" not in fine
    captured = capsys.readouterr()
    assert "failed: ValueError: an idea that doesn't work" in captured.out
    assert "Traceback" in captured.err


def test_virtual_time_follows_the_step(tmp_path: Path) -> None:
    """Four times the step: four times the time, where links cost next to nothing."""
    times = []
    for step in ("10ms", "40ms"):
        to = tmp_path / f"{step}.json"
        simulate_command(
            OWN, "allreduce", workers=2, target=0.3, network="infiniband", step=step, json=str(to)
        )
        times.append(json.loads(to.read_text())["results"][0]["time_to_target_s"])
    assert times[1] == pytest.approx(4 * times[0], rel=0.01)


@pytest.mark.real
def test_compare_runs_real_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out.json"
    assert compare_command(OWN, "ssp,gossip", workers=2, epochs=2, json=str(to)) == 0
    data = json.loads(to.read_text())
    assert data["world"] == "real" and all(row["samples"] >= 220 for row in data["results"])
    assert "2 workers on this machine" in capsys.readouterr().out


WRONG = [
    ({"workers": 0}, "--workers 0"),
    ({"target": 0.0}, "target 0"),
    ({"target": 1.01}, "target 1.01"),
    ({"epochs": -1.0}, "-1 epochs"),
    ({"strategies": "allreduc"}, "Did you mean allreduce"),
    ({"strategies": "local_sgd(tua=3)"}, "tau"),
    ({"task": "digts"}, "Did you mean digits"),
    ({"json": "/nowhere/at/all.json"}, "no folder /nowhere/at"),
    ({"json": "/"}, "is a folder"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
@pytest.mark.parametrize("command", [compare_command, simulate_command])
def test_wrong_calls_are_refused(command: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        command(**{"task": OWN, "strategies": "allreduce", "workers": 2, **options})


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


def test_a_deadline_is_longer_than_nothing() -> None:
    with pytest.raises(UsageError, match="--deadline 0"):
        compare_command(OWN, deadline=0.0)
