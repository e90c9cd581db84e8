"""Puts the tables of closed form against simulator into docs/cost-models.md: python docs/make_cost_tables.py"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fast.collectives import cost
from fast.collectives.limits import crossover
from fast.core.world import Link
from fast.lab.planner.closed_forms import UPDATE_BYTES_PER_S, Exchange
from fast.lab.planner.exchanging import exchange_s
from fast.lab.sizes import Sizes
from fast.loop.loading import strategy_from
from fast.sim import Network

PAGE = Path(__file__).resolve().parent / "cost-models.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
SIZES = Sizes.of_parameters(1_000_000)
RATE, LATENCY_S = 1.25e9, 10e-6
PROGRAMS = (
    ("naive server", "ssp(0)"),
    ("binomial server", "firecaffe"),
    ("sharded server", "bigdl"),
    ("doubling", "allreduce(algorithm='doubling')"),
    ("ring", "allreduce(algorithm='ring')"),
    ("async all", "ssp(inf)"),
)
"""Patterns of the taxonomy, and the programs that FAST has for them."""
MANY = 40
"""Steps of an asynchronous program: what it takes in the long run."""
WORKERS = (7, 8)
CROSSINGS = (
    ("doubling", "rabenseifner"),
    ("doubling", "ring"),
    ("exchange", "direct"),
    ("tree", "ring"),
)


def tables() -> str:
    """All of them, as they stand on the page."""
    parts = [patterns(), collectives(), crossings()]
    return "\n\n".join("\n".join(part) for part in parts)


def patterns() -> Iterator[str]:
    """The taxonomy's: no latency, an optimizer's step at 2 GiB/s, no time for adding."""
    network = Network(RATE, 0.0, shared=True)
    yield "| pattern | program | workers | closed form, ms | simulated, ms | ratio |"
    yield "|---|---|---|---|---|---|"
    model = Exchange.of(SIZES.layout.nbytes, RATE)
    known = Exchange(model.transmit_s, 0.0, model.update_s)
    for pattern, call in PROGRAMS:
        for workers in WORKERS:
            found = exchange_s(
                strategy_from(call),
                SIZES,
                workers=workers,
                network=network,
                update_bytes_per_s=UPDATE_BYTES_PER_S,
                steps=MANY if pattern == "async all" else 1,
            )
            yield _row(pattern, call, workers, known.seconds(pattern, workers), found)


def collectives() -> Iterator[str]:
    """The survey's, with latency; links of their own, and one interface for all that a host sends."""
    link = Link(LATENCY_S, RATE)
    yield "| algorithm | members | closed form, ms | own links, ms | ratio | one interface, ms | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for name, closed in cost.COSTS.items():
        for members in WORKERS:
            expected = closed(members, SIZES.layout.nbytes, link)
            found = [_collective(name, members, shared=shared) for shared in (False, True)]
            cells = [f"{each * 1e3:.3f} | {each / expected:.3f}" for each in found]
            yield f"| {name} | {members} | {expected * 1e3:.3f} | {' | '.join(cells)} |"


def _collective(name: str, members: int, *, shared: bool) -> float:
    strategy = strategy_from(f"allreduce(algorithm={name!r})")
    return exchange_s(strategy, SIZES, workers=members, network=Network(RATE, LATENCY_S, shared=shared))


def crossings() -> Iterator[str]:
    """Where one algorithm overtakes another: x = n G / L."""
    members = (4, 8, 16, 64)
    yield f"| up to x | from x on | {' | '.join(f'P = {count}' for count in members)} |"
    yield "|---|---|" + "---|" * len(members)
    for small, large in CROSSINGS:
        cells = (f"{crossover(small, large, count):.3g}" for count in members)
        yield f"| {small} | {large} | {' | '.join(cells)} |"


def _row(pattern: str, call: str, workers: int, closed_s: float, found_s: float) -> str:
    times = f"{closed_s * 1e3:.3f} | {found_s * 1e3:.3f} | {found_s / closed_s:.3f}"
    return f"| {pattern} | `{call}` | {workers} | {times} |"


def with_tables(text: str) -> str:
    """The page, with the tables of today."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} has no lines {BEGIN} and {END} between which tables could stand")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("docs/cost-models.md")


if __name__ == "__main__":
    main()
