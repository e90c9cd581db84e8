"""The presets: each configures a family in a few lines and carries the paper's name.

In the equations w_i are worker i's weights, g_i its mini-batch gradient at its own weights, eta the
step of the user's optimizer and P the number of workers. Bytes are per worker and step, for d
values of 4 bytes; a letter adds a header of 256 bytes.
"""

from __future__ import annotations

from math import isnan

from fast.collectives.sums import algorithms_for, check_algorithm
from fast.core import Strategy
from fast.core.rounds import How
from fast.errors import UsageError
from fast.parts import Ring, Rule, Topology, Torus, mean
from fast.parts.codecs.calls import Codec, top_k
from fast.strategies.averaging import AllReduce, LocalSteps
from fast.strategies.catalogue import preset
from fast.strategies.factors import FactorBroadcast
from fast.strategies.gossip import PushGossip
from fast.strategies.neighbours import CompressedGossip, MixNeighbours, NeighbourGradients
from fast.strategies.server import StaleSynchronous


@preset(
    system="PyTorch DDP",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="gradients, every step",
    topology="all-reduce",
    reference="Li et al., PyTorch Distributed, VLDB 2020",
)
def allreduce(
    codec: Codec | None = None,
    algorithm: str = "auto",
    order: str = "canonical",
    bucket_mb: float | None = None,
) -> Strategy:
    """Synchronous training: all workers take the same step with the mean gradient.

    w <- optimizer(w, mean_i C(g_i))

    Without a codec C equal to one worker with P times the batch. The sum is made by ascending worker;
    `order="any"` lets the cost model choose among all algorithms, `algorithm="ring"` names one.
    `bucket_mb` sends the gradient in buckets of that size while backward is still running.
    Sends 8 d (P - 1) / P bytes, or what the codec makes of them. Staleness 0.

    >>> from fast.codecs import fp16
    >>> allreduce(codec=fp16())
    allreduce(codec=fp16(), algorithm='auto', order='canonical', bucket_mb=None)
    """
    check_algorithm(algorithm, *algorithms_for(codec))
    How(codec, algorithm, order)
    return AllReduce(codec=codec, algorithm=algorithm, order=order, bucket_bytes=bucket_bytes(bucket_mb))


@preset(
    system="SparkNet, local SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights, every tau steps",
    topology="all-reduce",
    reference="Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019",
)
def local_sgd(tau: int = 10) -> Strategy:
    """Local steps, and the mean of the weights every tau steps.

    w_i <- optimizer(w_i, g_i);  every tau steps  w_i <- mean_j w_j

    The optimizer's own state (momentum, moments) stays local. Sends 8 d (P - 1) / (P tau) bytes.
    Staleness 0. With tau = 1 and plain SGD it is `allreduce`.

    >>> local_sgd(tau=4)
    local_sgd(tau=4)
    """
    if not isinstance(tau, int) or isinstance(tau, bool) or tau < 1:
        raise UsageError(
            f"local_sgd(tau={tau!r}): tau counts steps between exchanges, a whole number from 1 on"
        )
    return LocalSteps(tau=tau)


@preset(
    system="Petuum",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up, weights down, every step",
    topology="one server",
    reference="Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013",
)
def ssp(bound: float = 3, codec: Codec | None = None, bucket_mb: float | None = None) -> Strategy:
    """Stale-synchronous training on one server: no worker runs more than `bound` steps ahead.

    push g_i of clock c;  server: w <- optimizer(w, g_i / P) on arrival;
    the read of clock c + 1 waits until it holds everybody's updates up to clock c - bound

    Bound 0 collects the pushes of one clock into one mean: bitwise synchronous. Bound inf never
    waits. Sends 4 d bytes (the server sends as much to each worker); a codec makes the pushes smaller,
    `bucket_mb` sends them in buckets while backward is still running. The optimizer runs on the server.
    A worker that is *always* slow holds the others back to its own pace.

    >>> ssp(bound=2)
    ssp(bound=2, codec=None, bucket_mb=None)
    """
    if not isinstance(bound, int | float) or isinstance(bound, bool) or isnan(bound) or bound < 0:
        raise UsageError(f"ssp(bound={bound!r}): the bound counts steps, 0 or more; inf for no bound")
    return StaleSynchronous(bound=bound, codec=codec, bucket_bytes=bucket_bytes(bucket_mb))


@preset(
    system="D-PSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights with neighbours, every step",
    topology="ring (any graph)",
    reference="Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017",
)
def dpsgd(topology: Topology = Ring()) -> Strategy:
    """Decentralised parallel SGD: mix the neighbours' weights, then take the own step.

    w_i <- sum_j W_ij w_j - eta g_i(w_i)

    W is symmetric and doubly stochastic (1/3 each on a ring). The weights travel while the
    gradient is computed. Sends 4 d per neighbour: 8 d bytes on a ring. Staleness 0.

    >>> dpsgd()
    dpsgd(topology=ring())
    """
    return MixNeighbours(topology=topology)


@preset(
    system="FAST",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="gradients with neighbours, every step",
    topology="torus (incomplete)",
    reference="Viviani et al., Deep Learning at Scale, PDP 2019",
)
def torus(
    rule: Rule = mean,
    send: str = "own",
    topology: Topology = Torus(),
    codec: Codec | None = None,
    bucket_mb: float | None = None,
) -> Strategy:
    """FAST's own: workers on a torus exchange gradients with four neighbours and never wait.

    w_i <- optimizer(w_i, rule(g_i, {g_j that arrived since the last step}))

    Every gradient that arrives is included exactly once; `rule` says how (mean, sum or a function).
    `send="merged"` passes on what was applied, so that information travels several hops and
    replicas stay closer. Replicas drift apart: watch the distance. The sum rule is stable only where
    everybody hears everybody; on a torus of 4 or more it diverges unless the rate is small.
    Sends 16 d bytes, or what a codec makes of them; with `bucket_mb` in buckets while backward is
    still running. Staleness has no bound.

    >>> torus()
    torus(rule=mean, send='own', topology=torus(rows=None, columns=None), codec=None, bucket_mb=None)
    """
    if send not in ("own", "merged"):
        raise UsageError(
            f"torus(send={send!r}): send is 'own' (this step's gradient) or 'merged' (what was applied)"
        )
    if not callable(rule):
        raise UsageError(f"torus(rule={rule!r}): a rule is mean, sum or a function of (own, weight, arrived)")
    size = bucket_bytes(bucket_mb)
    if send == "merged" and size is not None:
        raise UsageError(
            "torus(send='merged', bucket_mb=...): what is sent is made of the whole gradient, so no part of it can be "
            "sent before. Leave bucket_mb out, or send='own'."
        )
    return NeighbourGradients(topology=topology, rule=rule, send=send, codec=codec, bucket_bytes=size)


@preset(
    system="GoSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="weights to one random worker, with probability p",
    topology="random pairs",
    reference="Blot et al., Gossip Training for Deep Learning, 2016",
)
def gossip(p: float = 0.02) -> Strategy:
    """Gossip training: now and then send the weights and half the share to a random worker.

    on (w_j, a_j):  w_i <- (a_i w_i + a_j w_j) / (a_i + a_j);  a_i <- a_i + a_j
    w_i <- optimizer(w_i, g_i);  with probability p:  a_i <- a_i / 2, send (w_i, a_i)

    The shares of all workers and letters add up to 1. Sends 4 d p bytes. Staleness has no bound.

    >>> gossip(p=0.1)
    gossip(p=0.1)
    """
    if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p <= 1:
        raise UsageError(f"gossip(p={p!r}): p is a probability, from 0 to 1")
    return PushGossip(p=p)


@preset(
    system="CHOCO-SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="compressed differences of weights with neighbours, every step",
    topology="ring (any graph)",
    reference="Koloskova et al., Decentralized Stochastic Optimization and Gossip Algorithms with Compressed "
    "Communication, ICML 2019",
)
def choco(codec: Codec = top_k(0.1), gamma: float = 0.2, topology: Topology = Ring()) -> Strategy:
    """Compressed gossip: what is sent is the compressed difference to what the neighbours already know.

    x <- optimizer(w_i, g_i);  q_i = C(x - y_i);  y_j <- y_j + q_j for oneself and each neighbour j
    w_i <- x + gamma sum_j W_ij (y_j - y_i)

    y_j is the copy of worker j that all who hear it keep; it follows w_j although only C of the
    difference is sent, so replicas come to exact consensus with any codec. The coarser the codec,
    the smaller gamma must be; without compression gamma = 1 is `dpsgd` in another order.
    Sends the codec's bytes per neighbour. Staleness 0. The topology must not change from round to round.

    >>> from fast.codecs import int8
    >>> choco(codec=int8())
    choco(codec=int8(stochastic=False), gamma=0.2, topology=ring())
    """
    if not isinstance(gamma, int | float) or isinstance(gamma, bool) or not 0 < gamma <= 1:
        raise UsageError(f"choco(gamma={gamma!r}): the consensus step is more than 0 and at most 1")
    if codec.remembers:
        raise UsageError(
            f"choco(codec={codec!r}): what a difference leaves out is in the next difference by itself, so a codec "
            "that remembers it too sends it twice. Leave error_feedback (or dgc) away."
        )
    if topology.changing or topology.directed:
        raise UsageError(
            f"choco(topology={topology!r}): what neighbours know of each other is built up round by round, so they "
            "must stay the same and hear each other. Take one that is undirected and doesn't change, such as ring()."
        )
    return CompressedGossip(codec=codec, gamma=gamma, topology=topology)


@preset(
    system="Project Adam, SFB",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="factors of linear layers, other gradients, every step",
    topology="all to all",
    reference="Xie et al., Lighter-Communication Distributed Machine Learning via Sufficient Factor "
    "Broadcasting, UAI 2016",
)
def sfb() -> Strategy:
    """Sufficient factor broadcasting: linear layers send activations and errors instead of gradients.

    y = x W^T:  g_i = delta_i^T x_i;  send (x_i, delta_i) to all;  w <- optimizer(w, mean_i delta_i^T x_i)

    The steps of `allreduce`, up to rounding. A layer goes this way in a step if it pays on all
    workers, P N (in + out) < 2 in out for N rows, and its factors rebuild its gradient exactly; the
    d other values go through a mean. Sends (P - 1) (4 N (in + out) per layer + 4 per matrix that
    could pay) + 8 d (P - 1) / P bytes. Staleness 0.

    >>> sfb()
    sfb()
    """
    return FactorBroadcast()


def bucket_bytes(bucket_mb: float | None) -> int | None:
    """The least size of a bucket, in bytes."""
    if bucket_mb is None:
        return None
    if isinstance(bucket_mb, bool) or not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
        raise UsageError(
            f"bucket_mb={bucket_mb!r}: the least size of a bucket in MB, more than 0, or None for no buckets"
        )
    return max(1, int(min(bucket_mb, 1e6) * 1e6))
