"""How loops are compiled. Only modules whose names end in `_numba` import this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(loop: F) -> F:
    """Compile a loop over numpy arrays when it is first called, and keep it on disk.

    Never `fastmath`, never `parallel`: sums and products are rounded as they are written, so that
    torch operations give the same bits. Other threads run meanwhile. What is kept on disk notices
    a change of its own file only: whoever changes a loop that others call deletes `__pycache__`.
    """
    return cast(F, numba.njit(cache=True, nogil=True)(loop))
