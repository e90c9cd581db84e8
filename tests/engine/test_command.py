"""`fast run` as a user meets it: exit codes, sentences, prefixes, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import json.tool
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fast
from fast.cli import display, main
from fast.cli.display import RunDisplay
from fast.cli.run import tell_record
from fast.engine import Failure
from fast.errors import UsageError
from fast.loop.script import find_module
from fast.membership import parse_groups
from fast.runtime.record import CANT_RECORD
from running import Lent

MARK = "FAST_TEST_MARK"
SOON_S = 60.0

SCRIPT = """
import sys, threading
print("hello", *sys.argv[1:])
print("a complaint", file=sys.stderr)
threading.Event().wait()
"""

TRAINING = """
import sys
import torch, fast
model = torch.nn.Linear(3, 1)
model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="torus")
for batch in fast.shard([torch.ones(2, 3)] * 4):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", *sys.argv[1:])
sys.exit({code})
"""


def wrong_call(arguments, monkeypatch, capsys) -> str:
    """The one sentence of a wrong call; it must end with exit code 2 and print nothing else."""
    monkeypatch.setattr(sys, "argv", ["fast", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err.startswith("fast: ")
    return printed.err


@pytest.fixture
def script(tmp_path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--workers", "0"], "--workers 0: a run needs at least 1 worker"),
        (["--workers", "-3"], "--workers -3: a run needs at least 1 worker"),
        (["--workers", "many"], "'--workers' / '-w': Input should be a valid integer"),
        (["--strategy", "allreduc"], "there is no strategy 'allreduc'. Did you mean allreduce"),
        (["--strategy", "local_sgd(tua=3)"], "local_sgd has no argument 'tua'. Did you mean tau?"),
        (["--strategy", "torus(topology=torus(rows=2))", "--workers", "3"], "doesn't hold 3 workers"),
        (["--strategy", "nowhere.py:Mine"], "there is no file nowhere.py"),
        (["--deadline", "0"], "--deadline 0: a deadline is longer than 0 seconds"),
        (["--groups", "2x2"], "--groups 2x2: that is 4 workers, and there are 2"),
        (["--groups", "0"], "--groups 0: worker 1 is in no group. Write 2x4"),
        (["--deadline", "nan"], "--deadline nan: a deadline is longer than 0 seconds"),
        (["--deadline", "inf"], "--deadline inf: a deadline is longer than 0 seconds"),
        (["--threads", "0"], "--threads 0: a worker needs at least 1 thread"),
        (["--threads", "1e9"], "'--threads': Input should be a valid integer"),
        (["--threads", "1000000000"], "at least 1 thread and has at most 1024"),
        (["--workers", "1000000000"], "1000000000 workers: one machine runs at most 2046"),
        (["--seed", str(2**63)], f"--seed {2**63}: a seed has at most 63 bits"),
        (["--workes", "3"], "there is no option --workes. Did you mean --workers?"),
        (["-z"], "there is no option -z."),
        (["-m", "no.such.module"], "-m no.such.module: there is no module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_ends_with_one_sentence_and_code_2(options, sentence, script, monkeypatch, capsys):
    assert sentence in wrong_call(["run", *options, script], monkeypatch, capsys)


def test_a_script_that_is_not_there_ends_with_code_2(tmp_path, monkeypatch, capsys):
    missing = str(tmp_path / "missing.py")
    assert f"there is no script {missing}" in wrong_call(["run", missing], monkeypatch, capsys)


def test_a_module_is_found_without_being_imported(tmp_path):
    package = tmp_path / "letters"
    package.mkdir()
    for name in ("__init__", "__main__", "alpha"):
        (package / f"{name}.py").write_text("raise SystemExit('imported')")
    assert find_module("letters", str(tmp_path)) == "letters/__main__.py"
    assert find_module("letters.alpha", str(tmp_path)) == "letters/alpha.py"
    assert find_module("json.tool", str(tmp_path)) == json.tool.__file__
    for missing in ("letters.beta", "letters.alpha.beta", "numbers_", "json", ".letters"):
        with pytest.raises(UsageError, match=f"-m {missing}: there is no module"):
            find_module(missing, str(tmp_path))
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=r"Leave out -m to run the file: fast run train\.py"):
        find_module("train.py", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "workers", "groups"),
    [
        ("2x2", 4, ((0, 1), (2, 3))),
        (" 0-1, 2 - 3", 4, ((0, 1), (2, 3))),
        ("1+3,0+2", 4, ((0, 2), (1, 3))),
        ("3,0-1+2", 4, ((0, 1, 2), (3,))),
        ("all", 4, ((0, 1, 2, 3),)),
        ("1x1", 1, ((0,),)),
    ],
)
def test_groups_are_read(text, workers, groups):
    assert parse_groups(text, workers) == groups


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("2x3", "that is 6 workers, and there are 4"),
        ("2x", "these are no groups"),
        ("0-1,1-3", "worker 1 is named twice"),
        ("0-1,3", "worker 2 is in no group"),
        ("0-4", "there is no worker 4, only 4 workers"),
        ("3-0", "'3-0' names no workers"),
        ("", "'' names no workers"),
        ("0-1,two", "'two' names no workers"),
    ],
)
def test_what_are_no_groups_is_refused(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        parse_groups(text, 4)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fast", option])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("fast", run_name="__main__", alter_sys=True)
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fast {fast.__version__}\n"


def test_without_a_command_there_is_help_and_nothing_else(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fast"])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.err) == (2, "")
    assert "Run SCRIPT on several workers" in printed.out


# Real runs of the command


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "fast"), "run", *arguments]


@pytest.fixture
def started(script: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts the command; none is left behind."""
    with contextlib.ExitStack() as left:

        def start(mark: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                command("--workers", "2", script, "one", "--two"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(script).parent,
                env=os.environ | {MARK: mark},
            )
            left.callback(process.kill)
            return process

        yield start


def await_hello(process: subprocess.Popen[str]) -> None:
    """Until both workers have said it."""
    said = {process.stdout.readline(), process.stdout.readline()}
    assert said == {"[worker 0] hello one --two\n", "[worker 1] hello one --two\n"}


def marked(mark: str) -> list[int]:
    """All processes that carry the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment:
                found.append(int(folder.name))
    return found


def await_end(pids: list[int]) -> list[int]:
    """Those that don't end soon; the kernel says when one does."""
    left = []
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not select.select([watched], [], [], SOON_S)[0]:
            left.append(pid)
        os.close(watched)
    return left


@pytest.mark.real
def test_when_the_command_ends_so_does_everything(started, script):
    """Two of them beside each other: one is killed, which leaves the other alone, and that one is interrupted."""
    shared = sorted(os.listdir("/dev/shm"))
    marks = [uuid.uuid4().hex for _ in range(2)]
    processes = [started(mark) for mark in marks]
    for process in processes:
        await_hello(process)
    ends = {}
    for process, mark, number in zip(processes, marks, (signal.SIGKILL, signal.SIGINT), strict=True):
        pids = marked(mark)
        assert len(pids) >= 4, "the command, its host and two workers"
        process.send_signal(number)
        assert await_end(pids) == []
        ends[number] = (*process.communicate(), process.returncode)
        assert marked(mark) == []
    assert sorted(os.listdir("/dev/shm")) == shared
    assert ends[signal.SIGKILL][2] == -9
    out, err, code = ends[signal.SIGINT]
    assert code == 130
    assert "fast: interrupted; all workers have been ended" in err
    logged = [json.loads(file.read_text()) for file in Path(script).parent.glob("runs/*/run.json")]
    assert {"who": "the run", "message": "it was interrupted"} in [run.get("failure") for run in logged]
    assert "Traceback" not in err
    assert "a complaint" in err and "a complaint" not in out


@pytest.mark.real
def test_a_training_from_the_command_line(tmp_path):
    """Also: the script's arguments, a strategy that overrides the script's, and sys.exit(0) at the end."""
    path = tmp_path / "train.py"
    path.write_text(TRAINING.format(code=0))
    run = subprocess.run(
        command(
            "--workers", "2", "--strategy", "ssp(bound=0)", "--json", str(tmp_path / "o"), str(path), "-x"
        ),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == ["[worker 0] trained -x", "[worker 1] trained -x"]
    assert "fast: --strategy ssp(bound=0) overrides torus of the script" in run.stderr
    assert re.search(r'"steps": \[\s*2,\s*2\s*\]', (tmp_path / "o").read_text())


def test_a_record_that_could_not_be_written_is_not_called_recorded(capsys):
    full = Failure("worker 0", f"{CANT_RECORD} to rec/0.frames: No space left on device")
    tell_record("rec", full)
    assert capsys.readouterr().err == "fast: the record in rec isn't complete; make room and record again\n"
    for failure in (None, Failure("worker 0", "ValueError: bad")):
        tell_record("rec", failure)
        assert capsys.readouterr().err == "fast: recorded in rec; to repeat it: fast replay rec\n"


@pytest.fixture
def typed(tmp_path, engine, monkeypatch, capsys):
    """What `fast run` prints, in a folder with a training script and on the host that is warm."""
    (tmp_path / "train.py").write_text(TRAINING.format(code=0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fast.cli.run.LocalEngine", lambda: Lent(engine))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fast", "run", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert stop.value.code == 0, printed.err
        return sorted(printed.out.splitlines()), printed.err

    return call


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "got", "note"),
    [
        (
            ["train.py", "--workers", "3"],
            "--workers 3",
            "--workers 3 comes after train.py, so it was passed to the script and not to FAST, which runs 2 workers "
            "by default. To give it to FAST: fast run --workers 3 train.py\n",
        ),
        (["-m", "train", "-w", "3"], "-w 3", "To give it to FAST: fast run -w 3 -m train\n"),
        (["train.py", "--seed=3"], "--seed=3", "To give it to FAST: fast run --seed=3 train.py\n"),
        (["--seed", "3", "train.py", "--seed=4"], "--seed=4", None),
        (["train.py", "--worker", "3", "-m", "x"], "--worker 3 -m x", None),
        (["--", "train.py", "3"], "3", None),
        (["train.py", "--", "3"], "-- 3", "-- was passed to train.py like everything after it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_follows_the_script_is_the_scripts(arguments, got, note, typed):
    out, err = typed(*arguments)
    assert out == [f"[worker {worker}] trained {got}" for worker in range(2)]
    assert ("passed to" in err) == (note is not None)
    assert note is None or note in err


def test_progress_is_told_once_there_is_some(monkeypatch, capsys):
    """While the workers still import torch, no line says that they have taken 0 steps."""
    monkeypatch.setattr(display, "_QUIET_S", -1.0)
    shown = display.RunDisplay("train.py", 2)
    shown({"event": "progress", "steps": [0, 0]})
    assert capsys.readouterr().err == ""
    shown({"event": "progress", "steps": [3, 0]})
    assert capsys.readouterr().err.endswith("steps per worker: 3 0\n")
    assert shown.summary()["steps"] == [3, 0]


@pytest.mark.real
def test_a_run_keeps_a_log_unless_told_otherwise(typed, tmp_path):
    """And ends with three lines; the folder has the script's name, or the one that is asked for."""
    _, err = typed("train.py")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("train-")
    said = err.splitlines()[-3:]
    assert said[0].startswith("fast: steps per worker: 2; samples per worker: 4; ")
    assert re.search(r"computing, \d+% waiting, .*; sent by all: \d", said[1])
    assert said[2] == f"fast: log: runs/{folder.name}; to draw it: fast report runs/{folder.name}"
    assert json.loads((folder / "run.json").read_text())["settings"]["script"] == "train.py"
    _, err = typed("--no-log", "train.py")
    assert "log:" not in err and len(list((tmp_path / "runs").iterdir())) == 1
    typed("--runs", "others", "--name", "mine", "train.py")
    assert (tmp_path / "others" / "mine" / "metrics" / "worker-1.jsonl").is_file()


def test_a_name_that_is_taken_ends_with_code_2(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    said = wrong_call(["run", "--name", "mine", script], monkeypatch, capsys)
    assert said == "fast: runs/mine is there already. Choose another --name, or remove it first.\n"


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "usage", "sentence"),
    [
        (TRAINING.format(code=3), False, "the script ended with exit code 3"),
        ("print('nothing')", True, "ended without calling fast.join"),
        ("import sys; sys.exit(0)", True, "ended without calling fast.join"),
        ("raise KeyError('gone')", False, "KeyError: 'gone'"),
    ],
    ids=["exit code", "no join", "exit before join", "error"],
)
def test_scripts_that_fail(text, usage, sentence, tmp_path, runner):
    path = tmp_path / "script.py"
    path.write_text(text)
    failure = runner.failure("fast.loop.script:run_script", 2, script=str(path), arguments=[])
    assert sentence in failure.message
    assert failure.usage == usage
    if "KeyError" in sentence:
        assert failure.traceback.count("Traceback") == 1
        assert f'File "{path}", line 1' in failure.traceback
        assert "runpy" not in failure.traceback


@pytest.mark.real
def test_a_worker_that_ends_without_join_is_told_to_the_others(tmp_path, runner):
    path = tmp_path / "script.py"
    path.write_text(
        "from fast.engine import current_seat\n" + "if current_seat().id == 0:\n    " + "import sys\n    "
        "sys.exit(0)\n" + TRAINING.format(code=0)
    )
    failure = runner.failure("fast.loop.script:run_script", 3, script=str(path), arguments=[])
    assert failure.usage
    assert failure.who == "worker 0"
    assert "ended without calling fast.join" in failure.message


# Signals, terminals, and output that goes nowhere

BARS = """
import torch, fast
from tqdm import tqdm
me = fast.whoami().worker
model = torch.nn.Linear(3, 1)
model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in tqdm(range(60), desc=f"bar of {me}", mininterval=0.0, miniters=1):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    fast_enough = torch.randn(300, 300) @ torch.randn(300, 300)
print("trained", me)
"""

TOLD = """
import sys
import torch, fast
model = torch.nn.Linear(3, 1)
model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
try:
    while True:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "hello" not in sys.argv:
            print("hello")
            sys.argv.append("hello")
finally:
    print("cleaned up")
"""


def on_a_terminal(arguments: list[str]) -> tuple[str, int]:
    """All that the command writes on a terminal of its own, and its exit code."""
    mine, its = os.openpty()
    process = subprocess.Popen(command(*arguments), stdin=its, stdout=its, stderr=its)
    os.close(its)
    written = b""
    with (
        contextlib.suppress(OSError),
        open(mine, "rb", buffering=0) as terminal,
    ):  # EIO: all of them have ended
        while data := terminal.read(1 << 16):
            written += data
    return written.decode(), process.wait()


@pytest.mark.real
def test_on_a_terminal_there_is_one_live_bar(tmp_path):
    """Of four bars that of worker 0 lives there; when it has ended it is a line."""
    path = tmp_path / "bars.py"
    path.write_text(BARS)
    written, code = on_a_terminal(["--workers", "4", str(path)])
    assert code == 0, written
    assert "bar of 0:" in written
    assert not re.search(r"bar of [123]:", written)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert sorted(re.findall(r"\[worker \d\] trained \d", plain)) == [
        f"[worker {worker}] trained {worker}" for worker in range(4)
    ]
    assert len(re.findall(r"\[worker 0\] bar of 0: 100%.* 60/60 .*\r\n", plain)) >= 1


@pytest.mark.real
def test_without_a_terminal_bars_are_one_line(tmp_path, engine, monkeypatch, capsys):
    (tmp_path / "bars.py").write_text(BARS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fast.cli.run.LocalEngine", lambda: Lent(engine))
    monkeypatch.setattr("fast.cli.display._QUIET_S", 1e9)
    monkeypatch.setattr(sys, "argv", ["fast", "run", "--workers", "4", "bars.py"])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 0, printed.err
    bars = [line for line in printed.err.splitlines() if "bar of" in line]
    assert len(bars) == 1 and bars[0].startswith("[worker 0] bar of 0: 100%"), printed.err
    assert "\r" not in printed.err + printed.out


def test_without_a_terminal_a_long_bar_is_shown_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr("fast.cli.display._QUIET_S", -1)
    with RunDisplay("train.py", 2) as display:
        display({"event": "bars", "who": "worker 0", "bars": ["50 %"]})
        monkeypatch.setattr("fast.cli.display._QUIET_S", 1e9)
        display({"event": "bars", "who": "worker 0", "bars": ["51 %"]})
        display({"event": "line", "who": "worker 1", "stream": 2, "text": "100 %", "bar": True})
        display({"event": "line", "who": "worker 1", "stream": 2, "text": "plain", "bar": False})
    assert capsys.readouterr().err == "[worker 0] 50 %\n[worker 1] plain\n"


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_stop_lets_the_workers_leave(number, tmp_path):
    path = tmp_path / "told.py"
    path.write_text(TOLD)
    process = subprocess.Popen(command(str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert {process.stdout.readline(), process.stdout.readline()} == {
        "[worker 0] hello\n",
        "[worker 1] hello\n",
    }
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + number, err
    assert sorted(out.splitlines()) == ["[worker 0] cleaned up", "[worker 1] cleaned up"]
    assert f"fast: {number.name}: every worker finishes its step and leaves" in err
    assert f"fast: the run was stopped by {number.name}; all workers have ended" in err
    assert "Traceback" not in err


@pytest.mark.real
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_all_at_once(second, started):
    """Also where a worker and the host are stopped, and would wait for the grace period."""
    mark = uuid.uuid4().hex
    process = started(mark)
    await_hello(process)
    pids = [pid for pid in marked(mark) if pid != process.pid]
    for pid in pids:
        if Path(f"/proc/{pid}/comm").read_text().startswith("fast worker"):
            os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    while "SIGTERM" not in process.stderr.readline():
        assert process.poll() is None
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(second)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 128 + second
    assert "all workers have been ended" in err and "Traceback" not in err
    assert await_end(pids) == []


@pytest.mark.real
def test_standard_streams_that_are_closed_are_not_taken_by_others(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAINING.format(code=0))
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&-', "bash", *command("--json", str(tmp_path / "o"), str(path))],
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r'"failure": null', (tmp_path / "o").read_text())


@pytest.mark.parametrize("arguments", [["strategies"], ["strategies", "--json", "-"]])
def test_a_full_disk_is_said_in_one_sentence(arguments, monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["fast", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 1
        assert capsys.readouterr().err == "fast: standard output can't be written: No space left on device\n"


@pytest.mark.real
def test_a_run_whose_output_has_no_room_ends(tmp_path, engine, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(TRAINING.format(code=0))
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["fast", "run", "train.py"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 1
        err = capsys.readouterr().err
        assert err.endswith("fast: standard output can't be written: No space left on device\n")
        assert "Traceback" not in err


def test_who_reads_no_further_ends_the_command_silently():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "fast", "strategies", "--json", "-"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_few_open_files_are_said_in_one_sentence(script):
    """Nothing is started: neither a host nor workers."""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 48; "$@"', "bash", *command(script)], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "fast: 2 workers need 56 open files, and this system allows 48 (`ulimit -Hn`). Raise that limit, or run fewer "
        "workers: each needs 8.\n"
    )
