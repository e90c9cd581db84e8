"""Presets whose workers take local steps and average their weights at intervals."""

from __future__ import annotations

from fast.core import Strategy
from fast.parts import Rule, mean
from fast.parts.arguments import check_whole
from fast.strategies.catalogue import preset
from fast.strategies.decentral.local import LocalSteps, Master, OneShot, PostLocal
from fast.strategies.decentral.moments import Moments
from fast.strategies.presets.arguments import check_is_rule_of_weights, check_moments_follow


@preset(
    system="local SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights, every tau steps",
    topology="all-reduce",
    moments="kept local",
    reference="Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019",
)
def local_sgd(tau: int = 10, moments: str = "keep", rule: Rule = mean) -> Strategy:
    """Local steps, and the mean of the weights every tau steps.

    w_i <- optimizer(w_i, g_i);  every tau steps  w_i <- mean_j w_j

    The mean is weighted by the samples since the exchange before. `moments` says what happens to the optimizer's
    moments at an exchange: "keep" leaves them local, "average" averages them too, "reset" forgets them, "correct"
    makes SGD's momentum that of the way which all have gone. The original is plain SGD, which has none. With a `rule`
    that tolerates hostile workers, w_i <- rule({w_j}): everybody sends its weights to everybody, 4 d (P - 1) / tau
    bytes.

    Sends 8 d (P - 1) / (P tau) bytes, with "average" as much again for each moment. Staleness 0. With tau = 1 it is
    `allreduce` for plain SGD and for momentum that is averaged; with tau from the last step on it is `one_shot`.

    >>> local_sgd(tau=4)
    local_sgd(tau=4, moments='keep', rule=mean)
    """
    check_whole("local_sgd", "tau", tau, 1)
    check_is_rule_of_weights("local_sgd", rule)
    return LocalSteps(tau=tau, moments=Moments(moments), rule=rule)


@preset(
    system="post-local SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="gradients in every step, later weights every tau steps",
    topology="all-reduce",
    moments="kept local",
    reference="Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020",
)
def post_local_sgd(tau: int = 16, after: int | None = None, moments: str = "keep") -> Strategy:
    """Synchronous training at first, and local steps after a switch.

    step < after:  w <- optimizer(w, mean_i g_i), then  w_i <- optimizer(w_i, g_i);  every tau steps  w_i <- mean_j w_j

    Without `after` the switch comes when the learning rate has fallen for the first time, as in the original. Every
    tau steps the workers tell each other whether it has, so that all switch at the same step, a multiple of
    tau, also where a scheduler looks at one worker's own loss. Until then it is `allreduce`, bit for bit. As in
    the original momentum stays local (`moments`, as for `local_sgd`).

    Sends 8 d (P - 1) / P bytes before the switch, tau times less after it. Staleness 0. Without `after` nobody can
    come late: it couldn't know of the switch.

    >>> post_local_sgd(after=1000)
    post_local_sgd(tau=16, after=1000, moments='keep')
    """
    check_whole("post_local_sgd", "tau", tau, 1)
    if after is not None:
        check_whole("post_local_sgd", "after", after, 0)
    return PostLocal(tau=tau, after=after, moments=Moments(moments))


@preset(
    system="SparkNet",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights, every tau steps",
    topology="star with a master",
    moments="kept local",
    reference="Moritz et al., SparkNet: Training Deep Networks in Spark, ICLR 2016",
)
def sparknet(tau: int = 50, moments: str = "keep", rule: Rule = mean) -> Strategy:
    """Local steps, and every tau steps a master averages all weights.

    w_i <- optimizer(w_i, g_i);  every tau steps  master: w <- mean_i w_i,  and all: w_i <- w

    It is `local_sgd` bit for bit, with a master in the middle. As in the original the master takes no steps, and what
    it has is the model, so steps after the last exchange don't count. Different: the mean is weighted by samples, and
    `moments` may be averaged as well. The default of tau is the original's; Langer et al. (2020) saw the best
    convergence with tau <= 10. With a `rule` that tolerates hostile workers, w <- rule({w_i}) on the master.

    A worker sends 4 d / tau bytes and gets as many; the master's link carries P times that. Staleness 0.

    >>> sparknet(tau=10)
    sparknet(tau=10, moments='keep', rule=mean)
    """
    check_whole("sparknet", "tau", tau, 1)
    check_is_rule_of_weights("sparknet", rule)
    check_moments_follow("sparknet", rule, moments)
    return Master(tau=tau, moments=Moments(moments), rule=rule)


@preset(
    system="parallel SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="weights, once",
    topology="none",
    moments="kept local: nothing is exchanged before the end",
    reference="Zinkevich et al., Parallelized Stochastic Gradient Descent, NIPS 2010",
)
def one_shot() -> Strategy:
    """Every worker trains alone, and the weights are averaged once, at the end.

    w_i <- optimizer(w_i, g_i);  when all have ended  w <- mean_i w_i

    The mean is that of `fast.consolidate`, where every worker that has trained counts alike, as in the original.
    There the data are handed out at random and the loss is convex. Networks may part for good, even from the same
    start, and the mean of two good ones needn't be one. It equals `local_sgd` with tau as large as the number of
    steps.

    Sends nothing in training. Staleness 0.

    >>> one_shot()
    one_shot()
    """
    return OneShot()
