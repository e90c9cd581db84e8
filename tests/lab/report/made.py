"""Made-up comparisons of many shapes, exactly as `run.json` holds them.

Every number follows from the arguments by a formula, so a test can say what must come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, stdev
from typing import Any

Json = dict[str, Any]
SUMMARISED = (
    "time_to_target_s", "samples_to_target", "epochs_to_target", "bytes_to_target", "final_score",
    "samples_per_s", "scaling_efficiency", "bytes_sent_per_worker", "mean_staleness", "consensus_distance",
    "wait_fraction", "steps", "peak_memory_bytes",
)  # fmt: skip
STEP_SAMPLES, EPOCH, BUDGET = 32, 897, 26910


@dataclass(frozen=True)
class Made:
    """A strategy as it is to come out."""

    call: str
    label: str = ""
    speed: float = 1.0
    """Samples per second, relative to the others."""
    learns: float = 1.0
    """How fast its score rises with samples."""
    top: float = 0.965
    talk: str = "mean"
    """mean, ring, server, gossip, pairs or nothing."""
    stale: int = 0
    apart: float = 0.0
    error: str | None = None
    fails_with: tuple[int, ...] = ()
    """Seeds that fail."""
    diverges_with: tuple[int, ...] = ()
    lost_at: float = 0.3
    """Where a diverged run loses its model, as a share of its ticks."""

    @property
    def name(self) -> str:
        return self.label or self.call.partition("(")[0]


@dataclass(frozen=True)
class Shape:
    """A comparison as it is to come out."""

    strategies: tuple[Made, ...]
    workers: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    world: str = "real"
    target: float = 0.94
    ticks: int = 50
    tune: int = 8
    pace_s: float | None = None
    pace_exceeded: float | None = None
    cores: int = 2
    at_edge: tuple[str, ...] = ()
    ended: bool = True
    world_settings: Json = field(default_factory=lambda: {"kind": "real"})


TYPICAL = (
    Made("allreduce()", speed=0.62, talk="mean"),
    Made("local_sgd(tau=10)", speed=1.05, learns=0.9, talk="mean", apart=0.02),
    Made("ssp(bound=3)", speed=0.95, learns=0.8, talk="server", stale=3, apart=0.03),
    Made("dpsgd(topology=ring())", speed=0.8, learns=0.85, talk="ring", apart=0.05),
    Made("torus()", speed=0.9, learns=0.8, talk="ring", stale=2, apart=0.04),
    Made("gossip(p=0.02)", speed=1.1, learns=0.6, top=0.95, talk="gossip", stale=9, apart=0.3),
)


def run_json(shape: Shape) -> Json:
    """The whole dictionary; `verdict` is left to the code under test."""
    rows = [row_of(shape, made, seed) for seed in shape.seeds for made in shape.strategies]
    return {
        "schema": 1,
        "task": "digits",
        "workers": shape.workers,
        "world": shape.world,
        "target": shape.target,
        "settings": settings_of(shape),
        "facts": {
            "parameters": 4810, "weights_bytes": 19240, "batch_size": STEP_SAMPLES, "train_samples": EPOCH,
            "step_samples": STEP_SAMPLES * shape.workers, "budget_samples": BUDGET, "cores": shape.cores,
            "oversubscribed": shape.world == "real" and shape.cores < shape.workers and shape.pace_s is None,
            "reference_samples_per_s": 4000.0,
            "data": [{"name": "digits", "sha256": "ab" * 32, "licence": "CC BY 4.0"}],
        },
        "machine": {"processor": "Some Processor 9", "cores": shape.cores, "memory_bytes": 16 << 30,
                    "system": "Linux 6.1 x86_64"},
        "versions": {"fast": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6"},
        "commit": "0123abc",
        "timestamps": {"started": "2026-03-01T10:20:30+00:00",
                       "ended": "2026-03-01T10:25:00+00:00" if shape.ended else None},
        "tuning": [tuning_of(shape, made) for made in shape.strategies] if shape.tune else [],
        "results": rows,
        "summary": [summary_of(shape, made, rows) for made in shape.strategies],
    }  # fmt: skip


def settings_of(shape: Shape) -> Json:
    return {
        "task": "digits",
        "strategies": [made.call for made in shape.strategies],
        "workers": shape.workers,
        "target": shape.target,
        "epochs": 30,
        "seconds": None,
        "seeds": list(shape.seeds),
        "tune": shape.tune,
        "split": "iid",
        "ticks": shape.ticks,
        "pace_s": shape.pace_s,
        "deadline_s": 60.0,
        "world": shape.world_settings,
    }


# Rows


def row_of(shape: Shape, made: Made, seed: int) -> Json:
    who = {"strategy": made.call, "asked": made.call, "label": made.name, "seed": seed, "rate": 1.0}
    if made.error is not None or seed in made.fails_with:
        return {**who, "error": made.error or f"PeerLost: worker {seed} left"}
    curve = curve_of(shape, made, seed)
    known = [score for score in curve["score"] if score is not None]
    whole = len(known) == shape.ticks
    first = next((tick for tick, s in enumerate(curve["score"]) if s is not None and s >= shape.target), None)
    duration = curve["at_s"][-1]
    sent = curve["bytes"][-1]
    participants = participants_of(shape, made, duration)
    return {
        **who,
        "reached_target": first is not None,
        "time_to_target_s": None if first is None else curve["at_s"][first],
        "samples_to_target": None if first is None else curve["samples"][first],
        "epochs_to_target": None if first is None else curve["epochs"][first],
        "bytes_to_target": None if first is None else curve["bytes"][first],
        "final_score": known[-1] if whole else None,
        "replica_scores": [
            known[-1] - made.apart * each / 40 if whole else None for each in range(shape.workers)
        ],
        "steps": BUDGET / STEP_SAMPLES / shape.workers,
        "samples": BUDGET,
        "bytes_sent_per_worker": sent / shape.workers,
        "bytes_sent": sent,
        "samples_per_s": BUDGET / duration,
        "scaling_efficiency": BUDGET / duration / (4000.0 * shape.workers),
        "duration_s": duration,
        "mean_staleness": mean_staleness(staleness_of(made)),
        "max_staleness": max(map(int, staleness_of(made)), default=0),
        "staleness": staleness_of(made),
        "consensus_distance": made.apart if whole else None,
        "wait_fraction": 0.2,
        "diverged": not whole,
        "curve": curve,
        "participants": participants,
        "graph": graph_of(shape, made),
        "timeline": timeline_of(shape, made) if seed == shape.seeds[0] else None,
        "pace_exceeded": shape.pace_exceeded,
    }


def curve_of(shape: Shape, made: Made, seed: int) -> Json:
    noise = Random(f"{made.call}{seed}")
    parts = [(tick + 1) / shape.ticks for tick in range(shape.ticks)]
    lasts = 6.0 / made.speed * (1 + 0.06 * noise.uniform(-1, 1))
    top = made.top + noise.uniform(-0.004, 0.004)
    scores: list[float | None] = [
        round(top - (top - 0.1) * math.exp(-7 * made.learns * part) + noise.uniform(-0.004, 0.004), 5)
        for part in parts
    ]
    if seed in made.diverges_with:
        lost = max(1, int(made.lost_at * shape.ticks))
        scores[lost:] = [None] * (shape.ticks - lost)
    measured = range(0, shape.ticks, max(1, shape.ticks // 10))
    single = [score if tick in measured else None for tick, score in enumerate(scores)]
    lost = [score is None for score in scores]
    sent = traffic_of(shape, made)
    return {
        "at_s": [lasts * part for part in parts],
        "samples": [round(BUDGET * part) for part in parts],
        "epochs": [BUDGET / EPOCH * part for part in parts],
        "bytes": [round(sent * part) for part in parts],
        "score": scores,
        "distance": [
            None if gone else made.apart * math.exp(-2 * part) for gone, part in zip(lost, parts, strict=True)
        ],
        "replica_worst": [_less(score, made.apart) for score in single],
        "replica_best": [_less(score, made.apart / 3) for score in single],
    }


def _less(score: float | None, by: float) -> float | None:
    return None if score is None else score - by


def traffic_of(shape: Shape, made: Made) -> int:
    graph = graph_of(shape, made)
    return sum(size for *_, size in graph["letters"]) + sum(size for *_, size in graph["means"])


def staleness_of(made: Made) -> dict[str, int]:
    if made.talk == "nothing":
        return {}
    return {str(age): round(1000 * 0.6**age) + 1 for age in range(made.stale + 1)}


def mean_staleness(counts: dict[str, int]) -> float:
    total = sum(counts.values())
    return sum(int(age) * count for age, count in counts.items()) / total if total else 0.0


def participants_of(shape: Shape, made: Made, duration: float) -> list[Json]:
    found = []
    for index in range(shape.workers + (1 if made.talk == "server" else 0)):
        worker = index < shape.workers
        parts = {"compute": 0.55 + 0.02 * (index % 4), "send": 0.06, "merge": 0.08, "wait": 0.2} if worker else {
            "compute": 0.0, "send": 0.1, "merge": 0.25, "wait": 0.6}  # fmt: skip
        parts["idle"] = 1 - sum(parts.values())
        found.append(
            {"name": f"worker {index}" if worker else f"server {index - shape.workers}",
             "steps": 210, "samples": BUDGET // shape.workers,
             **{f"{kind}_s": part * duration for kind, part in parts.items()},
             "peak_memory_bytes": (180 + index) << 20}
        )  # fmt: skip
    return found


def graph_of(shape: Shape, made: Made) -> Json:
    workers, noise = shape.workers, Random(made.call)
    letters: list[list[int]] = []
    means: list[list[Any]] = []
    everybody = list(range(workers))
    match made.talk:
        case "mean" if workers > 1:
            means = [[everybody, 210, 210 * 19240 * 2 * (workers - 1)]]
        case "ring" if workers > 1:
            pairs = {(i, (i + d) % workers) for i in everybody for d in (1, -1) if (i + d) % workers != i}
            letters = [[a, b, 210, 210 * 19496] for a, b in sorted(pairs)]
        case "server":
            letters = [[i, workers, 210, 210 * 19496] for i in everybody]
            letters += [[workers, i, 210, 210 * 19496] for i in everybody]
        case "gossip":
            letters = [[a, b, n, n * 19496] for a in everybody for b in everybody if a != b
                       for n in [noise.randrange(6)] if n]  # fmt: skip
        case "pairs":
            means = [
                [[a, b], 1 + (a * b) % 5, 19240 * (1 + (a * b) % 5)]
                for a in everybody
                for b in everybody
                if a < b
            ]
    return {
        "workers": workers,
        "servers": 1 if made.talk == "server" else 0,
        "letters": letters,
        "means": means,
    }


def timeline_of(shape: Shape, made: Made, steps: int = 12) -> Json:
    noise = Random(made.call)
    lanes = []
    for index in range(shape.workers):
        now, slices = 0.0, []
        for _ in range(steps):
            for kind, lasts in (("compute", 0.02), ("merge", 0.002), ("send", 0.001), ("wait", 0.008)):
                lasts *= noise.uniform(0.7, 1.3) / made.speed
                slices.append([kind, round(now, 6), round(lasts, 6)])
                now += lasts
        lanes.append({"name": f"worker {index}", "slices": slices})
    return {"participants": lanes}


# Over seeds


def summary_of(shape: Shape, made: Made, rows: list[Json]) -> Json:
    mine = [row for row in rows if row["asked"] == made.call]
    ran = [row for row in mine if "error" not in row]
    for_memory = [
        {"peak_memory_bytes": max(p["peak_memory_bytes"] for p in row["participants"])} for row in ran
    ]
    return {
        "asked": made.call, "label": made.name, "strategy": made.call, "rate": 1.0, "seeds": len(mine),
        "reached": sum(row["reached_target"] for row in ran), "failed": len(mine) - len(ran),
        "diverged": sum(row["diverged"] for row in ran),
        **{name: statistics_of([row.get(name) for row in (for_memory if name == "peak_memory_bytes" else ran)])
           for name in SUMMARISED},
    }  # fmt: skip


def statistics_of(values: list[float | None]) -> Json | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    spread = stdev(known) if len(known) > 1 else 0.0
    return {"mean": fmean(known), "std": spread, "min": min(known), "max": max(known), "n": len(known)}


def tuning_of(shape: Shape, made: Made) -> Json:
    rates = [2.0**power for power in range(-4, -4 + shape.tune)]
    trials = [
        {"strategy": made.call, "label": made.name, "rate": rate, "score": 0.97 - 0.02 * abs(math.log2(rate)),
         "time_to_target_s": 2.0 if abs(math.log2(rate)) < 2 else None,
         "samples_to_target": 9000 if abs(math.log2(rate)) < 2 else None,
         "diverged": False, "error": None, "chosen": rate == 1.0}
        for rate in rates
    ]  # fmt: skip
    if shape.tune > 2:
        trials[-1] |= {"score": None, "diverged": True, "time_to_target_s": None, "samples_to_target": None}
    return {"asked": made.call, "label": made.name, "budget": shape.tune, "at_edge": made.call in shape.at_edge,
            "trials": trials}  # fmt: skip


# The shapes


def typical() -> Shape:
    return Shape(TYPICAL, at_edge=("torus()",))


def alone() -> Shape:
    """One strategy, one seed, one worker, fixed settings."""
    return Shape((Made("allreduce()"),), workers=1, seeds=(0,), tune=0)


def thirty() -> Shape:
    talks = ("mean", "ring", "server", "gossip", "pairs", "nothing")
    made = tuple(
        Made(f"local_sgd(tau={n + 1})", f"local_sgd(tau={n + 1})", speed=0.6 + n / 40, learns=0.5 + (n * 7 % 30) / 40,
             top=0.93 + (n * 11 % 30) / 800, talk=talks[n % 6], stale=n % 7, apart=0.002 * (n % 9))
        for n in range(30)
    )  # fmt: skip
    return Shape(made, workers=8, cores=8)


def long_labels() -> Shape:
    """80 characters, which differ only towards their end."""
    label = "Elastic(tau=10, topology=Torus(rows=4, columns=4), momentum=0.9, correction=age_{})"
    made = tuple(
        replace(
            each, call=f"/home/somebody/projects/ideas/elastic.py:{label.format(n)}", label=label.format(n)
        )
        for n, each in enumerate(TYPICAL[1:])
    )
    return Shape(made, workers=16, pace_s=0.02, pace_exceeded=0.013)


def troubled() -> Shape:
    """Failures, runs that diverge, targets that aren't reached, and texts that aren't HTML."""
    wrong = "UsageError: needs 4 workers </script><b>\n  at line 3"
    return Shape(
        (
            Made("allreduce()", talk="mean"),
            Made("gossip(p=0.02)", top=0.9, talk="gossip", stale=30, apart=0.2),
            Made("downpour(tau=5)", talk="server", stale=4, diverges_with=(0, 1, 2), apart=0.1),
            Made("easgd(tau=10)", talk="server", diverges_with=(1,), apart=0.02),
            Made("ssp(bound=3)", top=0.941, talk="server", stale=3, fails_with=(2,)),
            Made("broken()", "<script>alert('x')</script> & co", error=wrong),
        ),
        cores=4,
    )


def all_failed() -> Shape:
    return Shape(
        (Made("allreduce()", error="PeerLost: worker 3 left"), Made("ssp()", error="Deadlock: all wait"))
    )


def one_tick() -> Shape:
    return Shape(TYPICAL[:2], ticks=1, target=0.5)


def many_workers() -> Shape:
    return Shape(
        (TYPICAL[0], TYPICAL[3], TYPICAL[2]),
        workers=256,
        seeds=(0, 1),
        world="sim",
        world_settings={"kind": "sim", "network": "1gbit", "step": "20ms", "straggler": "4x"},
    )


SHAPES = {
    each.__name__: each
    for each in (typical, alone, thirty, long_labels, troubled, all_failed, one_tick, many_workers)
}
