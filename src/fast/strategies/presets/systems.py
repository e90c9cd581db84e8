"""Presets named after systems with special routes for updates: trees, caches, factors, shared memory."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts.arguments import check_whole
from fast.strategies.catalogue import preset
from fast.strategies.central.adam import FactorPushes
from fast.strategies.central.hogwild import LockFree
from fast.strategies.central.proxies import Proxies
from fast.strategies.central.tree import BinomialTree


@preset(
    system="FireCaffe",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="sums of gradients up, weights down, every step",
    topology="binomial tree to one server",
    reference="Iandola et al., FireCaffe: Near-Linear Acceleration of Deep Neural Network Training on Compute "
    "Clusters, CVPR 2016",
)
def firecaffe() -> Strategy:
    """Synchronous training on one server at the root of a binomial tree of workers.

    up:    S_i = g_i + sum of the children's S, sent to the parent;   root: w <- optimizer(w, sum of S / P)
    down:  w to the children, and from them to theirs

    Worker i has place i + 1 and the server place 0; the parent of a place is that place without its lowest
    bit. So the server gets and sends ceil(log2(P + 1)) letters a step and not P, and nothing is more than as
    many hops away. The order of the sum is the tree's: equal to `allreduce` up to rounding. Gradients count by
    their samples. Who leaves is passed by: its children go to its parent. Sends 4 d bytes up, and 4 d to each
    child, of which there are (P - ceil(log2(P + 1))) / P per worker. Staleness 0. FireCaffe's root is one of its
    workers, whose gradient needs no letter; ours is a server of its own that runs the user's optimizer.

    >>> firecaffe()
    firecaffe()
    """
    return BinomialTree()


@preset(
    system="hierarchical parameter servers",
    parallelism="data",
    optimization="central",
    scheduling="synchronous (flush=1) or unbounded delay",
    exchange="gradients up, weights down, every step; sums of them to the root",
    topology="proxies of groups, and one server",
    reference="Langer et al., Distributed Training of Deep Learning Models: A Taxonomic Perspective, TPDS 2020",
)
def proxies(group: int = 4, flush: int = 1) -> Strategy:
    """Servers that are write-back caches: groups of workers push to a proxy, and only proxies to the root.

    flush = 1:  proxy j: D_j = sum of g_i over its group;  root, when all are there: w <- optimizer(w, sum_j D_j / P)
    flush > 1:  proxy j on arrival: w_j <- optimizer_j(w_j, g_i / P), D_j <- D_j + g_i / P;
                after `flush` rounds' worth of pushes  root: w <- optimizer(w, D_j);  w_j <- w;  D_j <- 0

    Worker i belongs to group i // group. With flush = 1 all wait for all: equal to `allreduce` up to rounding,
    staleness 0. With more, workers read the cached copy and nobody waits for another group; a proxy's optimizer has
    a state of its own, and staleness has no bound. Every gradient gets to the root exactly once, the last ones when
    their group has left. With unequal batches 1 / P becomes the share of the samples (those of other groups as of their
    last write-back). Sends 4 d bytes (and 4 d come back); the root gets 4 d per group and flush, 1 / (group flush) of
    what P workers would send it.

    >>> proxies(group=8)
    proxies(group=8, flush=1)
    """
    check_whole("proxies", "group", group, 2)
    check_whole("proxies", "flush", flush, 1)
    return Proxies(group=group, flush=flush)


@preset(
    system="Project Adam",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="factors of linear layers and other gradients up, weights down, every step",
    topology="one server",
    reference="Chilimbi et al., Project Adam: Building an Efficient and Scalable Deep Learning Training System, "
    "OSDI 2014",
)
def project_adam() -> Strategy:
    """An asynchronous server that gets activations and errors of linear layers, and rebuilds their gradients.

    y = x W^T:  push (x_i, delta_i) where that is less, else g_i;  server, on arrival:
    g_i = delta_i^T x_i;  w <- optimizer(w, g_i / P);  answer with w

    The server does the multiplication that a small batch makes cheap, and is spared N (in + out) < in out values
    of each such layer. The result is that of `ssp(bound=inf)`: a layer goes this way in a step only if its factors
    rebuild its gradient to the bit. Sends 4 N (in + out) bytes per such layer, 4 per matrix that could pay, and
    4 d' for the d' other values; 4 d come back. Staleness has no bound. In Project Adam an epoch ends when 75 %
    of its samples are done, so that nobody waits for the slowest: `fast.shard(loader, finish=0.75)`. Its servers
    are shards, its convolutions send gradients, and the threads of one of its machines share a model without locks
    (`hogwild`); here there is one server, and a worker is one process.

    >>> project_adam()
    project_adam()
    """
    return FactorPushes()


@preset(
    system="HOGWILD!",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="changed components of shared memory, every step",
    topology="shared memory of one host",
    moments="kept local: only changes of weights are written",
    reference="Niu et al., HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, NIPS 2011",
)
def hogwild(atomic: bool = False) -> Strategy:
    """Lock-free training on one weight tensor in the shared memory of a host.

    read w from the memory;  w' = optimizer(w, g(w));  for each component v with w'_v != w_v:
    memory_v <- w'_v if it still is w_v,  else memory_v + (w'_v - w_v)

    No worker waits, and a read may be half old and half new. Two who change one component in the same
    moment lose one of the changes; with `atomic=True` (compare and swap) none is lost. Components that a step
    doesn't change are never written, so updates with different supports can't disturb each other. As in the paper
    every worker takes full steps, with a gradient computed on what it has read. The paper's steps are plain SGD on the
    few components of one sample, with a rate that shrinks from epoch to epoch; here the optimizer is the user's
    and its momentum stays local. Sends nothing. Staleness has no bound. Only on one host; promises no bits.

    >>> hogwild()
    hogwild(atomic=False)
    """
    if not isinstance(atomic, bool):
        raise UsageError(f"hogwild(atomic={atomic!r}): True for additions of which none is lost, or False")
    return LockFree(atomic=atomic)
