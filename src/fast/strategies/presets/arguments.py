"""Checks of arguments that several presets have."""

from __future__ import annotations

from fast.errors import UsageError
from fast.parts import Rule, Topology, mean, sum_
from fast.parts.codecs import Codec
from fast.parts.lateness import ForLate
from fast.parts.merge import check_rule_given
from fast.parts.robust import NormClip
from fast.parts.staleness import Correction


def bucket_bytes(bucket_mb: float | None) -> int | None:
    """Minimum size of a bucket, in bytes."""
    if bucket_mb is None:
        return None
    if isinstance(bucket_mb, bool) or not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
        raise UsageError(
            f"bucket_mb={bucket_mb!r}: the least size of a bucket in MB, more than 0, or None for no buckets"
        )
    return max(1, int(min(bucket_mb, 1e6) * 1e6))


def check_servers(name: str, servers: object) -> None:
    """Raise UsageError unless this is a number of servers."""
    if servers == "workers" or (isinstance(servers, int) and not isinstance(servers, bool) and servers >= 1):
        return
    raise UsageError(
        f"{name}(servers={servers!r}): a whole number from 1 on, or 'workers' for a shard beside every worker"
    )


def check_is_rule(name: str, rule: object) -> None:
    """Raise UsageError unless `rule` is a merge rule that is ready to use."""
    check_rule_given(name, "rule", rule)


def check_is_rule_of_changes(name: str, rule: object) -> None:
    """Raise UsageError unless `rule` merges changes of weights."""
    check_is_rule(name, rule)
    if rule is sum_ or isinstance(rule, ForLate):
        raise UsageError(
            f"{name}(rule={getattr(rule, '__name__', rule)!s}): this rule is one for gradients, and weights are merged "
            "here. Take mean, or one that tolerates hostile workers, such as median()."
        )


def check_is_rule_of_weights(name: str, rule: object) -> None:
    """Raise UsageError unless `rule` merges weights."""
    check_is_rule_of_changes(name, rule)
    if isinstance(rule, NormClip):
        raise UsageError(
            f"{name}(rule={rule!r}): weights are merged here, and shortened to some length they are another model. "
            "Take median(), trimmed_mean(), krum() or multi_krum()."
        )


def check_moments_follow(name: str, rule: Rule, moments: str) -> None:
    """Raise UsageError if moments would be averaged while a rule merges the weights."""
    if rule is not mean and moments == "average":
        raise UsageError(
            f"{name}(rule={rule!r}, moments='average'): moments are averaged without the rule, so a hostile worker "
            "would lie about those. Take moments='keep', 'reset' or 'correct'."
        )


def check_no_average(name: str, moments: str, because: str) -> None:
    """Raise UsageError if this strategy can't average moments."""
    if moments == "average":
        raise UsageError(f"{name}(moments='average'): {because}. Take moments='keep', 'reset' or 'correct'.")


def check_is_correction(name: str, correction: object) -> None:
    """Raise UsageError unless `correction` is a staleness correction instance."""
    _check_made(name, "correction", correction, Correction, "fast.corrections.by_staleness()")


def check_is_codec(name: str, codec: object) -> None:
    """Raise UsageError unless `codec` is a codec instance."""
    _check_made(name, "codec", codec, Codec, "fast.codecs.int8()")


def check_is_topology(name: str, topology: object) -> None:
    """Raise UsageError unless `topology` is a topology instance."""
    if not isinstance(topology, Topology):
        shown = getattr(topology, "__name__", None) or repr(topology)
        raise UsageError(
            f"{name}(topology={shown}): a topology is an object that is made by a call, such as "
            "fast.topologies.Ring(), with the brackets and without quotes"
        )


def _check_made(name: str, key: str, given: object, kind: type, example: str) -> None:
    if given is None or isinstance(given, kind):
        return
    shown = getattr(given, "__name__", None) or repr(given)
    raise UsageError(
        f"{name}({key}={shown}): a {key} is an object that is made by a call, such as {example}, with the brackets and "
        "without quotes; or None"
    )
