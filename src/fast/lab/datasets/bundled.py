"""Data that comes with a package which FAST depends on."""

from __future__ import annotations

import functools

import numpy as np

from fast.lab.datasets.idx import Pixels
from fast.lab.datasets.wheels import Contents

DIGITS_COLUMNS = 65
"""64 pixels, then the label."""


@functools.cache
def scikit_digits() -> Contents:
    """scikit-learn's digits: one row per image.

    scikit-learn is imported here because it takes a second, which every other command would pay for.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    table: Pixels = np.column_stack([data.data, data.target]).astype(np.uint8)
    return {"table": table.tobytes()}
