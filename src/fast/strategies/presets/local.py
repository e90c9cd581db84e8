"""Presets whose workers take steps of their own and average their weights now and then."""

from __future__ import annotations

from fast.core import Strategy
from fast.errors import UsageError
from fast.strategies.catalogue import preset
from fast.strategies.decentral.local import LocalSteps


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
