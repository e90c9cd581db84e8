"""`fast strategies`: a short list to start with, the whole one on demand."""

from __future__ import annotations

import json

import pytest

from fast.cli.strategies import FIRST, strategies_command
from fast.strategies import catalogue


def test_it_begins_with_five_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    strategies_command()
    said = capsys.readouterr().out
    assert len(FIRST) == 5 and set(FIRST) <= set(catalogue())
    for name, why in FIRST.items():
        assert name in said and why.split(". ")[-1].split()[0] in said
    assert "choco" not in said and f"All {len(catalogue())}" in said and "--all" in said
    assert max(map(len, said.splitlines())) <= 120


def test_the_whole_list_has_every_strategy_and_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    strategies_command(every=True)
    said = " ".join(capsys.readouterr().out.split())
    for preset in catalogue().values():
        assert f" {preset.name} " in said and preset().call in said


def test_programs_always_get_the_whole_list(capsys: pytest.CaptureFixture[str]) -> None:
    strategies_command(json="-")
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(catalogue())
