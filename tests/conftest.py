"""What all tests share: one torch thread, and one warm host for all real workers of a test run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fast.engine import Job, LocalEngine
from fast.engine.namespaces import Cluster, available
from launching import Launch
from running import PRELOAD, Runner

TESTS = Path(__file__).resolve().parent
BODIES = (TESTS, TESTS / "loop", TESTS / "engine")
"""Where the functions are that run inside real workers; their host must be able to import them."""

os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, BODIES), os.environ.get("PYTHONPATH", "")])
# Started in the background, a shell leaves us Ctrl-C ignored, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("fast", deadline=None)
settings.load_profile("fast")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only tests with real workers are asked for, files that have none needn't be imported."""
    only_real = config.option.markexpr.endswith("and real")
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if only_real and is_test and not says_real(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that got its mark from elsewhere would be left out without a word."""
    if item.get_closest_marker("real") is not None and not says_real(item.path):
        raise pytest.UsageError(f"{item.nodeid} needs real workers; write pytest.mark.real in its file")


@cache
def says_real(path: Path) -> bool:
    return "mark.real" in path.read_text("utf-8")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def old_things_are_no_garbage() -> Iterator[None]:
    """Ten thousand tests and all of torch stay. Simulations of many have the collector look at everything before they
    begin unless somebody has frozen it, and that took more time than they did."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """Importing torch takes seconds; every run forks its workers from this one host. It begins with a run that is
    recorded: a host with any order of sets would be started anew for the first one that is."""
    first = Job(
        workers=1,
        entry="engine_bodies:return_ids",
        server_entry="",
        preload=list(PRELOAD),
        record=str(tmp_path_factory.mktemp("engine") / "first.rec"),
    )
    with LocalEngine() as engine:
        assert engine.run(first).failure is None
        yield engine


@pytest.fixture(scope="session")
def runner(engine: LocalEngine) -> Runner:
    return Runner(engine)


@pytest.fixture(scope="session")
def why_no_cluster() -> str | None:
    return available()


@pytest.fixture
def make_cluster(why_no_cluster: str | None) -> Iterator[Callable[..., Cluster]]:
    """`make_cluster(3, rate="100mbit")`: hosts that are network namespaces, gone after the test. The test is skipped,
    with the reason, where there can't be any."""
    if why_no_cluster is not None:
        pytest.skip(why_no_cluster)
    with ExitStack() as clusters:
        yield lambda *arguments, **named: clusters.enter_context(Cluster(*arguments, **named))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Processes that are over when their test is."""
    made = Launch(tmp_path)
    yield made
    made.kill()
