"""Which worker the environment says that this process is: torchrun's, MPI's and Slurm's variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fast.engine.attached.mpi import open_mpi
from fast.engine.attached.rendezvous import Rendezvous, StoreRendezvous, open_store
from fast.errors import UsageError

_STORE_PORT_BASE, _STORE_PORTS = 20_000, 12_000  # below those that the system hands out
_OF_A_STEP = frozenset(
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"}
)


@dataclass(frozen=True)
class Place:
    """A worker among others that somebody else has started."""

    engine: str
    worker: int
    workers: int
    meets_at: str
    """A host that all can reach, if the launcher names one."""
    rendezvous: Callable[[float], Rendezvous]
    """Given the deadline."""


def place_in(environ: Mapping[str, str]) -> Place | None:
    """None for a plain script."""
    for find in (_torchrun, _mpi, _slurm):
        place = find(environ)
        if place is not None:
            return place if place.workers > 1 else None
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise UsageError(f"{name}={environ[name]!r} in the environment isn't a number") from None


# torchrun


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    """`torchrun train.py`, and anything else that sets the variables of torch.distributed."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return None
    worker, workers = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    host, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    # A restarted group must not read what the group before it has left in the store.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def rendezvous(deadline_s: float) -> Rendezvous:
        serves = worker == 0 and not agents
        store = open_store(host, port, serves=serves, deadline_s=deadline_s)
        return StoreRendezvous(store, worker, workers, f"fast/{attempt}", serves=serves)

    return Place("torchrun", worker, workers, host, rendezvous)


# MPI


def _mpi(environ: Mapping[str, str]) -> Place | None:
    """`mpiexec -n 4 python train.py`, with Open MPI or with a launcher that speaks PMI."""
    for worker, workers in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if worker in environ and workers in environ:
            return Place("mpi", _number(environ, worker), _number(environ, workers), "", open_mpi)
    return None


# Slurm


def _slurm(environ: Mapping[str, str]) -> Place | None:
    """`srun python train.py`. In the batch script itself there is no step, and nothing to attach to."""
    if not environ.keys() >= _OF_A_STEP:
        return None
    worker, workers = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    host = environ.get("FAST_COORDINATOR", first_host(environ["SLURM_STEP_NODELIST"]))
    # Two steps of one allocation may run at once; each of them finds a port of its own.
    chosen = (_number(environ, "SLURM_JOB_ID") * 31 + _number(environ, "SLURM_STEP_ID")) % _STORE_PORTS
    port = _STORE_PORT_BASE + chosen

    def rendezvous(deadline_s: float) -> Rendezvous:
        store = open_store(host, port, serves=worker == 0, deadline_s=deadline_s)
        return StoreRendezvous(store, worker, workers, "fast", serves=worker == 0)

    return Place("slurm", worker, workers, host, rendezvous)


def first_host(hosts: str) -> str:
    """The first of Slurm's list of hosts.

    >>> first_host("gpu[003-007,9],login1")
    'gpu003'
    >>> first_host("alpha,beta")
    'alpha'
    """
    name, bracket, rest = hosts.partition("[")
    if not bracket or "," in name:
        return hosts.split(",")[0]
    inside, _, behind = rest.partition("]")
    return first_host(name + inside.split(",")[0].split("-")[0] + behind)
