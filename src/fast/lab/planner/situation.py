"""What a plan is made for: a model, machines, a network, and what the user can't do without."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fast.errors import UsageError
from fast.lab.planner.needs import Needs
from fast.lab.planner.straggling import Straggling, straggling_of, usual_step_s
from fast.lab.settings import Simulated
from fast.lab.sizes import Sizes
from fast.sim.cluster import Cluster, Compute, Network, Speed
from fast.sim.cluster.units import LONGEST_S

__all__ = ["COMPUTING_COPIES", "OPTIMIZER_COPIES", "Needs", "Situation"]

COMPUTING_COPIES = 2
"""Weights and their gradient: without these a worker computes nothing. Activations come on top."""
OPTIMIZER_COPIES = 2
"""The two moments of Adam; momentum alone would be one."""
SHORTEST_S = 1e-9
"""What the simulator's clock can tell from nothing."""
MOST_WORKERS = 30_000
"""Two steps of more than these are more events than a prediction looks at, so none of them is even built."""


@dataclass(frozen=True)
class Situation:
    """Everything that a plan depends on. What can't be, or contradicts itself, is refused here."""

    sizes: Sizes
    workers: int
    machines: Cluster = field(default_factory=Cluster)
    needs: Needs = field(default_factory=Needs)
    task: str | None = None
    """The task that the sizes were measured on, as `load_task` reads it; None for a bare model."""

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise UsageError(
                f"a plan for {self.workers} workers: there is something to plan from 2 workers on"
            )
        if self.workers > MOST_WORKERS:
            raise UsageError(
                f"a plan for {self.workers:,} workers: predictions end at {MOST_WORKERS:,}; plan for fewer of them"
            )
        if not isinstance(self.machines.compute, Compute):
            raise UsageError(f"a plan needs a Compute, not {type(self.machines.compute).__name__}")
        if self.step_s < SHORTEST_S:
            raise UsageError(
                "a step of 0 s leaves nothing to compare with; give how long a gradient takes: 0.2s"
            )
        self._check_longest()
        self._check_hostile()
        self._check_memory()

    @staticmethod
    def of(
        sizes: Sizes,
        workers: int,
        world: Simulated | None = None,
        needs: Needs | None = None,
        *,
        task: str | None = None,
    ) -> Situation:
        """Machines in the words of `fast simulate`."""
        return Situation(sizes, workers, (world or Simulated()).model(), needs or Needs(), task)

    # Machines

    @property
    def compute(self) -> Compute:
        assert isinstance(self.machines.compute, Compute)
        return self.machines.compute

    @cached_property
    def step_s(self) -> float:
        """How long a usual worker computes a gradient, in the mean."""
        return usual_step_s(self.compute, self.workers)

    @property
    def network(self) -> Network:
        return self.machines.network

    @property
    def rate_bytes_per_s(self) -> float:
        """Of the way between two hosts: the slower of sending, receiving and the uplink of a rack."""
        return min(self._far.rate_bytes_per_s, self._far.receives)

    @property
    def latency_s(self) -> float:
        """Of a letter between two hosts, with what keeps its sender busy."""
        return self._far.latency_s + self._far.message_s

    @cached_property
    def _far(self) -> Network:
        """The slowest way from the first worker to another, where hosts or racks differ. Links that a pair has to
        itself say nothing of the others."""
        network = replace(self.network.placed(self.workers), links={})
        ways = (network.between(0, other) for other in range(1, self.workers))
        return min(ways, key=lambda way: (min(way.rate_bytes_per_s, way.receives), -way.latency_s))

    @cached_property
    def straggling(self) -> Straggling:
        """By how much the slowest worker is behind the usual one, always and at times."""
        return straggling_of(self.compute, self.workers)

    def cluster(self) -> Cluster:
        return self.machines

    # The model

    @property
    def model_bytes(self) -> int:
        """Of the weights."""
        return self.sizes.layout.nbytes

    @property
    def fits(self) -> bool:
        """Whether a worker can hold the model and a gradient of it."""
        return self._holds(COMPUTING_COPIES)

    @property
    def fits_optimizer(self) -> bool:
        """Whether it can hold the optimizer's state as well."""
        return self._holds(COMPUTING_COPIES + OPTIMIZER_COPIES)

    def _holds(self, copies: int) -> bool:
        memory = self.needs.memory_bytes
        return memory is None or copies * self.model_bytes <= memory

    # What if

    def with_network(self, *, faster: float) -> Situation:
        """Every way between hosts with so many times the rate, and latency and overhead divided by it."""
        return replace(self, machines=replace(self.machines, network=_faster(self.network, faster)))

    def with_workers(self, *, times: int) -> Situation:
        """Each worker becomes so many of the same speed; a straggler stays the only one."""
        machines = replace(self.machines, compute=_repeated(self.compute, times))
        return replace(self, workers=self.workers * times, machines=machines)

    # Checks

    def _check_longest(self) -> None:
        sending_s = self.model_bytes / self.rate_bytes_per_s
        longest_s = max(self.step_s * self.straggling.worst, sending_s)
        if not longest_s <= LONGEST_S:
            raise UsageError(
                f"{longest_s:.3g} s for a step, or for the model over one link: a plan reckons with at most "
                f"{LONGEST_S:g} s, which is thirty years"
            )

    def _check_hostile(self) -> None:
        hostile = self.needs.hostile
        if hostile and self.workers < 2 * hostile + 3:
            raise UsageError(
                f"{hostile} hostile of {self.workers} workers can't be told from the others: Krum needs at least "
                f"2 f + 3 = {2 * hostile + 3} workers. Use more workers, or trust more of them."
            )

    def _check_memory(self) -> None:
        if self.fits:
            return
        needs = self.needs
        clash = (
            (needs.tuning == "low", "a low budget for tuning", "how to cut it has to be searched for"),
            (needs.hostile > 0, "hostile workers", "nobody else has the part of a hostile one to compare it with"),
            (needs.unreliable, "unreliable machines", "a part of the model goes with every machine that goes"),
        )  # fmt: skip
        for given, what, why in clash:
            if given:
                raise UsageError(
                    f"a model that doesn't fit one worker has to be cut over the machines, and {what} contradicts "
                    f"that: {why}. {self.memory_words} Give workers more memory, or train a smaller model."
                )

    @property
    def memory_words(self) -> str:
        """What a worker has to hold, against what it has."""
        gigabytes = self.model_bytes / 1e9
        least, most = COMPUTING_COPIES * gigabytes, (COMPUTING_COPIES + OPTIMIZER_COPIES) * gigabytes
        memory = (self.needs.memory_bytes or math.inf) / 1e9
        return (
            f"Weights and gradient need {least:.3g} GB, with Adam's state {most:.3g} GB, and a worker has "
            f"{memory:.3g} GB."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "model": {
                "name": self.sizes.name,
                "parameters": self.sizes.parameters,
                "weights_bytes": self.model_bytes,
            },
            "task": self.task,
            "workers": self.workers,
            "step_s": self.step_s,
            "rate_bytes_per_s": self.rate_bytes_per_s if math.isfinite(self.rate_bytes_per_s) else None,
            "latency_s": self.latency_s,
            "slowness": {"always": self.straggling.always, "at_times": self.straggling.at_times},
            "machines": self.machines.in_words(self.workers),
            "needs": self.needs.to_json(),
        }


def _faster(network: Network, factor: float) -> Network:
    if not 0 < factor < math.inf:
        raise UsageError(f"a network {factor} times as fast can't be; 10 is faster, 0.1 slower")
    scaled = _faster_link(network, factor)
    racks = network.racks and replace(
        network.racks,
        rate_bytes_per_s=network.racks.rate_bytes_per_s * factor,
        latency_s=network.racks.latency_s / factor,
    )
    links = {pair: _faster_link(link, factor) for pair, link in network.links.items()}
    return replace(scaled, racks=racks, links=links)


def _faster_link(link: Network, factor: float) -> Network:
    receive = link.receive_bytes_per_s
    return replace(
        link,
        rate_bytes_per_s=link.rate_bytes_per_s * factor,
        receive_bytes_per_s=None if receive is None else receive * factor,
        latency_s=link.latency_s / factor,
        message_s=link.message_s / factor,
    )


def _repeated(compute: Compute, times: int) -> Compute:
    if times < 1:
        raise UsageError(f"{times} times the workers can't be; 1 or more")
    speeds = tuple(
        Speed(speed.first * times, (speed.last + 1) * times - 1, speed.factor) for speed in compute.speeds
    )
    own = {
        worker * times + copy: step_s for worker, step_s in compute.workers_s.items() for copy in range(times)
    }
    trace = tuple(steps for steps in compute.trace for _ in range(times if len(compute.trace) > 1 else 1))
    return replace(compute, speeds=speeds, workers_s=own, trace=trace)
