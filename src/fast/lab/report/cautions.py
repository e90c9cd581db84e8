"""What a reader must know before believing the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fast.lab.report.reading import Reading
from fast.lab.report.words import SECONDS, SHARE, plural

NAMED = 4


@dataclass(frozen=True)
class Caution:
    """One sentence or two. A warning weakens what the numbers say; a note tells what they are."""

    level: Literal["warning", "note"]
    text: str


def cautions(reading: Reading) -> list[Caution]:
    found = [*_world(reading), *_runs(reading), *_rates(reading), *_seeds(reading)]
    return sorted(found, key=lambda each: each.level != "warning")


def _world(reading: Reading) -> Iterator[Caution]:
    """What time means here."""
    facts, pace = reading.facts, reading.settings.get("pace_s")
    if reading.simulated:
        yield Caution("note", _models(reading))
        if reading.facts.get("faults"):
            yield Caution("note", f"Faults: {'; '.join(reading.facts['faults'])}.")
    elif facts.get("oversubscribed"):
        yield Caution(
            "warning",
            f"{plural(facts['cores'], 'core')} for {plural(reading.data['workers'], 'worker')}, and no pace: "
            "times say little about real machines: use --pace.",
        )
    if pace is not None:
        yield _paced(reading, pace)
    straggler = (reading.settings.get("world") or {}).get("straggler")
    if straggler is not None and not reading.simulated:
        yield Caution("note", f"Straggler {straggler}: workers slept to be that much slower (--straggler).")


def _models(reading: Reading) -> str:
    if reading.facts.get("model"):
        return f"Simulated: time is virtual and comes from models: {'; '.join(reading.facts['model'])}."
    world = reading.settings.get("world") or {}
    models = [f"network {world['network']}" if world.get("network") else ""]
    models.append(f"{world['step']} per step" if world.get("step") else "")
    models.append(f"straggler {world['straggler']}" if world.get("straggler") else "no straggler")
    return f"Simulated: time is virtual and comes from models ({', '.join(filter(None, models))})."


def _paced(reading: Reading, pace_s: float) -> Caution:
    shares = {
        entry.label: run["pace_exceeded"]
        for entry in reading.entries
        for run in sorted(entry.runs, key=lambda run: run.get("pace_exceeded") or 0)
        if run.get("pace_exceeded") is not None
    }
    said = f"Paced: every step takes at least {SECONDS.write(pace_s)} (--pace), like computing on another machine."
    if not shares:
        return Caution("note", said)
    worst = max(shares, key=lambda label: shares[label])
    if shares[worst] == 0:
        return Caution("note", f"{said} No step took longer.")
    longer = f"{said} Up to {_tenths(shares[worst])} of steps took longer (most with {worst})"
    if shares[worst] <= 0.05:
        return Caution("note", f"{longer}.")
    return Caution("warning", f"{longer}: those times are this machine's own. Try a longer pace.")


def _tenths(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else SHARE.write(share)


def _runs(reading: Reading) -> Iterator[Caution]:
    """What went wrong."""
    total = sum(entry.seeds for entry in reading.entries)
    failed = sum(len(entry.failures) for entry in reading.entries)
    diverged = [entry.label for entry in reading.entries if entry.diverged]
    if (reading.data.get("timestamps") or {}).get("ended", "") is None:
        yield Caution(
            "warning", "The comparison didn't run to its end: what follows is what there was until then."
        )
    if failed:
        yield Caution(
            "warning", f"{failed} of {plural(total, 'run')} failed; their errors are below the table."
        )
    if diverged:
        yield Caution("warning", f"Diverged (weights not finite): {_names(diverged)}.")


def _rates(reading: Reading) -> Iterator[Caution]:
    tuning = reading.data.get("tuning") or []
    edge = [each.get("label") or each["asked"] for each in tuning if each.get("at_edge")]
    if not reading.settings.get("tune"):
        yield Caution(
            "warning",
            "Fixed settings: rates were not tuned, so a strategy may be slow only because its rate doesn't suit it.",
        )
    if edge:
        yield Caution(
            "warning", f"Tuned at the edge of the grid: a better rate may lie beyond it for {_names(edge)}."
        )


def _seeds(reading: Reading) -> Iterator[Caution]:
    if reading.seeds == 1:
        yield Caution("warning", "One seed only: there is no spread, and small differences mean nothing.")


def _names(names: list[str]) -> str:
    hidden = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {plural(hidden, 'other')}" if hidden > 0 else "")
