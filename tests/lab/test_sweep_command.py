"""`fast sweep`: what is printed, written and refused, and how it goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_plans import BROKEN, OWN

from fast.cli.sweep import sweep_command
from fast.errors import UsageError
from fast.lab.report.words import SECONDS

FILES = ("sweep.json", "trade-off.svg")
OPTIONS: dict[str, Any] = {
    "task": OWN, "strategies": "local_sgd,gossip(p=0.5)", "workers": 2, "epochs": 1.0, "knob": ["local_sgd.tau=2,8"],
    "rates": "1,2", "jobs": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to ./runs."""
    monkeypatch.chdir(tmp_path)


def test_a_sweep_prints_a_table_and_writes_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_command(**OPTIONS, name="a", json="out.json", target=0.5) == 0
    data = json.loads(Path("runs/a/sweep.json").read_text())
    assert data == json.loads(Path("out.json").read_text())
    tried = [(row["label"], row["rate"]) for each in data["strategies"] for row in each["trials"]]
    assert tried == [
        (f"{call}{', rate x 2' * (rate == 2)}", rate)
        for call in ("local_sgd(tau=2)", "local_sgd(tau=8)", "gossip(p=0.5)")
        for rate in (1.0, 2.0)
    ]
    lines = Path("runs/a/trials.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(tried) and Path("runs/a/trade-off.svg").exists()
    printed = capsys.readouterr()
    assert "6 trials" in printed.out and "judged on test data" in printed.out
    table = printed.out[printed.out.index("strategy ") :]
    assert max(map(len, table.splitlines())) <= 100
    shown = [line for line in printed.out.splitlines() if " *" in line]
    assert len(shown) == len(data["front"]) > 0, "the unbeaten are marked"
    for row in data["front"]:
        assert any(SECONDS.write(row["time_to_target_s"]) in line for line in shown)
    assert "picture: runs/a/trade-off.svg" in printed.err


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    sweep_command(**OPTIONS, json="-", search=4)
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert data["search"] == 4 and "trials" in printed.err
    assert [len(each["trials"]) for each in data["strategies"]] == [4, 4]


def test_a_sweep_goes_on_where_it_was_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    sweep_command(**OPTIONS, name="whole")
    sweep_command(**OPTIONS, name="torn")
    trials = Path("runs/torn/trials.jsonl")
    trials.write_bytes(trials.read_bytes()[:-700])
    for file in FILES:
        Path("runs/torn", file).unlink()
    capsys.readouterr()
    sweep_command(resume="runs/torn", jobs=1)
    assert "of 6 trials done before" in capsys.readouterr().err
    for file in FILES:
        assert Path("runs/torn", file).read_bytes() == Path("runs/whole", file).read_bytes()
    sweep_command(resume="runs/torn", jobs=1)
    assert trials.read_bytes().count(b"\n") == 7, "nothing is tried twice"


def test_exit_codes_tell_of_failures_and_of_a_target_that_nobody_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few: dict[str, Any] = {"task": OWN, "workers": 2, "epochs": 1.0, "rates": "1", "jobs": 1}
    assert sweep_command(**few, strategies=f"{BROKEN},allreduce") == 1
    assert "failed: ValueError: an idea that doesn't work" in capsys.readouterr().out
    assert sweep_command(**few, strategies="allreduce", target=1.0, name="b") == 1
    printed = capsys.readouterr()
    assert "not reached" in printed.out and "no setting reached the target 1" in printed.err
    assert {path.name for path in Path("runs/b").iterdir()} == {"sweep.json", "trials.jsonl"}, (
        "nothing to draw"
    )
    assert sweep_command(resume="runs/b", jobs=1) == 1, "it was asked for before"
    assert "trials before were made with" not in capsys.readouterr().err


def test_a_sweep_that_goes_on_with_another_version_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    few: dict[str, Any] = {"task": OWN, "workers": 2, "epochs": 1.0, "rates": "1", "jobs": 1}
    sweep_command(**few, strategies="allreduce", name="a")
    trials = Path("runs/a/trials.jsonl")
    first, *rest = map(json.loads, trials.read_text().splitlines())
    now, first["versions"]["torch"] = first["versions"]["torch"], "1.0"
    trials.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *rest)))
    sweep_command(resume="runs/a", jobs=1)
    assert f"made with torch 1.0, now {now}: the result mixes both" in capsys.readouterr().err


def test_a_folder_that_can_not_be_made_is_the_users_matter() -> None:
    Path("file").write_text("")
    with pytest.raises(UsageError, match=r"can't be made: .* Give another folder: --runs"):
        sweep_command(**OPTIONS, runs="file")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": None}, "which task"),
        ({"workers": 0}, "--workers 0"),
        ({"strategies": "local_sdg"}, "Did you mean local_sgd"),
        ({"knob": ["local_sgd.tau=0"]}, "--knob local_sgd.tau=0"),
        ({"rates": "0"}, "--rates 0"),
        ({"search": 0}, "--search 0"),
        ({"search": -1}, "--search -1"),
        ({"jobs": 0}, "--jobs 0"),
        ({"network": "1gbti"}, "Did you mean 1gbit"),
        ({"speeds": "1,1,0.5"}, "there is no worker 2"),
        ({"name": "a/b"}, "without slashes"),
        ({"json": "/nowhere/at/all.json"}, "no folder /nowhere/at"),
    ],
)
def test_wrong_calls_are_refused_before_anything_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sweep_command(**{**OPTIONS, **options})
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 3}, "leave out --workers"),
        ({"knob": ["tau=2"]}, "leave out --knob"),
        ({"search": 3}, "leave out --search"),
        ({"name": "b"}, "leave out --name"),
        ({"runs": "elsewhere"}, "leave out --runs"),
    ],
)
def test_what_is_gone_on_with_is_what_it_was(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sweep_command(resume="runs/a", **options)


LOUD = """
import fast
from fast.lab.tasks import load_task

Own = type(load_task({own!r}))

class Loud(Own):
    def score(self, model, batch):
        print("scored", flush=True)
        return super().score(model, batch)
"""


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_really_ended_leaves_nobody_behind_and_goes_on(how: signal.Signals) -> None:
    """Its processes hold its standard error too, which ends when the last of them has."""
    Path("loud.py").write_text(LOUD.format(own=OWN))
    asked = ["loud.py:Loud", "-s", "local_sgd,gossip", "--workers", "2", "--epochs", "15", "--rates", "1,2"]
    call = [sys.executable, "-c", "from fast.cli import main; main()", "sweep", *asked]
    process = subprocess.Popen(
        [*call, "--jobs", "2", "--name", "torn"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    scored = 0
    for line in process.stderr:
        scored += line.startswith("scored")
        if scored == 12:
            break
    process.send_signal(how)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == (130 if how is signal.SIGINT else -signal.SIGKILL)
    if how is signal.SIGINT:
        assert "go on with: fast sweep --resume runs/torn" in said and "Traceback" not in said
    done = Path("runs/torn/trials.jsonl").read_bytes().count(b"\n") - 1
    assert 0 < done < 12, "it was in the middle"
    sweep_command(resume="runs/torn", jobs=1)
    sweep_command("loud.py:Loud", "local_sgd,gossip", 2, epochs=15.0, rates="1,2", jobs=1, name="whole")
    for file in FILES:
        assert Path("runs/torn", file).read_bytes() == Path("runs/whole", file).read_bytes()
