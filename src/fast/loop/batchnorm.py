"""BatchNorm over the batches of all workers.

With n_i values of a channel on worker i, and N of them in all,

    mean  =  sum_i n_i mean_i / N
    var   =  sum_i n_i (var_i + (mean_i - mean)^2) / N
    x'    =  (x - mean) / sqrt(var + eps),      y  =  gamma x' + beta

The workers' losses L_i are merged with the weights w_i of their samples, so what is trained is
L = sum_i w_i L_i / W. Worker j computes the gradient that the merge multiplies by w_j / W:

    dx_j  =  gamma / sqrt(var + eps) (dy_j - a - b x'_j)
    a     =  sum_i w_i (sum of dy_i) / (w_j N),     b  =  sum_i w_i (sum of dy_i x'_i) / (w_j N)

and the merged gradient is that of one worker with the whole batch. Two rounds forward (the variance
around the common mean: nothing cancels), one backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from fast.core import Strategy
from fast.engine import current_seat
from fast.errors import UsageError
from fast.loop.session import Session
from fast.loop.totals import Totals

_CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose mean and variance are those of all workers' batches together.

    With it P workers with batch b train like one with batch P b, which with statistics of their own
    they don't. It takes any input of shape (samples, channels, ...) and costs two rounds of all
    workers in forward and one in backward, so all of them must come through the same layers in the
    same order. Batches of unequal sizes count by their samples. With one worker, in evaluation, and
    before `join`, it is torch's own BatchNorm; arguments and state dicts are the same.

    >>> SyncBatchNorm.convert(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))[1]
    SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """

    needs_everybody = True
    """For worlds in which workers compute one by one."""

    @staticmethod
    def convert(model: nn.Module) -> nn.Module:
        """Turn every BatchNorm of a model into this one, in place: parameters, statistics and hooks stay."""
        found = [each for each in model.named_modules() if isinstance(each[1], _BatchNorm)]
        for name, module in found:
            _check_convertible(name, module)
        for _, module in found:
            module.__class__ = SyncBatchNorm
        return model

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise ValueError(
                f"expected (samples, {self.num_features} channels, ...) and got the shape {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        totals = self._totals() if self.training else None
        if totals is None:
            return super().forward(input)
        self._check_input_dim(input)
        common = Common.of(input, totals)
        if self.track_running_stats and self.running_mean is not None:
            self._keep(common)
        y: Tensor = _Normalised.apply(input, self.weight, self.bias, self.eps, common)  # type: ignore[no-untyped-call]
        return y

    def _totals(self) -> Totals | None:
        """The way to the others, for the layers of the model that was joined."""
        for session in current_seat().sessions:
            totals: Totals | None = session.totals
            if totals is not None and not totals.over and self in totals.layers:
                return totals
        return None

    @torch.no_grad()
    def _keep(self, common: Common) -> None:
        """The running statistics, as torch keeps them, the same on every worker."""
        assert self.running_mean is not None and self.running_var is not None
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1.0 / float(self.num_batches_tracked) if share is None else share
        unbiased = common.var * (common.count / (common.count - 1.0))
        for kept, new in ((self.running_mean, common.mean), (self.running_var, unbiased)):
            kept.mul_(1.0 - (share or 0.0)).add_(new.to(kept.dtype), alpha=share or 0.0)


@dataclass(frozen=True)
class Common:
    """What all workers' batches have in common, and the weight of this worker's own."""

    mean: Tensor
    var: Tensor
    count: float
    """Values of each channel."""
    weight: float
    totals: Totals

    @staticmethod
    @torch.no_grad()
    def of(x: Tensor, totals: Totals) -> Common:
        """Two rounds. A batch that counts nothing, because the data ran out, adds nothing."""
        samples = totals.samples()
        n = 0.0 if samples == 0 else x.numel() / x.size(1)
        mean, var = _moments(x) if n else (x.new_zeros(x.size(1), dtype=torch.float64),) * 2
        together, counts = totals.of(n * mean, mean.new_tensor([n]))
        count = round(float(counts))
        if count < 2:
            raise UsageError(
                f"all workers together have {count} value of each channel, and a variance needs 2. Leave out the last, "
                "short step of an epoch: DataLoader(..., drop_last=True)."
            )
        common = together / count
        (squares,) = totals.of(n * (var + (mean - common).square()))
        weight = 1.0 if samples is None else float(samples)
        return Common(common, squares / count, float(count), weight, totals)


class _Normalised(torch.autograd.Function):
    """y = gamma (x - mean) / sqrt(var + eps) + beta, where mean and var depend on all workers' x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, common: Common
    ) -> Tensor:
        wide = _wide(x)
        mean, scale = common.mean.to(wide), (common.var + eps).rsqrt().to(wide)
        ctx.save_for_backward(x, gamma, mean, scale)
        ctx.common = common
        y = (x - _along(mean, x)) * _along(scale, x)
        if gamma is not None:
            y *= _along(gamma, x)
        if beta is not None:
            y += _along(beta, x)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, mean, scale = ctx.saved_tensors
        normal = (x - _along(mean, x)) * _along(scale, x)
        errors = dy.to(normal.dtype)
        dbeta, dgamma = _sum(errors), _sum(errors * normal)
        wanted, dx = ctx.needs_input_grad, None
        if wanted[0]:
            a, b = _shares(ctx.common, dbeta, dgamma)
            dx = errors - _along(a, x) - normal * _along(b, x)
            dx = (dx * _along(scale if gamma is None else scale * gamma, x)).to(x.dtype)
        return dx, dgamma if wanted[1] else None, dbeta if wanted[2] else None, None, None


def _shares(common: Common, *sums: Tensor) -> list[Tensor]:
    """What the statistics hand on of everybody's errors to each value of this worker; one round."""
    totals = common.totals.of(*(common.weight * each for each in sums))
    # The gradient of a batch that counts nothing is thrown away, whatever it is.
    per_value = (common.weight or 1.0) * common.count
    return [(total / per_value).to(each.dtype) for total, each in zip(totals, sums, strict=True)]


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel."""
    var, mean = torch.var_mean(x.to(_wide(x)), [0, *range(2, x.dim())], correction=0)
    return mean.double(), var.double()


def _wide(x: Tensor) -> torch.dtype:
    """In which statistics are made: 16 bits are too few."""
    return torch.promote_types(x.dtype, torch.float32)


def _sum(x: Tensor) -> Tensor:
    """Over everything but the channels."""
    return x.sum([0, *range(2, x.dim())])


def _along(channels: Tensor, x: Tensor) -> Tensor:
    """One value per channel, in the shape that broadcasts over x."""
    return channels.view(1, -1, *(1,) * (x.dim() - 2))


# Joining


def check_layers(model: nn.Module, strategy: Strategy) -> None:
    """Refuse layers that wait for everybody with a strategy that doesn't."""
    if not strategy.synchronous and any(isinstance(module, SyncBatchNorm) for module in model.modules()):
        raise UsageError(
            f"fast.SyncBatchNorm waits for all workers in every layer, and {strategy!r} lets them go on alone. Use "
            "torch's BatchNorm, with statistics of each worker's own, or a synchronous strategy such as "
            "allreduce."
        )


def totals_of(session: Session) -> Totals | None:
    """The sums that the layers of a joined model need, if it has such layers."""
    layers = frozenset(module for module in session.model.modules() if isinstance(module, SyncBatchNorm))
    runtime = session.runtime
    if not layers or runtime is None or len(runtime.world.start_view.workers) == 1:
        return None
    longest = max(max(2 * layer.num_features, layer.num_features + 1) for layer in layers)
    return Totals(runtime, layers, longest, lambda: session.latest_samples)


def _check_convertible(name: str, module: nn.Module) -> None:
    if type(module) not in (*_CONVERTED, SyncBatchNorm):
        raise UsageError(
            f"layer {name!r} is a {type(module).__name__}, whose own ways would be lost, or which has no shape yet. "
            "Run one batch through lazy layers first, and replace others by hand with fast.SyncBatchNorm."
        )
