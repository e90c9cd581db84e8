"""A torch model with any torch.optim optimizer, as one flat tensor of weights and one of gradients.

The weights are aliased: every parameter becomes a view into the flat tensor. The gradients are
copied: `p.grad` stays what autograd and the user's own code make of it, and `collect` copies all
of them into the flat tensor at once. Hooks that copy each gradient inside backward were measured
to be no faster, with 5 thousand parameters or 1.9 million; and this way zero_grad, accumulation,
create_graph and torch.compile work as always, because nothing of theirs is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fast.adapters.bucket_tap import BucketTap
from fast.adapters.factor_tap import FactorTap
from fast.adapters.flat import Allocate, Views, flat_tensor
from fast.adapters.holding import Aliased, Holding, Mirrored
from fast.adapters.moments import forget_moments, moments_of, places_in, set_moments
from fast.adapters.optimizer_spec import describe, shards_of
from fast.adapters.parameters import Census, choose, others, plain_name, widest
from fast.adapters.stepping import at_rates, check_optimizer, cloned, only_reads, rates_of, step_with
from fast.adapters.watching import GradientWatch
from fast.errors import NotFinite, UsageError
from fast.parts.factors import Factors, Place
from fast.view import Layout


def _silent(text: str) -> None:
    """Say nothing."""


@final
class TorchReplica:
    """Implements `fast.core.Replica` for a torch model and its optimizer.

    `allocate` gives the memory of the flat tensors (shared memory, say); `before_apply` is called
    when every p.grad is the merged gradient, just before the optimizer's step: the place to clip.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        allocate: Allocate | None = None,
        before_apply: Callable[[], None] | None = None,
        check_finite: bool = False,
        say: Callable[[str], None] = _silent,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"the model is {type(model).__name__}; it must be a torch.nn.Module.")
        check_optimizer(optimizer)
        self.model, self.optimizer = model, optimizer
        self.samples = 1
        self.present: int | None = None
        self._before_apply, self._check_finite, self._say = before_apply, check_finite, say
        self._said: set[str] = set()
        self._step = optimizer.step  # the original, whatever is put in its place later
        chosen = choose(model, optimizer)
        self._names = [name for name, _ in chosen]
        self._parameters = [p for _, p in chosen]
        self._tell_if_strided()
        self.layout = Layout.of([(name, p.shape) for name, p in chosen], widest(self._parameters))
        self.weights, self.gradient = (flat_tensor(self.layout, self._home(), allocate) for _ in range(2))
        self._views = Views(self.layout)
        self._slots = self._views.of(self.gradient)
        self._holding = self._hold()
        self._census = Census(model, optimizer, chosen)
        self._watch, self._changed = GradientWatch(self._parameters[-1]), False
        self._tap: BucketTap | None = None
        self._factor_tap: FactorTap | None = None

    # Making

    def _home(self) -> torch.device:
        devices = {p.device for p in self._parameters}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")

    def _hold(self) -> Holding:
        """As views if the flat tensor can be every parameter's memory, else as a mirror."""
        views = self.layout.views(self.weights)
        kinds = sorted({f"{p.dtype} on {p.device}" for p in self._parameters})
        flat = f"{self.weights.dtype} on {self.weights.device}"
        if kinds == [flat]:
            return Aliased(self._parameters, views)
        self._say(
            f"the parameters are {' and '.join(kinds)}, so the workers exchange a mirror in {flat}, "
            "which is cast once a step."
        )
        return Mirrored(self._parameters, views)

    def _tell_if_strided(self) -> None:
        strided = [n for n, p in zip(self._names, self._parameters, strict=True) if not p.is_contiguous()]
        if strided:
            self._say(
                f"{len(strided)} parameters (first {strided[0]!r}) were not contiguous (channels_last?) and "
                "are now; inputs may keep their memory format."
            )

    # A step

    def compute(self, loss_fn: Callable[[], Tensor]) -> float | None:
        """The gradient of a fresh loss, into the flat tensor. Returns the loss, None if it has no value."""
        loss = loss_fn()
        self.backward(loss)
        return None if loss.is_meta else float(loss.detach())

    def backward(self, loss: Tensor) -> None:
        """The gradient of this loss alone, into the flat tensor."""
        for p in self._parameters:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self.collect()
        for p in self._parameters:
            p.grad = None

    def collect(self) -> None:
        """Bring the gradient into the flat tensor, once it is clear that the model is still the same."""
        self._census.check()
        self._tell_if_moved(self._holding.refresh())
        if self._factor_tap is not None:
            self._factor_tap.seal(counts=self.samples > 0)
        if self.samples == 0:
            self.gradient.zero_()
            self.present = 0
            self._begin_buckets()
            return
        self._check_scaled()
        if self._changed:  # and not applied here since: it went to where the optimizer runs
            self._tell_changed(
                "Nothing was applied here since: where the optimizer runs on a server, this is the only place to clip."
            )
        if self._tap is None or not self._tap.done:
            self._changed = self._watch.changed()
        self._gather(range(len(self._parameters)) if self._tap is None else self._tap.rest())
        self._begin_buckets()
        if self._check_finite:
            self._refuse_not_finite()

    # Factors

    def tap_factors(self) -> None:
        """From now on keep what goes into linear layers and the errors that come back, until the step."""
        if self._factor_tap is None:
            self._factor_tap = FactorTap(self.model, self._parameters, self.layout, self.gradient)

    def factors(self, wanted: Sequence[Place], workers: int = 2) -> list[Factors | None]:
        """For each place the factors of this step's gradient, if they are exact and less to send."""
        return [None] * len(wanted) if self._factor_tap is None else self._factor_tap.take(wanted, workers)

    # Buckets

    def tap_buckets(
        self,
        buckets: Sequence[Sequence[int]],
        accumulate: int,
        count: Callable[[], int],
        told: Callable[[int], None],
    ) -> None:
        """From now on bring each of these groups of parameters into the flat gradient as soon as
        backward has computed it, and tell; all but the last group. `count` says how many samples
        this step stands for."""

        def collect(number: int, places: Sequence[int]) -> bool:
            if number == 0:
                self.samples = count()
            if not self.samples or self._check_finite:  # all of it is looked at first
                return False
            self._gather(places)
            told(number)
            return True

        self._tap = BucketTap(self._parameters, buckets, accumulate, collect)

    def final_backward(self, final: bool) -> None:
        """Whether a backward that runs now is the last one before the step."""
        if self._tap is not None and self._tap.accumulate == 0:
            self._tap.final = final

    def _begin_buckets(self) -> None:
        if self._tap is not None:
            self._tap.begin()

    def _gather(self, places: Iterable[int]) -> None:
        found, slots, missing = [], [], 0
        for n in places:
            gradient = self._parameters[n].grad
            if gradient is None:
                self._slots[n].zero_()  # stale values never travel
                missing |= 1 << n
            elif gradient.layout != torch.strided:
                raise UsageError(
                    f"the gradient of {self._names[n]!r} is sparse ({gradient.layout}), and only dense ones "
                    "are exchanged. Make it dense, e.g. with nn.Embedding(..., sparse=False)."
                )
            else:
                found.append(gradient)
                slots.append(self._slots[n])
        if found:
            with torch.no_grad():
                torch._foreach_copy_(slots, found)
        else:
            self._say_once(
                "nothing",
                "no parameter has a gradient in this step. Was backward() called, and on this model "
                "(not on a copy of it)?",
            )
        self.present = self.layout.everything & ~missing if missing else None

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        """One step of the optimizer with this flat gradient, which may be memory that others read."""
        if self._changed and gradient is not self.gradient:
            self._tell_changed("To act on the merged gradient (to clip it, say) use before_apply.")
        self._changed = False
        if gradient is not self.gradient and not self._may_lend():
            gradient = self.gradient.copy_(gradient)
        self._holding.settle()
        lent = self._holding.lend(self._views.of(gradient))
        with at_rates(self.optimizer, rates):
            step_with(self._parameters, lent, present, self._run)
        self._holding.refresh()

    def _may_lend(self) -> bool:
        return self._before_apply is None and only_reads(self.optimizer)

    def _run(self) -> None:
        if self._before_apply is not None:
            self._before_apply()
        self._step()

    def settle(self) -> None:
        """After a turn: what the strategy wrote into `weights` is what the model has."""
        self._holding.settle()

    @property
    def rates(self) -> list[float]:
        return rates_of(self.optimizer)

    # What the optimizer remembers

    def moments(self) -> dict[str, Tensor]:
        return moments_of(self.optimizer, places_in(self.layout, self._parameters), self.weights)

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        set_moments(self.optimizer, places_in(self.layout, self._parameters), moments)

    def forget_moments(self) -> None:
        forget_moments(self.optimizer)

    # What is watched

    def _tell_changed(self, advice: str) -> None:
        """Only where gradients are merged: if the optimizer applies this worker's own, nothing is misunderstood."""
        self._say_once(
            "changed",
            "the gradients were changed between backward() and step(). That acts on this worker's own gradient, "
            f"not on the merged one. {advice}",
        )

    def _tell_if_moved(self, moved: list[int]) -> None:
        if moved:
            self._say_once(
                "moved",
                f"{len(moved)} parameters (first {self._names[moved[0]]!r}) had got new memory (p.data = "
                "..., .to(...) or vector_to_parameters) and were put back into the flat weights with "
                "their values.",
            )

    def _check_scaled(self) -> None:
        if getattr(self.optimizer, "grad_scale", None) is not None:
            raise UsageError(
                "the gradients are still multiplied by the GradScaler's scale, because a fused optimizer "
                "removes it inside its step. Call scaler.unscale_(optimizer) before scaler.step(optimizer)."
            )

    def _refuse_not_finite(self) -> None:
        if bool(torch.isfinite(self.gradient).all()):
            return
        bad = [
            n
            for n, slot in zip(self._names, self._slots, strict=True)
            if not bool(torch.isfinite(slot).all())
        ]
        raise NotFinite(
            f"the gradient of {bad[0]!r} ({len(bad)} of {len(self._names)} parameters) holds NaN or "
            "infinity: look at this step's batch and loss, lower the learning rate, or clip."
        )

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(text)

    # What else there is

    def buffers(self) -> list[tuple[str, Tensor]]:
        """The model's buffers: local, never exchanged in training."""
        return [(plain_name(name), buffer) for name, buffer in self.model.named_buffers()]

    def frozen(self) -> list[tuple[str, Tensor]]:
        """The parameters that don't take part: frozen ones, and those in no group of the optimizer."""
        chosen = list(zip(self._names, self._parameters, strict=True))
        return [(name, p.data) for name, p in others(self.model, self.optimizer, chosen)]

    def rest(self) -> list[tuple[str, Tensor]]:
        """What the first copy to a new worker needs besides the weights."""
        return self.frozen() + self.buffers()

    def optimizer_spec(self) -> dict[str, Any]:
        """The optimizer as plain data, for a server."""
        return describe(self.optimizer, self._segments())

    def groups(self) -> list[list[str]]:
        """The segments of each of the optimizer's parameter groups; any optimizer has these."""
        names = self._segments()
        groups = (group["params"] for group in self.optimizer.param_groups)
        return [[names[id(p)] for p in parameters if id(p) in names] for parameters in groups]

    def _segments(self) -> dict[int, str]:
        """By the identity of its parameter."""
        return {id(p): n for n, p in zip(self._names, self._parameters, strict=True)}

    def shards(self, count: int) -> list[slice]:
        return shards_of(self.optimizer_spec(), self.layout, count)

    def state_dict(self) -> dict[str, Any]:
        self._holding.refresh()
        return {
            "weights": self.weights.clone(),
            "rest": cloned(dict(self.rest())),
            "optimizer": cloned(self.optimizer.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rest = dict(self.rest())
        if state["weights"].shape != self.weights.shape or state["rest"].keys() != rest.keys():
            raise UsageError(
                f"the state is of another model: {state['weights'].numel()} weights and {len(state['rest'])} "
                f"other tensors against {self.weights.numel()} and {len(rest)} here. "
                "Build the model as it was when saved."
            )
        self._holding.refresh()
        self.weights.copy_(state["weights"])
        self._holding.settle()
        for name, tensor in rest.items():
            tensor.copy_(state["rest"][name])
        self.optimizer.load_state_dict(cloned(state["optimizer"]))

    def unjoin(self) -> None:
        """Give the model plain memory of its own; the replica is of no use afterwards."""
        self._watch.remove()
        if self._tap is not None:
            self._tap.remove()
        if self._factor_tap is not None:
            self._factor_tap.remove()
        self._holding.release()
