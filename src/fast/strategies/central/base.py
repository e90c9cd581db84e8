"""What all programs with servers have in common: how many there are, and what each of them owns."""

from __future__ import annotations

from fast.core import Strategy

WORKERS = "workers"
"""In the place of a number of servers: as many as there are workers, one beside each."""


class Central(Strategy):
    """Servers own the weights: one all of them, several a shard each, or a shard beside every worker."""

    def __init__(self, *, servers: int | str) -> None:
        self.server_count = servers
        self.sharded = servers != 1
        self.colocated = servers == WORKERS

    def servers(self, workers: int) -> int:
        return workers if isinstance(self.server_count, str) else self.server_count
