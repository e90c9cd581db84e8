"""Presets whose workers send to one peer at a time: a random one, or the next in a schedule."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Bipartite, Exponential, Shuffled, Topology
from fast.parts.arguments import check_whole
from fast.strategies.catalogue import preset
from fast.strategies.decentral.gossip import PushGossip
from fast.strategies.decentral.moments import Moments
from fast.strategies.decentral.neighbours import MixNeighbours
from fast.strategies.decentral.pairs import PairAverage
from fast.strategies.decentral.pushsum import PushSum
from fast.strategies.presets.arguments import check_is_topology, check_no_average


@preset(
    system="gossip",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="weights to one random worker, with probability p",
    topology="random pairs",
    moments="kept local",
    reference="Blot et al., Gossip Training for Deep Learning, 2016",
)
def gossip(p: float = 0.02, moments: str = "keep") -> Strategy:
    """Gossip training: with probability p, send the weights and half the share to a random worker.

    on (w_j, a_j):  w_i <- (a_i w_i + a_j w_j) / (a_i + a_j);  a_i <- a_i + a_j
    w_i <- optimizer(w_i, g_i);  with probability p:  a_i <- a_i / 2, send (w_i, a_i)

    The shares of all workers and letters add up to 1. `moments` says what happens to the optimizer's moments when
    somebody's weights have come: "keep" leaves them local, "average" sends them too and mixes them by the same
    shares, "reset" forgets them, "correct" makes SGD's momentum that of the way really gone. Sends 4 d p bytes, with
    "average" as much again for each moment. Staleness has no bound.

    >>> gossip(p=0.1)
    gossip(p=0.1, moments='keep')
    """
    _check_probability("gossip", p)
    return PushGossip(p=p, moments=Moments(moments))


@preset(
    system="GoSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="weights to one random worker, with probability p",
    topology="random pairs",
    moments="kept local",
    reference="Blot et al., GoSGD: Distributed Optimization for Deep Learning with Gossip Exchange, 2018",
)
def gosgd(p: float = 0.02, moments: str = "keep") -> Strategy:
    """GoSGD: the name that its authors gave to what `gossip` does, and the same program.

    on (w_j, a_j):  w_i <- (a_i w_i + a_j w_j) / (a_i + a_j);  a_i <- a_i + a_j
    w_i <- optimizer(w_i, g_i);  with probability p:  a_i <- a_i / 2, send (w_i, a_i)

    The original's queue of messages is read before each step, so is the mailbox here; letters of one sender
    that wait together count as their weighted mean, which is what reading them one by one would give.
    With p = 0 everybody trains alone. Momentum and moments stay local, as in the original, unless `moments` says
    otherwise, as for `gossip`. Sends 4 d p bytes. Staleness has no bound.

    >>> gosgd(p=0.1)
    gosgd(p=0.1, moments='keep')
    """
    _check_probability("gosgd", p)
    return PushGossip(p=p, moments=Moments(moments))


@preset(
    system="AD-PSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="weights with one random neighbour, whenever the last answer has come",
    topology="bipartite (any graph with two sides)",
    moments="kept local",
    reference="Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018",
)
def ad_psgd(topology: Topology = Bipartite(), moments: str = "keep") -> Strategy:
    """Asynchronous decentralised parallel SGD: average with one random neighbour, without waiting for it.

    one side asks:    send w_i to a random neighbour j on the other side, and go on computing
    the other side:   on w_i:  delta = (w_i - w_j) / 2;  w_j <- w_j + delta;  answer delta
    who asked:        on delta:  w_i <- w_i - delta
    everybody:        w_i <- optimizer(w_i, g_i), with g_i at the weights that the step began with

    In the paper a pair averages in one atomic step, by threads of their own, and is halted while it
    does. Here programs run at the ends of steps: who was asked moves at the end of its step, who asked
    when the answer has come, and both train on meanwhile. What one adds the other subtracts, so the sum of all
    weights, less the deltas on their way, changes by the workers' own steps only. Nobody waits, so nothing can
    lock up. A request whose sender has left before it is read counts for neither. Momentum stays local, unless
    `moments` lets a worker forget it after an exchange ("reset"), or make it that of the way really gone ("correct").

    Each exchange is a letter there and one back, at most one under way for each that asks: at most 4 d bytes in the
    mean over the workers, and half of that if an answer takes a whole step. Staleness has no bound.

    >>> ad_psgd()
    ad_psgd(topology=bipartite(), moments='keep')
    """
    check_is_topology("ad_psgd", topology)
    if topology.changing or topology.directed:
        raise UsageError(
            f"ad_psgd(topology={topology!r}): the workers that ask and those that answer must stay the "
            "same, and answers go back "
            "the way they came. Take a topology that is undirected and doesn't change, such as bipartite()."
        )
    because = "a difference of moments that comes late could leave Adam with a negative sum of squares"
    check_no_average("ad_psgd", moments, because)
    return PairAverage(topology=topology, moments=Moments(moments))


@preset(
    system="SGP",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="shares of the weights to those who hear, every step",
    topology="directed exponential (any)",
    moments="kept local",
    reference="Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019",
)
def sgp(topology: Topology = Exponential(), moments: str = "keep") -> Strategy:
    """Stochastic gradient push: share the weights, and a mass with them, among the workers that hear.

    x_i <- optimizer(x_i, g_i(z_i)), where z_i = x_i / m_i is the model
    x_j <- sum_i p_ji x_i;  m_j <- sum_i p_ji m_i;  p_ji = 1 / (1 + how many hear i)

    Links may go one way and change from round to round, as long as there is a way from each to each; the
    masses make up for those who hear more than they tell. The optimizer is called at z, and what it changes is
    changed in x, so that weight decay acts as it does on one worker. On the default graph all masses stay 1.
    Who leaves takes its mass along; the rest agree on what a step weighs from then on. As in the original momentum
    stays local, unless `moments` says otherwise: "average" parts it by the same shares, in the same letters, "reset"
    forgets it in each step, "correct" makes SGD's momentum that of the way which the model z_i has gone.
    Sends 4 d bytes to each who hears: 4 d by default, with "average" as much again for each moment. Staleness 0.

    >>> sgp()
    sgp(topology=exponential(one_peer=True), moments='keep')
    """
    check_is_topology("sgp", topology)
    return PushSum(topology=topology, overlap=0, moments=Moments(moments))


@preset(
    system="OSGP",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="shares of the weights to those who hear, every step, overlapped",
    topology="directed exponential (any)",
    moments="kept local",
    reference="Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019",
)
def osgp(topology: Topology = Exponential(), overlap: int = 1, moments: str = "keep") -> Strategy:
    """Stochastic gradient push whose letters travel while gradients are computed.

    x_i^(t+1) <- p_ii x_i^(t) + optimizer's change at g_i(z_i^(t)) + sum_j p_ij x_j^(t - overlap + 1)

    Masses likewise. What is sent after step t is taken in by step t + overlap, neither earlier nor later, so a
    run can be repeated bit for bit; the original takes in what has come, and waits only for what is that late.
    With overlap = 1 it is `sgp` in the order of `dpsgd`: mix, and take the step at the old model. The model z
    doesn't depend on what is still under way at the end, and nothing of it is taken in: somebody may have left
    before it was sent, so that it would depend on chance. Departures and `moments` as with `sgp`.
    Sends 4 d bytes to each who hears: 4 d by default. Staleness overlap - 1.

    >>> osgp()
    osgp(topology=exponential(one_peer=True), overlap=1, moments='keep')
    """
    check_is_topology("osgp", topology)
    check_whole("osgp", "overlap", overlap, 1)
    return PushSum(topology=topology, overlap=overlap, moments=Moments(moments))


@preset(
    system="GossipGraD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights with the partner of the step",
    topology="dissemination or hypercube, partners dealt anew every log2 P steps",
    moments="kept local",
    reference="Daily et al., GossipGraD: Scalable Deep Learning using Gossip Communication based Asynchronous "
    "Gradient Descent, 2018",
)
def gossipgrad(topology: Topology = Exponential(), seed: int = 0, moments: str = "keep") -> Strategy:
    """Gossip with one partner per step, by a schedule that reaches everybody in log2 P steps.

    w_i <- (w_i + w_j) / 2 - eta g_i(w_i), where j is the partner of the step

    With `exponential` (dissemination) i hears the one 2^(t mod log2 P) before it and tells the one as far behind;
    with `hypercube(one_peer=True)` i and j = i XOR 2^(t mod log2 P) hear each other. Every log2 P steps places
    are dealt anew by a permutation that all workers draw from `seed`, so that partners change (`shuffled`).

    The original sends layer by layer and finds what has come after the backward pass. Here the weights are sent
    whole at the end of a step, travel while the next gradient is computed, and are awaited at the end of that
    step, in the order of `dpsgd`; so a run can be repeated. The original also passes used samples round a ring, so
    that each worker sees all of them in time. `fast.shard` takes its place: it deals each epoch's samples to the
    workers in an order drawn anew from (seed, epoch), without sending any. Data of `fast.own` stay where they are.
    Sends 4 d bytes. Staleness 0.

    >>> gossipgrad()
    gossipgrad(topology=exponential(one_peer=True), seed=0, moments='keep')
    """
    check_is_topology("gossipgrad", topology)
    return MixNeighbours(topology=Shuffled(topology, seed), moments=Moments(moments))


def _check_probability(name: str, p: object) -> None:
    if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p <= 1:
        raise UsageError(f"{name}(p={p!r}): p is a probability, from 0 to 1")
