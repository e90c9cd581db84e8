"""Presets that average gradients among all workers."""

from __future__ import annotations

from fast.collectives.sums import algorithms_for, check_algorithm
from fast.core import Strategy
from fast.core.rounds import How
from fast.errors import UsageError
from fast.parts import Rule, mean
from fast.parts.codecs.calls import Codec
from fast.strategies.averaging import AllReduce, GatherAndMerge
from fast.strategies.catalogue import preset
from fast.strategies.factors import FactorBroadcast
from fast.strategies.presets.arguments import bucket_bytes, check_is_codec, check_is_rule


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
    rule: Rule = mean,
) -> Strategy:
    """Synchronous training: all workers take the same step with the mean gradient.

    w <- optimizer(w, mean_i C(g_i))

    Without a codec C equal to one worker with P times the batch. The sum is made by ascending worker, host by host;
    `order="any"` lets the cost model choose among all algorithms, `algorithm="ring"` names one.
    `bucket_mb` sends the gradient in buckets of that size while backward is still running.
    Sends 8 d (P - 1) / P bytes, or what the codec makes of them. Staleness 0.

    With another `rule` than the mean, one that tolerates hostile workers, everybody sends its gradient to everybody,
    4 d (P - 1) bytes, and merges all of them by itself: w <- optimizer(w, rule({g_i})).

    >>> from fast.codecs import fp16
    >>> allreduce(codec=fp16())
    allreduce(codec=fp16(), algorithm='auto', order='canonical', bucket_mb=None, rule=mean)
    """
    check_is_rule("allreduce", rule)
    check_is_codec("allreduce", codec)
    if rule is not mean:
        if (codec, algorithm, order, bucket_mb) != (None, "auto", "canonical", None):
            raise UsageError(
                f"allreduce(rule={rule!r}, ...): codec, algorithm, order and bucket_mb are ways to make a mean, and "
                "this rule needs all gradients as they are. Leave them out, or take ssp(bound=0, rule=..., codec=...)."
            )
        return GatherAndMerge(rule=rule)
    check_algorithm(algorithm, *algorithms_for(codec))
    How(codec, algorithm, order)
    return AllReduce(codec=codec, algorithm=algorithm, order=order, bucket_bytes=bucket_bytes(bucket_mb))


@preset(
    system="PyTorch DDP",
    parallelism="data",
    optimization="central",
    scheduling="synchronous",
    exchange="gradients in buckets, every step",
    topology="all-reduce",
    reference="Li et al., PyTorch Distributed, VLDB 2020",
)
def pytorch(bucket_mb: float | None = 25, codec: Codec | None = None) -> Strategy:
    """PyTorch's DistributedDataParallel: all-reduce of gradients in buckets, while backward is running.

    w <- optimizer(w, mean_i C(g_i)), bucket by bucket from the last parameters to the first

    As in the original every worker runs the optimizer itself, on the same mean; gradients are collected in
    buckets of 25 MB in the order in which backward makes them, and a bucket travels as soon as it is full.
    Different: the mean is made by ascending worker, the same bits for any number of buckets, where NCCL and
    Gloo add in an order of their own; weighted by samples, where DDP counts every worker alike; buffers
    stay local, where DDP sends those of one worker to all in every step. `fast.join(accumulate=k)` is
    `no_sync`; what DDP calls a communication hook is the `codec` C. Sends 8 d (P - 1) / P bytes. Staleness 0.

    >>> pytorch()
    pytorch(bucket_mb=25, codec=None)
    """
    check_is_codec("pytorch", codec)
    return AllReduce(codec=codec, bucket_bytes=bucket_bytes(bucket_mb))


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
