"""What runs inside real workers in the tests of the benchmarks' contestants."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fast.engine import current_seat
from fast.lab import load_task
from fast.loop.session import close_sessions, session_of
from fast.runtime import RealWorld
from fast.view import View
from running import as_text, parameters_of
from scripts import BENCHMARKS, script

SMALL = [6, 5, 3]


def train_each(folder: str) -> dict[str, tuple[str, str]]:
    """A few steps of each contestant of training_step: what its model is, and its weights."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    contest, seat = script("training_step"), current_seat()
    with script("harness").gloo(folder):
        found = contest.contestants(SMALL, seat.id)
        for _ in range(3):
            for contestant in found.values():
                contestant()
        ended = {name: _told(seat, each.args[0]) for name, each in found.items()}
        close_sessions(seat)
    return ended


def _told(seat: Any, model: torch.nn.Module) -> tuple[str, str]:
    kind = "joined" if session_of(seat, model) is not None else type(model).__name__
    return kind, as_text(parameters_of(model))


def reduce_each(folder: str) -> dict[str, Any]:
    """What each contestant of allreduce leaves."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    contest, seat, nbytes = script("allreduce"), current_seat(), 48
    transport = seat.connect()
    world = RealWorld(transport, View(0, tuple(range(seat.workers))), ())
    with script("harness").gloo(folder):
        found = contest.contestants(world, transport, nbytes)
        (given,) = found[contest.GLOO].args
        given.fill_(seat.id + 1)
        found[contest.GLOO]()
        told = {
            contest.OURS: found[contest.OURS]().tolist(),
            contest.GLOO: given.tolist(),
            contest.MEMORY: found[contest.MEMORY]().nbytes,
        }
    world.close()
    return told


def run_ddp(folder: str, to: str) -> tuple[str, list[int], bool]:
    """The script of the peer as torchrun would start it, with a file in the place of an address. Gives the weights of
    the model that was wrapped, the samples that were trained on, and whether a result was written."""
    seat, begin = current_seat(), dist.init_process_group
    wrapped, batches = list[torch.nn.Module](), list[int]()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    class Noting(DistributedDataParallel):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            wrapped.append(self)

    def begun(backend: str) -> None:
        begin(backend, init_method=f"file://{folder}/ddp", rank=seat.id, world_size=seat.workers)

    sys.argv = ["ddp.py", "quadratic", "1", "0", to]
    dist.init_process_group = begun
    torch.nn.parallel.DistributedDataParallel = Noting  # type: ignore[misc]
    task = type(load_task("quadratic"))
    plain = task.batch

    def batch(self: Any, indices: Any) -> Any:
        batches.extend(int(each) for each in indices)
        return plain(self, indices)

    task.batch = batch  # type: ignore[method-assign]
    runpy.run_path(str(BENCHMARKS / "peers" / "ddp.py"), run_name="__main__")
    (model,) = wrapped
    return as_text(parameters_of(model)), batches, Path(to).exists()


def send_each(folder: str) -> dict[str, Any]:
    """What the contestants of tcp send their letters over, and that a letter of each arrives."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    contest, seat = script("tcp"), current_seat()
    with script("harness").gloo(folder):
        ours = {
            name: contest.connect(folder, tls=name == contest.TLS) for name in (contest.PLAIN, contest.TLS)
        }
        peers = {
            name: contest.sockets(folder, tls=name == contest.RAW_TLS)
            for name in (contest.RAW, contest.RAW_TLS)
        }
        for transport in ours.values():
            contest.letter_of_ours(transport, 4_000)()
        for peer in peers.values():
            contest.letter_of_peer(peer, 4_000)()
        told = {
            name: [transport.ways[1 - seat.id].link.received, transport.ways[1 - seat.id].link.sent]
            for name, transport in ours.items()
        }
        kinds = {name: type(peer).__name__ for name, peer in peers.items()}
        encrypted = {
            name: type(transport.ways[1 - seat.id].connection.sock).__name__
            for name, transport in ours.items()
        }
        dist.barrier()
        for transport in ours.values():
            contest.leave(transport)
        for peer in peers.values():
            peer.close()
    return {"letters": told, "kinds": kinds | encrypted}
