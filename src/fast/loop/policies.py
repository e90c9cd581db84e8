"""`fast.policies`: which model stands for all replicas.

`fast.consolidate` and `fast.snapshot` take one of these as their policy. The words `"average"` and `"ema"` mean
`Average()` and `Ema()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fast.errors import UsageError

__all__ = ["Average", "Best", "Chosen", "Ema"]


@dataclass(frozen=True)
class Average:
    """The mean of the replicas; where a server owns the weights, the server's.

    All who trained count the same. With `at_least` only those count who took at least this part of the most
    steps that anybody took: a worker that left early has weights of long ago, and they pull the mean back.
    Where replicas agree after every step, as with `allreduce`, the latest ones stand for all in any case.

    >>> Average(at_least=0.9)
    Average(at_least=0.9)
    """

    at_least: float = 0.0

    def __post_init__(self) -> None:
        _check_part(self)


@dataclass(frozen=True)
class Best:
    """The replica with the highest score; of equal ones that of the lowest worker.

    `score` takes a model and returns a number. Every worker calls it with a copy of its own replica, in
    evaluation mode and without gradients, all at the same time; so give all of them the same validation data.
    What isn't a number (NaN) is worse than everything else.
    """

    score: Callable[[nn.Module], float]

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise UsageError(
                f"Best(score={self.score!r}): it takes a function that scores a model, such as "
                "lambda model: accuracy(model, validation_data)"
            )


@dataclass(frozen=True)
class Chosen:
    """The replica of one worker, by its number.

    >>> Chosen(3)
    Chosen(worker=3)
    """

    worker: int

    def __post_init__(self) -> None:
        if isinstance(self.worker, bool) or not isinstance(self.worker, int) or self.worker < 0:
            raise UsageError(
                f"Chosen(worker={self.worker!r}): it takes the number of a worker, from 0 on, and all workers "
                "must give the same one"
            )


@dataclass(frozen=True)
class Ema:
    """The mean of the replicas' exponential moving averages, which `fast.join(..., ema=0.999)` keeps.

    With decay d a worker's is e_t = sum_s d^(t-s) x_s / sum_s d^(t-s) over its weights x_s after each of its own
    steps. `at_least` is as in `Average`.

    >>> Ema()
    Ema(at_least=0.0)
    """

    at_least: float = 0.0

    def __post_init__(self) -> None:
        _check_part(self)


Policy = Average | Best | Chosen | Ema


def policy_from(given: str | Policy) -> Policy:
    """One of the policies; some have a word."""
    if isinstance(given, Policy):
        return given
    if given == "average":
        return Average()
    if given == "ema":
        return Ema()
    if given in ("best", "chosen"):
        needs = "Best(score=...)" if given == "best" else "Chosen(worker=...)"
        raise UsageError(f"policy={given!r} has to be told more: fast.policies.{needs}")
    raise UsageError(
        f"policy={given!r}: a policy is 'average', 'ema', fast.policies.Best(score=...) or "
        "fast.policies.Chosen(worker=...)"
    )


def check_policy(policy: Policy, workers: int, *, has_ema: bool) -> None:
    """Refuse what these workers can't give, before anybody waits for it."""
    if isinstance(policy, Chosen) and policy.worker >= workers:
        there = "only worker 0" if workers == 1 else f"workers 0 to {workers - 1}"
        raise UsageError(f"Chosen(worker={policy.worker}): there is no such worker here, there are {there}")
    if isinstance(policy, Ema) and not has_ema:
        raise UsageError(
            "the policy 'ema' needs a moving average that has been kept since the start: "
            "fast.join(model, optimizer, ema=0.999)"
        )


def check_decay(decay: object) -> None:
    if decay is not None and (
        isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1
    ):
        raise UsageError(
            f"join(ema={decay!r}): the decay of a moving average is at least 0 and less than 1, such as 0.999, which "
            "looks back about a thousand steps"
        )


def _check_part(policy: Average | Ema) -> None:
    part = policy.at_least
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
        raise UsageError(
            f"{type(policy).__name__}(at_least={part!r}): the part of the most steps that a replica must have taken "
            "to count, from 0 to 1"
        )
