"""Presets whose servers own the weights and keep the workers within a bound."""

from __future__ import annotations

from math import inf, isnan
from types import MappingProxyType

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Rule, mean
from fast.parts.arguments import check_flag, check_whole
from fast.parts.codecs.calls import Codec
from fast.parts.staleness import Correction
from fast.strategies.catalogue import preset
from fast.strategies.central.base import WORKERS
from fast.strategies.central.bounded import StaleSynchronous
from fast.strategies.central.cached import CachedReads
from fast.strategies.central.valued import ValueBounded
from fast.strategies.presets.arguments import (
    bucket_bytes,
    check_is_codec,
    check_is_correction,
    check_is_rule,
    check_servers,
)

MOST_CACHED = 64
"""Clocks that a worker may be ahead of a server whose answers it doesn't wait for."""


@preset(
    system="SSPTable",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up, weights down, every step",
    topology="one server, or shards",
    reference="Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013",
)
def ssp(
    bound: float = 3,
    servers: int | str = 1,
    codec: Codec | None = None,
    bucket_mb: float | None = None,
    rule: Rule = mean,
    correction: Correction | None = None,
) -> Strategy:
    """Stale-synchronous training on servers: no worker runs more than `bound` steps ahead.

    push g_i of clock c;  server: w <- optimizer(w, g_i / P) on arrival;
    the read of clock c + 1 waits until it holds all workers' updates up to clock c - bound

    Bound 0 collects the pushes of one clock, merges them by `rule` (default: their mean) and takes
    one step: bitwise synchronous. Bound inf never waits. `servers=k` cuts the weights into k shards;
    `servers="workers"` puts one beside every worker. Neither changes a bit of a synchronous training.
    Sends 4 d bytes (the servers together send as much to each worker); a codec makes the pushes smaller,
    `bucket_mb` sends them in buckets while backward is still running. The optimizer runs on the servers.
    A `correction` makes stale pushes count for less, or for something else. As in the original a read holds all
    updates up to clock c - bound, one's own, and whatever else has come. Different: workers read every step, where
    the original caches what it read for as long as the bound allows (`petuum(eager=False)`), and updates go through
    the user's optimizer on the servers, where it adds them up. Staleness is at most
    (P - 1)(2 bound + 1). A worker that is *always* slow holds the others back to its own pace.

    >>> ssp(bound=2)
    ssp(bound=2, servers=1, codec=None, bucket_mb=None, rule=mean, correction=None)
    """
    check_servers("ssp", servers)
    _check_delay("ssp", "bound", bound)
    check_is_codec("ssp", codec)
    _check_merging(bound, rule, correction)
    size = bucket_bytes(bucket_mb)
    return StaleSynchronous(
        bound=bound, servers=servers, codec=codec, bucket_bytes=size, rule=rule, correction=correction
    )


@preset(
    system="ESSPTable",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up every step, weights down when the slowest has advanced",
    topology="one server, or shards",
    reference="Dai et al., High-Performance Distributed ML at Scale through Parameter Server Consistency Models, "
    "AAAI 2015",
)
def essp(bound: int = 3, servers: int | str = 1, codec: Codec | None = None) -> Strategy:
    """Eager stale-synchronous training: servers push their weights without being asked.

    push g_i of clock c;  server: w <- optimizer(w, g_i / P) on arrival; when min_j c_j grows: w to all;
    worker: w_i <- the newest w that has come + its own moves that are not in it;
    waits only while that w lacks updates of somebody up to clock c - bound

    The guarantee of `ssp`, without a wait for an answer in every step: computing and sending overlap.
    A worker's own moves are what its own optimizer makes of g_i / P, until the servers' version has come:
    at most bound + 1 more copies of the weights. Weights that wait unread are replaced by newer ones. As in the
    original servers push when the slowest clock advances, to all who ever read. Different: all of the weights, where
    a table sends the rows that changed.
    Sends 4 d bytes; from the servers come 4 d per clock. Staleness: what is read is never older than
    bound + 1 clocks, and mostly one to three. Alone it waits for its own pushes. At most bound + 2 gradients of a
    worker may wait at a server: bounds above 64 are refused.

    >>> essp(bound=2)
    essp(bound=2, servers=1, codec=None)
    """
    check_servers("essp", servers)
    _check_cached("essp", bound)
    check_is_codec("essp", codec)
    return _eager(bound, servers, codec)


@preset(
    system="VAP",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up, weights down, every step",
    topology="one server",
    reference="Dai et al., High-Performance Distributed ML at Scale through Parameter Server Consistency Models, "
    "AAAI 2015",
)
def vap(limit: float = 0.1, codec: Codec | None = None) -> Strategy:
    """A bound on values: the server's weights stay within `limit` of those that any worker computes on.

    push g_i;  server: admits it, w <- optimizer(w, g_i / P), if max |w - w_j| < limit for every worker j that
    computes on the w_j that it read last; else it waits, and so does worker i

    Exact after every update that is admitted, for any optimizer. It costs: the server keeps one copy of the
    weights per worker (what it computes on, or its push that waits), and tries each push before it
    counts: two steps of the optimizer, a copy of its state, and a comparison with every worker's copy.
    When all workers wait, the next push is admitted whatever its size; so limit 0 is lock-step, with the
    pushes of a clock applied one by one. Limit inf is `ssp(inf)`. One server only: two shards that
    hold back different workers would wait for each other. The original defines the condition, by what is on its way
    to any worker, and calls it too dear to build; this is one way to hold it exactly. Sends 4 d bytes. Staleness has no
    bound in steps.

    >>> vap(limit=0.05)
    vap(limit=0.05, codec=None)
    """
    if not isinstance(limit, int | float) or isinstance(limit, bool) or isnan(limit) or limit < 0:
        raise UsageError(
            f"vap(limit={limit!r}): the limit says how far weights may move, 0 or more; inf for no limit"
        )
    check_is_codec("vap", codec)
    return ValueBounded(limit=limit, codec=codec)


@preset(
    system="Parameter Server",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up, weights down, every step",
    topology="k shards",
    reference="Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014",
)
def parameter_server(
    tau: float = 3, servers: int | str = 2, codec: Codec | None = None, rule: Rule = mean
) -> Strategy:
    """Li et al.'s parameter server: k shards, and a task begins when those before the last tau are done.

    step t of a worker begins when everybody's pushes of the steps up to t - 1 - tau are applied

    That is `ssp` with bound tau on several shards: tau 0 is sequential consistency, inf eventual. As in
    the original, servers run the update rule, and a shard is a contiguous range. Different: dense ranges,
    cut by bytes once, where the original hashes keys of sparse vectors; no replication of shards; a codec
    where it has filters, and none that skips values which wouldn't matter. With tau 0 another `rule` may merge the
    pushes. Sends 4 d bytes, from the servers come as many. Staleness is at most (P - 1)(2 tau + 1).

    >>> parameter_server(tau=1, servers=3)
    parameter_server(tau=1, servers=3, codec=None, rule=mean)
    """
    check_servers("parameter_server", servers)
    _check_delay("parameter_server", "tau", tau)
    check_is_codec("parameter_server", codec)
    _check_rule("parameter_server", rule, tau, "tau=0")
    strategy = StaleSynchronous(bound=tau, servers=servers, codec=codec, rule=rule)
    strategy.knobs = MappingProxyType({"tau": (1, 8)})
    return strategy


@preset(
    system="Petuum",
    parallelism="data",
    optimization="central",
    scheduling="bounded delay",
    exchange="gradients up every step, weights down when the slowest has advanced",
    topology="a shard in every worker",
    reference="Xing et al., Petuum: A New Platform for Distributed Machine Learning on Big Data, KDD 2015",
)
def petuum(bound: int = 3, eager: bool = True, codec: Codec | None = None) -> Strategy:
    """Petuum's tables: eager stale-synchronous training with a shard in every worker.

    `essp(bound, servers="workers")`;  eager=False: weights come only when a worker asks, which it does
    when what it has lacks updates of somebody up to clock c - bound

    As in the original a worker reads its own copy, with its own moves in it, as long as the bound allows.
    Different: it reads and pushes all of the weights, where a table's user names rows; updates go
    through the user's optimizer on the servers, where the original adds them up; there is no
    scheduler for parts of the model. Sends 4 d bytes; from the servers come 4 d per clock, or
    without `eager` about 4 d every bound + 1 steps. Staleness: never older than bound + 1 clocks.

    >>> petuum()
    petuum(bound=3, eager=True, codec=None)
    """
    _check_cached("petuum", bound)
    check_flag("petuum", "eager", eager)
    check_is_codec("petuum", codec)
    return _eager(bound, WORKERS, codec, eager=eager)


@preset(
    system="MXNet",
    parallelism="data",
    optimization="central",
    scheduling="synchronous, or unbounded delay",
    exchange="gradients up, weights down, every step",
    topology="a shard in every worker",
    reference="Chen et al., MXNet: A Flexible and Efficient Machine Learning Library, 2015",
)
def mxnet(kvstore: str = "dist_sync", codec: Codec | None = None, rule: Rule = mean) -> Strategy:
    """MXNet's distributed store: as many servers as workers, in lock-step or without any bound.

    dist_sync:  w <- optimizer(w, mean_i g_i) when all have pushed
    dist_async: w <- optimizer(w, g_i / P) on arrival;  no worker waits

    As in the original the optimizer runs on the servers, and the tensors are spread over as many of them as
    there are workers. Different: gradients are averaged where the store adds them up (and leaves the
    division to the user's rate), also in `dist_async`, where the original takes each at the full rate; cut
    by bytes, where the store deals out arrays and cuts the large ones; pushed in one piece per server
    when backward is done. Its 2-bit compression is `codec=two_bit(0.5)`. In `dist_sync` another `rule` may merge the
    pushes. Sends 4 d bytes, from the servers come as many. Staleness 0, or without a bound.

    >>> mxnet("dist_async")
    mxnet(kvstore='dist_async', codec=None, rule=mean)
    """
    bounds = {"dist_sync": 0, "dist_async": inf}
    if not isinstance(kvstore, str) or kvstore not in bounds:
        raise UsageError(f"mxnet(kvstore={kvstore!r}): the store is 'dist_sync' or 'dist_async'")
    check_is_codec("mxnet", codec)
    _check_rule("mxnet", rule, bounds[kvstore], "kvstore='dist_sync'")
    return StaleSynchronous(bound=bounds[kvstore], servers=WORKERS, codec=codec, rule=rule)


@preset(
    system="BigDL",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="slices of gradients, slices of weights, every step",
    topology="a shard in every worker",
    reference="Dai et al., BigDL: A Distributed Deep Learning Framework for Big Data, SoCC 2019",
)
def bigdl(codec: Codec | None = None, rule: Rule = mean) -> Strategy:
    """BigDL's synchronous training: every worker has a server that owns a slice of the weights.

    server k: w[k] <- optimizer(w[k], mean_i g_i[k]);  w[k] to all

    As in the original slice k of all gradients meets at worker k, which takes the step for it and sends the
    result to everybody: the traffic of a ring, at the price of an optimizer that is cut in P. Different:
    processes that live as long as the training and exchange letters, where the original runs two Spark
    jobs per step whose stateless tasks can be run again. Sends 4 d bytes, its server as many: 4 d (P - 1) / P
    each without what stays on the host. Staleness 0. With an element-wise optimizer it is `allreduce`, bit
    for bit. Another `rule` than the mean may merge the slices, coordinate by coordinate.

    >>> bigdl()
    bigdl(codec=None, rule=mean)
    """
    check_is_codec("bigdl", codec)
    check_is_rule("bigdl", rule)
    return StaleSynchronous(bound=0, servers=WORKERS, codec=codec, rule=rule)


@preset(
    system="CaffeOnSpark",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="slices of gradients, slices of weights, every step",
    topology="a shard in every worker",
    reference="Feng et al., CaffeOnSpark: Deep Learning On Spark Cluster, Spark Summit 2016",
)
def caffeonspark(rule: Rule = mean) -> Strategy:
    """CaffeOnSpark's synchronous training: peers exchange slices directly, one shard in every worker.

    server k: w[k] <- optimizer(w[k], mean_i g_i[k]);  w[k] to all

    The program of `bigdl`, as in the original: there too every executor owns a slice, the executors talk to
    each other directly, and Spark only starts them. Different: shared memory or letters where the original
    has sockets or RDMA, and a process may have one model only, where an executor drives several GPUs.
    Sends 4 d bytes, its server as many. Staleness 0. Another `rule` than the mean may merge the slices.

    >>> caffeonspark()
    caffeonspark(rule=mean)
    """
    check_is_rule("caffeonspark", rule)
    return StaleSynchronous(bound=0, servers=WORKERS, rule=rule)


def _eager(bound: int, servers: int | str, codec: Codec | None, *, eager: bool = True) -> Strategy:
    """With bound 0 all workers wait for each other, so the pushes of a clock can become one mean."""
    if bound == 0:
        return StaleSynchronous(bound=0, servers=servers, codec=codec)
    return CachedReads(bound=bound, eager=eager, servers=servers, codec=codec)


def _check_delay(name: str, argument: str, delay: float) -> None:
    number = isinstance(delay, int | float) and not isinstance(delay, bool) and delay >= 0
    if not number or (delay != inf and delay != int(delay)):
        raise UsageError(
            f"{name}({argument}={delay!r}): the {argument} counts whole steps, 0 or more; inf for no bound"
        )


def _check_cached(name: str, bound: int) -> None:
    """No worker waits for an answer before the bound is reached, so that many pushes may wait at a slow server."""
    check_whole(name, "bound", bound, 0)
    if bound > MOST_CACHED:
        raise UsageError(
            f"{name}(bound={bound}): a worker may be that many steps ahead of its servers, with a gradient of each "
            f"of them in their memory. Take a bound up to {MOST_CACHED}, or ssp, whose workers wait for each answer."
        )


def _check_rule(name: str, rule: Rule, bound: float, without: str) -> None:
    """Raise UsageError for a rule if there is nothing to merge; `without` is the argument that asks for no delay."""
    check_is_rule(name, rule)
    if bound > 0 and rule is not mean:
        raise UsageError(
            f"{name}(rule={rule!r}): a rule merges the pushes of one clock, and with a delay above 0 each is applied "
            f"as it comes. Take {without}, or leave the rule out."
        )


def _check_merging(bound: float, rule: Rule, correction: Correction | None) -> None:
    _check_rule("ssp", rule, bound, "bound=0")
    check_is_correction("ssp", correction)
    if bound == 0 and correction is not None:
        raise UsageError(
            f"ssp(bound=0, correction={correction!r}): in lock-step nothing is stale, so there is nothing to correct. "
            "Take a bound above 0, or leave the correction out."
        )
