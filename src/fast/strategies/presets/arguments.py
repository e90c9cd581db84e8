"""Arguments that several presets have, checked."""

from __future__ import annotations

from fast.errors import UsageError


def bucket_bytes(bucket_mb: float | None) -> int | None:
    """The least size of a bucket, in bytes."""
    if bucket_mb is None:
        return None
    if isinstance(bucket_mb, bool) or not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
        raise UsageError(
            f"bucket_mb={bucket_mb!r}: the least size of a bucket in MB, more than 0, or None for no buckets"
        )
    return max(1, int(min(bucket_mb, 1e6) * 1e6))


def check_whole(name: str, key: str, value: object, least: int) -> None:
    """Refuse what isn't a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}({key}={value!r}): a whole number from {least} on is needed")


def check_servers(name: str, servers: object) -> None:
    """Refuse what is no number of servers."""
    if servers == "workers" or (isinstance(servers, int) and not isinstance(servers, bool) and servers >= 1):
        return
    raise UsageError(
        f"{name}(servers={servers!r}): a whole number from 1 on, or 'workers' for a shard beside every worker"
    )


def check_is_rule(name: str, rule: object) -> None:
    """Refuse what merges nothing: no function, or one that still has to be called."""
    if isinstance(rule, type):
        raise UsageError(
            f"{name}(rule={rule.__name__}): a rule of this kind is called, such as krum(hostile=1)"
        )
    if not callable(rule):
        raise UsageError(
            f"{name}(rule={rule!r}): a rule is mean, sum, one that stands hostile workers such as median(), or a "
            "function of (own, weight, arrived)"
        )
