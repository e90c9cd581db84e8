"""Whether the advisor is right: its first choice against all that it allowed, trained to the target in the simulator.

Situations are drawn from a seed: 4 to 32 workers; rates and latencies with which an all-reduce takes between a fiftieth
and fifty times as long as a step's computing; workers that are alike, of scattered speed, always slow or slow at
times; and needs, now and then: also hostile workers (who tell no lies here: what is compared is what robust rules
cost), data that differ, and too little memory for the optimizer. In each of them every preset that the advisor allows
trains `digits` with real gradients until it reaches the target on the test images. The advice counts as right if its
first choice takes at most 1.5 times as long as the best of them all.

Every call has its learning rate from one grid, climbed uphill on the validation images once for each number of workers,
on machines and data that are nearly alike; any number of servers has the rate of one. In lock-step the weights after a
step don't depend on how long anything took, so there the steps to the target are found once for each call, number of
workers and seed, and the situation is simulated with sizes only to see when that step was over. That is exact, and
`--verify` shows it. (Of those that all make the mean of all gradients, over whatever links, one is trained for all.)
All others are trained in every situation, for no longer than it takes to see that they are too late; not at all where
half of the steps of synchronous training would be too late by the prediction.

`--fit` does the same with situations and seeds of its own, and prints the numbers for `fast.lab.planner.efficiency`
that follow from them. With `--json FILE` all that was found is kept there, and a run that was ended, or that stopped
after `--minutes`, goes on where it was; with other numbers only the advice is found anew. 60 situations to fit and 200
to judge by take about 45 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advising.answers import TOLERANCE, ratio_of
from advising.fitting import fitted, observations, ranked
from advising.notes import Filling, Notes, Paused, several
from advising.situations import CHECKED, FITTING, Case, drawn
from advising.trainings import is_lock_step, verify
from fast.lab.planner.efficiency import KINDS, Kind, Loss, factor_of
from fast.strategies.calls import short_call

NEEDED = 0.80
"""In so large a share of the situations the first choice takes at most 1.5 times as long as the best."""


@dataclass(frozen=True)
class Row:
    case: Case
    first: str
    best: str
    ratio: float

    @property
    def holds(self) -> bool:
        return self.ratio <= TOLERANCE


def row_of(notes: Notes, case: Case, losses: Mapping[Kind, Loss] | None = None) -> Row:
    """The first choice of the advisor; or, with other numbers of efficiency, what would be it."""
    offers, found = notes.offers[case.key], notes.found[case.key]
    first = offers[0].call if losses is None else ranked(offers, case.workers, losses)[0].call
    best = min(found, key=lambda call: math.inf if found[call] is None else found[call][0])  # type: ignore[index]
    return Row(case, first, best, ratio_of(first, found))


def share_of(rows: Sequence[Row]) -> float:
    return sum(row.holds for row in rows) / max(1, len(rows))


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """For the file: the share, and every situation with its first choice and its best."""
    return {
        "share": share_of(rows),
        "needed": NEEDED,
        "tolerance": TOLERANCE,
        "rows": [
            {
                "situation": str(row.case),
                "first": row.first,
                "best": row.best,
                "ratio": row.ratio if math.isfinite(row.ratio) else None,
                "holds": row.holds,
            }
            for row in rows
        ],
    }


def show(rows: Sequence[Row], worst: int = 10) -> None:
    held = sum(row.holds for row in rows)
    print(
        f"\nIn {held} of {len(rows)} situations ({share_of(rows):.1%}) the first choice takes "
        f"at most {TOLERANCE:g} times as long as the best of all that were allowed; needed are {NEEDED:.0%}."
    )
    finite = sorted(row.ratio for row in rows if math.isfinite(row.ratio))
    if finite:
        print(f"Median ratio {statistics.median(finite):.2f}, the best itself in {finite.count(1.0)}.")
    missed = sorted((row for row in rows if not row.holds), key=lambda row: -row.ratio)
    if missed:
        print("The worst:")
    for row in missed[:worst]:
        took = "much too late" if math.isinf(row.ratio) else f"{row.ratio:.2f} x"
        print(f"  {took:13} {short_call(row.first)} where {short_call(row.best)} was best: {row.case}")
    _show_winners(rows)


def _show_winners(rows: Sequence[Row]) -> None:
    print(f"\n{'':34} {'advised':>8} {'best':>6} {'missed':>7}")
    calls = {short_call(call) for row in rows for call in (row.first, row.best)}
    counts = {
        call: (
            sum(short_call(row.first) == call for row in rows),
            sum(short_call(row.best) == call for row in rows),
            sum(short_call(row.first) == call and not row.holds for row in rows),
        )
        for call in calls
    }
    for call, (first, best, missed) in sorted(counts.items(), key=lambda item: (-item[1][0], item[0])):
        print(f"{call:34} {first:8} {best:6} {missed:7}")


def show_fit(notes: Notes, cases: Sequence[Case]) -> None:
    rows = observations(notes, cases)
    losses = fitted(rows)
    print("\nFor LOSSES in src/fast/lab/planner/efficiency.py:")
    for kind in KINDS:
        own = [row for row in rows if row.features.kind == kind]
        errors = [row.value - math.log2(factor_of(row.features, losses)) for row in own if not row.at_least]
        late = len(own) - len(errors)
        off = (
            f"  # {len(errors)} trainings, off by {statistics.pstdev(errors):.2f}; {late} too late"
            if errors
            else ""
        )
        loss = losses[kind]
        print(
            f'        "{kind}": Loss(constant={loss.constant:g}, interval={loss.interval:g}, '
            f"staleness={loss.staleness:g}, workers={loss.workers:g}),{off}"
        )
    print(
        f"\nwith the present numbers {share_of([row_of(notes, case) for case in cases]):.1%} hold, with these "
        f"{share_of([row_of(notes, case, losses) for case in cases]):.1%}"
    )


def verified(notes: Notes, cases: Sequence[Case], count: int = 12) -> bool:
    """In situations one after another, each time with another call in lock-step."""
    done: set[str] = set()
    for case in cases:
        for offer in notes.offers[case.key]:
            if len(done) < count and offer.call not in done and is_lock_step(offer.call):
                done.add(offer.call)
                if not verify(case, offer.call, 3.0):
                    print(f"NOT the same: {offer.call} in {case}")
                    return False
                break
    print(f"\n{len(done)} calls in lock-step have exactly the times of a simulation with sizes only")
    return True


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--json", metavar="FILE", help="keep what was found there; what it has isn't done again"
    )
    parser.add_argument(
        "--fit", action="store_true", help="fit the numbers of efficiency, on other situations"
    )
    parser.add_argument("--check", action="store_true", help=f"end with 1 if fewer than {NEEDED:.0%} hold")
    parser.add_argument("--quick", action="store_true", help="a look: 10 situations")
    parser.add_argument("--situations", type=int, help="so many; 200, or 60 to fit")
    parser.add_argument(
        "--verify", action="store_true", help="show that lock-step doesn't depend on the situation"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many, with all that is kept"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="so many train at the same time"
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    usual = 10 if asked.quick else 60 if asked.fit else 200
    cases = drawn(asked.situations or usual, FITTING if asked.fit else CHECKED)
    notes = Notes.of(Path(asked.json) if asked.json else None)
    until_s = time.monotonic() + 60 * asked.minutes
    try:
        with several(asked.processes) as do:
            Filling(notes, do, until_s).all(cases)
    except Paused:
        sys.exit(f"after {asked.minutes:g} minutes not all is done; the same command goes on")
    rows = [row_of(notes, case) for case in cases]
    show(rows)
    notes.keep(summary_of(rows))
    if asked.fit:
        show_fit(notes, cases)
    alike = verified(notes, cases) if asked.verify else True
    sys.exit(1 if asked.check and (share_of(rows) < NEEDED or not alike) else 0)


if __name__ == "__main__":
    main()
