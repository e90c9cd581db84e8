"""Presets whose servers wait for a quorum of the workers, or for none."""

from __future__ import annotations

from math import isnan

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Rule, mean
from fast.parts.arguments import check_flag, check_whole
from fast.parts.codecs.calls import Codec
from fast.parts.staleness import (
    AdaptiveDelayCompensation,
    ByStaleness,
    Correction,
    DelayCompensation,
)
from fast.strategies.catalogue import preset
from fast.strategies.central.downpour import Downpour
from fast.strategies.central.quorum import Quorum
from fast.strategies.central.softsync import SoftSync
from fast.strategies.presets.arguments import (
    check_is_codec,
    check_is_correction,
    check_is_rule,
    check_servers,
)

MOST_PUSHES = 64
"""Between two fetches of a worker. A fetch is what it waits for, and so what keeps it from running ahead."""


@preset(
    system="TensorFlow",
    parallelism="data",
    optimization="central",
    scheduling="synchronous, with backup workers",
    exchange="gradients up, weights down, every step",
    topology="servers (shards)",
    reference="Chen et al., Revisiting Distributed Synchronous SGD, ICLR Workshop 2016",
)
def tensorflow(
    backups: int | None = None,
    quorum: float | None = None,
    cancel: bool = False,
    rule: Rule = mean,
    servers: int | str = 1,
    codec: Codec | None = None,
) -> Strategy:
    """Synchronous training with backup workers: the first n = P - backups gradients of a step make it.

    w <- optimizer(w, mean of the first n gradients on w);  gradients on older weights are discarded

    `quorum` gives n as a share of the workers instead, ceil(quorum P); without either there is one
    backup. Who is late finishes its step for nothing, or with `cancel` gives it up when the new weights
    come: the simulator then ends its computing, on real workers only a pace's sleep ends early, a
    backward that runs is finished. `rule` merges the n. Sends 4 d bytes, as much comes back. Staleness
    0; the thrown away are reported as dropped. As in TensorFlow each shard takes its own first n, and a
    worker's number of steps is its own: no barrier after so many steps. Different: new weights are sent to all as
    soon as they are there, where TensorFlow's workers take a token from a queue and read; `cancel` and other rules than
    the mean are ours. With no backups, synchronous.

    >>> tensorflow(backups=2)
    tensorflow(backups=2, quorum=None, cancel=False, rule=mean, servers=1, codec=None)
    """
    _check_awaited(backups, quorum)
    check_flag("tensorflow", "cancel", cancel)
    check_is_rule("tensorflow", rule)
    check_is_codec("tensorflow", codec)
    check_servers("tensorflow", servers)
    if cancel and servers != 1:
        raise UsageError(
            "tensorflow(cancel=True, servers=...): a step can be late for one shard and not for another"
        )
    count = 1 if backups is None and quorum is None else backups
    return Quorum(backups=count, quorum=quorum or 1.0, cancel=cancel, rule=rule, servers=servers, codec=codec)


@preset(
    system="Downpour SGD",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="gradients up every push steps, weights down every fetch steps",
    topology="servers (shards)",
    moments="the servers'; those of a worker's own steps in between stay local",
    reference="Dean et al., Large Scale Distributed Deep Networks, NIPS 2012",
)
def downpour(
    fetch: int = 1,
    push: int = 1,
    servers: int | str = 1,
    codec: Codec | None = None,
    correction: Correction | None = None,
    normalised: bool = False,
) -> Strategy:
    """Asynchronous training: push the gathered gradients and fetch the weights, each at its own interval.

    worker:  G <- G + g_i;  every push steps: send G, G <- 0;  every fetch steps: w_i <- w
             in all other steps:  w_i <- optimizer(w_i, g_i)
    server:  w <- optimizer(w, G) on arrival

    A worker waits only for the answer to its own fetch. P workers move the weights P times as
    often as one would, with whole steps: the same rate goes P times as far as in `ssp(inf)`, which
    divides by P. `correction` makes up for staleness; so does `normalised`, which pushes the mean of what was gathered
    in place of its sum (`agn`), whatever the intervals. The paper runs Adagrad on the servers: that is the
    user's optimizer, so choose torch.optim.Adagrad. As in the paper each shard is fetched and changed by itself, and
    both intervals are the worker's own. Different: gradients are gathered and go through the server's optimizer,
    where the paper's simple form gathers -eta g and adds it; and a step that fetches doesn't also move locally.
    What was gathered since the last push is lost at the end. Sends 4 d / push bytes (and 256 for a fetch without a
    push), 4 d / fetch come back. Between two fetches nobody waits, so fetch / push + 1 pushes of each worker may lie at
    a server that is slower than its workers, 4 d bytes each: more than 64 per fetch are refused.
    Staleness has no bound; with equally fast workers it is P - 1.

    >>> downpour(fetch=4, push=2)
    downpour(fetch=4, push=2, servers=1, codec=None, correction=None, normalised=False)
    """
    _check_intervals("downpour", fetch, push)
    check_servers("downpour", servers)
    check_is_codec("downpour", codec)
    check_is_correction("downpour", correction)
    check_flag("downpour", "normalised", normalised)
    return Downpour(
        fetch=fetch, push=push, normalised=normalised, servers=servers, codec=codec, correction=correction
    )


@preset(
    system="DistBelief",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="gradients up every push steps, weights down every fetch steps",
    topology="servers (shards)",
    moments="the servers'; those of a worker's own steps in between stay local",
    reference="Dean et al., Large Scale Distributed Deep Networks, NIPS 2012",
)
def distbelief(
    fetch: int = 1, push: int = 1, warm: int = 20, servers: int | str = 2, codec: Codec | None = None
) -> Strategy:
    """DistBelief: `downpour` on several shards after a warm start of one worker.

    worker 0 alone for `warm` steps, the others wait;  then all as in `downpour`, on `servers` shards

    The system recommends Adagrad on the servers: give join a torch.optim.Adagrad. Its shards are not
    synchronised with each other, and neither are ours. It also spread one model over several machines and
    had a batch method (Sandblaster); neither is here. Sends what `downpour` does. Staleness has no bound.

    >>> distbelief(servers=4)
    distbelief(fetch=1, push=1, warm=20, servers=4, codec=None)
    """
    _check_intervals("distbelief", fetch, push)
    check_whole("distbelief", "warm", warm, 0)
    check_servers("distbelief", servers)
    check_is_codec("distbelief", codec)
    return Downpour(fetch=fetch, push=push, warm=warm, servers=servers, codec=codec)


@preset(
    system="DC-ASGD",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="gradients up, weights down, every step",
    topology="servers (shards)",
    reference="Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017",
)
def dc_asgd(
    adaptive: bool = False,
    strength: float | None = None,
    servers: int | str = 1,
    codec: Codec | None = None,
) -> Strategy:
    """Asynchronous training with delay compensation: gradients are corrected to today's weights.

    server:  on a read of i:  b_i <- w;   on a push:  w <- optimizer(w, g_i + lambda g_i*g_i*(w - b_i))
    adaptive:  m <- 0.95 m + 0.05 g_i*g_i;  lambda = strength / sqrt(m + 1e-7);   else lambda = strength

    `strength` is 0.04, and 2 if adaptive, unless given; 0 is `downpour`. This is the paper's form, with a copy of the
    weights per worker on the server; Multiverso's code has |g| for g*g, and MXNet's one copy for all. Different:
    the corrected gradient goes through the user's optimizer, and the correction, made for SGD's step, is the same for
    any. The adaptive one is strong: it needs small rates. Sends 4 d bytes, as much comes back. Staleness has no bound;
    with equally fast workers it is P - 1.

    >>> dc_asgd(adaptive=True)
    dc_asgd(adaptive=True, strength=None, servers=1, codec=None)
    """
    check_servers("dc_asgd", servers)
    check_flag("dc_asgd", "adaptive", adaptive)
    check_is_codec("dc_asgd", codec)
    kind = AdaptiveDelayCompensation if adaptive else DelayCompensation
    return Downpour(servers=servers, codec=codec, correction=kind() if strength is None else kind(strength))


@preset(
    system="Staleness-aware ASGD, Rudra",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="gradients up, weights down, every step",
    topology="servers (shards)",
    reference="Zhang et al., Staleness-Aware Async-SGD for Distributed Deep Learning, IJCAI 2016",
)
def staleness_aware(
    n: float = 1,
    correction: Correction | None = ByStaleness(),
    servers: int | str = 1,
    codec: Codec | None = None,
    rule: Rule = mean,
) -> Strategy:
    """n-softsync: the server takes a step with every floor(P / n) gradients, each divided by its staleness.

    sigma = the server's version - the gradient's;  alpha(sigma) = eta / max(1, sigma)
    w <- w - 1/c sum of alpha(sigma_l) g_l  over c = floor(P / n) gradients, whosever they are

    Each push is answered at once. n = 1 is nearly synchronous, n = inf takes a step per gradient.
    `correction=None` leaves the rates as they are. As in the original, Rudra, the server counts gradients, not
    workers, so that fast ones have several in a step. Different: the optimizer is the user's, and one other than
    SGD gets the mean of the rates and the mean of the gradients weighted by them; with n = 1 the original's hard
    synchronisation is `ssp(bound=0)`. Another `rule` than the mean gives each worker one vote, the mean of what it has
    pushed, and the step is taken when c workers have one. Sends 4 d bytes, as much comes back. Staleness has no
    bound; with equally fast workers it is about n.

    >>> staleness_aware(n=4)
    staleness_aware(n=4, correction=by_staleness(), servers=1, codec=None, rule=mean)
    """
    if not _is_number(n) or isnan(n) or n < 1:
        raise UsageError(f"staleness_aware(n={n!r}): a number from 1 on; inf for a step per gradient")
    check_servers("staleness_aware", servers)
    check_is_codec("staleness_aware", codec)
    check_is_correction("staleness_aware", correction)
    check_is_rule("staleness_aware", rule)
    return SoftSync(n=n, servers=servers, codec=codec, correction=correction, rule=rule)


@preset(
    system="AGN",
    parallelism="data",
    optimization="central",
    scheduling="unbounded delay",
    exchange="means of gradients up, weights down, every so many steps",
    topology="servers (shards)",
    moments="the servers'; those of a worker's own steps in between stay local",
    reference="Hermans et al., Accumulated Gradient Normalization, ACML 2017",
)
def agn(
    steps: int = 10,
    servers: int | str = 1,
    codec: Codec | None = None,
    correction: Correction | None = None,
) -> Strategy:
    """Accumulated gradient normalization: explore for some steps, then push the mean of the gradients.

    worker:  `steps` steps  w_i <- optimizer(w_i, g_i), gathering G <- G + g_i;  send G / steps;  w_i <- w
    server:  w <- optimizer(w, G / steps) on arrival

    `downpour(fetch=steps, push=steps, normalised=True)`: what it pushes is divided by the number of steps. A push moves
    the weights about as far as one gradient would, in a direction that looks further ahead. As in the original a
    worker explores from the weights that it has fetched, and pushes what it gathered divided by the steps.
    Different: the original pushes how far its local steps went, (w_i - w) / steps, and the server adds that; here the
    mean gradient goes through the optimizer of the server, which is the same for plain SGD only. And, like in
    `downpour`, the last step of each interval only gathers. Sends 4 d / steps bytes, as much comes back. Staleness has
    no bound; with equally fast workers it is P - 1.

    >>> agn(steps=5)
    agn(steps=5, servers=1, codec=None, correction=None)
    """
    check_whole("agn", "steps", steps, 1)
    check_servers("agn", servers)
    check_is_codec("agn", codec)
    check_is_correction("agn", correction)
    return Downpour(
        fetch=steps, push=steps, normalised=True, servers=servers, codec=codec, correction=correction
    )


def _check_awaited(backups: int | None, quorum: float | None) -> None:
    if backups is not None and quorum is not None:
        raise UsageError(
            f"tensorflow(backups={backups!r}, quorum={quorum!r}): both say how many are waited for; give one of them"
        )
    if quorum is not None and not (_is_number(quorum) and 0 < quorum <= 1):
        raise UsageError(f"tensorflow(quorum={quorum!r}): a share of the workers, more than 0 and at most 1")
    if backups is not None:
        check_whole("tensorflow", "backups", backups, 0)


def _check_intervals(name: str, fetch: int, push: int) -> None:
    """Each worker may have all its pushes between two fetches waiting at a server, each as large as the model."""
    check_whole(name, "fetch", fetch, 1)
    check_whole(name, "push", push, 1)
    if fetch > MOST_PUSHES * push:
        raise UsageError(
            f"{name}(fetch={fetch}, push={push}): up to {fetch // push} pushes of each worker could wait at a server, "
            f"each as large as the model, and {MOST_PUSHES} is the most. Fetch more often, or take "
            f"push={-(-fetch // MOST_PUSHES)}."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
