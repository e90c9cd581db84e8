"""MPI_Allreduce, to be started by mpiexec: `open_mpi.py REPETITIONS BYTES:ROUNDS ...`.

Prints, for each size, the seconds per round of each repetition, the slowest process's, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
from mpi4py import MPI


def measure(nbytes: int, rounds: int, repetitions: int) -> list[float]:
    world = MPI.COMM_WORLD
    tensor, total = numpy.zeros(nbytes // 4, numpy.float32), numpy.zeros(nbytes // 4, numpy.float32)
    times = []
    for _ in range(repetitions):
        world.Barrier()
        world.Allreduce(tensor, total)
        began = time.perf_counter()
        for _ in range(rounds):
            world.Allreduce(tensor, total)
        times.append(world.allreduce((time.perf_counter() - began) / rounds, op=MPI.MAX))
    return times


def main() -> None:
    sizes = [tuple(map(int, size.split(":"))) for size in sys.argv[2:]]
    times = [measure(nbytes, rounds, int(sys.argv[1])) for nbytes, rounds in sizes]
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main()
