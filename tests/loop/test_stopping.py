"""Workers that are told to stop: they finish their step, leave, and the others go on as after any departure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from consolidation_bodies import COLUMNS, least_squares

from fast.engine import Job
from fast.engine.replay import replay
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.loop.stopping import stop_when_told
from fast.runtime import answers
from fast.runtime.record import load_record
from preset_bodies import train
from running import PRELOAD, Runner, from_text

STEPS, WHEN = 80, 20


def told(runner: Runner, folder: Path, strategy: str, who: int, workers: int = 3) -> list[Any]:
    """What everybody returned, and the steps that it noted."""
    results = runner.results(
        "consolidation_bodies:leave_when_told",
        workers,
        strategy=strategy,
        steps=STEPS,
        who=who,
        when=WHEN,
        folder=str(folder),
    )
    taken = [int((folder / f"steps of {worker}").read_text()) for worker in range(workers)]
    return [results, taken]


def excess(text: str) -> float:
    """How far the squared error is above the smallest one there is."""
    a, b, best = least_squares()
    found = from_text(text, torch.float64).view(1, -1).T
    return float(((a @ found - b).square().mean() - (a @ best - b).square().mean()).detach())


@pytest.mark.real
@pytest.mark.parametrize(("strategy", "near"), [("dpsgd", 0.01), ("gossip(p=0.5)", 1.0)])
def test_a_worker_that_is_told_to_stop_leaves_after_its_step_and_the_others_go_on(
    strategy, near, runner, tmp_path
):
    """The signal comes before the step in which it takes effect. The step is taken; what comes after the loop isn't.

    The squared error of those who stay ends where it ends when nobody leaves: within a hundredth of the way from
    the start to the least there is. In gossip the last letter that a worker includes may be of one that has only just
    begun, if the machine is busy: that one is closer than the start too, and so is their mean."""
    results, taken = told(runner, tmp_path, strategy, who=2)
    assert results[2] is None and taken == [STEPS, STEPS, WHEN], "its own count is one behind"
    stayed = [result for result in results if result is not None]
    assert len({result["final"] for result in stayed}) == 1
    everybody, _ = told(runner, tmp_path, strategy, who=99)
    start = excess("00" * 8 * COLUMNS)
    assert start > 1
    for result in (*stayed, *everybody):
        assert excess(result["own"]) < near * start
    assert excess(everybody[0]["final"]) < near * start


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["allreduce", "dpsgd"])
def test_in_lock_step_it_is_the_run_in_which_its_loop_ends_there(strategy, runner):
    """Bit for bit: a signal at step 13 of 20 and a loop of 13 steps are the same to the others."""
    steps = [20, 13, 20]
    ended = runner.results("preset_bodies:train", 3, strategy=strategy, steps=steps, together=False)
    stopped = runner.outcome(
        "consolidation_bodies:train_until_told", 3, strategy=strategy, who=1, steps=steps
    )
    assert stopped.failure is None, stopped.failure
    assert stopped.results[1] is None
    for worker in (0, 2):
        assert stopped.results[worker] == ended[worker]["final"]


@pytest.mark.real
def test_a_script_is_told_from_outside_and_the_run_ends_well(engine, tmp_path):
    """Worker 1 would never end by itself, and the others train until it has left and for 20 steps more."""
    (tmp_path / "train.py").write_text(ENDLESS)
    lines: list[str] = []
    pids: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            pids.extend(event["pids"])
        elif event["event"] == "line" and event["text"] == "worker 1 is in the middle of it":
            assert Path(f"/proc/{pids[1]}/comm").read_text() == "fast worker 1\n"
            os.kill(pids[1], signal.SIGTERM)
        elif event["event"] in ("line", "say"):
            lines.append(event["text"])

    outcome = engine.run(script_job(tmp_path, workers=3), listen)
    assert outcome.failure is None, outcome.failure
    said = [line for line in lines if "was told to stop and leaves after" in line]
    assert len(said) == 1 and said[0].startswith("worker 1 ")
    assert sorted(line for line in lines if line.startswith("final")) == ["final of 0", "final of 2"]
    assert "cleaned up" in lines, "what is in `finally` is done"
    assert not any(line.startswith("after the loop of 1") for line in lines)


ENDLESS = """
import itertools, time
from pathlib import Path
import torch, fast
me = fast.whoami().worker
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
fast.join(model, optimizer, "gossip(p=0.5)")
more = 20
try:
    for step in itertools.count():
        if me == 1 and step == 5:
            print("worker 1 is in the middle of it")
        if me != 1 and Path("left").exists():
            more -= 1
            if not more:
                break
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    if me == 1:
        Path("left").touch()
        print("cleaned up")
print(f"after the loop of {me}")
fast.consolidate(model)
print(f"final of {me}")
"""


def script_job(folder: Path, workers: int, **options: Any) -> Job:
    return Job(
        workers=workers,
        entry="fast.loop.script:run_script",
        server_entry="fast.loop.serving:serve",
        arguments={"script": "train.py", "arguments": []},
        seed=3,
        preload=list(PRELOAD),
        folder=str(folder),
        **options,
    )


TELLS_ITSELF = """
import os, signal
import torch, fast
me = fast.whoami().worker
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast.join(model, optimizer, "STRATEGY")
for step in range(16):
    if me == 1 and step == 6 and not os.path.exists("told"):
        open("told", "w").close()
        os.kill(os.getpid(), signal.SIGTERM)
    model(torch.randn(2, 3) + me).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("sum", float(fast.consolidate(model).weight.detach().double().sum()))
"""


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["gossip(p=0.5)"])
def test_a_record_knows_where_a_worker_was_told_to_stop(strategy, engine, tmp_path):
    """In the replay nobody tells it, and it leaves after the same step; the others come to the same bits."""
    (tmp_path / "train.py").write_text(TELLS_ITSELF.replace("STRATEGY", strategy))
    record, lines = tmp_path / "run.rec", list[str]()
    job = script_job(tmp_path, workers=3, record=str(record))
    outcome = engine.run(job, lambda event: lines.append(event["text"]) if event["event"] == "line" else None)
    assert outcome.failure is None, outcome.failure
    parts = load_record(record).parts
    stops = {id: [type(a) for a in part.answers].count(answers.Stopped) for id, part in parts.items()}
    assert stops == {0: 0, 1: 1, 2: 0}
    again: list[str] = []
    result = replay(
        load_record(record),
        listen=lambda event: again.append(event["text"]) if event["event"] == "line" else None,
    )
    assert result.failure is None and result.steps == {0: 16, 1: 7, 2: 16}
    assert sorted(again) == sorted(lines) and len(lines) == 2


# Whose signal it is


class Counting:
    """Stands for a runtime that is told."""

    def __init__(self) -> None:
        self.times = 0

    def tell_to_stop(self) -> None:
        self.times += 1


@pytest.fixture
def usual_signals():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_second_signal_has_its_usual_effect(usual_signals):
    runtime = Counting()
    stop_when_told(runtime)
    os.kill(os.getpid(), signal.SIGTERM)
    assert runtime.times == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_script_stays(usual_signals):
    mine = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    stop_when_told(Counting())
    assert signal.getsignal(signal.SIGTERM) is mine


def test_threads_leave_signals_alone(usual_signals):
    thread = threading.Thread(target=stop_when_told, args=(Counting(),))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    run_threads(2, lambda id: train("allreduce", [2, 2], True), serve)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


FORKS = """
import os, signal, sys, time
from fast.loop.stopping import stop_when_told
class Runtime:
    def tell_to_stop(self):
        print("told", flush=True)
stop_when_told(Runtime())
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
_, status = os.waitpid(child, 0)
print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM)
"""


def test_a_process_that_the_script_forks_ends_as_always():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr
