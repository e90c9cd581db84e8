"""Presets whose workers hear only their neighbours."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Ring, Rule, Topology, Torus, mean, sum_
from fast.parts.codecs.calls import Codec, top_k
from fast.parts.lateness import ForLate
from fast.strategies.catalogue import preset
from fast.strategies.decentral.moments import Moments
from fast.strategies.decentral.neighbours import CompressedGossip, MixNeighbours, NeighbourGradients
from fast.strategies.presets.arguments import (
    bucket_bytes,
    check_is_codec,
    check_is_rule,
    check_is_rule_of_weights,
    check_is_topology,
    check_moments_follow,
)


@preset(
    system="D-PSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights with neighbours, every step",
    topology="ring (any graph)",
    moments="kept local",
    reference="Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017",
)
def dpsgd(topology: Topology = Ring(), moments: str = "keep", rule: Rule = mean) -> Strategy:
    """Decentralised parallel SGD: mix the neighbours' weights, then take a step.

    w_i <- sum_j W_ij w_j - eta g_i(w_i)

    W is symmetric and doubly stochastic (1/3 each on a ring). The weights travel while the gradient is computed,
    which is taken at the weights before they are mixed, as in the original. That one is plain SGD; with an optimizer
    that remembers, `moments` says what happens to its moments in each step: "keep" leaves them local, "average" mixes
    it by W too, "correct" makes SGD's momentum that of the way which neighbours have gone together, "reset" forgets
    it. With a `rule` that tolerates hostile workers, w_i <- rule({w_i, w_j}) - eta g_i(w_i), and W has no say. Sends
    4 d per neighbour: 8 d bytes on a ring, with "average" as much again for each moment. Staleness 0.

    >>> dpsgd()
    dpsgd(topology=ring(), moments='keep', rule=mean)
    """
    check_is_topology("dpsgd", topology)
    check_is_rule_of_weights("dpsgd", rule)
    check_moments_follow("dpsgd", rule, moments)
    return MixNeighbours(topology=topology, moments=Moments(moments), rule=rule)


@preset(
    system="FAST",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="gradients with neighbours, every step",
    topology="torus (incomplete)",
    moments="kept local, made of merged gradients: no weights are replaced",
    reference="Viviani et al., Deep Learning at Scale, PDP 2019",
)
def torus(
    rule: Rule = mean,
    send: str = "auto",
    topology: Topology = Torus(),
    codec: Codec | None = None,
    bucket_mb: float | None = None,
) -> Strategy:
    """FAST's own: workers on a torus exchange gradients with four neighbours and never wait.

    w_i <- optimizer(w_i, m_i),  m_i = rule(g_i, {what arrived since the last step})

    Every letter that arrives is included exactly once; `rule` says how: mean, sum, by_age (what is late counts less),
    momentum_corrected (what is late acts as if it had come in time), a function of (own, weight, arrived), or one
    that tolerates hostile workers. In a step in which fewer arrived than such a rule needs, a worker takes only its
    own.

    With `send="merged"` a worker passes on m_i, what it has applied, so that a gradient travels on from hop to hop.
    With the mean, m then tends to (I + L)^-1 g, L the Laplacian of the graph: positive definite on any graph, so
    every difference between replicas descends the loss, and its columns add up to 1, so their mean moves by the mean
    gradient. With "own" it passes on g_i: m = (I + A) g / (1 + D) with D neighbours each, A their matrix, isn't
    positive definite, and on a ring of four or a torus neighbours may drift apart. "auto" is "merged" for a mean, by
    age or corrected too, and "own" for all other rules and with `bucket_mb`, which sends in buckets while backward
    still runs. The sum rule is stable only where everybody hears everybody, unless the rate is small. Nothing pulls
    weights together: watch the distance. Sends 16 d bytes, or what a codec makes of them. Staleness has no bound.

    >>> torus()
    torus(rule=mean, send='auto', topology=torus(rows=None, columns=None), codec=None, bucket_mb=None)
    """
    check_is_rule("torus", rule)
    check_is_topology("torus", topology)
    check_is_codec("torus", codec)
    size = bucket_bytes(bucket_mb)
    sent = _sent(send, rule, size)
    return NeighbourGradients(topology=topology, rule=rule, send=sent, codec=codec, bucket_bytes=size)


def _sent(send: str, rule: Rule, bucket_bytes: int | None) -> str:
    """The gradient that is passed on: 'own' or 'merged'."""
    if send not in ("auto", "own", "merged"):
        raise UsageError(
            f"torus(send={send!r}): send is 'own' (this step's gradient), 'merged' (what was applied), or 'auto'"
        )
    if send == "merged" and rule is sum_:
        raise UsageError(
            "torus(rule=sum, send='merged'): a sum that is passed on is added up again by every worker that hears it, "
            "and grows without end. Take send='own', or another rule, such as mean."
        )
    if send == "merged" and bucket_bytes is not None:
        raise UsageError(
            "torus(send='merged', bucket_mb=...): what is sent is made of the whole gradient, so no part of it can be "
            "sent before. Leave bucket_mb out, or take send='own'."
        )
    mixes = rule is mean or isinstance(rule, ForLate)
    return send if send != "auto" else "merged" if mixes and bucket_bytes is None else "own"


@preset(
    system="CHOCO-SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="compressed differences of weights with neighbours, every step",
    topology="ring (any graph)",
    moments="kept local",
    reference="Koloskova et al., Decentralized Stochastic Optimization and Gossip Algorithms with Compressed "
    "Communication, ICML 2019",
)
def choco(
    codec: Codec | None = top_k(0.1),
    gamma: float = 0.2,
    topology: Topology = Ring(),
    moments: str = "keep",
) -> Strategy:
    """Compressed gossip: workers send the compressed difference to what their neighbours already know.

    x <- optimizer(w_i, g_i);  q_i = C(x - y_i);  y_j <- y_j + q_j for oneself and each neighbour j
    w_i <- x + gamma sum_j W_ij (y_j - y_i)

    y_j is the copy of worker j that all who hear it keep; it follows w_j although only C of the difference is sent,
    so replicas come to exact consensus with any codec. The coarser the codec, the smaller gamma must be; without
    compression (None) gamma = 1 is `dpsgd` in another order. `moments` says what happens to the optimizer's moments
    in each step, as for `dpsgd`; "average" mixes them by W as it is, not compressed. Sends the codec's bytes per
    neighbour, with "average" 4 d more for each moment. Staleness 0. The topology must not change from round to round.

    >>> from fast.codecs import int8
    >>> choco(codec=int8())
    choco(codec=int8(stochastic=False), gamma=0.2, topology=ring(), moments='keep')
    """
    check_is_topology("choco", topology)
    check_is_codec("choco", codec)
    if not isinstance(gamma, int | float) or isinstance(gamma, bool) or not 0 < gamma <= 1:
        raise UsageError(f"choco(gamma={gamma!r}): the consensus step is more than 0 and at most 1")
    if codec is not None and codec.remembers:
        raise UsageError(
            f"choco(codec={codec!r}): what a difference leaves out is in the next difference by itself, so a codec "
            "that remembers it too sends it twice. Leave error_feedback (or dgc) away."
        )
    if topology.changing or topology.directed:
        raise UsageError(
            f"choco(topology={topology!r}): what neighbours know of each other is built up round by round, so they "
            "must stay the same and hear each other. Take one that is undirected and doesn't change, such as ring()."
        )
    return CompressedGossip(codec=codec, gamma=gamma, topology=topology, moments=Moments(moments))
