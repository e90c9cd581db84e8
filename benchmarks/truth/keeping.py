"""What is kept in a file, so that a run that was ended goes on where it was."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from truth.cells import Cell, Seen, Time
from truth.grounds import Models
from truth.scoring import Row, Summary
from truth.weather import Weather

_KEPT = {True: "stay awake", False: "halt"}


@dataclass(frozen=True)
class Findings:
    """Real runs and calibrations so far."""

    times: dict[Cell, list[Seen]]
    models: Models
    awake: bool
    """Whether cores with nothing to do were kept from halting."""

    def begun(self) -> Findings:
        """Without the cells of which there is no run."""
        return replace(self, times={cell: own for cell, own in self.times.items() if own})


def kept(file: Path | None, cells: Sequence[Cell], *, awake: bool | None = None) -> Findings:
    """What a file has of these cells, ground by ground: repetitions that are whole, measured as they would be now. With
    `awake` more is going to be measured with such cores, and goes into no file of the others."""
    if file is None or not file.exists():
        return Findings({cell: [] for cell in cells}, {cell.ground: [] for cell in cells}, bool(awake))
    data = json.loads(file.read_text())
    then = data.get("awake", False)
    if awake not in (None, then):
        sys.exit(
            f"{file} was measured with idle cores that {_KEPT[then]}, and now they {_KEPT[not then]}: name another "
            f"file, or {'leave out' if then else 'add'} --cores-may-halt"
        )
    found = {Cell(**row["cell"]): row for row in data["rows"]}
    times: dict[Cell, list[Seen]] = {}
    models: Models = {}
    for ground, group in itertools.groupby(cells, key=lambda cell: cell.ground):
        own = {cell: found.get(cell, {"times": []}) for cell in group}
        same = all(
            row.get("pace_s") == cell.pace_s and row.get("steps") == cell.steps for cell, row in own.items()
        )
        whole = min(len(row["times"]) for row in own.values()) if same else 0
        times |= {cell: [_seen(each) for each in row["times"][:whole]] for cell, row in own.items()}
        models[ground] = data["models"].get(ground, [])[:whole]
    return Findings(times, models, then)


def _seen(data: dict[str, Any]) -> Seen:
    return Seen(Time(**data["time"]), Weather(**data["weather"]))


def keep(
    file: Path | None, found: Findings, rows: Sequence[Row] = (), summary: Summary | None = None
) -> None:
    """With what was made of it, if that is known yet."""
    if file is None:
        return
    said = {row.cell: asdict(row) for row in rows}
    data = {
        "schema": 1,
        "awake": found.awake,
        "models": found.models,
        "rows": [
            {
                "cell": asdict(cell),
                "pace_s": cell.pace_s,
                "steps": cell.steps,
                "times": [asdict(each) for each in own],
                **said.get(cell, {}),
            }
            for cell, own in found.times.items()
        ],
        "summary": summary and asdict(summary),
    }
    file.write_text(json.dumps(data, indent=1) + "\n")
