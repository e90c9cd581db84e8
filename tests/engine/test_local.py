"""Real worker processes: how runs end, whatever happens in them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess

import pytest

from fast.engine import LocalEngine

pytestmark = pytest.mark.real

SOON_S = 60.0
NEVER_S = 1e6
"""A deadline that no test lives to see: what ends all the same didn't wait for it."""
"""Two seconds on a machine of its own; five times as much where others work too."""


def lines_of(events, who=None, stream=None):
    return [
        e["text"]
        for e in events
        if e["event"] == "line" and who in (None, e["who"]) and stream in (None, e["stream"])
    ]


def test_every_worker_has_its_seat_and_one_thread(runner):
    assert runner.results("engine_bodies:return_ids", 3) == [[0, 3, 1], [1, 3, 1], [2, 3, 1]]


def test_large_results_arrive_whole(runner):
    size = 1_500_000
    for result in runner.results("engine_bodies:return_much", 2, size=size):
        assert len(result) == size


def test_a_record_needs_a_host_with_a_known_order_of_sets(monkeypatch):
    """Who records after others gets a new one; whoever comes then takes what is there."""
    started = []

    class Process:
        def __init__(self, command, env, **_):
            started.append(env.get("PYTHONHASHSEED"))

        def send_signal(self, number):
            pass

        def wait(self, timeout=None):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with LocalEngine() as engine:
        for hash_seed in (None, None, "0", None, "0"):
            engine._start(hash_seed)
    assert started == [None, "0"]


# Failures


@pytest.mark.parametrize("joined", [False, True], ids=["before join", "in training"])
def test_a_worker_that_raises_ends_the_run_with_its_own_traceback_once(joined, runner):
    events = []
    failure = runner.failure(
        "engine_bodies:fail", 3, listen=events.append, deadline_s=NEVER_S, who=1, joined=joined
    )
    assert failure.who == "worker 1"
    assert failure.message == "ValueError: worker's own mistake"
    assert failure.traceback.count("Traceback") == 1
    assert failure.traceback.count("worker's own mistake") == 2  # the source line and the error
    assert not failure.usage
    assert not any("Traceback" in line for line in lines_of(events))


def test_of_several_failures_the_first_one_is_reported(runner):
    failure = runner.failure("engine_bodies:fail_all", 3)
    assert re.fullmatch(r"worker [012]", failure.who)
    assert failure.message == f"ValueError: mistake of {failure.who[-1]}"
    assert failure.traceback.count("Traceback") == 1


@pytest.mark.parametrize("strategy", ["allreduce", "ssp", "torus"])
def test_a_killed_worker_is_named_and_ends_the_run_at_once(strategy, runner):
    pids, killed = [], []

    def kill_the_second(event):
        if event["event"] == "started":
            pids.extend(event["pids"])
        ready = event["event"] == "line" and event["who"] == "worker 1"
        if ready and not killed:
            killed.append(pids[1])
            os.kill(pids[1], signal.SIGKILL)

    failure = runner.failure(
        "engine_bodies:train_for_ever", 3, listen=kill_the_second, deadline_s=NEVER_S, strategy=strategy
    )
    assert killed
    assert failure.who == "worker 1"
    assert re.search(r"worker 1 was killed by signal 9 \(SIGKILL\) after \d+ steps", failure.message)
    assert gone(pids)


def test_a_frozen_worker_is_named_after_the_deadline(runner):
    failure = runner.failure("engine_bodies:freeze", 3, deadline_s=5.0, who=2)
    assert failure.who in ("worker 0", "worker 1")
    assert not failure.traceback  # the message says all; the frames would be ours
    assert re.search(
        r"participant 2 has given no sign of life for \d+ s \(the deadline is 5 s\)", failure.message
    )
    assert "it had done 1 steps" in failure.message
    assert "--deadline" in failure.message


def test_a_worker_that_vanishes_without_an_error_is_named_at_once(runner):
    failure = runner.failure("engine_bodies:vanish", 3, deadline_s=NEVER_S, who=1)
    assert failure.who == "worker 1"
    assert re.search(r"worker 1 ended in the middle of the training, after 1 steps", failure.message)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(3, "exit code 3"), ("no such data", "exit code 1")],
    ids=["number", "text"],
)
def test_a_worker_that_exits_says_with_which_code(code, sentence, runner):
    events = []
    failure = runner.failure("engine_bodies:exit_with", 3, listen=events.append, code=code, who=0)
    assert failure.who == "worker 0"
    assert sentence in failure.message
    if isinstance(code, str):
        assert lines_of(events, "worker 0", 2) == [code]


def test_a_deadlock_says_who_waits_for_whom(runner):
    failure = runner.failure("engine_bodies:deadlock", 2)
    assert "every live participant waits" in failure.message
    assert "0 waits for letter 'never' of 1" in failure.message
    assert "1 waits for letter 'never' of 0" in failure.message


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("sizes", r"mean\(\) got (12|16|20) bytes of torch.float32 from participant \d and (12|16|20) bytes"),
        ("whole", r"mean\(\) needs floating point numbers and got torch.int64"),
        ("others", r"participant \d calls mean\(\) among .* and isn't one of them"),
    ],
)
def test_wrong_arguments_of_a_mean_are_refused(kind, sentence, runner):
    failure = runner.failure("engine_bodies:wrong_mean", 3, kind=kind)
    assert failure.usage
    assert re.search(sentence, failure.message), failure.message


def test_a_letter_that_can_not_come_any_more_is_an_error_to_catch(runner):
    found, left = runner.results("engine_bodies:catch_a_failure", 2)
    assert left == "left"
    assert found.startswith("PeerLost: peer 1 left after 0 steps")


def test_a_listener_can_stop_the_run(runner, engine):
    def stop(event):
        if event["event"] == "line":
            engine.stop("seen enough")

    failure = runner.failure("engine_bodies:train_for_ever", 2, listen=stop, strategy="gossip")
    assert failure.message == "seen enough"


def test_the_next_run_is_not_disturbed_by_what_happened_before(runner):
    runner.failure("engine_bodies:fail_all", 3)
    assert len(runner.results("engine_bodies:return_ids", 4)) == 4


# Output


def test_output_comes_line_by_line_and_the_streams_stay_apart(runner):
    events = []
    runner.outcome("engine_bodies:talk", 2, listen=events.append)
    for who in ("worker 0", "worker 1"):
        assert lines_of(events, who, 1) == [
            "one line",
            "100 %",
            "raw \N{REPLACEMENT CHARACTER} bytes",
            "no newline at the end",
        ]
        assert lines_of(events, who, 2) == ["a complaint", "raw complaint"]


# Nothing is left


def gone(pids) -> bool:
    """Whether these processes are gone, waiting for the kernel to say so."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([watched], [], [], SOON_S)[0]:
                return False
        finally:
            os.close(watched)
    return True


def test_what_a_worker_leaves_behind_is_ended(runner):
    assert gone(runner.results("engine_bodies:leave_a_child", 2))


def test_shared_memory_has_no_names_to_leave_behind(runner):
    before = sorted(os.listdir("/dev/shm"))
    runner.failure("engine_bodies:fail", 3, who=1, joined=True)
    runner.results("preset_bodies:train", 3, strategy="torus", steps=[3, 3, 3], together=True)
    assert sorted(os.listdir("/dev/shm")) == before
