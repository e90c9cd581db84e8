"""The kernels of `amending.py` in compiled loops, and the instruction that makes a change atomic."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from fast.errors import UsageError
from fast.parts.kernels import amending
from fast.parts.kernels.compiling import compiled

Numbers = NDArray[Any]


def _make_swap(typing: Any, array: Any, place: Any, expected: Any, new: Any) -> Any:
    """Make array[place] `new` if it is `expected`, bit for bit, in one instruction; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, place_type, expected_type, new_type = signature.args
        held = context.make_array(array_type)(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], place_type, types.intp)
        pointer = _lowering.get_item_pointer(context, builder, array_type, held, [at])
        bits = _lowering.ir.IntType(array_type.dtype.bitwidth)
        words = [
            builder.bitcast(context.cast(builder, value, kind, array_type.dtype), bits)
            for value, kind in ((arguments[2], expected_type), (arguments[3], new_type))
        ]
        found = builder.cmpxchg(builder.bitcast(pointer, bits.as_pointer()), *words, "monotonic", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(array, place, expected, new), generate


_lowering: Any = cgutils
_swap: Any = intrinsic(_make_swap)


def amend(memory: Tensor, before: Tensor, after: Tensor) -> None:
    if memory.dtype in amending.SWAPPED:
        _amend(memory.numpy(), before.numpy(), after.numpy())
    else:
        amending.amend.reference(memory, before, after)


def amend_atomically(memory: Tensor, before: Tensor, after: Tensor) -> None:
    if memory.dtype not in amending.SWAPPED:
        raise UsageError(
            f"weights of {memory.dtype} can't be changed atomically: processors compare and swap 32 or 64 bits. "
            "Train in float32, or leave atomic=True out."
        )
    _amend_atomically(memory.numpy(), before.numpy(), after.numpy())


@compiled
def _amend(memory: Numbers, before: Numbers, after: Numbers) -> None:
    for i in range(len(memory)):
        if after[i] != before[i]:
            now = memory[i]
            memory[i] = after[i] if now == before[i] else now + (after[i] - before[i])


@compiled
def _amend_atomically(memory: Numbers, before: Numbers, after: Numbers) -> None:
    for i in range(len(memory)):
        if after[i] != before[i]:
            now = memory[i]
            while not _swap(memory, i, now, after[i] if now == before[i] else now + (after[i] - before[i])):
                now = memory[i]
