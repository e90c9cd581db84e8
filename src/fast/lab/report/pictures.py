"""All figures of a report, each in both forms: for the page, and as a file for paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from fast.lab.report.activity import (
    LANES,
    SLICES,
    horizon,
    shares_by_participant,
    shares_figure,
    timeline_figure,
    timeline_of,
)
from fast.lab.report.canvas import Drawn
from fast.lab.report.curves import (
    AXES,
    STEPS,
    Axis,
    Chart,
    Lines,
    distance_chart,
    score_chart,
    value_chart,
)
from fast.lab.report.graph import graph_figure
from fast.lab.report.multiples import (
    Extent,
    Replicas,
    bins,
    histogram,
    replicas_figure,
    staleness_figure,
)
from fast.lab.report.reading import Entry, Reading
from fast.lab.report.region import LOWEST, below, near_region
from fast.lab.report.svg import both_svgs
from fast.lab.report.traffic import Graph, graph_of
from fast.lab.report.words import COUNT, SCORE, SECONDS

TOLD = 8
"""So many strategies are told apart in the text that stands for a figure."""


@dataclass(frozen=True)
class Picture:
    """A figure in both its forms."""

    name: str
    """Of its file, without the ending."""
    inline: Markup
    paper: str
    entry: Entry | None = None
    note: str = ""
    values: Mapping[str, Any] | None = None
    axis: Axis | None = None
    near: bool | None = None
    """For scores: whether only the region near the target is shown."""


@dataclass(frozen=True)
class Pictures:
    """What there is to see, in the order of the page."""

    scores: Sequence[Picture]
    replicas: Sequence[Picture]
    staleness: Sequence[Picture]
    distance: Picture | None
    shares: Sequence[Picture]
    timelines: Sequence[Picture]
    graphs: Sequence[Picture]

    def every(self) -> list[Picture]:
        one = [self.distance] if self.distance else []
        many = (self.scores, self.replicas, self.staleness, one, self.shares, self.timelines, self.graphs)
        return [picture for group in many for picture in group]


def draw_pictures(reading: Reading) -> Pictures:
    return Pictures(
        scores=_scores(reading),
        replicas=_replicas(reading.trained),
        staleness=staleness_pictures(reading.trained),
        distance=_distance(reading.trained),
        shares=_shares(reading.trained),
        timelines=_timelines(reading.trained),
        graphs=_graphs(reading.trained),
    )


# Lines


def _scores(reading: Reading) -> list[Picture]:
    every = [Lines.of(reading.trained, axis) for axis in AXES]
    return [
        _score(lines, reading.data["target"], near)
        for near in (True, False)
        for lines in every
        if lines.bands
    ]


def _score(lines: Lines, target: float, near: bool) -> Picture:
    name, title = f"score-{lines.axis.name}", f"against {lines.axis.title}"
    chart = score_chart(lines, target, near=near)
    if not near:
        return replace(_chart(name, f"Score {title}", lines, chart), near=False)
    chart = replace(chart, values={**chart.values, "series": None, "like": name})
    picture = _chart(f"{name}-near", f"Score near the target {title}", lines, chart)
    return replace(picture, near=True, note=f"{picture.note} {_outside(lines, target)}".strip())


def _outside(lines: Lines, target: float) -> str:
    """The strategies that only the whole chart shows."""
    region = near_region(lines.bands.values(), target)
    under = [entry.label for entry, each in lines.bands.items() if below(each, region)]
    return f"Below this region all the time: {', '.join(under)}." if under else ""


def _distance(entries: Sequence[Entry]) -> Picture | None:
    """Those whose replicas are always equal have no place on a logarithmic axis."""
    apart = [entry for entry in entries if any(_distances(entry))]
    lines = Lines.of(apart, AXES[0], "distance")
    return (
        _chart("distance", "Distance of replicas over time", lines, distance_chart(lines))
        if lines.bands
        else None
    )


def _distances(entry: Entry) -> list[float]:
    curves = [(run.get("curve") or {}).get("distance") or [] for run in entry.runs]
    return [value for curve in curves for value in curve if value is not None]


def always_equal(entries: Sequence[Entry]) -> list[str]:
    """Strategies whose replicas never differed."""
    return [entry.label for entry in entries if _distances(entry) and not any(_distances(entry))]


def _chart(name: str, title: str, lines: Lines, chart: Chart) -> Picture:
    ends = [
        f"{entry.label} ends at {float(each.mean[-1]):.3g} after {lines.axis.measure.write(float(each.x[-1]))}"
        for entry, each in list(lines.bands.items())[:TOLD]
    ]
    more = f"; and {len(lines.bands) - TOLD} others" if len(lines.bands) > TOLD else ""
    inline, paper = both_svgs(chart.drawn, name, f"{title}: {'; '.join(ends)}{more}.")
    return Picture(name, inline, paper, values=chart.values, axis=lines.axis, note=_absent(lines))


def _absent(lines: Lines) -> str:
    """Who can't be seen on a logarithmic axis."""
    if not lines.logarithmic:
        return ""
    silent = [entry.label for entry, each in lines.bands.items() if each.x[-1] <= 0]
    return f"Not on this logarithmic axis, because nothing was sent: {', '.join(silent)}." if silent else ""


def line_picture(name: str, entry: Entry, axis: str, value: str) -> Picture | None:
    """One value of a run, against "step" or "time"; None if there is nothing to draw."""
    lines = Lines.of([entry], STEPS if axis == "step" else AXES[0], value)
    if not lines.bands:
        return None
    chart = value_chart(lines, entry.label)
    return replace(_chart(name, f"{entry.label} against {lines.axis.title}", lines, chart), entry=entry)


# One per strategy


def _picture(kind: str, entry: Entry, drawn: Drawn, *, alt: str, note: str) -> Picture:
    inline, paper = both_svgs(drawn, f"{kind}-{entry.key}", f"{entry.label}: {alt}")
    return Picture(f"{kind}-{entry.file}", inline, paper, entry, note)


def _replicas(entries: Sequence[Entry]) -> list[Picture]:
    shown = [each for each in map(Replicas.of, entries) if each]
    if not shown:
        return []
    extent = Extent.of(shown, LOWEST)
    return [_one_replicas(each, extent) for each in shown]


def _one_replicas(shown: Replicas, extent: Extent) -> Picture:
    low, high, whole = (
        SCORE.write(float(line[-1])) for line in (shown.single.low, shown.single.high, shown.whole.mean)
    )
    single = f"replicas {low} to {high}" if low != high else f"all replicas {low}"
    ends = f"At the end {single}, consolidated {whole}."
    return _picture("replicas", shown.entry, replicas_figure(shown, extent), alt=ends, note=ends)


def staleness_pictures(entries: Sequence[Entry]) -> list[Picture]:
    counts = {entry: histogram(entry.runs) for entry in entries}
    counts = {entry: count for entry, count in counts.items() if sum(count.values())}
    if not counts:
        return []
    ranges = bins(max(max(count) for count in counts.values()))
    return [_one_staleness(entry, counts[entry], ranges) for entry in counts]


def _one_staleness(entry: Entry, counts: Mapping[int, int], ranges: Sequence[tuple[int, int]]) -> Picture:
    updates = sum(counts.values())
    mean = sum(staleness * count for staleness, count in counts.items()) / updates
    words = f"Mean {mean:.2f}, largest {max(counts)}, of {COUNT.write(updates)} updates."
    return _picture("staleness", entry, staleness_figure(entry, ranges), alt=words, note=words)


def _shares(entries: Sequence[Entry]) -> list[Picture]:
    return [one_shares(entry) for entry in entries if shares_by_participant(entry.runs)]


def one_shares(entry: Entry) -> Picture:
    drawn, participants = shares_figure(entry), len(shares_by_participant(entry.runs))
    alt = "; ".join(drawn.tips.values()) if participants <= TOLD else f"shares of {participants} participants"
    return _picture("time", entry, drawn, alt=alt, note=_choice(participants))


def _timelines(entries: Sequence[Entry]) -> list[Picture]:
    lanes = {entry: timeline_of(entry) for entry in entries}
    lanes = {entry: each for entry, each in lanes.items() if each}
    if not lanes:
        return []
    until = horizon(list(lanes.values()), max(40, min(SLICES, 1500 // len(lanes))))
    alt = f"what each participant did in the first {SECONDS.write(until)}"
    return [
        _picture("timeline", entry, timeline_figure(entry, until), alt=alt, note=_choice(len(each)))
        for entry, each in lanes.items()
    ]


def _choice(participants: int) -> str:
    return f"{LANES} of {participants} participants, evenly chosen." if participants > LANES else ""


def _graphs(entries: Sequence[Entry]) -> list[Picture]:
    found = {entry: graph_of(entry) for entry in entries}
    return [_one_graph(entry, graph) for entry, graph in found.items() if graph is not None]


def _one_graph(entry: Entry, graph: Graph) -> Picture:
    words = [f"{COUNT.write(sum(n for _, _, n, _ in graph.letters))} letters"] if graph.letters else []
    words += [f"{COUNT.write(sum(n for _, n, _ in graph.means))} means"] if graph.means else []
    said = "Nobody talks to anybody." if graph.silent else f"{' and '.join(words)}."
    return _picture("graph", entry, graph_figure(graph, entry), alt=said, note=said)
