"""Presets whose workers hear only their neighbours."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Ring, Rule, Topology, Torus, mean
from fast.parts.codecs.calls import Codec, top_k
from fast.strategies.catalogue import preset
from fast.strategies.decentral.neighbours import CompressedGossip, MixNeighbours, NeighbourGradients
from fast.strategies.presets.arguments import bucket_bytes, check_is_rule


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

    Every gradient that arrives is included exactly once; `rule` says how: mean, sum, a function, or one that
    stands hostile workers. In a step in which fewer arrived than such a rule needs, a worker takes only its own.
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
    check_is_rule("torus", rule)
    size = bucket_bytes(bucket_mb)
    if send == "merged" and size is not None:
        raise UsageError(
            "torus(send='merged', bucket_mb=...): what is sent is made of the whole gradient, so no part of it can be "
            "sent before. Leave bucket_mb out, or send='own'."
        )
    return NeighbourGradients(topology=topology, rule=rule, send=send, codec=codec, bucket_bytes=size)


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
