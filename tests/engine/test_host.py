"""The host of the workers: those that never come, signals of all kinds, and a reader that doesn't read."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
from pathlib import Path

import pytest

from fast.engine import Job, LocalEngine
from fast.engine.forking import Kept, fork
from fast.engine.limits import check_room
from fast.errors import FastError, UsageError
from fast.transport import Phase, ShmTransport, create_arenas

pytestmark = pytest.mark.real

SOON_S = 60.0
"""Long enough for the slowest machine; nothing waits for it to pass."""


def await_end(pids) -> bool:
    """Whether all of them end; the kernel says when one does."""
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


# Workers that don't come


@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_is_stopped_before_it_joins_is_silent(who, runner):
    failure = runner.failure("engine_bodies:before_join", 3, deadline_s=2.0, who=who, how="stops")
    assert re.match(
        rf"participant {who} has given no sign of life for \d+ s \(the deadline is 2 s\)", failure.message
    )
    assert "waits for its fast.join" in failure.message


@pytest.mark.parametrize("how", ["exits", "exits late"])
@pytest.mark.parametrize("who", [0, 2])
def test_a_worker_that_ends_before_it_joins_is_named(how, who, runner, tmp_path):
    """Before the others have joined, or while they wait."""

    def listen(event):
        if event["event"] == "say" and "has waited" in event["text"]:
            assert f"fast.join of {who} (alive, not joined yet)" in event["text"]
            (tmp_path / "go on").touch()

    failure = runner.failure(
        "engine_bodies:before_join", 3, deadline_s=1.0, listen=listen, who=who, how=how, folder=str(tmp_path)
    )
    assert failure.who == f"worker {who}"
    assert failure.message.startswith(f"worker {who} ended without calling fast.join, and the others wait")


@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_comes_late_is_alive(who, runner, tmp_path):
    """It comes only after the others have waited for twice the deadline and said so."""
    said = []

    def listen(event):
        if event["event"] == "say" and "has waited" in event["text"]:
            said.append(event["text"])
            if "has waited 4 s" in event["text"]:
                (tmp_path / "go on").touch()

    results = runner.results(
        "engine_bodies:before_join",
        2,
        deadline_s=2.0,
        listen=listen,
        who=who,
        how="comes late",
        folder=str(tmp_path),
    )
    assert results == ["done", "done"]
    assert said[0].endswith(f"for fast.join of {who} (alive, not joined yet)")


@pytest.mark.parametrize("ends", ["os._exit", "usually"])
def test_workers_that_never_join_wait_for_nobody(ends, runner):
    outcome = runner.outcome("engine_bodies:never_joins", 2, ends=ends)
    assert outcome.failure is None
    assert outcome.results == ([None, None] if ends == "os._exit" else ["ended", "ended"])


def test_a_host_vouches_for_who_has_not_come_yet():
    arenas = create_arenas(2)
    try:
        host, worker = ShmTransport(1, arenas), ShmTransport(0, arenas)
        before = worker.status(0).alive_ns
        host.vouch(0)
        assert worker.status(0).alive_ns > before and worker.phase(0) == Phase.STARTING
    finally:
        for fd in arenas:
            os.close(fd)


# Signals


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGRTMIN + 1, r"SIGRTMIN\+1"),
        (signal.SIGRTMAX - 1, rf"SIGRTMIN\+{signal.SIGRTMAX - signal.SIGRTMIN - 1}"),
        (signal.SIGRTMAX, "SIGRTMAX"),
        (signal.SIGTERM, "SIGTERM"),
    ],
)
def test_whatever_signal_kills_a_worker_it_is_named(number, name, runner):
    failure = runner.failure("engine_bodies:kill_oneself", 2, number=int(number))
    assert re.match(
        rf"worker \d was killed by signal {int(number)} \({name}\) after 0 steps", failure.message
    )


class Ending:
    """A listener that asks for the end when all workers are ready."""

    def __init__(self, engine, workers=3, grace_s=SOON_S, before=lambda pids: None):
        self._engine, self._missing, self._grace_s, self._before = engine, workers, grace_s, before
        self.lines, self.said, self.pids = [], [], []

    def __call__(self, event):
        match event["event"]:
            case "started":
                self.pids = event["pids"]
            case "say":
                self.said.append(event["text"])
            case "line":
                self.lines.append((event["who"], event["text"]))
                self._missing -= event["text"] == "ready"
                if event["text"] == "ready" and not self._missing:
                    self._before(self.pids)
                    self._engine.end_soon("SIGTERM", self._grace_s)


@pytest.mark.parametrize("strategy", ["allreduce", "gossip", "ssp"])
def test_workers_that_are_asked_to_end_finish_their_step(strategy, runner, engine):
    ending = Ending(engine)
    failure = runner.failure("engine_bodies:train_slowly", 3, listen=ending, strategy=strategy)
    assert failure.message == "the run was stopped by SIGTERM; all workers have ended"
    assert not failure.usage and not failure.traceback
    assert ending.said[1] == (
        "SIGTERM: every worker finishes its step and leaves; those that still run after 60 s are killed"
    )
    left = [line for line in ending.said if "was told to stop and leaves after" in line]
    assert sorted(line.split()[1] for line in left) == ["0", "1", "2"]
    cleaned = sorted(who for who, text in ending.lines if text == "cleaned up")
    assert cleaned == ["worker 0", "worker 1", "worker 2"]
    assert await_end(ending.pids)


def test_workers_that_were_asked_already_are_not_asked_twice(runner, engine):
    """A batch system sends its signal to all processes, and a second one would end a worker in its step."""

    def ask(pids):
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for pid in pids:  # until each has seen it, the two would be one
            while caught(pid) and Path(f"/proc/{pid}").exists():
                pass

    ending = Ending(engine, before=ask)
    failure = runner.failure("engine_bodies:train_slowly", 3, listen=ending, strategy="gossip")
    assert failure.message == "the run was stopped by SIGTERM; all workers have ended"
    assert sorted(who for who, text in ending.lines if text == "cleaned up") == [
        "worker 0",
        "worker 1",
        "worker 2",
    ]


def caught(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.search(r"SigCgt:\t(\w+)", status)
    return found is not None and bool(int(found.group(1), 16) >> (signal.SIGTERM - 1) & 1)


def test_who_has_not_ended_in_time_is_killed_and_named(runner, engine):
    ending = Ending(engine, grace_s=1.0, before=lambda pids: os.kill(pids[1], signal.SIGSTOP))
    failure = runner.failure("engine_bodies:train_slowly", 3, listen=ending, strategy="gossip")
    assert failure.message.startswith(
        "the run was stopped by SIGTERM; all workers have ended. Not within 1 s"
    )
    assert "worker 1" in failure.message
    assert await_end(ending.pids)


def test_workers_that_have_not_joined_just_end(runner, engine):
    ending = Ending(engine)
    failure = runner.failure("engine_bodies:wait_for_ever", 3, listen=ending)
    assert failure.message == "the run was stopped by SIGTERM; all workers have ended"
    assert ending.said == ["SIGTERM: the workers are told to end; those that still run after 60 s are killed"]
    assert await_end(ending.pids)


def own_host() -> tuple[LocalEngine, Job]:
    return LocalEngine(), Job(2, "engine_bodies:wait_for_ever", "", preload=["engine_bodies"])


def test_a_host_that_is_stopped_can_be_closed():
    engine, job = own_host()
    pids = []

    def listen(event):
        if event["event"] == "started":
            pids.extend([os.getpgid(event["pids"][0]), *event["pids"]])
        if event["event"] == "line":
            os.kill(engine._process.pid, signal.SIGSTOP)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(job, listen)
    assert await_end(pids)


def test_a_host_that_is_killed_is_said_to_be():
    engine, job = own_host()
    pids = []

    def listen(event):
        if event["event"] == "started":
            pids.extend(event["pids"])
        if event["event"] == "line":
            os.kill(engine._process.pid, signal.SIGRTMIN + 1)

    failure = engine.run(job, listen).failure
    assert failure.message == "the host process of the workers was killed by signal 35 (SIGRTMIN+1)"
    assert await_end(pids), "the kernel ends them with their host"


# Its reader, and its room


def test_a_host_whose_reader_does_not_read_still_watches(runner):
    """The workers write far more than what fits between the two. One of them is killed; so are the others."""
    pids, ended = [], []

    def listen(event):
        if event["event"] == "started":
            pids.extend(event["pids"])
        if event["event"] == "line" and not ended:
            os.kill(pids[1], signal.SIGKILL)
            ended.append(await_end(pids))

    failure = runner.failure("engine_bodies:flood", 3, listen=listen)
    assert ended == [True]
    assert failure.message.startswith("worker 1 was killed by signal 9 (SIGKILL)")


def test_there_is_room_or_a_sentence():
    with pytest.raises(UsageError, match="2047 workers: one machine runs at most 2046"):
        check_room(2047)
    check_room(2)


def open_files() -> set[int]:
    """Without the one that lists them."""
    return {int(name) for name in os.listdir("/proc/self/fd") if Path("/proc/self/fd", name).exists()}


def test_a_fork_without_room_leaves_no_descriptors_open():
    """There is room for up to five more files, and a fork needs six."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_files()
    free = [number for number in range(1000) if number not in before]
    kept = Kept({}, lambda: None)
    for more in range(6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                fork(0, "worker 0", lambda id, channel: os._exit(0), kept)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert open_files() == before


def test_a_host_that_can_not_be_started_is_said_in_words(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / "no python"))
    with pytest.raises(FastError, match="host process of the workers could not be started: No such file"):
        LocalEngine().run(own_host()[1])
