"""What a run leaves behind: `fast.log`, the logbooks of its participants, and its folder."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fast
from fast.engine import Failure
from fast.errors import WorkerFailed
from fast.loop import run_folder
from fast.loop.run_folder import open_log
from fast.runtime.logbook import Logbook, last_lines, metrics_file, read_lines
from running import plainly


def train(strategy: str, steps: int = 3, value=None):
    model = nn.Linear(3, 1)
    model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
    for batch in fast.shard([torch.ones(2, 3)] * steps * fast.whoami().workers):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fast.log(loss=loss if value is None else value, worker=fast.whoami().worker)
    return loss.item()


def lines_of(folder: Path, name: str, kind: str) -> list[dict]:
    return [line for line in read_lines(metrics_file(folder, name)) if line["kind"] == kind]


@pytest.mark.real
@pytest.mark.parametrize(("strategy", "workers"), [("allreduce", 2), ("ssp(bound=1)", 2), ("allreduce", 1)])
def test_a_run_leaves_a_log(strategy, workers, tmp_path, capsys):
    losses = fast.launch(train, strategy, workers=workers, name="mine", runs=str(tmp_path))
    folder = tmp_path / "mine"
    data = json.loads((folder / "run.json").read_text())
    assert (data["schema"], data["kind"], data["failure"]) == (1, "fast run", None)
    assert data["settings"]["workers"] == workers
    assert data["strategy"] == repr(fast.loop.loading.strategy_from(strategy))
    assert data["parameters"] == 4
    assert set(data["versions"]) >= {"python", "torch"}
    names = {f"worker {n}" for n in range(workers)} | ({"server 0"} if "ssp" in strategy else set())
    assert set(data["participants"]) == names
    for number, loss in enumerate(losses):
        name = f"worker {number}"
        assert read_lines(metrics_file(folder, name))[0]["schema"] == 1
        values = lines_of(folder, name, "values")
        assert [line["step"] for line in values] == [1, 2, 3]
        assert [line["values"]["worker"] for line in values] == [number] * 3
        assert values[-1]["values"]["loss"] == pytest.approx(loss)
        mine = data["participants"][name]
        assert (mine["steps"], mine["samples"]) == (3, 6)
        assert mine["compute_s"] > 0
        assert (mine["bytes_sent"] > 0) == (workers > 1)
        assert lines_of(folder, name, "ended")[0]["failure"] is None
    if "ssp" in strategy:
        assert sum(data["participants"]["server 0"]["staleness"].values()) == 6
    said = capsys.readouterr().err.splitlines()[-3:]
    assert said[0].startswith("fast: steps per worker: 3; samples per worker: 6; ")
    assert "computing" in said[1] and "sent by all: " in said[1]
    assert said[2] == f"fast: log: {folder}; to draw it: fast report {folder}"


@pytest.mark.real
def test_a_worker_that_is_killed_leaves_what_it_had(tmp_path):
    """Its last words may be torn; the others' files are whole, and run.json says who failed."""

    def die():
        train("torus")
        logbook = fast.loop.logging.current_seat().logbook
        logbook._flush()
        if fast.whoami().worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(WorkerFailed, match="worker 1 was killed by signal 9"):
        fast.launch(die, workers=2, name="mine", runs=str(tmp_path))
    data = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert data["failure"]["who"] == "worker 1"
    for name in ("worker 0", "worker 1"):
        assert len(lines_of(tmp_path / "mine", name, "values")) == 3
        assert data["participants"][name]["steps"] == 3


@pytest.mark.real
def test_a_worker_that_fails_says_so_in_its_log(tmp_path):
    def fail():
        train("allreduce")
        raise KeyError("gone")

    with pytest.raises(WorkerFailed, match="gone"):
        fast.launch(fail, workers=1, name="mine", runs=str(tmp_path))
    (ended,) = lines_of(tmp_path / "mine", "worker 0", "ended")
    assert ended["failure"] == "KeyError: 'gone'"
    assert len(lines_of(tmp_path / "mine", "worker 0", "values")) == 3


def test_a_worker_without_a_step_counts_in_the_summary(tmp_path):
    """So does one whose log has no totals; after a failure the counts are those that were logged."""
    three = run_folder.Job(workers=3, entry="", server_entry="")
    for name, failure in (("ended", None), ("failed", Failure("worker 1", "gone"))):
        folder = open_log(True, three, str(tmp_path), name, "title")
        for worker in range(2):
            logbook = Logbook(folder.path, worker, f"worker {worker}")
            for step in range(4 * worker):
                logbook.stepped_alone(step, 8)
            logbook.close()
        folder.finish(failure)
        words = "steps per worker: 0 to 4; samples per worker: 0 to 32; "
        assert folder.summary()[0].startswith(words if failure is None else f"logged: {words}")
        assert "100% computing" in folder.summary()[1]


@pytest.mark.real
def test_numbers_that_are_not_finite_are_null(tmp_path):
    fast.launch(train, "allreduce", 1, math.nan, workers=1, name="mine", runs=str(tmp_path))
    text = metrics_file(tmp_path / "mine", "worker 0").read_text()
    assert '"loss":null' in text and "NaN" not in text


# What may be logged


@pytest.mark.parametrize(
    "value", [1, 0.5, True, np.float32(2), torch.tensor(3.0), torch.ones(1, 1, requires_grad=True)]
)
def test_a_plain_script_logs_into_nothing(value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plainly(lambda: fast.log(loss=value))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0.5", "str"),
        (None, "NoneType"),
        ([0.5], "list"),
        (torch.ones(2), "a tensor with 2 elements"),
        (torch.ones((), dtype=torch.complex64), "a complex number"),
        (1j, "complex"),
    ],
)
def test_what_is_no_number_is_refused(value, found):
    with pytest.raises(fast.UsageError, match=rf"fast.log\(loss=...\).*this is {found}"):
        plainly(lambda: fast.log(loss=value))


def test_a_value_is_that_of_the_moment(tmp_path):
    """A tensor that changes afterwards, and one that can be read later only."""
    (tmp_path / "metrics").mkdir()
    logbook = Logbook(tmp_path, 0, "worker 0")
    total = torch.zeros((), requires_grad=True)
    taken = fast.loop.logging._taken("total", total)
    with torch.no_grad():
        total += 5
    logbook.log({"total": taken, "late": torch.tensor(2.0)})
    logbook.close()
    assert lines_of(tmp_path, "worker 0", "values")[0]["values"] == {"total": 0.0, "late": 2.0}
    logbook.close("again")
    assert lines_of(tmp_path, "worker 0", "ended")[0]["failure"] is None


# Files


def test_a_torn_line_is_left_out(tmp_path):
    file = tmp_path / "worker.jsonl"
    file.write_text('{"kind": "opened"}\n{"kind": "totals"}\n{"kind": "to')
    assert [line["kind"] for line in read_lines(file)] == ["opened", "totals"]
    assert read_lines(tmp_path / "missing.jsonl") == last_lines(tmp_path / "missing.jsonl") == []


def test_a_long_file_is_read_from_its_end(tmp_path):
    file = tmp_path / "worker.jsonl"
    file.write_text("".join(f'{{"kind": "values", "step": {step}}}\n' for step in range(10_000)))
    last = last_lines(file)
    assert last[-1]["step"] == 9_999 and 100 < len(last) < 10_000


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "metrics").mkdir()
    said: list[str] = []
    logbook = Logbook(tmp_path, 0, "worker 0", said.append)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, logbook._file)
    os.close(full)
    for step in range(3):
        logbook.log({"loss": float(step)})
        logbook._flush()
    logbook.close()
    assert said == [
        "the log of worker 0 can't be written any more: No space left on device; the training goes on"
    ]


def job():
    return run_folder.Job(workers=1, entry="", server_entry="")


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(fast.UsageError, match=r"mine is there already. Choose another --name"):
        open_log(True, job(), str(tmp_path), "mine", "title")
    with pytest.raises(fast.UsageError, match="without slashes"):
        open_log(True, job(), str(tmp_path), "a/b", "title")
    assert list((tmp_path / "mine").iterdir()) == []


def test_two_runs_of_the_same_second_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda *_: "now")
    paths = [open_log(True, job(), str(tmp_path), None, "title").path.name for _ in range(3)]
    assert paths == ["title-now", "title-now-2", "title-now-3"]


@pytest.mark.real
def test_where_no_folder_can_be_made_a_line_says_so_and_the_run_goes_on(tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    (loss,) = fast.launch(train, "allreduce", workers=1, runs=str(tmp_path / "runs"))
    said = capsys.readouterr().err
    assert loss >= 0
    assert f"fast: no log of this run: {tmp_path / 'runs'} can't be written (File exists)" in said
    assert "fast report" not in said


@pytest.mark.real
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the extra 'tensorboard'")
def test_tensorboard_events(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fast.launch(train, "allreduce", workers=2, name="mine", runs=str(tmp_path))
    for number in range(2):
        found = EventAccumulator(str(tmp_path / "mine" / "tensorboard" / f"worker-{number}"))
        found.Reload()
        tensors = found.Tensors("worker")
        assert [event.step for event in tensors] == [1, 2, 3]
        assert {event.tensor_proto.float_val[0] for event in tensors} == {float(number)}
