"""What takes long to import, or isn't always there, is imported when it is needed: seen in one fresh process."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fast
from fast.cli.commands import COMMANDS

LATE = ("matplotlib", "sklearn", "numba", "optuna", "mpi4py", "selenium", "cryptography")

PROGRAM = f"""
import sys
import fast, fast.cli.app, fast.lab.report, fast.lab.tasks, fast.lab.verdict
from fast.parts.codecs import casts, eight_bit, qsgd, signs, ternary
from fast.parts.kernels.hashing import hashes
print(*[name for name in {LATE!r} if name in sys.modules])
import torch
hashes(torch.empty(4, dtype=torch.int64), (1, 2))
print("numba" in sys.modules)
"""


def test_importing_all_of_ours_leaves_out_what_a_kernel_a_picture_or_data_need() -> None:
    """A report imports matplotlib, data of tasks scikit-learn, and a kernel that runs on the CPU numba."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["", "True"], done.stderr


HEAVY = ("torch", "numpy", "numba", "scipy", "sklearn", "matplotlib", "networkx", "jinja2")
HELP = """
import sys
from fast.cli import main
sys.argv = ["fast", *{arguments!r}]
try:
    main()
except SystemExit as end:
    print(end.code, *[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], "0"), (["--version"], "0"), (["nonsense"], "2"), ([], "2")]
)
def test_the_command_says_what_there_is_without_importing_torch(arguments: list[str], code: str) -> None:
    program = HELP.format(arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1] == code, done.stderr


def test_a_shell_completes_names_of_commands_without_importing_torch() -> None:
    asked = {"_FAST_COMPLETE": "complete_bash", "COMP_WORDS": "fast s", "COMP_CWORD": "1"}
    program = HELP.format(arguments=[], heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | asked
    )
    assert set(done.stdout.split()) == {name for name in COMMANDS if name.startswith("s")}
    assert done.stderr.split() == ["0"], done.stderr


USE = f"""
import sys, types
import fast
from fast.cli.commands import COMMANDS
print(*[name for name in {HEAVY!r} if name in sys.modules])
import fast.codecs
from fast.topologies import Ring
print(Ring is fast.topologies.Ring, fast.topologies is sys.modules["fast.parts.topology"])
print(fast.codecs is sys.modules["fast.parts.codecs.calls"], fast.codecs.int8 is not None)
print(*[name for name in fast.__all__ if getattr(fast, name, None) is None or name not in dir(fast)])
print(hasattr(fast, "nonsense"), hasattr(fast.rules, "nonsense"))
"""


def test_importing_fast_imports_nothing_until_a_name_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["", "True True", "True True", "", "False False"], done.stderr


def test_what_type_checkers_see_is_what_there_is() -> None:
    """They read the imports that never run."""
    tree = ast.parse(Path(fast.__file__).read_text("utf-8"))
    (block,) = [each for each in tree.body if isinstance(each, ast.If)]
    for each in block.body:
        assert isinstance(each, ast.ImportFrom) and each.module is not None
        for alias in each.names:
            module = importlib.import_module(each.module)
            meant = getattr(module, alias.name, None) or importlib.import_module(
                f"{each.module}.{alias.name}"
            )
            assert getattr(fast, alias.asname or alias.name) is meant
    seen = {
        alias.asname or alias.name
        for each in tree.body + block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert set(fast.__all__) <= seen
