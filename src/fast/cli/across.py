"""The options of `fast run` about several hosts. What they need (TLS and so on) is imported where it is used."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fast.engine import Job, LocalEngine, Outcome
from fast.engine.local import Listener
from fast.errors import UsageError

PORT = 7077


@dataclass(frozen=True)
class Across:
    """The text that was typed."""

    hosts: str | None
    coordinator: str | None
    secret: str | None
    plain: bool
    ssh: bool

    def counts(self, workers: int | None) -> list[int]:
        """The number of workers of each host; none if the run is on this one only."""
        if self.hosts is not None:
            from fast.engine.attached.plan import spread

            return spread(self.hosts, workers)[1]
        for name, given in (
            ("coordinator", self.coordinator), ("secret", self.secret), ("plain-tcp", self.plain), ("ssh", self.ssh)
        ):  # fmt: skip
            if given:
                raise UsageError(f"--{name} is for a run on several hosts: name them with --hosts a,b")
        return []

    def met(self, job: Job, threads: int | None, record: str | None) -> AbstractContextManager[None]:
        """Inside, all hosts have come and the job is this host's part. `threads` and `record` as they were typed."""
        if self.hosts is None:
            return nullcontext()
        from fast.cli.hosts import met

        return met(self, job, threads, record)


def run_here(engine: LocalEngine, job: Job, listen: Listener) -> Outcome:
    """Run the job, or this host's part of it."""
    if job.part is None:
        return engine.run(job, listen)
    from fast.cli.hosts import run_part

    return run_part(engine, job, listen)
