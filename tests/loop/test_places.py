"""Which worker this is: for printing and saving once."""

from __future__ import annotations

import fast
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from running import plainly


def test_worker_0_is_the_main_one() -> None:
    assert run_threads(3, lambda id: fast.is_main(), serve) == [True, False, False]
    assert run_threads(3, lambda id: fast.whoami(), serve) == [(0, 3), (1, 3), (2, 3)]


def test_a_plain_script_is_the_main_one() -> None:
    assert plainly(fast.is_main)
    assert plainly(fast.whoami) == (0, 1)
