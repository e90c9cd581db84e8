"""The page: everything that was read and drawn, put into the template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fast.lab.report.activity import shares_of_workers
from fast.lab.report.cautions import cautions
from fast.lab.report.consistency import STEPS, mixing_of
from fast.lab.report.look import KINDS
from fast.lab.report.pictures import Picture, Pictures, always_equal
from fast.lab.report.policies import policy_table
from fast.lab.report.reading import Reading
from fast.lab.report.summary import COLUMNS
from fast.lab.report.template import render
from fast.lab.report.words import MEMORY, SECONDS, SHARE, exact, plural
from fast.lab.verdict import verdict

FEW_TRIALS = 40
"""Up to here all trials are open to begin with."""


def render_page(reading: Reading, pictures: Pictures) -> str:
    return render("page.html", _context(reading, pictures), ["figures.css", "print.css"], ["figures.js"])


def _context(reading: Reading, pictures: Pictures) -> dict[str, Any]:
    data = reading.data
    return {
        "values": chart_values(
            {entry.key: entry.label for entry in reading.entries},
            [*pictures.scores, *([pictures.distance] if pictures.distance else [])],
        ),
        "reading": reading,
        "data": data,
        "title": title_of(reading),
        "facts": facts_of(reading),
        "verdict": data.get("verdict") or verdict(data),
        "cautions": cautions(reading),
        "columns": COLUMNS,
        "kinds": KINDS,
        "shares": {entry.key: _shares(entry.runs) for entry in reading.entries},
        "pictures": pictures,
        "axes": [picture.axis for picture in pictures.scores if picture.near],
        "equal": always_equal(reading.trained),
        "policies": policy_table(reading),
        "mixing": mixing_of(reading),
        "mixing_steps": STEPS,
        "tuning": data.get("tuning") or [],
        "open_trials": sum(len(each.get("trials") or []) for each in data.get("tuning") or []) <= FEW_TRIALS,
        "settings": settings_of(reading),
        "machine": machine_of(reading),
    }


def title_of(reading: Reading) -> str:
    world = "simulated " if reading.simulated else ""
    workers = f"{reading.data['workers']} {world}worker{'s' if reading.data['workers'] != 1 else ''}"
    return f"{reading.data['task']}: {plural(len(reading.entries), 'strategy')} on {workers}"


def facts_of(reading: Reading) -> list[tuple[str, str]]:
    """The line under the title."""
    world = "simulated" if reading.simulated else "real processes on one machine"
    facts = [("target", f"{reading.data['target']:g}"), ("world", world), ("seeds", str(reading.seeds))]
    settings = reading.settings
    if settings.get("epochs") is not None:
        facts.append(("budget", f"{settings['epochs']:g} epochs"))
    if settings.get("seconds") is not None:
        facts.append(("budget", SECONDS.write(settings["seconds"])))
    if reading.facts.get("parameters") is not None:
        facts.append(("model", f"{exact(reading.facts['parameters'])} parameters"))
    started = (reading.data.get("timestamps") or {}).get("started")
    return [*facts, ("started", str(started)[:16].replace("T", " "))] if started else facts


def _shares(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, str]]:
    return [(kind, part, SHARE.write(part)) for kind, part in shares_of_workers(runs).items() if part > 0]


def chart_values(labels: Mapping[str, str], charts: Sequence[Picture]) -> dict[str, Any]:
    """What the page's script needs to show values of these charts; `labels` are those of their lines, by key."""
    return {
        "labels": labels,
        "charts": {picture.name: {**(picture.values or {}), **_unit(picture)} for picture in charts},
    }


def _unit(picture: Picture) -> dict[str, Any]:
    assert picture.axis is not None and picture.values is not None
    one, unit = picture.axis.measure.unit(picture.values["x"][1])
    return {"one": one, "unit": unit or picture.axis.name}


def settings_of(reading: Reading) -> list[tuple[str, str]]:
    return flat_settings(reading.settings)


def flat_settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every setting, nested ones with their path."""
    return [(name, _written(value)) for name, value in _flat(settings) if value is not None]


def machine_of(reading: Reading) -> list[tuple[str, str]]:
    machine = dict(reading.data.get("machine") or {})
    if machine.get("memory_bytes") is not None:
        machine["memory"] = MEMORY.write(machine.pop("memory_bytes"))
    known = [(name, _written(value)) for name, value in machine.items() if value is not None]
    versions = [(name, _written(value)) for name, value in (reading.data.get("versions") or {}).items()]
    return [*known, *versions, ("commit", str(reading.data.get("commit") or "unknown"))]


def _flat(settings: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        found += _flat(value, f"{path}{name}.") if inner else [(f"{path}{name}", value)]
    return found


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
