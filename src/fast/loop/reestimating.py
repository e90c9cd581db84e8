"""The running statistics of BatchNorm, estimated anew for weights that no batch has ever seen.

The mean of several replicas' statistics belongs to none of their models, and least to the mean model. So every
worker runs batches of its own through that model, and a layer's statistics become the mean over all of
them, with n_i batches on worker i whose means are m_i:

    mean  =  sum_i n_i m_i / sum_i n_i

and likewise for the variances. That is what one worker finds that sees all batches one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fast.errors import UsageError

Share = Callable[[Tensor], Mapping[int, Tensor]]
"""Shows something to all workers and returns what everybody shows, by worker."""


def layers_of(model: nn.Module) -> list[_BatchNorm]:
    """Those whose statistics can be estimated."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.running_mean is not None
    ]


def reestimate(model: nn.Module, batches: Iterable[Any], share: Share) -> None:
    """Give every BatchNorm of this model the statistics of everybody's batches, the same on all workers."""
    estimate(model, (partial(model, _input_of(batch)) for batch in batches), share)


def estimate(model: nn.Module, forwards: Iterable[Callable[[], Any]], share: Share) -> None:
    """The same with calls that run a batch through the model, however that is done."""
    layers = layers_of(model)
    if not layers:
        return
    before = [_statistics(layer) for layer in layers]
    counts = _observe(model, layers, forwards)
    mine = torch.cat([_weighted(layer, count) for layer, count in zip(layers, counts, strict=True)])
    everybody = share(mine)
    total = torch.stack([everybody[worker] for worker in sorted(everybody)]).sum(0)
    sizes = [1 + 2 * layer.num_features for layer in layers]
    parts = torch.split(total, sizes)
    if not any(int(part[0]) for part in parts):
        raise UsageError(
            "no worker's `batches` had a batch, so there is nothing to estimate the statistics of BatchNorm from. "
            "Give each worker a loader with some: fast.shard(loader)."
        )
    for layer, part, (mean, var) in zip(layers, parts, before, strict=True):
        if not int(part[0]):  # no batch came through here
            _set(layer, mean, var, 0)
        else:
            mean, var = (part[1:] / part[0]).chunk(2)
            _set(layer, mean, var, int(part[0]))


@torch.no_grad()
def _observe(
    model: nn.Module, layers: Sequence[_BatchNorm], forwards: Iterable[Callable[[], Any]]
) -> list[int]:
    """Run the batches; each layer then has the mean over those that came through it, which are returned as a
    number. Dropout is off: it is off when the statistics are used."""
    modes = [(module, module.training) for module in model.modules()]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative mean
        layer.train()
    for forward in forwards:
        forward()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    for module, training in modes:
        module.training = training
    return [int(layer.num_batches_tracked or 0) for layer in layers]


def _statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None and layer.running_var is not None
    return layer.running_mean.clone(), layer.running_var.clone()


def _weighted(layer: _BatchNorm, count: int) -> Tensor:
    """The number of batches, and the statistics that many times."""
    wide = [each.double().cpu() * count for each in _statistics(layer)]
    return torch.cat([torch.tensor([count], dtype=torch.float64), *wide])


def _set(layer: _BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(var)
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.fill_(count)


def _input_of(batch: Any) -> Any:
    """What the model takes: the batch, or what it begins with."""
    return batch[0] if isinstance(batch, tuple | list) else batch
