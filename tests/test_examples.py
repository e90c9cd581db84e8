"""The examples work: as plain scripts, and on real workers. And they show what they say they show."""

from __future__ import annotations

import contextvars
import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.cli import main
from fast.core import Strategy
from fast.engine import Job, LocalEngine
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.testing import check_strategy
from running import Lent

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = ("digits", "large_batch", "own_data", "torus_by_hand", "move_tensors")
"""Those that train. `own_strategy` is a strategy, for others to be trained with; `from_ddp` has tests of its own."""
LINES = {"torus_by_hand": 60, "move_tensors": 60}
CHANCE = 0.1


def load(name: str) -> ModuleType:
    """An example as a module; its `main` doesn't run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accuracies(lines: list[str]) -> list[float]:
    """The number that each line ends with."""
    return [float(found[1]) for line in lines if (found := re.search(r": (\d\.\d+)$", line))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "own_strategy", "from_ddp"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_parse_no_flags(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    limit = LINES.get(path.stem, 120)
    assert len(text.splitlines()) <= limit, f"{path.name} has more than {limit} lines"
    assert not re.search(r"argparse|typer|click|sys\.argv|absl", text), f"{path.name} parses flags"


@pytest.mark.parametrize("name", SCRIPTS)
def test_plainly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As `python examples/name.py` does, in a context without a seat."""
    path = str(EXAMPLES / f"{name}.py")
    contextvars.Context().run(runpy.run_path, path, run_name="__main__")
    (accuracy,) = accuracies(capsys.readouterr().out.splitlines())
    assert accuracy > 0.85


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "workers"), [("digits", 2), ("large_batch", 4), ("own_data", 2), ("torus_by_hand", 4)]
)
def test_on_workers(name: str, workers: int, engine: LocalEngine) -> None:
    """What `fast run --workers N examples/name.py` starts. Every worker ends with the same model."""
    job = Job(
        workers=workers,
        entry="fast.loop.script:run_script",
        server_entry="fast.loop.serving:serve",
        arguments={"script": str(EXAMPLES / f"{name}.py"), "arguments": []},
        preload=["fast.loop", "fast.strategies.presets", "torch._dynamo", "sklearn.datasets"],
        folder=str(ROOT),
    )
    events: list[dict[str, Any]] = []
    outcome = engine.run(job, events.append)
    assert outcome.failure is None, outcome.failure
    found = accuracies([event["text"] for event in events if event["event"] == "line"])
    assert len(found) == workers and len(set(found)) == 1
    assert found[0] > 0.85


@pytest.mark.real
def test_the_command_of_the_readme_runs_an_own_strategy(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All of `fast run`, as a user types it, but that its host is warm."""
    typed = (
        "fast run --workers 2 --strategy examples/own_strategy.py:Dissemination(every=2) examples/digits.py"
    )
    monkeypatch.chdir(ROOT)
    program, command, *rest = typed.split()
    monkeypatch.setattr(sys, "argv", [program, command, "--runs", str(tmp_path), *rest])
    monkeypatch.setattr("fast.cli.run.LocalEngine", lambda: Lent(engine))
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "strategy examples/own_strategy.py:Dissemination(every=2)" in said.err
    found = accuracies(said.out.splitlines())
    assert len(found) == 2 and len(set(found)) == 1 and found[0] > 0.85


def test_the_own_strategy_keeps_the_contract() -> None:
    check_strategy(load("own_strategy").Dissemination, workers=(1, 2, 5))


def test_the_own_strategy_averages_as_it_says() -> None:
    """Without gradients, log2(P) steps of halving make everybody the mean, for P a power of two."""
    starts = [torch.full((16,), float(2**worker)) for worker in range(8)]
    replicas = [_standing_still(start) for start in starts]
    workers = [SimWorker(replica, iter(range(3)), lambda batch: None) for replica in replicas]
    Simulation(load("own_strategy").Dissemination(), workers, network=SLOW, compute=UNEVEN).run()
    for replica in replicas:
        assert torch.equal(replica.weights, torch.stack(starts).mean(0))


def _standing_still(start: Tensor) -> TorchReplica:
    model = nn.Linear(16, 1, bias=False)
    model.weight.data.copy_(start.view(1, 16))
    return TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.0))


# The torus by hand is the preset, bit for bit

SLOW = Network(1e6, 5e-3)
UNEVEN = Compute(workers_s={0: 0.011, 1: 0.020, 2: 0.031, 3: 0.017})
"""Letters are late by different amounts, and some wait together and fold."""


def test_the_torus_by_hand_is_the_preset() -> None:
    current: dict[int, tuple[Tensor, Tensor]] = {}
    by_hand = load("torus_by_hand").worker.strategy(lambda me: current[me.id])
    preset = _trajectory(fast.presets.torus(send="merged"), None)
    assert _trajectory(by_hand, current) == preset
    assert _trajectory(fast.presets.torus(send="own"), None) != preset, "the comparison can't fail"


def _trajectory(
    strategy: Strategy, current: dict[int, tuple[Tensor, Tensor]] | None
) -> list[tuple[int, int, bytes]]:
    """(worker, time, weights) after every step of four workers on the same data."""
    replicas = [_small_replica() for _ in range(4)]
    workers = [_sim_worker(number, replica, current) for number, replica in enumerate(replicas)]
    seen: list[tuple[int, int, bytes]] = []
    simulation = Simulation(strategy, workers, network=SLOW, compute=UNEVEN)
    simulation.run(on_step=lambda me, now: seen.append((me.id, now, me.weights.numpy().tobytes())))
    assert len(seen) == 4 * 25
    return seen


def _sim_worker(
    number: int, replica: TorchReplica, current: dict[int, tuple[Tensor, Tensor]] | None
) -> SimWorker:
    def compute(batch: tuple[Tensor, Tensor]) -> None:
        replica.samples = len(batch[1])
        if current is not None:
            current[number] = batch  # the iteration computes the gradient itself
        else:
            replica.compute(lambda: F.cross_entropy(replica.model(batch[0]), batch[1]))

    generator = torch.Generator().manual_seed(number)
    batches = [
        (torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(25)
    ]
    return SimWorker(replica, iter(batches), compute)


def _small_replica() -> TorchReplica:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    return TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
