"""Starting a script as torchrun, mpiexec and srun do, with or without them, and looking at what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BODIES = Path(__file__).resolve().parent / "engine"
SCRIPT = str(BODIES / "attached_bodies.py")
LIMIT_S = 100
_MARK = "FAST_TEST_MARK"
_FOREIGN = ("RANK", "WORLD_SIZE", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "FAST_")

Start = Callable[..., subprocess.Popen[str]]


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def sentences(self) -> list[str]:
        """What FAST said, without what it says at the start of every run."""
        said = [line.removeprefix("fast: ") for line in self.err.splitlines() if line.startswith("fast: ")]
        return [
            line for line in said if not line.startswith(("warning: no secret", "3 workers", "4 workers"))
        ]

    @property
    def finals(self) -> list[str]:
        return [line.removeprefix("final ") for line in self.out.splitlines() if line.startswith("final ")]


@dataclass
class Launch:
    """Processes that belong together, found again by a word in their environment."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, argv: Sequence[str], more: Mapping[str, str], start: Start = subprocess.Popen) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        shared = {"OMP_NUM_THREADS": "1", "FAST_SEED": "0", "FAST_DEADLINE": "30", _MARK: self.mark}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environ = clean | shared | dict(more)
        self.processes.append(
            start(list(argv), env=environ, cwd=self.folder, start_new_session=True, **pipes)
        )

    def ended(self) -> list[Ended]:
        """All of them, once nothing runs any more; and that they left nothing."""
        try:
            said = [process.communicate(timeout=LIMIT_S) for process in self.processes]
        finally:
            left = self.kill()
        assert left == [], "they have left processes behind"
        assert list(self.folder.iterdir()) == [], "they have left files behind"
        return [Ended(p.returncode, *each) for p, each in zip(self.processes, said, strict=True)]

    def kill(self) -> list[str]:
        """Kill whatever still runs; what that was."""
        left = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"{_MARK}={self.mark}".encode() in (place / "environ").read_bytes().split(b"\0")
                if ours:
                    left.append((place / "cmdline").read_text().replace("\0", " "))
                    os.kill(int(place.name), signal.SIGKILL)
            except OSError:
                continue
        for process in self.processes:
            process.wait()
        return left


def script(*arguments: object) -> list[str]:
    return [sys.executable, SCRIPT, *map(str, arguments)]


def as_torchrun(workers: int, port: int, host: str = "127.0.0.1") -> list[dict[str, str]]:
    """The environment of each worker where torchrun's agents keep no store, and worker 0 does."""
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        for rank in range(workers)
    ]


def torchrun(*options: object) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *map(str, options), SCRIPT]


def free_port() -> int:
    """One that nobody had a moment ago: whoever else has taken it by then, the test fails with a sentence about it."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
