"""The report of one run: what was logged, how fast it went, where time went, and how late updates were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fast.lab.report.look import KINDS
from fast.lab.report.page import chart_values, flat_settings
from fast.lab.report.pictures import Picture, line_picture, one_shares, staleness_pictures
from fast.lab.report.run_reading import RATE, RunReading
from fast.lab.report.template import render
from fast.lab.report.words import BYTES, COUNT, PLAIN, SECONDS, exact, plural


@dataclass(frozen=True)
class RunPictures:
    """What there is to see, in the order of the page."""

    values: Sequence[Sequence[Picture]]
    """For each value that was logged: against step, and against time."""
    rate: Picture | None
    time: Picture | None
    staleness: Sequence[Picture]

    @property
    def charts(self) -> list[Picture]:
        return [*chain(*self.values), *([self.rate] if self.rate else [])]

    def every(self) -> list[Picture]:
        return [*self.charts, *([self.time] if self.time else []), *self.staleness]


def render_run(reading: RunReading, pictures: RunPictures) -> str:
    return render("run.html", _context(reading, pictures), ["figures.css", "print.css"], ["figures.js"])


def draw_run(reading: RunReading) -> RunPictures:
    whole, rate = reading.whole(), reading.rate()
    values = [
        [
            picture
            for axis in ("step", "time")
            if (picture := line_picture(f"value-{index + 1}-{axis}", reading.entry(index, name), axis, name))
        ]
        for index, name in enumerate(reading.names)
    ]
    participants = whole.runs[0]["participants"]
    return RunPictures(
        values=[each for each in values if each],
        rate=line_picture("throughput", rate, "time", RATE),
        time=one_shares(whole) if participants else None,
        staleness=staleness_pictures([whole]),
    )


def _context(reading: RunReading, pictures: RunPictures) -> dict[str, Any]:
    data = reading.data
    return {
        "values": chart_values(
            {each.entry.key: each.entry.label for each in pictures.charts if each.entry}, pictures.charts
        ),
        "title": f"{data.get('title')}: {plural(data['settings']['workers'], 'worker')}",
        "facts": _facts(reading),
        "ended": _ended(reading),
        "strategy": reading.strategy,
        "pictures": pictures,
        "kinds": KINDS,
        "rows": [_cells(each.name, each.totals) for each in reading.participants if each.totals],
        "settings": flat_settings({name: value for name, value in data["settings"].items() if value != []}),
        "machine": flat_settings({**(data.get("machine") or {}), **(data.get("versions") or {})}),
    }


def _facts(reading: RunReading) -> list[tuple[str, str]]:
    data = reading.data
    facts = [("started", str(data["started"])[:16].replace("T", " "))]
    if data.get("duration_s") is not None:
        facts.append(("took", SECONDS.write(data["duration_s"])))
    if data.get("parameters") is not None:
        facts.append(("model", f"{exact(data['parameters'])} parameters"))
    return facts


def _ended(reading: RunReading) -> str:
    data = reading.data
    if "failure" not in data:
        return "The run goes on, or was killed: this is what its participants have written so far."
    failure = data["failure"]
    return (
        "The run ended well."
        if failure is None
        else f"The run failed. {failure['who']}: {failure['message']}"
    )


def _cells(name: str, totals: Mapping[str, Any]) -> list[str]:
    seconds = [totals[f"{kind}_s"] for kind in ("compute", "merge", "send", "wait")]
    rate = totals["samples"] / sum(seconds) if totals["samples"] else None
    updates = sum((totals.get("staleness") or {}).values())
    late = sum(int(each) * count for each, count in (totals.get("staleness") or {}).items())
    return [
        name,
        exact(totals["steps"]),
        exact(totals["samples"]),
        COUNT.write(rate),
        BYTES.write(totals["bytes_sent"]),
        *(SECONDS.write(each) for each in seconds),
        PLAIN.write(late / updates if updates else None),
    ]
