"""A script of a user that runs under `fast run`, torchrun, mpiexec and srun alike, and fails on demand.

python attached_bodies.py STRATEGY [FAULT WORKER]
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
from torch import nn

import fast
from running import as_text, parameters_of

STEPS, FAULT_AT = 12, 5


def train(strategy: str, fault: str = "", at: int = 1) -> str:
    """The bits of what all workers have in the end."""
    torch.set_num_threads(1)
    me = fast.whoami()
    faulty = fault if me.worker == at else ""
    if faulty == "returns before join":
        sys.exit(0)
    if faulty == "raises before join":
        raise ValueError("no data here")
    torch.manual_seed(me.worker)
    model = nn.Sequential(nn.Linear(6, 300 if faulty == "another model" else 3), nn.Tanh())
    model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), strategy)
    for step in range(STEPS):
        if step == FAULT_AT:
            fail(faulty)
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).sum().backward()
        optimizer.step()
    if faulty == "fails at its end":
        raise ValueError("no room for it")
    return as_text(parameters_of(fast.consolidate(model)))


def fail(fault: str) -> None:
    match fault:
        case "raises":
            raise ValueError("a bad sample")
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "is interrupted":
            os.kill(os.getpid(), signal.SIGINT)
        case "is told to stop":
            os.kill(os.getpid(), signal.SIGTERM)
        case "is told to stop with its group":
            os.killpg(os.getpgrp(), signal.SIGTERM)
        case "is gone without a word":
            os._exit(0)
        case "returns":
            sys.exit(0)
        case "exits with 3":
            sys.exit(3)
        case "forks":
            child = os.fork()
            if child == 0:
                sys.exit(0)  # runs what is registered to run at the end
            os.waitpid(child, 0)
        case "hangs":
            threading.Event().wait()


def in_this_attempt(fault: str) -> str:
    """A fault may be one of the first attempt only: torchrun starts all workers again."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return "" if again and fault == "raises once" else fault.removesuffix(" once")


if __name__ == "__main__":
    strategy, fault, at = (*sys.argv[1:], "", "1")[:3]
    print(f"final {train(strategy, in_this_attempt(fault), int(at))}\n", end="", flush=True)
