"""May the gradients of many workers be computed in one call? A fixed rule by layer type, never a timing.

Batched products round differently, so whether they are batched decides about bits: the same model must get
the same answer on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from fast.adapters.optimizer_spec import KNOWN
from fast.adapters.parameters import choose
from fast.adapters.stepping import only_reads

LARGEST = 2**18
"""Parameters of a model up to which batching pays: above, the products alone take nearly all the time."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_PURE = frozenset(
    (
        nn.Linear, nn.Bilinear, nn.Embedding, nn.Identity, nn.Flatten, nn.Unflatten, nn.LayerNorm, nn.RMSNorm,
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
        nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink,
        nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU,
    )
)  # fmt: skip
"""Functions of their input and their own parameters, which batch into few large products."""
_RANDOM = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
_SLOW = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Verdict:
    """What the rule says, and why."""

    together: bool
    reason: str
    may_ask: bool = True
    """Whether it can be done all the same, for whoever asks for it: it is merely slower, or not known."""


def batchable(model: nn.Module, optimizer: Optimizer) -> Verdict:
    """The rule. Own modules take part if their class says `batchable = True`: a function of input and
    parameters alone, that draws nothing, keeps nothing and never asks for a value."""
    verdicts = [_of_module(name or type(model).__name__, module) for name, module in model.named_modules()]
    verdicts += [_of_tensors(model, optimizer), _of_optimizer(optimizer), _of_size(model)]
    against = [verdict for verdict in verdicts if not verdict.together]
    never = [verdict for verdict in against if not verdict.may_ask]
    return (never or against or [Verdict(True, "layers that batch well")])[0]


_FINE = Verdict(True, "")


def _of_module(name: str, module: nn.Module) -> Verdict:
    what = f"{name} is {type(module).__name__}"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return Verdict(False, f"{name} has hooks, which may do anything", may_ask=False)
    if isinstance(module, _RANDOM):
        return Verdict(False, f"{what}, which draws random numbers for each worker and step", may_ask=False)
    if any(True for _ in module.buffers(recurse=False)):
        return Verdict(False, f"{what}, which has buffers", may_ask=False)
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return Verdict(False, f"{what}, a recurrent layer", may_ask=False)
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse):
        return Verdict(False, f"{what} with max_norm or sparse gradients", may_ask=False)
    if isinstance(module, _SLOW):
        return Verdict(False, f"{what}, and convolutions are faster one by one")
    known = type(module) in _PURE or type(module) in _CONTAINERS or vars(type(module)).get("batchable", False)
    return _FINE if known else Verdict(False, f"{what}, which the rule doesn't know")


def _of_tensors(model: nn.Module, optimizer: Optimizer) -> Verdict:
    chosen = choose(model, optimizer)
    kinds = {(p.dtype, p.device) for _, p in chosen}
    if len(kinds) > 1 or chosen[0][1].device.type != "cpu":
        return Verdict(False, "the parameters have several dtypes, or are not on the CPU", may_ask=False)
    inside = {id(p) for p in model.parameters()}
    if any(id(p) not in inside for _, p in chosen):
        return Verdict(False, "the optimizer has parameters that are not the model's", may_ask=False)
    return _FINE


def _of_optimizer(optimizer: Optimizer) -> Verdict:
    """It is rebuilt from data for every row."""
    if type(optimizer) not in KNOWN.values():
        return Verdict(False, f"{type(optimizer).__name__} is no optimizer of torch.optim", may_ask=False)
    if not only_reads(optimizer):
        return Verdict(False, "the optimizer has hooks, or is differentiable", may_ask=False)
    return _FINE


def _of_size(model: nn.Module) -> Verdict:
    size = sum(p.numel() for p in model.parameters())
    if size > LARGEST:
        return Verdict(False, f"{size:,} parameters: a step is mostly products, which gain nothing")
    return _FINE
