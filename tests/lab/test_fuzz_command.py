"""`fast simulate --fuzz` and `--check`: what is printed, and that a finding can be typed again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fast.cli.app import make_app
from fast.cli.commands import COMMANDS, load_command
from fast.cli.fuzz import as_typed
from fast.cli.simulate import simulate_command
from fast.errors import UsageError
from fast.lab import load_task
from fast.lab.fuzzing import command_of
from fast.sim.faults import parse_scenario
from fast.sim.fuzzing import Case, Machines
from fast.strategies.presets import gossip

BROKEN = Path(__file__).resolve().parent.parent / "sim" / "broken.py"


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to ./runs."""
    monkeypatch.chdir(tmp_path)


def test_seeds_that_pass_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"fuzz": 3, "seed": 5, "json": "found.json"}
    assert simulate_command(strategies="gossip(p=0.3),local_sgd(tau=2)", **options) == 0  # type: ignore[arg-type]
    told = json.loads(Path("found.json").read_text())["strategies"]
    assert [each["seeds"] for each in told] == [[5, 7], [5, 7]]
    assert all(each["finding"] is None and each["steps"] > 10 for each in told)
    said = capsys.readouterr().out
    assert "gossip(p=0.3, moments='keep'): 3 seeds from 5 on, no violation" in said
    assert "local_sgd(tau=2, moments='keep', rule=mean): 3 seeds from 5 on, no violation" in said
    for words in ("events", "steps", "letters", "contributions", "faults"):
        assert f" {words}" in said
    assert "checked: what letters carry from one to another must neither appear nor disappear" in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ForgetsToHalve(p=0.4)", "Violation: after 0."),
        ("WaitsForTheDead", "PeerLost: peer"),
        ("FoldsAway", "neither appear nor disappear"),
        ("CountsTheDeparted", "Deadlock: nothing can happen any more"),
    ],
)
def test_a_finding_can_be_typed_again(name: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_command(strategies=f"{BROKEN}:{name}", fuzz=30, json="found.json") == 1
    said = capsys.readouterr().out
    finding = json.loads(Path("found.json").read_text())["strategies"][0]["finding"]
    assert finding["command"] == said.strip().splitlines()[-1].strip()
    assert found in finding["error"]
    assert found in said
    program, *words = shlex.split(said.strip().splitlines()[-1])
    assert (program, words[:2]) == ("fast", ["simulate", "quadratic"])
    assert words[-1] == "--check"
    assert run(*words) == 1
    again = capsys.readouterr()
    what = said.partition("\n\n")[2].partition("\n\n")[0].split(": ", 1)[1]
    for line in what.splitlines():
        assert line.strip() in again.out + again.err


def run(*words: str) -> int:
    """What the command line would return for these words."""
    code = make_app()(list(words), standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_a_foreign_error_shows_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_command(strategies=f"{BROKEN}:ForgetsLeavers", fuzz=60) == 1
    said = capsys.readouterr().out
    assert "KeyError" in said and "broken.py" in said and "books.pushed[push.sender] += 1" in said


def test_the_command_says_all_that_is_not_usual() -> None:
    scenario = parse_scenario("worker 1 dies at 2s; 5% of letters are lost")
    machines = Machines(
        network="wan", step="5ms", straggler="4x", speeds="1,2,1", spread=0.5, hosts="2", racks="1,1mbit,5ms"
    )
    words = shlex.split(
        command_of(load_task("quadratic"), "quadratic", gossip(p=0.5), Case(7, 3, 12, machines, scenario))
    )
    assert words == [
        *("fast", "simulate", "quadratic", "--strategies", "gossip(p=0.5, moments='keep')", "--workers", "3"),
        *("--epochs", "0.28125", "--seed", "7", "--network", "wan", "--step", "5ms", "--straggler", "4x"),
        *("--speeds", "1,2,1", "--spread", "0.5", "--hosts", "2", "--racks", "1,1mbit,5ms"),
        *("--scenario", "worker 1 dies at 2s; 5% of letters are lost", "--check"),
    ]
    known = {option for each in commands()["simulate"].params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_a_case_made_smaller_is_typed_without_the_speeds_of_those_who_are_gone() -> None:
    drawn = Case(7, 2, 12, Machines(network="wan", speeds="1,2,0.5,1"))
    words = shlex.split(command_of(load_task("quadratic"), "quadratic", gossip(p=0.5), as_typed(drawn)))
    assert words[words.index("--speeds") + 1] == "1,2"
    assert as_typed(Case(7, 2, 12)) == Case(7, 2, 12)


def commands() -> dict[str, typer.core.TyperCommand]:
    return {name: load_command(name) for name in COMMANDS}


def test_a_run_that_is_checked_and_keeps_its_promises_is_an_ordinary_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["simulate", "quadratic", "--strategies", "gossip(p=0.3)", "--workers", "3", "--epochs", "1"]
    outcomes = [CliRunner().invoke(make_app(), [*words, "--name", name, *more]) for name, more in
                (("plain", []), ("checked", ["--check"]))]  # fmt: skip
    assert [each.exit_code for each in outcomes] == [0, 0]
    rows = [
        json.loads(Path("runs", name, "run.json").read_text())["results"] for name in ("plain", "checked")
    ]
    assert rows[0] and rows[0][0]["final_score"] == rows[1][0]["final_score"]
    again = ["simulate", "--again", "runs/plain/run.json", "--name", "more", "--check"]
    assert "leave out --check" in str(CliRunner().invoke(make_app(), again).exception)


def test_a_run_that_is_checked_and_breaks_a_promise_fails(capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"task": "quadratic", "strategies": f"{BROKEN}:CountsTwice", "workers": 4, "epochs": 1.0}
    assert simulate_command(**broken, name="plain") == 0  # type: ignore[arg-type]
    assert simulate_command(**broken, name="checked", check=True) == 1  # type: ignore[arg-type]
    assert capsys.readouterr().out.count("every update must be merged once") == 1, "it is said once"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"workers": 3}, "leave out --workers"),
        ({"scenario": "worker 1 stops at 2s"}, "leave out --scenario"),
        ({"seeds": "3"}, "leave out --seeds"),
        ({"strategies": None}, "which strategy"),
        ({"fuzz": 0}, "at least 1"),
        ({"resume": "runs/x"}, "leave out --resume"),
        ({"runs": "runs"}, "no folder of results.*leave out --runs"),
        ({"steps": 5}, "leave out --steps"),
        ({"check": True}, "leave out --check"),
    ],
    ids=str,
)
def test_what_fuzzing_cannot_do_is_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        simulate_command(**{"strategies": "gossip", "fuzz": 3, **options})  # type: ignore[arg-type]
