"""What all hosts of a run do: made on the first one, and handed to the others when they come."""

from __future__ import annotations

import msgspec

from fast.engine.messages import Part
from fast.errors import UsageError


class Plan(msgspec.Struct):
    """All that another host has to know beside the job's secret."""

    hosts: list[str]
    counts: list[int]
    script: str
    arguments: list[str]
    module: bool
    folder: str
    """Where the first host's user typed the command."""
    digest: str
    """Digest of the script's text, so that all hosts run the same one."""
    strategy: str | None
    seed: int | None
    deadline_s: float
    threads: int | None
    record: str | None

    @property
    def workers(self) -> int:
        return sum(self.counts)

    def part(self, host: int, coordinator: str = "", listen_at: str = "", secret: str | None = None) -> Part:
        return Part(host, self.hosts, self.counts, coordinator, listen_at, secret)


def spread(hosts: str, workers: int | None) -> tuple[list[str], list[int]]:
    """Names of the hosts and the number of workers of each.

    >>> spread("a,b,c", 7)
    (['a', 'b', 'c'], [3, 2, 2])
    >>> spread("a:2,b:4", None)
    (['a', 'b'], [2, 4])
    """
    parts = [part.strip() for part in hosts.split(",")]
    names, counts = [], []
    for part in parts:
        name, colon, number = part.partition(":") if part.count(":") < 2 else (part, "", "")
        if not name or (colon and not (number.isdecimal() and int(number))):
            raise UsageError(
                f"--hosts {hosts}: {part!r} isn't a host. Names or addresses are needed, such as a,b, or with numbers "
                "of workers, such as a:2,b:4"
            )
        names.append(name)
        counts.append(int(number) if colon else 0)
    if len(set(names)) < len(names):
        raise UsageError(f"--hosts {hosts}: the same host stands there twice")
    if all(counts):
        if workers is not None and workers != sum(counts):
            raise UsageError(
                f"--hosts {hosts} has {sum(counts)} workers and --workers says {workers}; leave one out"
            )
        return names, counts
    if any(counts):
        raise UsageError(f"--hosts {hosts}: give every host its number of workers, or none")
    total = len(names) if workers is None else workers
    if total < len(names):
        raise UsageError(f"--workers {total}: {len(names)} hosts need at least {len(names)} workers")
    each, more = divmod(total, len(names))
    return names, [each + (host < more) for host in range(len(names))]
