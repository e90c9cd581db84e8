"""What an optimizer remembers of earlier gradients, as flat tensors: momentum, Adam's moments and their like.

Strategies that exchange weights have to decide what becomes of it. All workers must see the same names, also one
that had no gradient yet, so for torch's own optimizers the names come from the kind, not from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor, optim
from torch.optim import Optimizer

from fast.adapters.optimizer_spec import KNOWN
from fast.errors import UsageError
from fast.view import Layout

Place = tuple[Tensor, Callable[[Tensor], Tensor]]
"""A parameter, and its view into a flat tensor."""

_NAMES: Mapping[type[Optimizer], tuple[str, ...]] = MappingProxyType(
    {
        optim.Adam: ("exp_avg", "exp_avg_sq"),
        optim.AdamW: ("exp_avg", "exp_avg_sq"),
        optim.NAdam: ("exp_avg", "exp_avg_sq"),
        optim.RAdam: ("exp_avg", "exp_avg_sq"),
        optim.Adamax: ("exp_avg", "exp_inf"),
        optim.Adadelta: ("square_avg", "acc_delta"),
        optim.Adagrad: ("sum",),
        optim.RMSprop: ("square_avg",),
        optim.Rprop: ("prev", "step_size"),
        optim.ASGD: ("ax",),
        optim.Muon: ("momentum_buffer",),
    }
)
_BY_OPTION = MappingProxyType(
    {"momentum": "momentum_buffer", "amsgrad": "max_exp_avg_sq", "centered": "grad_avg"}
)
"""What is only kept when an option asks for it."""


def places_in(layout: Layout, parameters: Sequence[Tensor]) -> list[Place]:
    """Each parameter with its segment of a flat tensor."""
    return [(p, segment.of) for p, segment in zip(parameters, layout.segments, strict=True)]


def moment_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Of its state, what has the shape of the parameters."""
    kind = type(optimizer)
    if kind is optim.Adafactor:
        raise UsageError(
            "Adafactor keeps its moments as rows and columns, which have no place in a flat tensor, so they can't be "
            "exchanged. Let them stay local (moments='keep') or forget them ('reset'), or take AdamW."
        )
    if kind not in KNOWN.values():
        return _found(optimizer)
    asked = {
        name for group in optimizer.param_groups for option, name in _BY_OPTION.items() if group.get(option)
    }
    return tuple(sorted(asked.union(_NAMES.get(kind, ()))))


def _found(optimizer: Optimizer) -> tuple[str, ...]:
    """Of an optimizer that we don't know: what is there. A counter has the shape of a parameter that is a number."""
    return tuple(
        sorted(
            {
                name
                for parameter, state in optimizer.state.items()
                for name, value in state.items()
                if isinstance(value, Tensor)
                and value.is_floating_point()
                and value.shape == parameter.shape
                and name != "step"
            }
        )
    )


def moments_of(optimizer: Optimizer, places: Sequence[Place], like: Tensor) -> dict[str, Tensor]:
    """A flat copy of each, by name; zero where a parameter has none yet."""
    moments = {name: like.new_zeros(like.shape) for name in moment_names(optimizer)}
    for name, flat in moments.items():
        for parameter, view in places:
            kept = optimizer.state.get(parameter, {}).get(name)
            if kept is not None:
                view(flat).copy_(kept)
    return moments


def set_moments(optimizer: Optimizer, places: Sequence[Place], moments: Mapping[str, Tensor]) -> None:
    """Put these in their place. A parameter that has had no gradient yet has no state to put them in, except
    for plain momentum, which needs nothing else."""
    unknown = sorted(moments.keys() - set(moment_names(optimizer)))
    if unknown:
        has = ", ".join(moment_names(optimizer)) or "none"
        raise UsageError(
            f"{type(optimizer).__name__} keeps no {' and no '.join(unknown)}; its moments are: {has}"
        )
    for name, flat in moments.items():
        for parameter, view in places:
            state = optimizer.state.get(parameter, {})
            if state.get(name) is not None:
                state[name].copy_(view(flat))
            elif type(optimizer) is optim.SGD:
                optimizer.state[parameter][name] = view(flat).to(parameter, copy=True).contiguous()


def forget_moments(optimizer: Optimizer) -> None:
    """As if it had never taken a step; counters, which correct Adam's bias, included.

    Optimizers make what they remember when they find nothing, so nothing is left. Only Adagrad's is made with
    the optimizer, and has to be as it was then.
    """
    if not isinstance(optimizer, optim.Adagrad):
        optimizer.state.clear()
        return
    for state in optimizer.state.values():
        state["step"].zero_()
        state["sum"].fill_(optimizer.defaults["initial_accumulator_value"])
