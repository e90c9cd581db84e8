"""The verdict of a comparison: who reached the target first, by how much, and how sure that is.

It reads the dictionary of `run.json` and nothing else. Ratios are paired by seed, because runs of one
seed start from the same weights and see the same data. The words claim no more than the seeds show:
where the ranges of two strategies overlap, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

NAMED = 3
"""So many strategies are named in a list; the others are counted."""


@dataclass(frozen=True)
class Contestant:
    """One strategy with all its seeds."""

    call: str
    label: str
    seeds: int
    times: Mapping[int, float]
    """Seconds to the target by seed; those that didn't reach it are not in."""
    scores: Sequence[float]
    """Final scores that are numbers."""
    diverged: int
    errors: Sequence[str]

    @property
    def reached_always(self) -> bool:
        return len(self.times) == self.seeds

    @property
    def failed_always(self) -> bool:
        return len(self.errors) == self.seeds

    @property
    def place(self) -> tuple[float, float]:
        """Who reached the target more often comes first, and then who was faster."""
        return (-len(self.times) / self.seeds, _mean(self))


def verdict(data: Mapping[str, Any]) -> str:
    """A few sentences on a comparison, from the dictionary of its `run.json`."""
    contestants = contestants_of(data.get("results") or [])
    if all(each.failed_always for each in contestants):
        return _all_failed(contestants)
    reached = sorted((each for each in contestants if each.times), key=lambda each: each.place)
    if not reached:
        return _nobody(data, contestants)
    first = _first(data, reached[0], faster=any(_mean(each) < _mean(reached[0]) for each in reached))
    return " ".join([first, *_ratios(reached[0], reached[1:], contestants), *_missing(contestants)])


def contestants_of(rows: Iterable[Mapping[str, Any]]) -> list[Contestant]:
    """The rows by strategy, in the order in which strategies first appear."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["asked"], row["strategy"]), []).append(row)
    return [_contestant(call, group) for (call, _), group in groups.items()]


def _contestant(call: str, rows: Sequence[Mapping[str, Any]]) -> Contestant:
    times = {row["seed"]: row.get("time_to_target_s") for row in rows if row.get("reached_target")}
    return Contestant(
        call=call,
        label=rows[0].get("label") or call,
        seeds=len(rows),
        times={seed: seconds for seed, seconds in times.items() if seconds is not None},
        scores=[row["final_score"] for row in rows if row.get("final_score") is not None],
        diverged=sum(1 for row in rows if row.get("diverged")),
        errors=[row["error"] for row in rows if row.get("error")],
    )


# The sentences


def _all_failed(contestants: Sequence[Contestant]) -> str:
    if not contestants:
        return "Nothing was run, so there is nothing to compare."
    first = contestants[0]
    return f"Every run failed, so there is nothing to compare. The first error, of {first.label}: {first.errors[0]}"


def _first(data: Mapping[str, Any], winner: Contestant, *, faster: bool) -> str:
    """`faster` says that somebody else was, but not with as many seeds."""
    virtual = " of virtual time" if data.get("world") == "sim" else ""
    times = list(winner.times.values())
    how = f"after {duration(fmean(times))}{virtual}"
    if winner.seeds == 1:
        how += ", with one seed only: how much that varies is unknown"
    elif winner.reached_always:
        how += f" ({_range(times, duration)} over {winner.seeds} seeds)"
    else:
        how += f" ({_range(times, duration)}), but with {len(times)} of {winner.seeds} seeds only"
    if faster:
        most = "every seed" if winner.reached_always else "most seeds"
        return f"{winner.label} is the fastest of those that reached {data['target']:g} with {most}: {how}."
    return f"{winner.label} reached {data['target']:g} first: {how}."


def _ratios(winner: Contestant, others: Sequence[Contestant], everybody: Sequence[Contestant]) -> list[str]:
    """Against the runner-up, and against all-reduce, which everybody knows."""
    if not others:
        return ["No other strategy reached it."] if len(everybody) > 1 else []
    runner_up = others[0]
    known = next((each for each in others[1:] if _is_allreduce(each)), None)
    said = [_against(winner, runner_up, f"the runner-up, {runner_up.label}")]
    if known is not None and not _is_allreduce(winner) and not _is_allreduce(runner_up):
        said.append(_against(winner, known, known.label))
    return said


def _against(winner: Contestant, other: Contestant, name: str) -> str:
    """The ratio of the mean times, its range over seeds, and whether that means anything."""
    shared = [seed for seed in winner.times if seed in other.times]
    if not shared:
        return f"It can't be compared with {name}: no seed reached the target with both."
    mine, theirs = [winner.times[seed] for seed in shared], [other.times[seed] for seed in shared]
    ratio = fmean(theirs) / fmean(mine) if fmean(mine) > 0 else 1.0
    paired = [b / a if a > 0 else 1.0 for a, b in zip(mine, theirs, strict=True)]
    among = "" if len(shared) == winner.seeds else f", of the {len(shared)} that both reached it with"
    how = f"as fast as {name}" if _ratio(ratio) == "1.00" else f"{_ratio(ratio)} times as fast as {name}"
    if len(shared) == 1:
        return f"It was {how}{', with the one seed that both reached it with' if among else ''}."
    sentence = f"It was {how} ({_range(paired, _ratio)} over seeds{among})"
    return f"{sentence}{_doubt(mine, theirs, paired)}."


def _doubt(mine: Sequence[float], theirs: Sequence[float], paired: Sequence[float]) -> str:
    """Honest words if the two ranges of times overlap."""
    if max(mine) < min(theirs) or max(theirs) < min(mine):
        return ""
    always = " although it was faster with each of them," if min(paired) > 1 else ""
    return f", but their times overlap:{always} the two can't be told apart with these seeds"


def _missing(contestants: Sequence[Contestant]) -> list[str]:
    """Who didn't get there; a strategy that failed did not even try."""
    ran = [each for each in contestants if not each.failed_always]
    sometimes = [
        f"{each.label} ({len(each.times)} of {each.seeds})"
        for each in sorted(ran, key=lambda each: -len(each.times))
        if each.times and not each.reached_always
    ]
    never = [each.label for each in ran if not each.times]
    broken = [each.label for each in contestants if each.failed_always]
    said = [f"{_names(sometimes)} didn't reach it with every seed."] if sometimes else []
    said += [f"{_names(never)} didn't reach it."] if never else []
    return said + ([f"{_names(broken)} failed."] if broken else [])


def _nobody(data: Mapping[str, Any], contestants: Sequence[Contestant]) -> str:
    """The best final score, and what to try."""
    tuned = bool((data.get("settings") or {}).get("tune"))
    scored = [each for each in contestants if each.scores]
    target = f"{data['target']:g}"
    if not scored:
        rates = "more trials (--tune)" if tuned else "tuned rates (--tune 8)"
        return f"Nobody reached {target}: every run that didn't fail diverged. Try {rates}."
    best = max(scored, key=lambda each: fmean(each.scores))
    spread = f" ({_range(best.scores, score)} over {len(best.scores)} seeds)" if len(best.scores) > 1 else ""
    tune = "" if tuned else ", tuned rates (--tune 8)"
    return (
        f"Nobody reached {target}. The highest final score is {score(fmean(best.scores))}{spread}, "
        f"by {best.label}. Try more epochs (--epochs){tune} or a lower --target."
    )


# Words and numbers


def _mean(contestant: Contestant) -> float:
    return fmean(contestant.times.values())


def _is_allreduce(contestant: Contestant) -> bool:
    return contestant.call.partition("(")[0].strip() == "allreduce"


def _names(names: Sequence[str]) -> str:
    """a; a and b; a, b and c; a, b, c and 4 others."""
    shown = list(names[:NAMED])
    hidden = len(names) - len(shown)
    if hidden:
        shown.append(f"{hidden} other{'s' if hidden > 1 else ''}")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _range(values: Sequence[float], write: Callable[[float], str]) -> str:
    """0.91 to 0.95; a unit that both ends share is said once."""
    low, high = write(min(values)), write(max(values))
    number, space, unit = low.partition(" ")
    shared = number if space and high.endswith(f" {unit}") else low
    return low if low == high else f"{shared} to {high}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def score(value: float) -> str:
    return f"{value:.3f}"


def duration(seconds: float) -> str:
    """Three digits that matter, with a unit for people."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (6e4, 1 / 60, "min")):
        if seconds < limit:
            return f"{_three_digits(seconds * factor)} {unit}" if seconds else "0 s"
    return f"{_three_digits(seconds / 3600)} h"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
