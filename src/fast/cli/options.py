"""What `fast compare` and `fast simulate` let the user choose, and the plan that it makes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from fast.errors import UsageError
from fast.lab import Plan, Real, Simulated, load_task, settings_of
from fast.sim.cluster import load_cluster, to_toml
from fast.sim.faults import read_scenario

DEFAULT_STRATEGIES = "allreduce,local_sgd,ssp,dpsgd,torus,gossip"
_WORKERS = 4

TaskArgument = Annotated[
    str | None,
    typer.Argument(
        help="Task to train: a name (`fast tasks` lists them), file.py:Name, or file.py with one task in it."
    ),
]
StrategiesOption = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        "-s",
        help="Strategies to compare, separated by commas: names, calls such as local_sgd(tau=4), or file.py:Name(...).",
        show_default=DEFAULT_STRATEGIES,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", "-w", help="Number of workers; servers are not counted.", show_default="4"),
]
TargetOption = Annotated[
    float | None,
    typer.Option(help="Score to reach, above 0 and at most 1.", show_default="the task's"),
]
EpochsOption = Annotated[
    float | None,
    typer.Option(
        help="Length of a run: passes over the data by all workers together.", show_default="the task's"
    ),
]
SecondsOption = Annotated[float | None, typer.Option(help="Length of a run in seconds, instead of --epochs.")]
SeedOption = Annotated[int | None, typer.Option(help="A single seed, instead of --seeds.")]
SeedsOption = Annotated[
    str | None,
    typer.Option(help="Number of seeds (3 means 0,1,2), or a list such as 5,7."),
]
TuneOption = Annotated[
    int | None,
    typer.Option(
        help="Number of trials to tune each strategy's learning rate and arguments on validation data. "
        "0: every strategy keeps the task's own learning rate.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="How data is divided among workers. iid: alike; dirichlet(0.3): unequal classes; "
        "sizes(0.5): unequal amounts.",
        show_default="iid",
    ),
]
TicksOption = Annotated[
    int | None, typer.Option(help="Number of times in a run that the model is scored.", show_default="50")
]
NameOption = Annotated[
    str | None, typer.Option(help="Name of the folder for the results.", show_default="task and time")
]
AgainOption = Annotated[str | None, typer.Option(help="Repeat the comparison in this run.json.")]
ResumeOption = Annotated[str | None, typer.Option(help="Continue the interrupted comparison in this folder.")]
JsonOption = Annotated[
    str | None, typer.Option("--json", help="Also write run.json to this file; - is standard output.")
]


# The cluster of a simulation

NetworkOption = Annotated[
    str | None,
    typer.Option(
        help="Network between hosts: loopback, 1gbit, 10gbit, infiniband, wan, wifi, or rate,latency "
        "such as 100mbit,1ms.",
        show_default="1gbit",
    ),
]
StepOption = Annotated[
    str | None, typer.Option(help="Time that a worker takes to compute one gradient.", show_default="20ms")
]
StragglerOption = Annotated[
    str | None,
    typer.Option(
        help="Slow workers. 4x: the last one is 4 times slower; 5x@0.1: every one, in a tenth of its steps; "
        "5x@0.1/50: in stretches of 50 steps."
    ),
]
HostsOption = Annotated[
    str | None, typer.Option(help="Workers per host: a number, or all for a single host.", show_default="1")
]
RacksOption = Annotated[
    str | None,
    typer.Option(
        help="Hosts per rack and the rate of a rack's uplink, such as 8,10gbit; a third value adds "
        "latency: 8,10gbit,50us."
    ),
]
SpeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Relative speeds of workers: 0-7:1,8-15:0.5 makes workers 8 to 15 half as fast; or one each, 1,1,0.5."
    ),
]
SpreadOption = Annotated[
    float | None,
    typer.Option(
        help="Random variation of step times: sigma of a log-normal distribution whose median is --step."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="File that describes machines and network, such as `fast calibrate` writes. Other options override it."
    ),
]
GradientsOption = Annotated[
    str | None,
    typer.Option(
        help="How gradients are computed. exact: one by one, with the bits of real workers; "
        "together: many in one call, "
        "which is faster; auto: together if many workers have a small model.",
        show_default="auto",
    ),
]
ScenarioOption = Annotated[
    str | None,
    typer.Option(
        help='Faults, as sentences ("worker 3 dies at 2s; 1% of letters are lost") or a file with '
        "them. A letter is a message."
    ),
]


@dataclass(frozen=True)
class Asked:
    """What the user typed; None for what was left out."""

    task: str | None = None
    strategies: str | None = None
    workers: int | None = None
    target: float | None = None
    epochs: float | None = None
    seconds: float | None = None
    seed: int | None = None
    seeds: str | None = None
    tune: int | None = None
    split: str | None = None
    ticks: int | None = None
    pace_s: float | None = None
    deadline_s: float | None = None
    network: str | None = None
    step: str | None = None
    straggler: str | None = None
    check: bool | None = None
    cluster: str | None = None
    hosts: str | None = None
    racks: str | None = None
    speeds: str | None = None
    spread: float | None = None
    gradients: str | None = None
    scenario: str | None = None
    groups: str | None = None

    def plan(self, world: Real | Simulated, *, seeds: int, tune: int) -> Plan:
        """With defaults for what was left out; `seeds` and `tune` are those of the command."""
        if self.task is None:
            raise UsageError("which task? `fast tasks` lists them: for example `fast compare digits`")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers {self.workers}: a run needs at least 1 worker")
        if self.tune is None and tune and load_task(self.task).validation() is None:
            tune = 0
        options: dict[str, Any] = {
            "ticks": self.ticks,
            "split": self.split,
            "deadline_s": self.deadline_s,
            "groups": self.groups,
        }
        return Plan.of(
            self.task,
            DEFAULT_STRATEGIES if self.strategies is None else self.strategies,
            _WORKERS if self.workers is None else self.workers,
            target=self.target,
            epochs=self.epochs,
            seconds=self.seconds,
            seeds=self._seeds(seeds),
            tune=tune if self.tune is None else self.tune,
            pace_s=self.pace_s,
            world=world,
            **{name: value for name, value in options.items() if value is not None},
        )

    def simulated(self) -> Simulated:
        """The world that the options of a simulation describe; its files are read here."""
        return Simulated(
            self.network,
            self.step,
            self.straggler,
            bool(self.check),
            cluster=None if self.cluster is None else to_toml(load_cluster(self.cluster)),
            hosts=self.hosts,
            racks=self.racks,
            speeds=self.speeds,
            spread=self.spread,
            gradients=self.gradients or "auto",
            scenario=None if self.scenario is None else str(read_scenario(self.scenario)),
        )

    def _seeds(self, default: int) -> list[int]:
        if self.seed is not None and self.seeds is not None:
            raise UsageError("--seed names one seed and --seeds several; give one of them")
        if self.seed is not None:
            return [self.seed]
        return list(range(default)) if self.seeds is None else parse_seeds(self.seeds)

    def check_nothing_else(self, option: str) -> None:
        """What is run again is run as it was."""
        given = [each.name for each in fields(self) if getattr(self, each.name) is not None]
        if given:
            said = given[0].removesuffix("_s")
            what = "a task" if said == "task" else f"--{said}"
            raise UsageError(f"{option} takes all settings from the old comparison; leave out {what}")


def parse_seeds(text: str) -> list[int]:
    """`3` is 0, 1, 2; `5,7` is a list, and so is `5,`."""
    try:
        if "," in text:
            return [int(each) for each in text.split(",") if each.strip()]
        count = int(text)
    except ValueError:
        raise UsageError(
            f"--seeds {text}: give how many, such as 3, or a list of numbers such as 5,7,9"
        ) from None
    if count < 1:
        raise UsageError(f"--seeds {text}: a comparison needs at least 1 seed")
    return list(range(count))


def plan_again(asked: Asked, path: str, option: str) -> Plan:
    """The plan of an old comparison."""
    asked.check_nothing_else(option)
    return Plan.again(settings_of(Path(path)))
