"""What becomes of momentum and of Adam's moments where weights are exchanged: each choice, measured.

Eight simulated workers with real gradients train a built-in task with an optimizer that remembers: SGD with momentum,
or AdamW. Strategies that exchange weights let one choose what happens to that memory then (`moments=`). Each choice
takes its learning rate from one grid, climbed uphill on validation data with a seed of its own, and then trains with
several seeds, judged on the test data: with samples alike for everybody, and with classes dealt out unequally. Nothing
depends on the clock, so the tables (in Markdown) are the same every time.

With `--json FILE` rows are kept there as they come, and those that it already has are not measured again. `--page FILE`
puts the tables into a page, between two lines that say so. All of it takes about half an hour on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import harness
from fast.core import Task
from fast.errors import UsageError
from fast.lab import Budget, Run, load_task, simulate_task
from fast.lab.judging import Judge
from fast.lab.splits import parse_split
from fast.loop.loading import strategy_from
from fast.strategies.calls import arguments_of, short_call, with_argument
from fast.strategies.catalogue import catalogue
from preset_scores import INTERVALS, climb

WORKERS, INTERVAL = 8, 8
TUNING_SEED = 1000
RATES = (1 / 16, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TASKS = ("mnist-mlp", "digits")
EPOCHS = (1.0, 20.0)
"""Of the tasks: 215 and 70 steps of each worker, not so many that every choice is as good as the model gets."""
SPLITS = ("iid", "dirichlet(0.3)")
OPTIMIZERS = ("momentum", "adamw")
METHODS = ("local_sgd", "dpsgd", "diloco")
POLICIES = ("keep", "average", "correct", "reset")
SYNCHRONOUS = "allreduce"


@final
class Remembering(Task):
    """A built-in task with an optimizer that remembers. At the factor 1 momentum, once it has gathered speed, moves the
    weights as far as the task's own SGD does, and AdamW moves each of them by a hundredth of that rate."""

    name = "remembering"
    stackable = True
    batch_size = 32

    def __init__(self, task: Task, optimizer: str) -> None:
        if task.batch_size != self.batch_size or not task.stackable:
            raise UsageError(f"{task.name} has another batch size, or batches that can't be stacked")
        self.task, self.kind = task, optimizer

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rate = float(self.task.optimizer(model).param_groups[0]["lr"])
        if self.kind == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=rate / 100)
        return torch.optim.SGD(model.parameters(), lr=rate / 10, momentum=0.9)

    def model(self) -> nn.Module:
        return self.task.model()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.task.loss(model, batch)

    def train(self) -> Sequence[Any]:
        return self.task.train()

    def labels(self) -> Sequence[int] | None:
        return self.task.labels()

    def batch(self, indices: Sequence[int]) -> Any:
        return self.task.batch(indices)

    def validation(self) -> Any:
        return self.task.validation()

    def test(self) -> Any:
        return self.task.test()

    def score(self, model: nn.Module, batch: Any) -> float:
        return self.task.score(model, batch)


Key = tuple[str, str, str, str, str]
"""Task, split, optimizer, method and policy."""


@dataclass(frozen=True)
class Row:
    """One choice in one situation. `scores` are on the test data, one for each seed."""

    task: str
    split: str
    optimizer: str
    method: str
    policy: str
    call: str
    rate: float | None = None
    scores: tuple[float | None, ...] = ()
    step_bytes: float | None = None
    """What a worker sends in a step, in the mean."""
    refused: str | None = None

    @property
    def key(self) -> Key:
        return self.task, self.split, self.optimizer, self.method, self.policy

    @property
    def mean(self) -> float | None:
        known = [score for score in self.scores if score is not None]
        return statistics.fmean(known) if known and len(known) == len(self.scores) else None

    @property
    def spread(self) -> float:
        known = [score for score in self.scores if score is not None]
        return statistics.stdev(known) if len(known) > 1 else 0.0


@dataclass(frozen=True)
class Situation:
    """A task, who has which of its samples, and the optimizer."""

    task: str
    split: str
    optimizer: str
    epochs: float
    workers: int = WORKERS

    @property
    def title(self) -> str:
        data = "samples alike for everybody" if self.split == "iid" else f"classes dealt out by {self.split}"
        kind = "AdamW" if self.optimizer == "adamw" else "SGD with momentum 0.9"
        return f"{self.task}, {kind}, {data}"


def situations(task: str | None, split: str | None, optimizer: str | None) -> list[Situation]:
    """All, or those that were asked for."""
    return [
        Situation(name, data, kind, epochs)
        for name, epochs in zip(TASKS, EPOCHS, strict=True)
        for data in SPLITS
        for kind in OPTIMIZERS
        if task in (None, name) and split in (None, data) and optimizer in (None, kind)
    ]


def methods() -> list[str]:
    """Those that let one choose."""
    known = catalogue()
    return [name for name in METHODS if name in known and "moments" in known[name].signature.parameters]


def choices() -> list[tuple[str, str]]:
    """Of all tables: synchronous training, which has none, and every policy of every strategy."""
    return [(SYNCHRONOUS, ""), *((method, policy) for method in methods() for policy in POLICIES)]


def call_of(method: str, policy: str) -> str:
    """With this policy, and 8 steps between exchanges: the runs are short."""
    call = catalogue()[method]().call
    for name, value in arguments_of(call).items():
        if name in INTERVALS and value.isdecimal() and int(value) > 1:
            call = with_argument(call, name, INTERVAL)
    return with_argument(call, "moments", policy) if "moments" in arguments_of(call) else call


class Bench:
    """One situation, and what is trained in it."""

    def __init__(self, situation: Situation, seeds: int, rates: Sequence[float] = RATES) -> None:
        self._situation, self._seeds, self._rates = situation, seeds, rates
        self._task = Remembering(load_task(situation.task), situation.optimizer)
        self._validation = Judge(self._task, self._task.validation())
        self._test = Judge(self._task, self._task.test())
        self._budget = Budget.of(
            self._task, situation.workers, situation.epochs, ticks=1, whole_steps=situation.split != "iid"
        )

    def rows(self, known: Mapping[Key, Row]) -> Iterator[Row]:
        """Synchronous training, then every choice of every strategy; what is known is taken as it is."""
        at = self._situation
        for method, policy in choices():
            yield known.get((at.task, at.split, at.optimizer, method, policy)) or self.row(method, policy)

    def row(self, method: str, policy: str) -> Row:
        at, call = self._situation, call_of(method, policy)
        row = Row(at.task, at.split, at.optimizer, method, policy, call)
        try:
            rate = climb(self._rates, lambda each: self._validated(call, each))
        except UsageError as error:  # such as a correction that only SGD's momentum can have
            return replace(row, refused=str(error))
        runs = [self._train(call, rate, seed) for seed in range(self._seeds)]
        found = replace(
            row,
            rate=rate,
            scores=tuple(self._test(run.final) for run in runs),
            step_bytes=statistics.fmean(_step_bytes(run) for run in runs),
        )
        harness.note(f"{at.title}: {short_call(call)}, rate x {rate:g}: {found.scores}")
        return found

    def _validated(self, call: str, rate: float) -> float:
        score = self._validation(self._train(call, rate, TUNING_SEED).final)
        return -math.inf if score is None else score

    def _train(self, call: str, rate: float, seed: int) -> Run:
        at = self._situation
        return simulate_task(
            self._task, strategy_from(call), workers=at.workers, budget=self._budget, seed=seed, rate=rate,
            split=parse_split(at.split), gradients="together",
        )  # fmt: skip


def _step_bytes(run: Run) -> float:
    return sum(report.bytes_sent for report in run.workers) / sum(report.steps for report in run.workers)


# The tables


def table(title: str, rows: Sequence[Row]) -> str:
    """In Markdown: strategies down, policies across; percent right of the test data, with the deviation over seeds."""
    lines = [f"**{title}**", "", f"| | {' | '.join(POLICIES)} |", "|---|" + "---|" * len(POLICIES)]
    for name in dict.fromkeys(row.method for row in rows):
        own = {row.policy: row for row in rows if row.method == name}
        if name == SYNCHRONOUS:
            lines.append(f"| `{name}` | {text(own[''])}{' |' * len(POLICIES)}")
        else:
            lines.append(f"| `{name}` | " + " | ".join(text(own[policy]) for policy in POLICIES) + " |")
    return "\n".join(lines)


def text(row: Row) -> str:
    if row.refused is not None:
        return "refused"
    return (
        "no numbers" if row.mean is None else f"{100 * row.mean:.1f} ±{100 * row.spread:.1f} (x {row.rate:g})"
    )


BEGIN, END = "<!-- measured by benchmarks/moments.py -->", "<!-- end of what was measured -->"


def put_into(page: Path, tables: Sequence[str]) -> None:
    """The tables of a page, in the place of those that it has."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} has no lines {BEGIN} and {END} between which tables could stand")
    middle = "\n\n".join(tables)
    page.write_text(f"{before}{BEGIN}\n\n{middle}\n\n{END}{after}")


def kept(file: Path | None) -> dict[Key, Row]:
    if file is None or not file.exists():
        return {}
    rows = [Row(**{**row, "scores": tuple(row["scores"])}) for row in json.loads(file.read_text())]
    return {row.key: row for row in rows}


def keep(file: Path | None, rows: Sequence[Row]) -> None:
    if file is not None:
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--json", metavar="FILE", help="keep the rows there; those that it has aren't measured again"
    )
    parser.add_argument("--page", metavar="FILE", help="put the tables into this page")
    parser.add_argument("--quick", action="store_true", help="a look: two seeds, three rates, digits only")
    parser.add_argument("--task", choices=TASKS, help="only this one")
    parser.add_argument("--split", choices=SPLITS, help="only this one")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="only this one")
    return parser.parse_args()


def main() -> None:
    asked = options()
    file = Path(asked.json) if asked.json else None
    seeds, rates = (2, (0.5, 1.0, 2.0)) if asked.quick else (3, RATES)
    known, tables = kept(file), list[str]()
    for situation in situations("digits" if asked.quick else asked.task, asked.split, asked.optimizer):
        own: list[Row] = []
        for row in Bench(situation, seeds, rates).rows(known):
            own.append(row)
            known[row.key] = row
            keep(file, list(known.values()))
        tables.append(table(situation.title, own))
        print(tables[-1], end="\n\n", flush=True)
    if asked.page:
        put_into(Path(asked.page), tables)


if __name__ == "__main__":
    main()
