"""The page for users of DistributedDataParallel: every line that it shows under "after" is one that runs."""

from __future__ import annotations

import contextvars
import re
import runpy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from fast.engine import Job, LocalEngine

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "from_ddp.py"
PAGE = (ROOT / "docs" / "how-to" / "from-ddp.md").read_text(encoding="utf-8")
AFTER = re.findall(r"^```python\n# after\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


def plain_lines(code: str) -> str:
    """Code without blank lines, at the left margin."""
    return dedent("".join(line for line in code.splitlines(keepends=True) if line.strip()))


def is_shown(block: str, script: str) -> bool:
    """Whether the block's lines follow each other in the script, at any indentation."""
    wanted = plain_lines(block).splitlines()
    lines = [line for line in script.splitlines() if line.strip()]
    windows = (lines[at : at + len(wanted)] for at in range(len(lines)))
    return any(dedent("\n".join(window)).splitlines() == wanted for window in windows)


@pytest.mark.parametrize("block", AFTER, ids=range(len(AFTER)))
def test_what_is_shown_is_part_of_the_example(block: str) -> None:
    assert is_shown(block, EXAMPLE.read_text(encoding="utf-8"))


def test_every_section_shows_before_and_after() -> None:
    assert len(SECTIONS) >= 11
    for title, section in SECTIONS:
        assert "```python\n# before\n" in section, title
        assert "```python\n# after\n" in section or "Nothing is needed" in section, title


def test_alone_it_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    contextvars.Context().run(runpy.run_path, str(EXAMPLE), run_name="__main__")
    assert _epochs(capsys.readouterr().out.splitlines()) == [0, 4, 8, 12]
    contextvars.Context().run(runpy.run_path, str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert _epochs(said) == []
    assert float(said[-1].rpartition(": ")[2]) > 0.85


@pytest.mark.real
def test_on_workers_only_one_prints_and_saves(tmp_path: Path, engine: LocalEngine) -> None:
    said = _on_workers(tmp_path, engine)
    assert _epochs(said) == [0, 4, 8, 12] and float(said[-1].rpartition(": ")[2]) > 0.85
    saved = torch.load(tmp_path / "from_ddp.pt")
    assert saved["epoch"] == 12
    assert _epochs(_on_workers(tmp_path, engine)) == []


def _on_workers(folder: Path, engine: LocalEngine) -> list[str]:
    job = Job(
        workers=2,
        entry="fast.loop.script:run_script",
        server_entry="fast.loop.serving:serve",
        arguments={"script": str(EXAMPLE), "arguments": []},
        preload=["fast.loop", "fast.strategies.presets", "torch._dynamo", "sklearn.datasets"],
        folder=str(folder),
    )
    events: list[dict[str, Any]] = []
    outcome = engine.run(job, events.append)
    assert outcome.failure is None, outcome.failure
    return [event["text"] for event in events if event["event"] == "line" and "accuracy" in event["text"]]


def _epochs(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"epoch (\d+):", line))]
