"""Elastic presets: workers are pulled to a common centre, or to each other."""

from __future__ import annotations

from math import isfinite

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts.arguments import check_flag, check_whole
from fast.strategies.catalogue import preset
from fast.strategies.decentral.elastic import Elastic
from fast.strategies.decentral.elastic_tree import ElasticTree, Interval
from fast.strategies.decentral.moments import Moments
from fast.strategies.decentral.mpca import FollowMaster
from fast.strategies.presets.arguments import check_no_average


@preset(
    system="EASGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay (or synchronous)",
    exchange="weights up, differences down, every tau steps",
    topology="a server with the centre",
    moments="kept local",
    reference="Zhang et al., Deep Learning with Elastic Averaging SGD, NIPS 2015",
)
def easgd(
    tau: int = 10,
    alpha: float | None = None,
    beta: float | None = None,
    synchronous: bool = False,
    moments: str = "keep",
) -> Strategy:
    """Elastic averaging: every worker explores alone, and is pulled towards a common centre c.

    every tau steps, with w_i before the step:  delta = alpha (w_i - c);  c <- c + delta
    w_i <- optimizer(w_i, g_i) - delta
    synchronous:  c <- c + beta (mean_i w_i - c), by all at once

    The centre, on a server, is the model; replicas stay apart from it. Without gradients sum_i w_i + c never changes,
    as beta = P alpha: give alpha or beta, and both only to break that. Without either beta = 0.9, as in the paper.
    There the worker reads c and sends delta; here it sends w_i and gets delta, one thing on the server. And its first
    exchange comes after tau - 1 steps, not at once, when nothing has moved yet. `moments` says what happens to the
    optimizer's moments when the spring has pulled: "keep" leaves them local, "reset" forgets them, "correct" makes
    SGD's momentum that of the way really gone; the centre, which takes no steps, has none to average with. Sends 4 d
    / tau bytes, as much comes back. Staleness has no bound; with equally fast workers P - 1 others have met the
    centre in between, synchronous none. Alone, plain training.

    >>> easgd(tau=4)
    easgd(tau=4, alpha=None, beta=None, synchronous=False, moments='keep')
    """
    check_whole("easgd", "tau", tau, 1)
    _check_shares("easgd", _SPRINGS, alpha=alpha, beta=beta)
    check_flag("easgd", "synchronous", synchronous)
    check_no_average("easgd", moments, "the centre takes no steps, so it has no moments to be averaged with")
    return Elastic(tau=tau, alpha=alpha, beta=beta, synchronous=synchronous, moments=Moments(moments))


@preset(
    system="EAMSGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay (or synchronous)",
    exchange="weights up, differences down, every tau steps",
    topology="a server with the centre",
    moments="kept local, beside the velocity of the strategy itself",
    reference="Zhang et al., Deep Learning with Elastic Averaging SGD, NIPS 2015",
)
def eamsgd(
    momentum: float = 0.5,
    tau: int = 10,
    alpha: float | None = None,
    beta: float | None = None,
    synchronous: bool = False,
) -> Strategy:
    """Elastic averaging with Nesterov's momentum inside every worker.

    v_i <- mu v_i - eta g_i(w_i + mu v_i);  w_i <- w_i + v_i;  and every tau steps the exchange of `easgd`

    The velocity is the strategy's own, so that with plain SGD this is the paper's method; of any other optimizer
    its step takes the place of -eta g_i, so take one without momentum. While it trains a worker's model holds
    w_i + mu v_i, at the end w_i. A rate goes 1 / (1 - mu) times as far as without momentum: the paper has
    mu = 0.99 with a rate made for it, the default goes with rates made for plain SGD. mu = 0 is `easgd`. Sends
    4 d / tau bytes, as much comes back. Staleness as in `easgd`. Alone, plain training, without our momentum.

    >>> eamsgd(momentum=0.9)
    eamsgd(momentum=0.9, tau=10, alpha=None, beta=None, synchronous=False)
    """
    check_whole("eamsgd", "tau", tau, 1)
    _check_shares("eamsgd", _SPRINGS, alpha=alpha, beta=beta)
    check_flag("eamsgd", "synchronous", synchronous)
    if not _is_number(momentum) or not 0 <= momentum < 1:
        raise UsageError(
            f"eamsgd(momentum={momentum!r}): a number from 0 to less than 1 is needed. Try 0.5 with a rate made for "
            "plain SGD; 0 is easgd."
        )
    return Elastic(tau=tau, alpha=alpha, beta=beta, synchronous=synchronous, momentum=momentum)


@preset(
    system="TreeEASGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="weights to the parent and to the children, each at its interval",
    topology="tree of workers",
    moments="kept local",
    reference="Zhang, Distributed Stochastic Optimization for Deep Learning, PhD thesis, NYU 2016",
)
def tree_easgd(
    branching: int = 2,
    up: Interval = 10,
    down: Interval = 10,
    alpha: float | None = None,
    moments: str = "keep",
) -> Strategy:
    """Elastic averaging on a tree: every worker trains, sends to its parent and children, and never waits.

    on w_j of the parent or a child:  w_i <- w_i - alpha (w_i - w_j);  then w_i <- optimizer(w_i, g_i)
    every up steps send w_i to the parent;  every down steps to the children

    Every letter counts by itself, so nothing is exchanged in pairs and no sum is kept; without gradients all stay
    between the lowest and the highest. alpha = 0.9 / (branching + 1) unless given. `up` and `down` are steps, the
    same for all workers, or a list by level ([100, 10]: the root's, and all below), or a function of the worker's
    place. The thesis has 16 branches on 256 workers, 10 steps at the leaves and 100 above them. The model is the mean
    of the replicas. `moments` says what happens to the optimizer's moments with each letter: "keep" leaves them
    local, "average" sends them too and pulls them as far as the weights, "reset" forgets them, "correct" makes SGD's
    momentum that of the way really gone. Sends 4 d / up bytes, and 4 d / down per child, with "average" as much again
    for each moment. Staleness has no bound. Alone, plain training.

    >>> tree_easgd(up=[100, 10], down=50)
    tree_easgd(branching=2, up=[100, 10], down=50, alpha=None, moments='keep')
    """
    check_whole("tree_easgd", "branching", branching, 1)
    _check_interval("up", up)
    _check_interval("down", down)
    _check_shares("tree_easgd", _TREE, alpha=alpha)
    pull = 0.9 / (branching + 1) if alpha is None else alpha
    return ElasticTree(branching=branching, up=up, down=down, alpha=pull, moments=Moments(moments))


@preset(
    system="MPCA-SGD",
    parallelism="data",
    optimization="decentral",
    scheduling="unbounded delay",
    exchange="sums of weights up, the master's weights down, when the network is free",
    topology="binomial tree to a server",
    moments="kept local: the master's pull is part of the gradient, so that they know of it",
    reference="Langer et al., MPCA SGD: A Method for Distributed Training of Deep Learning Models on Spark, TPDS 2018",
)
def mpca_sgd(
    tau: int = 10,
    rho: float = 0.1,
    kappa: float = 1.0,
    rate: float = 1.0,
    momentum: float = 0.0,
    replace: bool = False,
) -> Strategy:
    """A reconstruction of MPCA-SGD, whose pseudo-code isn't public: workers follow a master with a delay.

    w_i <- optimizer(w_i, g_i + rho (w_i - p));  p = m + kappa age / period (m - m_before)
    exchange, up and down a binomial tree:  s = mean of n snapshots;  v <- mu v + n / P (s - m);  m <- m + rate v

    Known is that workers pay for their distance to the master m, extrapolate m while it is stale, never wait, and
    exchange snapshots when the network is free; the rest is ours. age: the steps since m came, at most the
    period, which lay between the last two. A snapshot comes tau steps after the last, or when that one has been
    answered. m, on a server, is the model, and who has left counts as if it were there. `replace` waits for m and
    goes on from it: with rho = 0 that is SparkNet. Momentum and moments stay local. Sends 4 d bytes per exchange, and
    4 d per child of the tree, at most every tau steps. Staleness has no bound. Alone, plain training.

    >>> mpca_sgd(rho=0.2)
    mpca_sgd(tau=10, rho=0.2, kappa=1.0, rate=1.0, momentum=0.0, replace=False)
    """
    check_whole("mpca_sgd", "tau", tau, 1)
    check_flag("mpca_sgd", "replace", replace)
    for key, value in {"rho": rho, "kappa": kappa}.items():
        if not _is_number(value) or not (isfinite(value) and value >= 0):
            raise UsageError(f"mpca_sgd({key}={value!r}): a number from 0 on is needed; 0 leaves it out")
    _check_shares("mpca_sgd", _MASTER, rate=rate, momentum=momentum)
    return FollowMaster(tau=tau, rho=rho, kappa=kappa, rate=rate, momentum=momentum, replace=replace)


_SPRINGS = (
    "alpha is how much of the way to the centre a worker goes in one exchange, beta how much of the way to the "
    "workers' mean the centre goes when all have met it. Try alpha=0.1, or leave both out: then beta is 0.9."
)
_TREE = (
    "alpha is how much of the way to its parent or a child a worker goes with each letter. Try 0.3, or leave it out: "
    "then it is 0.9 / (branching + 1)."
)
_MASTER = (
    "rate is how much of the way to the snapshots' mean the master goes, momentum how much of its last move it makes "
    "again. Try rate=1.0 and momentum=0.0, which is what they are if left out."
)
"""What shares are of, and what to try."""


def _check_shares(name: str, means: str, **shares: float | None) -> None:
    for key, value in shares.items():
        if value is not None and not (_is_number(value) and 0 <= value <= 1):
            raise UsageError(f"{name}({key}={value!r}): a number from 0 to 1 is needed: {means}")


def _check_interval(key: str, interval: object) -> None:
    if callable(interval):
        return
    steps = interval if isinstance(interval, list | tuple) else [interval]
    if not steps:
        raise UsageError(f"tree_easgd({key}={interval!r}): at least one number of steps, the root's")
    for each in steps:
        check_whole("tree_easgd", key, each, 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
