"""What a process has once and each worker of a replay has for itself.

Between processes all of this is apart by itself. In a replay the workers take turns in one process,
and at each change of turn these are exchanged: random numbers, the script's own modules, its
arguments and folder, and where its output goes.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, final

import numpy
import torch
from torch import Tensor

from fast.runtime.journal import seed_script


@dataclass
class Belongings:
    """Of one participant, while another one has its turn."""

    argv: list[str]
    path: list[str]
    folder: str
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    of_python: Any
    """The states of the generators."""
    of_numpy: Any
    of_torch: Tensor
    dtype: torch.dtype
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """`__main__`, and what was imported from the user's own files."""

    @staticmethod
    def now(modules: Modules) -> Belongings:
        """What is laid out in the process."""
        return Belongings(
            argv=sys.argv,
            path=list(sys.path),
            folder=os.getcwd(),
            stdin=sys.stdin,
            stdout=sys.stdout,
            stderr=sys.stderr,
            of_python=random.getstate(),
            of_numpy=numpy.random.get_state(),
            of_torch=torch.get_rng_state(),
            dtype=torch.get_default_dtype(),
            modules=modules.own(),
        )

    def lay_out(self, modules: Modules) -> None:
        """Make them those of the process, in place of somebody else's."""
        sys.argv, sys.path[:] = self.argv, self.path
        if os.getcwd() != self.folder:
            os.chdir(self.folder)
        sys.stdin, sys.stdout, sys.stderr = self.stdin, self.stdout, self.stderr
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        torch.set_default_dtype(self.dtype)
        for name in modules.own():
            del sys.modules[name]
        sys.modules.update(self.modules)


def start_generators(seed: int | None, worker: int, torch_seed: int) -> None:
    """As they were when this participant started in the recorded run."""
    seed_script(seed, worker)
    torch.default_generator.manual_seed(torch_seed)


_PACKAGES = frozenset({"site-packages", "dist-packages"})


@final
class Modules:
    """Which modules each worker has for itself: its script, and Python files that are installed nowhere.

    What had been imported before is everybody's; so is what was installed (nobody's state is in there,
    and what is compiled can be loaded only once per process).
    """

    def __init__(self) -> None:
        self._shared = set(sys.modules) - {"__main__"}
        names = ("stdlib", "platstdlib", "purelib", "platlib")
        self._installed = {sysconfig.get_path(name) for name in names} | {str(Path(__file__).parents[1])}

    def own(self) -> dict[str, ModuleType]:
        """Those of the worker that has its turn."""
        new = {name: sys.modules[name] for name in sys.modules.keys() - self._shared}
        own = {name: module for name, module in new.items() if name == "__main__" or self._is_users(module)}
        self._shared |= new.keys() - own.keys()
        return own

    def _is_users(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            return False
        path = Path(file)
        if _PACKAGES & set(path.parts):
            return False
        return not any(path.is_relative_to(place) for place in self._installed)
