"""Large batches done right: the learning rate follows the batch, gradually, and velocities follow the rate.

P workers in lock-step with batch b take the steps of one worker with batch P b, so they want the
rate of that batch. With eta the rate that the optimizer and its schedulers say, in step t

    k      =  (P b / reference) ^ power
    eta_t  =  eta (1 + (k - 1) min(1, t / warm_up))

Only while a step is under way do the optimizer's groups have eta_t. Before and after they have eta,
so every scheduler, made before or after `join`, goes on from the numbers that it knows. How many
steps were taken is kept in the groups, and so in every checkpoint of the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, cast, final

from torch import Tensor
from torch.optim import ASGD, Optimizer, Rprop
from torch.utils.data import DataLoader

from fast.adapters.stepping import at_rates, rates_of, set_rates
from fast.core import Strategy
from fast.errors import UsageError
from fast.loop.data import shard

HOLDS_RATE: Mapping[type[Optimizer], tuple[str, ...]] = MappingProxyType(
    {ASGD: ("eta",), Rprop: ("step_size",)}
)
"""The optimizers of torch whose state has the learning rate inside, and where.

With  v <- mu v + g;  w <- w - eta v  (all momenta of torch: SGD, RMSprop, Adam, Muon) a new rate acts
on all of v at once, and nothing has to be done. With  v <- mu v + eta g;  w <- w - v  the velocity
would go on at the old rate until it has decayed, so it is multiplied by the new rate over the old
one. In torch only these two keep a rate: ASGD takes its steps with the one that it worked out at
the end of the step before, and Rprop starts its step sizes with it and never looks again.
"""
_STEPS, _RATE = "large_batch_steps", "large_batch_rate"
"""In the optimizer's groups: steps taken so far, and the rate of the last one."""


@dataclass(frozen=True)
class LargeBatch:
    """How the learning rate follows the batch that all workers make together; for `join(large_batch=...)`.

    The rate is multiplied by k, the effective batch over the batch that it was tuned for, and gets
    there from the optimizer's own rate in equal increments, one a step. Schedulers go on working:
    what they say is multiplied. For synchronous strategies only, in which P workers with batch b
    take the steps of one with batch P b; late gradients want lower rates, not higher ones.

    >>> plan = LargeBatch(batch=32, reference=64, warm_up=4)
    >>> plan.effective(workers=8), plan.scale(workers=8)
    (256, 4.0)
    >>> [plan.factor(step, workers=8) for step in range(6)]
    [1.0, 1.75, 2.5, 3.25, 4.0, 4.0]

    Reference: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017.
    """

    batch: int
    """Samples of one worker in one step: all its backward passes together, if it accumulates."""
    reference: int | None = None
    """The batch that the optimizer's rate was tuned for; that of one worker, unless told."""
    warm_up: int = 0
    """So many steps until the scaled rate is reached."""
    power: float = 1.0
    """k is the ratio of the batches to this power: 1 is the linear rule, for SGD with and without
    momentum; 0.5 is what many take for Adam and its kin."""
    holds_rate: tuple[str, ...] = ()
    """The names in an optimizer's state of velocities that have the rate inside (v <- mu v + eta g), which
    are corrected when the rate changes. What torch's own optimizers hold is known."""

    def __post_init__(self) -> None:
        if not _is_count(self.batch, 1) or (self.reference is not None and not _is_count(self.reference, 1)):
            raise UsageError(
                f"{self}: batches are whole, with at least 1 sample. `batch` is what one worker sees in a "
                "step, `reference` the batch that the learning rate was tuned for."
            )
        if not _is_count(self.warm_up, 0):
            raise UsageError(
                f"{self}: warm_up counts steps, from 0 on. For epochs take LargeBatch.of(loader, epochs=5)."
            )
        number = isinstance(self.power, int | float) and not isinstance(self.power, bool)
        if not number or not 0 <= self.power <= 1:
            raise UsageError(f"{self}: power is between 0 (the rate stays) and 1 (the linear rule)")
        if isinstance(cast(object, self.holds_rate), str):
            raise UsageError(f"{self}: holds_rate is a tuple of names, such as ({self.holds_rate!r},)")

    @staticmethod
    def of(
        loader: DataLoader[Any],
        *,
        reference: int | None = None,
        epochs: float = 0.0,
        accumulate: int = 1,
        power: float = 1.0,
    ) -> LargeBatch:
        """With the batch of this loader, which `fast.shard` divides, and a warm-up over so many epochs.

        `accumulate`: so many of its batches make a step. `reference` is one of them, unless told.
        """
        size = getattr(loader, "batch_size", None)
        if not isinstance(size, int):
            raise UsageError(
                f"LargeBatch.of needs a DataLoader with a batch_size and got {type(loader).__name__}; say it "
                "yourself: LargeBatch(batch=..., warm_up=...), in samples and steps."
            )
        if accumulate < 1 or epochs < 0:
            raise UsageError(f"accumulate={accumulate}, epochs={epochs:g}: at least 1 batch, and 0 epochs")
        steps = len(cast(Sized, shard(loader))) / accumulate
        return LargeBatch(size * accumulate, reference or size, ceil(epochs * steps), power)

    def effective(self, workers: int) -> int:
        """The samples of one step of all workers together."""
        return workers * self.batch

    def scale(self, workers: int) -> float:
        """k: the factor on the learning rate when the warm-up is over."""
        return float((self.effective(workers) / (self.reference or self.batch)) ** self.power)

    def factor(self, step: int, workers: int) -> float:
        """The factor on the learning rate in this step, counted from 0. A rate that sinks does so at once."""
        k = self.scale(workers)
        return k if step >= self.warm_up or k < 1 else 1.0 + (k - 1.0) * step / self.warm_up

    def in_words(self, workers: int, rates: Sequence[float]) -> str:
        """Which batch and which rates are used, for the log."""
        k, own = self.scale(workers), ", ".join(f"{rate:g}" for rate in rates)
        words = f"effective batch {workers} x {self.batch} = {self.effective(workers)}, learning rate {own}"
        if k == 1:
            return words
        scaled = ", ".join(f"{rate * k:g}" for rate in rates)
        words += f" for {self.reference or self.batch} scaled by {k:g} to {scaled}"
        return words + (f" in a warm-up of {self.warm_up} steps" if self.warm_up and k > 1 else "")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_fits(plan: LargeBatch, strategy: Strategy, optimizer: Optimizer, servers: int) -> None:
    """Refuse what a scaled rate would harm, or can't reach."""
    if not strategy.synchronous and not strategy.never_stale:
        raise UsageError(
            f"large_batch is for synchronous strategies, in which workers take the steps of one large batch. "
            f"{strategy!r} is asynchronous, and gradients that come late want a lower rate, not a higher one. "
            "Leave large_batch out, or take a strategy such as allreduce."
        )
    if any("lr" not in group for group in optimizer.param_groups):
        raise UsageError(
            f"large_batch has nothing to scale: {type(optimizer).__name__} has a group of parameters without 'lr'"
        )
    if servers and (plan.holds_rate or type(optimizer) in HOLDS_RATE):
        raise UsageError(
            f"{type(optimizer).__name__} keeps the learning rate in its state, which large_batch corrects when the "
            f"rate changes, and with {strategy!r} that state is on a server. Take another optimizer, or allreduce."
        )


@final
class ScaledRates:
    """The scaled rates of one optimizer while its steps are under way."""

    def __init__(
        self, plan: LargeBatch, optimizer: Optimizer, workers: int, say: Callable[[str], None]
    ) -> None:
        self._plan, self._optimizer, self._workers, self._say = plan, optimizer, workers, say
        self._corrected = plan.holds_rate or HOLDS_RATE.get(type(optimizer), ())
        self._own: list[float] | None = None
        self._compared = False

    def in_words(self) -> str:
        """What is used, and where in the warm-up a checkpoint goes on."""
        words, steps = self._plan.in_words(self._workers, rates_of(self._optimizer)), self.steps
        return words + (f", {steps} of which are done" if 0 < steps < self._plan.warm_up else "")

    def compare(self, samples: int | None, *, divided: bool) -> None:
        """Is the batch of the first step, where samples are counted, the one that was said?"""
        if not self._compared and samples is not None and samples != self._plan.batch:
            self._say(
                f"the first step has {samples} samples of this worker, and large_batch says {self._plan.batch}: its "
                "`batch` is that of one worker, not of all"
            )
        self._compared = True

    @property
    def steps(self) -> int:
        """Taken so far, those before a checkpoint included."""
        return int(self._optimizer.param_groups[0].get(_STEPS, 0))

    def now(self) -> list[float]:
        """The rates of the next step, one per parameter group."""
        factor = self._plan.factor(self.steps, self._workers)
        return [rate * factor for rate in rates_of(self._optimizer)]

    def in_force(self) -> AbstractContextManager[None]:
        """Inside, the groups have the scaled rates."""
        return at_rates(self._optimizer, self.now())

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside, one step is taken with the scaled rates."""
        self.begin()
        try:
            yield
        except BaseException:
            self._restore()
            raise
        self.end()

    def begin(self, *_: object) -> None:
        """A step begins; as a hook of the optimizer, too."""
        self._restore()  # after a step that broke off
        rates = self.now()
        self._correct(rates)
        self._own = rates_of(self._optimizer)
        set_rates(self._optimizer, rates)

    def end(self, *_: object) -> None:
        """The step has been taken."""
        for group, rate in zip(self._optimizer.param_groups, rates_of(self._optimizer), strict=True):
            group[_STEPS], group[_RATE] = group.get(_STEPS, 0) + 1, rate
        if self.steps == self._plan.warm_up and self._plan.scale(self._workers) > 1:
            self._say(f"the warm-up of {self._plan.warm_up} steps is over")
        self._restore()

    def _restore(self) -> None:
        if self._own is not None:
            set_rates(self._optimizer, self._own)
            self._own = None

    def _correct(self, rates: Sequence[float]) -> None:
        """Bring what has the last step's rate inside to the rate of this one."""
        if not self._corrected:
            return
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            last = group.get(_RATE, 0.0)
            if last and rate != last:
                for parameter in group["params"]:
                    self._multiply(self._optimizer.state.get(parameter, {}), rate / last)

    def _multiply(self, state: dict[str, Any], ratio: float) -> None:
        for name in self._corrected:
            if isinstance(state.get(name), Tensor):
                state[name].mul_(ratio)
            elif name in state:
                state[name] *= ratio


@final
class PlainRates:
    """The rates of an optimizer that nobody scales. Says once to which batch they are applied, where one step is made
    of everybody's samples: with more workers it is a larger one, and the rate stays."""

    def __init__(
        self, strategy: Strategy, workers: int, optimizer: Optimizer, say: Callable[[str], None]
    ) -> None:
        self._workers, self._optimizer, self._say = strategy.contributors(workers), optimizer, say
        together = strategy.replicas_agree or (strategy.servers(workers) > 0 and strategy.servers_optimize)
        lock_step = strategy.synchronous or strategy.never_stale
        self._told = workers == 1 or not (together and lock_step)

    def compare(self, samples: int | None, *, divided: bool) -> None:
        """The first step has so many samples of this worker, if they are counted; and the others have as many, if they
        were divided among all."""
        if self._told or not samples or not divided:
            return
        self._told = True
        if all("lr" in group for group in self._optimizer.param_groups):
            words = LargeBatch(samples, samples * self._workers).in_words(
                self._workers, rates_of(self._optimizer)
            )
            self._say(f"{words} as it is; fast.LargeBatch scales it")

    def stepping(self) -> AbstractContextManager[None]:
        return nullcontext()
