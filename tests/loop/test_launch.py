"""`fast.launch`: a function on many workers, from a script, a prompt, a notebook, and after the caller has computed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fast
from fast.errors import WorkerFailed

pytestmark = pytest.mark.real
SOON_S = 60.0

TRAINING = """
import torch, fast

def train(rate, steps):
    model = torch.nn.Linear(3, 1)
    model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=rate), strategy="ssp(bound=1)")
    for batch in fast.shard([torch.ones(2, 3)] * 2 * steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return fast.whoami().worker, fast.consolidate(model).weight

def show(results):
    (one, weight), (two, same) = results
    print("ended", one, two, torch.equal(weight, same))
"""
CALL = "show(fast.launch(train, 0.1, steps, workers=2, log=False))\n"
EXEC = f"""
import sys, types
sys.modules["__main__"] = module = types.ModuleType("__main__")  # as a kernel has it: no file
exec(compile({TRAINING!r}, "<ipython-input-1>", "exec"), vars(module))
exec(compile("steps = 3\\n" + {CALL!r}, "<ipython-input-2>", "exec"), vars(module))
"""


@pytest.mark.parametrize("way", ["script", "-c", "stdin", "prompt", "exec"])
def test_a_function_that_no_import_can_find_runs_on_workers(way, tmp_path):
    text = TRAINING + "\nsteps = 3\n" + CALL
    command, given = [sys.executable], None
    if way == "script":
        (tmp_path / "train.py").write_text(text)
        command.append("train.py")
    elif way == "stdin":
        command, given = [*command, "-"], text
    elif way == "prompt":
        command, given = [*command, "-i", "-q"], text
    else:
        command += ["-c", EXEC if way == "exec" else text]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SOON_S, cwd=tmp_path)
    assert "ended 0 1 True" in done.stdout, done.stderr
    assert done.returncode == 0
    assert "2 workers, strategy ssp(bound=1)" in done.stderr


AFTER_COMPUTING = """
import torch, fast

def compute():
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Conv1d(1, 4, 3))
    model(torch.randn(256, 1, 512)).sum().backward()
    torch.randn(2_000_000).sin().sum()
    return torch.get_num_threads()

torch.set_num_threads(4)
compute()
print(fast.launch(compute, workers=2, threads=3, log=False), compute())
"""


def test_a_process_that_has_computed_in_parallel_can_be_copied():
    """Forked from the thread that computed, the workers would wait for the threads of its pool for ever."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_COMPUTING], capture_output=True, text=True, timeout=SOON_S
    )
    assert done.stdout == "[3, 3] 4\n", done.stderr


@dataclass
class Point:
    x: int
    y: tuple[float, ...]


def test_what_comes_back(capsys):
    sent = {
        "number": 3, "nothing": None, "nan": float("nan"), 5: [True, "text"], "point": Point(1, (2.5,)),
        "tensor": torch.arange(6).reshape(2, 3).T, "half": torch.ones(2, dtype=torch.bfloat16),
        "parameter": nn.Parameter(torch.ones(())), "numpy": torch.ones(1).numpy()[0],
    }  # fmt: skip
    (got,) = fast.launch(lambda: print("printed") or sent, workers=1, log=False)
    assert list(got) == list(sent)
    assert (got["number"], got["nothing"], got[5], got["numpy"]) == (3, None, [True, "text"], 1.0)
    assert got["nan"] != got["nan"]
    assert got["point"] == {"x": 1, "y": [2.5]}
    assert torch.equal(got["tensor"], sent["tensor"])
    assert torch.equal(got["half"], sent["half"]) and got["half"].dtype == torch.bfloat16
    assert torch.equal(got["parameter"], torch.ones(())) and not got["parameter"].requires_grad
    assert capsys.readouterr().out == "[worker 0] printed\n"


def test_the_options(capsys):
    """A strategy as an object, which overrides that of `join`; arguments; one thread."""
    mine = fast.presets.local_sgd(tau=2)

    def train(rate):
        model = nn.Linear(2, 1)
        fast.join(model, torch.optim.SGD(model.parameters(), lr=rate), "allreduce")
        return [rate, torch.get_num_threads()]

    assert fast.launch(train, 0.5, workers=2, strategy=mine, threads=1, log=False) == [[0.5, 1], [0.5, 1]]
    assert "strategy local_sgd(tau=2) of fast.launch overrides allreduce" in capsys.readouterr().err


def test_an_exception_of_a_worker_is_raised_here(capsys):
    def fail():
        if fast.whoami().worker == 1:
            raise KeyError("gone")
        while True:
            signal.pause()

    with pytest.raises(WorkerFailed, match="worker 1 failed: KeyError: 'gone'") as caught:
        fast.launch(fail, workers=2, log=False)
    assert caught.value.who == "worker 1"
    assert 'raise KeyError("gone")' in str(caught.value)
    assert "launching.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (["train"], {}, "fast.launch needs a function and got 'train'"),
        ([print], {"workers": 0}, r"fast.launch\(workers=0\): a run needs at least 1 worker"),
        ([print], {"threads": 0}, r"fast.launch\(threads=0\): a worker needs at least 1 thread"),
        ([print], {"deadline": 0}, r"fast.launch\(deadline=0\): a deadline is longer than 0 seconds"),
        ([print], {"strategy": "allreduc"}, "Did you mean allreduce"),
        ([print], {"strategy": "torus(topology=torus(rows=2))", "workers": 3}, "doesn't hold 3 workers"),
        ([lambda: nn.Linear(1, 1)], {"workers": 1}, "a Linear, which can't leave its worker"),
        ([lambda: 1 << 80], {"workers": 1}, "something that can't leave its worker"),
    ],
)  # fmt: skip
def test_wrong_calls(arguments, options, sentence):
    with pytest.raises(fast.UsageError, match=sentence):
        fast.launch(*arguments, **options, log=False)


def test_a_process_that_uses_cuda_is_not_copied(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(fast.UsageError, match="can't copy a process that uses CUDA"):
        fast.launch(print, log=False)


def test_no_launch_inside_a_worker():
    with pytest.raises(fast.UsageError, match="inside a worker"):
        fast.launch(lambda: fast.launch(print, log=False), workers=2, log=False)


def test_a_function_that_exits_well_and_handlers_of_the_caller(tmp_path):
    """sys.exit(0) is a good end; and what the caller does at its exit only the caller does."""
    text = (
        "import atexit, sys, fast\natexit.register(print, 'exit')\n"
        "print(fast.launch(sys.exit, 0, workers=2, log=False))\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=SOON_S)
    assert done.stdout == "[None, None]\nexit\n", done.stderr


WAITING = """
import os, signal, fast
def wait():
    print(os.getpid())
    while True:
        signal.pause()
print(os.getpid(), flush=True)
try:
    fast.launch(wait, workers=2, log=False)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_when_the_caller_is_interrupted_or_killed_nothing_is_left(number):
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, env=os.environ | {"MARK": mark}
    ) as process:
        caller = int(process.stdout.readline())
        workers = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        watched = [os.pidfd_open(pid) for pid in workers]
        assert caller == process.pid and caller not in workers
        process.send_signal(number)
        for each in watched:
            assert select.select([each], [], [], SOON_S)[0], "a worker is left"
            os.close(each)
        rest, _ = process.communicate(timeout=SOON_S)
    assert rest == ("interrupted\n" if number == signal.SIGINT else "")
