"""MPI_Allreduce, to be started by mpiexec: `open_mpi.py BYTES REPETITIONS ROUNDS`.

Prints the seconds per round of each repetition, the slowest process's, as a JSON list.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
from mpi4py import MPI


def main() -> None:
    nbytes, repetitions, rounds = map(int, sys.argv[1:])
    world = MPI.COMM_WORLD
    tensor, total = numpy.zeros(nbytes // 4, numpy.float32), numpy.zeros(nbytes // 4, numpy.float32)
    world.Allreduce(tensor, total)
    times = []
    for _ in range(repetitions):
        world.Barrier()
        world.Allreduce(tensor, total)
        began = time.perf_counter()
        for _ in range(rounds):
            world.Allreduce(tensor, total)
        times.append(world.allreduce((time.perf_counter() - began) / rounds, op=MPI.MAX))
    if world.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main()
