"""A synchronous step whose gradient is sent in buckets during backward, against one that sends it afterwards.

On this host: jobs with and without buckets take turns, each on fresh workers, and each pair of jobs gives one
ratio. Over slower links: the same model in the simulator, in virtual time (20 ms of computing per step), where
the ratio follows from the model of the links and is the same every time.
"""

from __future__ import annotations

import time

import torch
from torch.nn import functional as F

import fast
import harness
from fast.adapters import TorchReplica
from fast.engine import LocalEngine, current_seat
from fast.loop.session import close_sessions
from fast.sim import NETWORKS, Compute, Simulation, SimWorker
from harness import Row, Times
from training_step import MODELS, batch, fresh, step

MODEL = "1.9 M MLP"
WORKERS = (2, 4)
BUCKETS_MB = (0.5, 3)
PLAIN = "allreduce"


def worker(strategy: str, rounds: int, folder: str) -> Times:
    """Seconds per step of one worker; the first steps, which touch the memory, don't count."""
    seat, widths = current_seat(), list(MODELS[MODEL])
    x, y = batch(widths, seat.id)
    model, optimizer = fast.join(*fresh(widths), strategy)
    for _ in range(5):
        step(model, optimizer, x, y)
    began = time.perf_counter()
    for _ in range(rounds):
        step(model, optimizer, x, y)
    took = (time.perf_counter() - began) / rounds
    close_sessions(seat)
    return {"step": [took]}


def bucketed(megabytes: float) -> str:
    return f"allreduce(bucket_mb={megabytes})"


def contest(engine: LocalEngine, workers: int, *, repetitions: int, rounds: int) -> list[Row]:
    calls = [PLAIN, *map(bucketed, BUCKETS_MB)]
    times: Times = {call: [] for call in calls}
    for repetition in range(repetitions):
        shift = repetition % len(calls)
        for call in calls[shift:] + calls[:shift]:
            times[call] += harness.run(engine, workers, "overlap:worker", strategy=call, rounds=rounds)[
                "step"
            ]
    name = f"{MODEL}, {workers} workers of this host"
    return [
        harness.compare(f"{name}, {size} MB", times[bucketed(size)], times[PLAIN], "no overlap")
        for size in BUCKETS_MB
    ]


# In virtual time


def simulated_s(strategy: fast.Strategy, workers: int, network: str, steps: int = 3) -> float:
    """Virtual seconds per step."""
    widths = list(MODELS[MODEL])

    def made(number: int) -> SimWorker:
        model, optimizer = fresh(widths)
        replica = TorchReplica(model, optimizer)

        def compute(data: tuple[torch.Tensor, torch.Tensor]) -> None:
            replica.backward(F.cross_entropy(model(data[0]), data[1]))

        return SimWorker(replica, iter([batch(widths, number)] * steps), compute)

    simulation = Simulation(
        strategy, [made(number) for number in range(workers)], network=NETWORKS[network], compute=Compute()
    )
    simulation.run()
    return simulation.now_ns / 1e9 / steps


def simulated(network: str, workers: int = 4) -> list[Row]:
    plain = simulated_s(fast.presets.allreduce(), workers, network)
    rows = []
    for size in BUCKETS_MB:
        ours = simulated_s(fast.presets.allreduce(bucket_mb=size), workers, network)
        name = f"{MODEL}, {workers} simulated workers, {network}, {size} MB"
        rows.append(harness.compare(name, [ours], [plain], "no overlap"))
    return rows


def main() -> None:
    options = harness.options(__doc__)
    effort = {"repetitions": 3, "rounds": 20} if options.quick else {"repetitions": 9, "rounds": 60}
    rows = [row for network in ("1gbit", "10gbit") for row in simulated(network)]
    with harness.engine() as engine:
        for workers in WORKERS:
            rows += contest(engine, workers, **effort)
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
