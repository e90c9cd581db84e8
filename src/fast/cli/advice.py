"""An advice on the terminal: the answer first, then what it was compared with, then what would change it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.status import Status
from rich.table import Table
from rich.text import Text

from fast.lab.planner.advice import Advice, Ranked, WhatIf
from fast.lab.planner.advisor import BASELINE
from fast.lab.planner.candidates import LIKE, MOST_LETTERS
from fast.lab.planner.checking import Checked
from fast.lab.planner.facts import Facts
from fast.lab.planner.rules import SMALL_RHO, short_time
from fast.lab.planner.situation import Situation
from fast.sim.cluster.words import rate_in_words, time_in_words

WIDTH = 100
_QUIET_S = 10.0
BACKUPS, FLOODING = "tensorflow", "torus"
INSTEAD = (
    "FAST trains data-parallel only and can't cut a model. Use PyTorch's fully_shard (FSDP) or "
    "torch.distributed.pipelining, or DeepSpeed's ZeRO; or let the model fit: a smaller one, 16-bit weights, an "
    "optimizer with less state, more memory."
)


def console_for(*, to_stderr: bool) -> Console:
    """At most 100 columns, on a terminal too: long lines of prose are hard to read."""
    file = sys.stderr if to_stderr else sys.stdout
    console = Console(file=file, highlight=False)
    return Console(
        file=file, highlight=False, width=min(WIDTH, console.width) if console.is_terminal else WIDTH
    )


def print_advice(console: Console, advice: Advice) -> None:
    """All of it."""
    console.print(Text(title_of(advice.situation), style="bold"))
    console.print()
    for line in answer(advice):
        console.print(Text(line))
    if advice.best is not None:
        _paste(console, advice, advice.best)
        console.print(candidates_table(advice))
        _print_lines(console, (*_vetoed(advice), *_refused(advice)))
    if advice.what_ifs:
        console.print(what_if_table(advice))
    _print_lines(console, (*_unanswered(advice), *_notes(advice), *_left_out(advice)))


def print_check(console: Console, checked: Checked) -> None:
    console.print(Text("Simulated", style="bold"))
    for line in checked.lines():
        console.print(Text(line))


def title_of(situation: Situation) -> str:
    sizes, weights = situation.sizes, decimal(situation.model_bytes)
    rate, latency = rate_in_words(situation.rate_bytes_per_s), time_in_words(situation.latency_s)
    return (
        f"{sizes.name} ({weights} of weights), {situation.workers:,} workers, "
        f"{time_in_words(situation.step_s)} a step, {rate}, {latency}"
    )


# The answer


def answer(advice: Advice) -> Iterator[str]:
    """What to take, what it will do, and why; the reasons of the first rule, in a few sentences."""
    best = advice.best
    if best is None:
        veto = advice.vetoed[0]
        yield f"Model parallelism, because {veto.reason} (V1; {veto.source}) {INSTEAD}"
        return
    predicted = best.prediction
    yield (
        f"Take {best.call}: {best.technique.words} ({best.technique.name}). Predicted: "
        f"{short_time(predicted.step_s)} a step, {predicted.computing:.0%} of it computing, "
        f"{decimal(round(predicted.sent_bytes))} sent per worker and step, {_against(best)}."
    )
    yield f"Why: {_sentence(advice.rule.sentence)} ({advice.rule.id}, {advice.rule.title}; {advice.rule.source})"
    yield from _disagreement(advice, best)
    yield best.technique.rate_hint


def _against(best: Ranked) -> str:
    if best.call == BASELINE:
        return "and it is what all others are compared with"
    return f"and the target in {best.time:.2f} times the time of plain allreduce"


def _disagreement(advice: Advice, best: Ranked) -> Iterator[str]:
    if advice.agrees:
        return
    expected = advice.expected
    if expected is None:
        asked = ", ".join(advice.rule.presets[:3])
        yield f"The rule would rather have {asked}, and none of these is allowed here."
        return
    yield (
        f"The rule would have taken {expected.call}, which is predicted to need "
        f"{expected.time / best.time:.2g} times as long. The two disagree: measure both, or try --simulate."
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _paste(console: Console, advice: Advice, best: Ranked) -> None:
    run = f'fast run --workers {advice.situation.workers} --strategy "{best.call}" train.py'
    join = f'fast.join(model, optimizer, strategy="{best.call}")'
    console.print()
    for line in (run, join):
        console.print(Text(f"    {line}", style="cyan"), soft_wrap=True)


# Tables


def candidates_table(advice: Advice) -> Table:
    """One row for each that is allowed, the first choice first."""
    table = _table()
    table.add_column("strategy", overflow="fold", min_width=22)
    for head in ("time per\nstep", "sent per\nstep", "computes", "time to\ntarget"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("why not", no_wrap=True)
    for place, each in enumerate(advice.ranked):
        table.add_row(*_cells(each), style="bold" if place == 0 else None)
    if all(each.call != BASELINE for each in advice.ranked):
        table.add_row(*_cells(advice.baseline)[:-1], "not allowed; for comparison", style="dim")
    return table


def _cells(each: Ranked) -> list[str]:
    predicted = each.prediction
    return [
        each.call,
        short_time(predicted.step_s),
        decimal(round(predicted.sent_bytes)),
        f"{predicted.computing:.0%}",
        f"x {each.time:.2f}",
        each.why,
    ]


def what_if_table(advice: Advice) -> Table:
    table = _table()
    table.add_column("what if", overflow="fold")
    table.add_column("rho", justify="right", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("then take", overflow="fold")
    for head in ("time per\nstep", "against\nallreduce"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("the plan's\nfirst choice", overflow="fold")
    for each in advice.what_ifs:
        table.add_row(*_what_if_cells(each))
    return table


def _what_if_cells(each: WhatIf) -> list[str]:
    if each.before is None:
        own = "not predicted"
    else:
        own = "it is the same" if each.before == 1.0 else f"x {each.before:.2f} the time"
    return [
        each.words,
        f"{each.facts.rho:.2g}",
        each.rule.id,
        each.best.call,
        short_time(each.best.prediction.step_s),
        f"x {each.best.time:.2f}",
        own,
    ]


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")


# What else there is to say


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(line, style="dim"))


def _vetoed(advice: Advice) -> Iterator[str]:
    """Those with the same reason together."""
    for (name, reason, source), group in groupby(
        sorted(advice.vetoed, key=lambda each: each.id), key=lambda each: (each.id, each.reason, each.source)
    ):
        presets = ", ".join(dict.fromkeys(each.name for each in group))
        yield f"Ruled out by {name}: {presets}. {_sentence(reason.rstrip('.'))} ({source})"


def _refused(advice: Advice) -> Iterator[str]:
    for call, reason in advice.refused:
        yield f"Not predicted: {call}. {reason}"


def _unanswered(advice: Advice) -> Iterator[str]:
    for words, reason in advice.unanswered:
        yield f"What if, {words}: no answer. {reason}"


def _notes(advice: Advice) -> Iterator[str]:
    for rule in advice.rules[1:]:
        asked = advice.best_for(rule)
        best = f" Best of what it asks for: {asked.call}, x {asked.time:.2f}." if asked else ""
        yield f"{rule.id}, {rule.title}: {rule.sentence}.{best} ({rule.source})"
    if advice.best is not None:
        yield _means(advice.facts)


def _means(facts: Facts) -> str:
    """Which way a mean goes where no host should talk to all others at once."""
    return (
        f"Means of gradients go to everybody at once. Hop by hop the cheapest way here would be "
        f"allreduce(algorithm='{facts.algorithm}'), {short_time(facts.algorithm_s)} for a mean. "
        "(Ben-Nun and Hoefler 2019, section 2.4)"
    )


def _left_out(advice: Advice) -> Iterator[str]:
    """So that every preset is named: here, in the table or among what is ruled out."""
    if advice.best is None:
        return
    named = {each.name for each in advice.ranked} | {each.name for each in advice.vetoed}
    named |= {call.partition("(")[0] for call, _ in advice.refused}
    stands = sorted((stand, name) for name, stand in LIKE.items() if name not in named)
    said = [
        f"{', '.join(name for _, name in group)} like {stand}"
        for stand, group in groupby(stands, key=lambda each: each[0])
    ]
    yield f"Left out, as near one of these: {'; '.join(said)}."
    if BACKUPS not in named:
        few, even = "too few would be left for a robust rule", "backups pay only where somebody is late"
        yield f"{BACKUPS} isn't compared: {few if advice.situation.needs.hostile else even}."
    if FLOODING not in named:
        yield f"{FLOODING} isn't compared: it sends in every step, and these links would bring sums of old gradients."
    if advice.rho > SMALL_RHO and advice.situation.workers > MOST_LETTERS:
        yield f"Compression isn't compared on more than {MOST_LETTERS} workers: too many letters to predict."


class Following:
    """Says on standard error what is going on: one live line on a terminal, a plain one now and then elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status = Status("", console=self._console)
        self._spoke = time.monotonic()

    def __enter__(self) -> Following:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def tell(self, call: str) -> None:
        self.say(f"predicting {call}")

    def say(self, text: str) -> None:
        if self._console.is_terminal:
            self._status.update(Text(text))
        elif time.monotonic() - self._spoke > _QUIET_S:
            self._spoke = time.monotonic()
            print(f"fast: {text}", file=sys.stderr)
