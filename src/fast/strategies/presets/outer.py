"""Presets with an outer optimizer: local steps, and now and then a step of another kind with what they changed.

Common to all of them: with one worker they are not training without FAST, because the outer optimizer acts there too.
A run that is shorter than the interval ends without any exchange, and one whose length is no multiple of it some steps
after the last; the model is then the mean of the replicas, as always where replicas differ.
"""

from __future__ import annotations

from types import MappingProxyType

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Rule, mean
from fast.parts.arguments import check_whole
from fast.parts.codecs.calls import Codec
from fast.parts.outer import HeavyBall, Nesterov, SlowMomentum
from fast.strategies.catalogue import preset
from fast.strategies.decentral.moments import Moments
from fast.strategies.decentral.outer import OuterSteps
from fast.strategies.decentral.pairwise import PairSteps
from fast.strategies.decentral.streaming import FragmentSteps
from fast.strategies.presets.arguments import check_is_codec, check_is_rule_of_changes


@preset(
    system="SlowMo, BMUF",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="changes of weights, every tau steps, with slow momentum",
    topology="all-reduce",
    moments="kept local",
    reference="Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum, ICLR 2020",
)
def slowmo(
    tau: int = 12, alpha: float = 1.0, beta: float = 0.5, moments: str = "keep", rule: Rule = mean
) -> Strategy:
    """Local steps, and momentum on the mean of their changes.

    w_i <- optimizer(w_i, g_i);  every tau steps
    u <- beta u + (w - mean_i w_i) / gamma;  w <- w - alpha gamma u;  w_i <- w

    w are the weights after the exchange before, gamma is the learning rate of the moment, per parameter group; its
    schedule has to be the same on all workers. beta = 0 with alpha = 1 is `local_sgd`, and tau = 1 with plain SGD is
    heavy-ball momentum on the mean gradient. Any optimizer may take the local steps; `moments` says what becomes of
    its momentum or moments at an exchange: "keep", "average", "reset" or "correct". With plain SGD and a constant
    rate it is also BMUF, blockwise model-update filtering (Chen and Huo, ICASSP 2016), with a block momentum of beta.

    As in the original, whose public code exchanges every 48 steps, with beta from 0 for two workers up to 0.6 for 16
    of them. Different: means are weighted by the samples seen since the exchange before, and a `rule` that tolerates
    hostile workers may take the mean's place, for which every worker sends its change to all. Sends 8 d (P - 1) / (P
    tau) bytes; "average" as much again for each moment. Staleness 0.

    >>> slowmo(tau=24, beta=0.6)
    slowmo(tau=24, alpha=1.0, beta=0.6, moments='keep', rule=mean)
    """
    check_whole("slowmo", "tau", tau, 1)
    _check_positive("slowmo", "alpha", alpha)
    _check_below_1("slowmo", "beta", beta)
    check_is_rule_of_changes("slowmo", rule)
    knobs, outer = MappingProxyType({"tau": (4, 25), "beta": (0.2, 0.7)}), SlowMomentum(alpha, beta)
    return OuterSteps(interval=tau, outer=outer, moments=Moments(moments), knobs=knobs, rule=rule)


@preset(
    system="DiLoCo",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="changes of weights, every interval steps, for an outer optimizer",
    topology="all-reduce",
    moments="kept local",
    reference="Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023",
)
def diloco(
    interval: int = 50, rate: float = 0.7, momentum: float = 0.9, moments: str = "keep", rule: Rule = mean
) -> Strategy:
    """Many local steps of AdamW, and an outer step with Nesterov's momentum.

    w_i <- optimizer(w_i, g_i);  every interval steps
    D = mean_i (w - w_i);  b <- momentum b + D;  w <- w - rate (D + momentum b);  w_i <- w

    w are the weights after the exchange before. The local steps are those of the user's optimizer, for which the
    original takes AdamW; its moments stay on their worker, and are never averaged unless `moments` says so. Without
    momentum and with rate = 1 it is `local_sgd`, and with interval = 1 then `allreduce` (plain SGD).

    As in the original, which exchanges every 500 steps of its long runs. Different: means are weighted by the samples
    seen since the exchange before, and D may be made by a `rule` that tolerates hostile workers, for which every
    worker sends its change to all. Sends 8 d (P - 1) / (P interval) bytes. Staleness 0.

    >>> diloco(interval=500)
    diloco(interval=500, rate=0.7, momentum=0.9, moments='keep', rule=mean)
    """
    check_whole("diloco", "interval", interval, 1)
    _check_outer("diloco", rate, momentum)
    check_is_rule_of_changes("diloco", rule)
    knobs, outer = MappingProxyType({"interval": (10, 25)}), Nesterov(rate, momentum)
    return OuterSteps(interval=interval, outer=outer, moments=Moments(moments), knobs=knobs, rule=rule)


@preset(
    system="Streaming DiLoCo",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous, overlap steps late",
    exchange="changes of weights, a fragment at a time, while training goes on",
    topology="all-reduce",
    moments="kept local: each fragment has its own time, and they are of the whole model",
    reference="Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025",
)
def streaming_diloco(
    fragments: int = 4,
    interval: int = 50,
    overlap: int = 5,
    mix: float = 0.5,
    rate: float = 0.7,
    momentum: float = 0.9,
    codec: Codec | None = None,
) -> Strategy:
    """DiLoCo in fragments: each part of the model is exchanged at its own time, while training goes on.

    for each fragment, every interval steps, at step s:  D = mean_i C(w - w_i), sent as all workers train on
    at step s + overlap:  b <- momentum b + D;  w <- w - rate (D + momentum b);  w_i <- mix w_i + (1 - mix) w

    The model is cut between parameters, and those larger than a share of it between rows; fragments are strided
    through its depth and exchanged at equal distances, so a step sends a share of 1 / fragments at most. Half of
    `overlap` is for slices on their way to the workers that average them, half for the means on their way back;
    nobody waits for anything younger. C is any codec, and error_feedback around it keeps what it leaves out. One
    fragment, overlap = 0 and mix = 0 are `diloco`, bit for bit.

    As in the original, which takes 4-bit floats for C and adds in 32 bits, as is done here with any codec. Different:
    fragments are equally large instead of three transformer layers; the mean travels encoded, too. Rounds that are
    under way when training ends are left out. Sends 8 d (P - 1) / (P interval) bytes, or what C makes of them; in no
    step more than about 8 d (P - 1) / (P fragments). What is included is `overlap` steps late.

    >>> streaming_diloco(fragments=8, interval=100)
    streaming_diloco(fragments=8, interval=100, overlap=5, mix=0.5, rate=0.7, momentum=0.9, codec=None)
    """
    name = "streaming_diloco"
    check_whole(name, "fragments", fragments, 1)
    check_whole(name, "interval", interval, fragments)
    check_whole(name, "overlap", overlap, 0)
    if overlap >= interval:
        raise UsageError(
            f"{name}(interval={interval}, overlap={overlap}): a round ends before the next begins"
        )
    _check_below_1(name, "mix", mix)
    _check_outer(name, rate, momentum)
    check_is_codec(name, codec)
    outer = Nesterov(rate, momentum)
    return FragmentSteps(
        fragments=fragments, interval=interval, overlap=overlap, mix=mix, outer=outer, codec=codec
    )


@preset(
    system="NoLoCo",
    parallelism="data",
    optimization="decentral",
    scheduling="synchronous",
    exchange="slow weights and their changes in random pairs, every interval steps",
    topology="random pairs",
    moments="kept local",
    reference="Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training Method for Large Models, 2025",
)
def noloco(
    interval: int = 50, rate: float = 0.7, momentum: float = 0.5, send: str = "both", moments: str = "keep"
) -> Strategy:
    """DiLoCo in random pairs instead of rounds of all workers; each worker has its own slow weights.

    w_i <- optimizer(w_i, g_i);  every interval steps, in pairs (i, j), with s_i the slow weights and D_i = w_i - s_i:
    m_i <- momentum m_i + rate (D_i + D_j) / 2 + rate ((s_i + s_j) / 2 - s_i);  s_i <- s_i + m_i;  w_i <- s_i

    The last term pulls the slow weights of a pair together; over all workers it adds up to nothing. Pairs are drawn
    anew each time, the same on all workers by the seed of the run. Of an odd number one stays alone in that
    round, and so does whose partner has left. The optimizer's moments stay local, unless `moments` says otherwise:
    "average" averages them in the pair, "reset" and "correct" are as for `local_sgd`.

    s_i and D_i both travel, as in the original: 16 d / interval bytes, half of them sent and half received. As both
    count with the same rate, their sum w_i would do: `send="sum"` gives the same up to rounding for half the bytes.
    Staleness 0.

    >>> noloco(interval=100)
    noloco(interval=100, rate=0.7, momentum=0.5, send='both', moments='keep')
    """
    check_whole("noloco", "interval", interval, 1)
    _check_outer("noloco", rate, momentum)
    if send not in ("both", "sum"):
        raise UsageError(
            f"noloco(send={send!r}): 'both' slow weights and their change are sent, or their 'sum'"
        )
    outer = HeavyBall(rate, momentum)
    return PairSteps(interval=interval, outer=outer, both=send == "both", moments=Moments(moments))


def _check_outer(name: str, rate: object, momentum: object) -> None:
    _check_positive(name, "rate", rate)
    _check_below_1(name, "momentum", momentum)


def _check_positive(name: str, key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{name}({key}={value!r}): a number above 0 is needed")


def _check_below_1(name: str, key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError(f"{name}({key}={value!r}): a number from 0 to less than 1 is needed")
