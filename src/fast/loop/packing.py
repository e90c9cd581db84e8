"""Values that a worker returns, as bytes: plain data and tensors, and nothing that could run code."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from fast.errors import UsageError

_TENSOR = 1
_KEY = "tensor"


def pack(value: Any) -> bytes:
    """Plain data with tensors in it. UsageError for anything else."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_tensor)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"the function returned something that can't leave its worker: {error}") from error


def unpack(data: bytes) -> Any:
    """Tuples and sets come back as lists, dataclasses as dictionaries."""
    return msgspec.msgpack.decode(data, ext_hook=_loaded, strict=False)


def _tensor(value: object) -> Any:
    if isinstance(value, Tensor):
        return msgspec.msgpack.Ext(_TENSOR, save({_KEY: value.detach().cpu().contiguous()}))
    if isinstance(value, np.generic):
        return value.item()
    raise UsageError(
        f"the function returned a {type(value).__name__}, which can't leave its worker. Return numbers, text, tensors, "
        "and lists and dictionaries of them: for a model, fast.consolidate(model).state_dict()."
    )


def _loaded(code: int, data: memoryview) -> Tensor:
    return load(bytes(data))[_KEY]
