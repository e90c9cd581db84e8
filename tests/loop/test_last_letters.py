"""What arrives at real workers after their last step: every gradient is in every replica at the end of a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from last_letters_bodies import after_all_of, train

from fast.engine import Job
from fast.engine.threads import run_threads
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from running import PRELOAD, Runner, as_text
from table import CALLS

EVERYBODY = "torus(rule=sum, topology=full)"
IN_PIECES = "torus(rule=sum, topology=full, bucket_mb=0.00001)"
BODY = "last_letters_bodies:train"
CONSERVING = [call for call in CALLS if strategy_from(call).conserves and not strategy_from(call).synchronous]


def check(results: list[dict[str, Any]], steps: list[int], consolidated: tuple[int, ...] = ()) -> None:
    """To the bit the sum of all gradients, made in one process."""
    expected = as_text(after_all_of(steps))
    assert [result["own"] for result in results] == [expected] * len(steps)
    assert [result["final"] for result in results] == [
        expected if worker in consolidated else None for worker in range(len(steps))
    ]
    assert [result["dropped"] for result in results] == [[]] * len(steps)


@pytest.mark.real
@pytest.mark.parametrize("strategy", [EVERYBODY, IN_PIECES])
@pytest.mark.parametrize("consolidate", [(0, 1, 2), (2,), ()], ids=["all", "one", "nobody"])
def test_who_has_taken_its_last_step_gets_all_that_the_others_send(consolidate, strategy, runner: Runner):
    """Worker 2 takes 25 steps more when the others have taken their last one, whether these then consolidate or end."""
    steps = [3, 12, 30]
    results = runner.results(BODY, 3, strategy=strategy, steps=steps, alone=25, consolidate=consolidate)
    check(results, steps, consolidate)


@pytest.mark.real
@pytest.mark.parametrize("steps", [[16, 16, 16], [0, 7, 40], [1, 1, 1]], ids=repr)
def test_the_last_gradients_arrive(steps, runner: Runner):
    for strategy in (EVERYBODY, IN_PIECES):
        check(runner.results(BODY, 3, strategy=strategy, steps=steps), steps)
        everybody = (0, 1, 2)
        check(
            runner.results(BODY, 3, strategy=strategy, steps=steps, consolidate=everybody), steps, everybody
        )


@pytest.mark.parametrize("steps", [[3, 12, 30], [9, 9, 9]], ids=repr)
def test_threads(steps):
    check(run_threads(3, lambda id: train(EVERYBODY, steps, alone=min(25, steps[2])), serve), steps)


@pytest.mark.real
@pytest.mark.parametrize("strategy", CONSERVING)
def test_what_is_conserved_stays_whole(strategy, runner: Runner):
    """Nobody consolidates. What was sent to a worker in the moment of its last step is included too."""
    steps = [5, 60, 20, 90]
    results = runner.results(BODY, 4, strategy=strategy, steps=steps)
    total = sum(result["conserved"] for result in results)
    assert total == pytest.approx(0 if "ad_psgd" in strategy else 1, abs=1e-12)


SCRIPT = """
import atexit
import torch, fast
from fast.runtime.rendezvous import await_phase
from fast.transport import Phase
from last_letters_bodies import RATE, Weights, gradient
from running import as_text

me, steps, model = fast.whoami().worker, [4, 30], Weights()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
fast.join(model, optimizer, "torus(rule=sum, topology=full)")
atexit.register(lambda: print(f"{me}: {as_text(model.flat)}"))
for step in range(steps[me]):
    if me == 1 and step == 5:
        runtime = fast.engine.current_seat().sessions[-1].runtime
        await_phase(runtime.world, (0,), Phase.DONE, "last step")
    (model.flat * gradient(me, step)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.real
def test_a_script_that_just_ends(engine, tmp_path: Path):
    """It never consolidates. What its model is when its process ends."""
    (tmp_path / "train.py").write_text(SCRIPT)
    lines: list[str] = []
    job = Job(
        workers=2,
        entry="fast.loop.script:run_script",
        server_entry="fast.loop.serving:serve",
        arguments={"script": "train.py", "arguments": []},
        preload=list(PRELOAD),
        folder=str(tmp_path),
    )
    outcome = engine.run(job, lambda event: lines.append(event["text"]) if event["event"] == "line" else None)
    assert outcome.failure is None, outcome.failure
    expected = as_text(after_all_of([4, 30]))
    assert sorted(lines) == [f"{worker}: {expected}" for worker in (0, 1)]


# Told to stop


@pytest.mark.real
def test_a_worker_that_is_told_to_stop_leaves_at_once_and_its_gradients_stay(runner: Runner):
    """The signal comes in its step 5, which it still takes."""
    everybody = (0, 1, 2)
    outcome = runner.outcome(
        BODY, 3, strategy=EVERYBODY, steps=[30, 20, 40], told=[1, 5], alone=15, consolidate=everybody
    )
    assert outcome.failure is None, outcome.failure
    stopped = outcome.results[1]
    assert stopped is None
    expected = as_text(after_all_of([30, 6, 40]))
    assert [outcome.results[worker]["own"] for worker in (0, 2)] == [expected] * 2
    for worker in (0, 2):
        assert set(outcome.results[worker]["dropped"]) <= {"the receiver has left"}
    finals = {outcome.results[worker]["final"] for worker in (0, 2)}
    assert len(finals) == 1, "the mean with what the stopped one had, the same on every worker"


@pytest.mark.real
@pytest.mark.parametrize("consolidate", [(0, 1, 2), ()], ids=["consolidates", "just ends"])
def test_a_worker_that_waits_for_the_others_can_be_told_to_stop(consolidate, engine):
    """Worker 0 has taken its last step and receives. Then it leaves at once, and nothing is sent to it any more. What
    had waited for room with it until then, as one letter, is reported."""
    steps, pids = [4, 6, 40], list[int]()

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            pids.extend(event["pids"])
        elif event["event"] == "line" and event["text"] == "outlive 0":
            os.kill(pids[0], signal.SIGTERM)

    job = Job(
        workers=3,
        entry=BODY,
        server_entry="fast.loop.serving:serve",
        arguments={
            "strategy": EVERYBODY,
            "steps": steps,
            "alone": 20,
            "outlive": 0,
            "consolidate": list(consolidate),
        },
        preload=list(PRELOAD),
    )
    outcome = engine.run(job, listen)
    assert outcome.failure is None, outcome.failure
    expected = as_text(after_all_of(steps))
    assert [outcome.results[worker]["own"] for worker in (1, 2)] == [expected] * 2
    for worker in (1, 2):
        assert outcome.results[worker]["dropped"] in ([], ["the receiver has left"])
