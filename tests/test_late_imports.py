"""What takes long to import, or isn't always there, is imported when it is needed: seen in one fresh process."""

from __future__ import annotations

import subprocess
import sys

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
