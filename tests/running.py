"""Starting functions on real workers, and plain scripts in this process."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fast.engine import Failure, Job, LocalEngine, Outcome
from fast.view import Groups

PRELOAD = (
    "fast",
    "fast.adapters.server_replica",
    "fast.loop.serving",
    "fast.sim",
    "torch._dynamo",
    "numba",
    "warm",
)
"""What the host imports once, and not every worker: it is what functions that run in them import. torch loads its
compiler with the first optimizer, which takes seconds; so does numba."""

Listener = Callable[[dict[str, Any]], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lent:
    """An engine that stays warm for others, for code that would start one of its own and close it."""

    engine: LocalEngine

    def run(self, job: Job, listen: Listener = lambda event: None) -> Outcome:
        return self.engine.run(job, listen)

    def close(self) -> None: ...

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Runner:
    """Runs "module:function" on real workers."""

    engine: LocalEngine

    def outcome(
        self,
        entry: str,
        workers: int = 3,
        *,
        listen: Listener = lambda event: None,
        override: str | None = None,
        seed: int | None = 0,
        deadline_s: float = 30.0,
        serve: str = "fast.loop.serving:serve",
        groups: Groups = (),
        **arguments: Any,
    ) -> Outcome:
        """How it ended. `override` is what --strategy says; `arguments` go to the function."""
        job = Job(
            workers=workers,
            entry=entry,
            server_entry=serve,
            arguments=arguments,
            strategy=override,
            seed=seed,
            deadline_s=deadline_s,
            preload=list(PRELOAD),
            groups=groups,
        )
        return self.engine.run(job, listen)

    def results(self, entry: str, workers: int = 3, **options: Any) -> list[Any]:
        """What each worker's function returned; they must all have ended well."""
        outcome = self.outcome(entry, workers, **options)
        assert outcome.failure is None, f"{outcome.failure.message}\n{outcome.failure.traceback}"
        return outcome.results

    def failure(self, entry: str, workers: int = 3, **options: Any) -> Failure:
        """Why the run failed; it must have."""
        outcome = self.outcome(entry, workers, **options)
        assert outcome.failure is not None, f"the run ended well, with {outcome.results}"
        return outcome.failure


def plainly(script: Callable[[], Result]) -> Result:
    """Run a function like a script that nobody launched: it sits in no seat but its own."""
    return contextvars.Context().run(script)


def as_text(tensor: Tensor) -> str:
    """The very bits, to travel in a result."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


def from_text(text: str, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).view(dtype)


def parameters_of(model: torch.nn.Module) -> Tensor:
    """All parameters one after another."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
