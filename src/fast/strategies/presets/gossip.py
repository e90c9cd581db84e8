"""Presets whose workers tell one other now and then."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.strategies.catalogue import preset
from fast.strategies.decentral.gossip import PushGossip


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
