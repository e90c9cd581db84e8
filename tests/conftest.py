"""What all tests share: one torch thread, and one warm host for all real workers of a test run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fast.engine import LocalEngine
from running import Runner

TESTS = Path(__file__).resolve().parent
BODIES = (TESTS, TESTS / "loop", TESTS / "engine")
"""Where the functions are that run inside real workers; their host must be able to import them."""

os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, BODIES), os.environ.get("PYTHONPATH", "")])
# Started in the background, a shell leaves us Ctrl-C ignored, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("fast", deadline=None)
settings.load_profile("fast")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    """Importing torch takes seconds; every run forks its workers from this one host."""
    with LocalEngine() as engine:
        yield engine


@pytest.fixture(scope="session")
def runner(engine: LocalEngine) -> Runner:
    return Runner(engine)
