"""Folders of runs as `fast run` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from fast.runtime.logbook import metrics_file

SETTINGS = {"script": "train.py", "arguments": [], "strategy": None, "workers": 2, "seed": 3}
RUN = {
    "schema": 1,
    "kind": "fast run",
    "title": "train",
    "started": "2026-01-02T03:04:05+0000",
    "settings": SETTINGS,
}
SPENT = {"compute_s": 1.0, "merge_s": 0.25, "send_s": 0.25, "wait_s": 0.5}


def opened(who: str, began_ns: int) -> dict:
    return {"kind": "opened", "schema": 1, "who": who, "began_ns": began_ns}


def totals(at_s: float, steps: int, staleness: dict[str, int], **more) -> dict:
    return {
        "kind": "totals", "at_s": at_s, "steps": steps, "samples": 10 * steps, "bytes_sent": 1000,
        **SPENT, "staleness": staleness, **more,
    }  # fmt: skip


def book(who: str, began_ns: int, losses: list[float | None]) -> list[dict]:
    values = [
        {"kind": "values", "at_s": 1.0 + n, "step": n + 1, "values": {"loss": loss}}
        for n, loss in enumerate(losses)
    ]
    joined = {"kind": "joined", "at_s": 0.5, "strategy": "torus(rule=mean)", "parameters": 7}
    return [
        opened(who, began_ns),
        joined,
        *values,
        totals(2.5, 20, {"0": 3, "2": 1}),
        totals(4.5, 60, {"0": 6, "2": 2}),
    ]


def make(folder: Path, books: dict[str, list[dict]], **more) -> Path:
    (folder / "metrics").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**RUN, **more}))
    for who, lines in books.items():
        metrics_file(folder, who).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
