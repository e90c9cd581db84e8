"""`fast plan`: what is printed, written, drawn and refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fast.cli import plan as command
from fast.cli.advice import answer, console_for, print_advice
from fast.cli.app import main
from fast.cli.plan import plan_command
from fast.core import Strategy
from fast.lab import Simulated
from fast.lab.planner import advisor
from fast.lab.planner.advisor import Advice, advise
from fast.lab.planner.checking import Checked, Trained
from fast.lab.planner.prediction import Prediction
from fast.lab.planner.situation import Needs, Situation
from fast.lab.sizes import Sizes
from fast.strategies.catalogue import catalogue

USUAL = {"parameters": 1e5, "step": "5ms", "workers": 8, "network": "1gbit"}


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def guessed() -> Iterator[None]:
    """Predictions take their time, so a plan gets numbers from thin air: a second the more, the longer the call."""

    def predict(strategy: Strategy, situation: Situation) -> Prediction:
        length = len(repr(strategy))
        return Prediction(length * 1.0, length * 1e5, 0.0, 1e6, 1 / length, None, 1, situation.workers, 24)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advisor, "predict", predict)
        yield


@pytest.fixture(scope="module")
def advice(guessed: None) -> Advice:
    return advise(Situation.of(Sizes.of_parameters(1e5), 8, Simulated("1gbit", "5ms")))


@pytest.fixture
def known(advice: Advice, monkeypatch: pytest.MonkeyPatch) -> Advice:
    """The command finds this advice, whatever is asked."""
    monkeypatch.setattr(command, "advise", lambda situation, **_: replace(advice, situation=situation))
    return advice


def flat(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


# What is printed


def test_the_answer_comes_first_and_can_be_pasted(known: Advice, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_command(**USUAL) == 0
    out = capsys.readouterr().out
    assert known.best is not None
    title, _, first, *_ = out.splitlines()
    assert title.startswith("100,000 parameters (400.0 kB of weights), 8 workers, 5 ms a step, 1 Gbit/s, 105")
    assert first.startswith(f"Take {known.best.call}: ")
    assert f'fast run --workers 8 --strategy "{known.best.call}" train.py' in out
    assert f'fast.join(model, optimizer, strategy="{known.best.call}")' in out
    said = flat(out)
    for rule in known.rules:
        assert f"{rule.id}, {rule.title}" in said and rule.source in said
    assert flat(known.rule.sentence[1:]) in said


def test_everything_fits_100_columns(known: Advice, capsys: pytest.CaptureFixture[str]) -> None:
    plan_command(**USUAL)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100 and "\x1b" not in out and "…" not in out


def test_every_candidate_has_its_row(known: Advice, capsys: pytest.CaptureFixture[str]) -> None:
    plan_command(**USUAL)
    table = capsys.readouterr().out.partition("time to")[2]
    for each in known.ranked:
        name = each.call.partition("(")[0]
        rows = [line for line in table.splitlines() if line.strip().startswith(name)]
        rows = [line for line in rows if f"x {each.time:.2f} " in line]
        assert rows, f"{each.call} has no row"
        assert f"{each.prediction.computing:.0%}" in rows[0]
    for each in known.what_ifs:
        assert each.words.split()[-1] in table


def test_a_what_if_without_an_answer_says_why(
    advice: Advice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = replace(advice, unanswered=(("32 workers", "Nobody has seen so many."),))
    monkeypatch.setattr(command, "advise", lambda situation, **_: silent)
    plan_command(**USUAL, json="plan.json")
    assert "What if, 32 workers: no answer. Nobody has seen so many." in flat(capsys.readouterr().out)
    written = json.loads(Path("plan.json").read_text())["unanswered"]
    assert written == [{"what": "32 workers", "reason": "Nobody has seen so many."}]


def test_rules_name_their_best_and_the_mean_its_way(
    known: Advice, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_command(**USUAL)
    said = flat(capsys.readouterr().out)
    (master,) = [rule for rule in known.rules if rule.id == "R7"]
    best = known.best_for(master)
    assert best is not None and f"Best of what it asks for: {best.call}, x {best.time:.2f}." in said
    assert f"allreduce(algorithm='{known.facts.algorithm}')" in said


def test_what_is_ruled_out_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    plan_command(parameters=1e4, step="50ms", workers=4, network="10gbit", not_iid=True)
    said = flat(capsys.readouterr().out)
    assert "Ruled out by V2:" in said and "Data differ from worker to worker" in said
    assert "Langer et al. 2020, section 4.3" in said


def test_a_model_that_must_be_cut_is_told_what_to_use_instead(capsys: pytest.CaptureFixture[str]) -> None:
    cut: dict[str, Any] = {"parameters": 1e9, "step": "1s", "workers": 4, "network": "wan", "memory": "4GB"}
    assert plan_command(**cut) == 0
    printed = capsys.readouterr()
    said = flat(printed.out)
    assert said.count("Model parallelism, because the model doesn't fit one worker") == 1
    assert "Weights and gradient need 8 GB" in said and "a worker has 4 GB" in said
    assert "FAST trains data-parallel only" in said and "fully_shard" in said
    assert "fast run" not in said and printed.err == ""
    for more in ({"simulate": True}, {"picture": "a.svg"}):
        plan_command(**cut, **more)
        assert "nothing to simulate or to draw" in capsys.readouterr().err
    assert not Path("a.svg").exists()


@pytest.mark.parametrize(
    "needs", [{}, {"straggler": "4x"}, {"not_iid": True}, {"memory": "1MB"}, {"hostile": 2}]
)
def test_every_preset_is_told_of(needs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    plan_command(**USUAL, **needs)
    names = re.findall(r"\w+", capsys.readouterr().out)
    assert set(catalogue()) <= set(names), set(catalogue()) - set(names)


def test_a_disagreement_is_said(advice: Advice) -> None:
    odd = replace(advice.rules[0], id="R3", presets=("gosgd",))
    best = next(each for each in advice.ranked if each.name != "gosgd")
    gosgd = next(each for each in advice.ranked if each.name == "gosgd")
    parted = replace(advice, rules=(odd, *advice.rules[1:]), ranked=(best, gosgd))
    text = " ".join(answer(parted))
    needed = f"predicted to need {gosgd.time / best.time:.2g} times as long"
    assert f"The rule would have taken {gosgd.call}, which is {needed}" in text
    nothing = replace(parted, rules=(replace(odd, presets=("vap",)), *advice.rules[1:]))
    assert "none of these is allowed here" in " ".join(answer(nothing))
    assert "The rule would" not in " ".join(answer(replace(parted, ranked=(gosgd, best))))


def test_what_isnt_allowed_is_still_there_to_compare_with(
    advice: Advice, capsys: pytest.CaptureFixture[str]
) -> None:
    without = replace(advice, ranked=tuple(each for each in advice.ranked if each.call != "allreduce"))
    print_advice(console_for(to_stderr=False), without)
    assert "not allowed; for comparison" in flat(capsys.readouterr().out)


# Files


def test_json_on_standard_output_is_nothing_but_json(
    known: Advice, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_command(**USUAL, json="-", reproducible=True, memory="4GB")
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["schema"] == 1 and data["best"] == known.ranked[0].call and data["check"] is None
    assert data["situation"]["needs"]["reproducible"] is True
    assert data["situation"]["needs"]["memory_bytes"] == 4e9
    assert "Take " in captured.err


def test_a_cluster_file_and_options_beside_it(known: Advice, capsys: pytest.CaptureFixture[str]) -> None:
    Path("machine.toml").write_text(
        'schema = 1\n[compute]\nstep = "7ms"\nspread = 0.1\n[network]\nprofile = "wan"\n'
    )
    plan_command(parameters=1e5, workers=8, cluster="machine.toml", json="a.json")
    plan_command(
        parameters=1e5, workers=8, cluster="machine.toml", network="10gbit", straggler="4x", json="b.json"
    )
    first, second = (json.loads(Path(name).read_text())["situation"] for name in ("a.json", "b.json"))
    assert first["step_s"] == pytest.approx(7e-3, rel=0.01) and first["rate_bytes_per_s"] == 12.5e6
    assert second["rate_bytes_per_s"] == 1.25e9 and second["slowness"]["always"] == 4.0


def test_a_picture_is_drawn(known: Advice) -> None:
    plan_command(**USUAL, picture="plan.svg")
    assert ElementTree.fromstring(Path("plan.svg").read_text()).tag.endswith("svg")


def test_the_first_three_are_simulated_when_asked(
    known: Advice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def check(advice: Advice, *, seed: int, tell: object) -> Checked:
        asked.append((advice.ranked[0].call, seed))
        return Checked("on some machines:", (Trained("gosgd(p=0.02)", 1.0, 2.5, 1.0, 3.0),))

    monkeypatch.setattr(command, "check_advice", check)
    plan_command(**USUAL, simulate=True, seed=5, json="a.json")
    assert asked == [(known.ranked[0].call, 5)]
    assert json.loads(Path("a.json").read_text())["check"]["right"] is True
    assert "The advice was right" in flat(capsys.readouterr().out)


# What is refused

HOW = ["--step", "5ms", "--workers", "8", "--network", "1gbit"]
GOOD = ["--parameters", "1e5", *HOW]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (HOW, "which model"),
        (["digits", *GOOD], "takes the place of a task"),
        (["--parameters", "1e5", "--step", "5ms", "--network", "1gbit"], "how many workers"),
        (["--parameters", "1e5", "--workers", "8", "--network", "1gbit"], "how long does a worker compute"),
        (["--parameters", "1e5", "--workers", "8", "--step", "1s"], "over which network"),
        ([*GOOD, "--parameters", "0"], "whole number of parameters"),
        ([*GOOD, "--parameters", "-5"], "whole number of parameters"),
        ([*GOOD, "--parameters", "1.5"], "whole number of parameters"),
        ([*GOOD, "--parameters", "nan"], "whole number of parameters"),
        ([*GOOD, "--parameters", "100MB"], "--parameters"),
        ([*GOOD, "--workers", "0"], "from 2 workers on"),
        ([*GOOD, "--workers", "-4"], "from 2 workers on"),
        ([*GOOD, "--workers", "many"], "--workers"),
        ([*GOOD, "--workers", "1000000000"], "predictions end at"),
        ([*GOOD, "--parameters", "1e19"], "more than torch can count"),
        ([*GOOD, "--step", "0s"], "a step of 0 s"),
        ([*GOOD, "--step", "-1s"], "not a duration"),
        ([*GOOD, "--step", "5gbit"], "not a duration"),
        ([*GOOD, "--network", "20ms"], "no network '20ms'"),
        ([*GOOD, "--network", "2gbit"], "rate,latency"),
        ([*GOOD, "--network", "0gbit,1ms"], "carries nothing"),
        ([*GOOD, "--network", "1ms,1gbit"], "not a rate"),
        ([*GOOD, "--memory", "4"], "not an amount of memory"),
        ([*GOOD, "--memory", "4gbit"], "not an amount of memory"),
        ([*GOOD, "--memory", "-4GB"], "not an amount of memory"),
        ([*GOOD, "--hostile", "-1"], "hostile workers can't be"),
        ([*GOOD, "--hostile", "3"], "at least 2 f + 3 = 9 workers"),
        ([*GOOD, "--tuning", "high"], "normal or low"),
        ([*GOOD, "--spread", "-1"], "a spread of -1.0 can't be"),
        ([*GOOD, "--speeds", "0"], "can't be"),
        ([*GOOD, "--speeds", "0-8:0.5"], "there is no worker 8"),
        ([*GOOD, "--straggler", "fast"], "no straggler"),
        ([*GOOD, "--cluster", "nowhere.toml"], "can't be read"),
        ([*GOOD, "--json", "nowhere/a.json"], "no folder"),
        ([*GOOD, "--picture", "a.png"], "SVG"),
        ([*GOOD, "--picture", "nowhere/a.svg"], "can't write there"),
        ([*GOOD, "--reproducible", "--unreliable"], "contradiction"),
        ([*GOOD, "--memory", "500kB", "--tuning", "low"], "contradicts that"),
        ([*GOOD, "--memory", "500kB", "--unreliable"], "contradicts that"),
        ([*GOOD, "--memory", "500kB", "--hostile", "1"], "contradicts that"),
        (["nowhere.py:Net", *HOW], "no file nowhere.py"),
    ],
    ids=lambda value: " ".join(value[-4:]) if isinstance(value, list) else None,
)
def test_a_wrong_call_ends_with_a_sentence(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "advise", lambda *_, **__: pytest.fail("it was taken for a right one"))
    monkeypatch.setattr(sys, "argv", ["fast", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert ended.value.code == 2 and captured.out == ""
    assert captured.err.startswith("fast: ") and captured.err.count("\n") == 1 and said in captured.err


def test_needs_reach_the_situation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Situation] = []

    def stop(situation: Situation, **_: object) -> Advice:
        seen.append(situation)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "advise", stop)
    with pytest.raises(KeyboardInterrupt):
        plan_command(
            **USUAL, unreliable=True, hostile=1, tuning="low", memory="1GB", not_iid=True, small_data=True
        )
    assert seen[0].needs == Needs(
        unreliable=True, hostile=1, tuning="low", memory_bytes=1e9, iid=False, small_data=True
    )
