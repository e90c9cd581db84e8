"""Participants as threads of one process: for tests and for trying things out, not for speed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fast.core import Strategy
from fast.engine.seat import Seat, seated
from fast.transport import MemoryHub, MemoryTransport
from fast.view import Groups

ServerBody = Callable[[Strategy, int], None]


def run_threads(
    workers: int,
    body: Callable[[int], Any],
    server_body: ServerBody,
    *,
    seed: int | None = 0,
    strategy: str | None = None,
    deadline_s: float = 10.0,
    groups: Groups = (),
) -> list[Any]:
    """Call `body(id)` on as many threads, each in its seat. Raises what the first of them raised."""
    hub = MemoryHub(2 * workers + 1)
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []
    threads: list[threading.Thread] = []
    said: list[str] = []

    def start(run: Callable[[], None], seat: Seat) -> None:
        def guarded() -> None:
            try:
                with seated(seat):
                    run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded, name=f"fast-{seat.id}", daemon=True)
        threads.append(thread)
        thread.start()

    def seat_of(id: int) -> Seat:
        def start_servers(strategy: Strategy, count: int) -> None:
            for number in range(count):
                start(lambda number=number: server_body(strategy, number), seat_of(workers + number))  # type: ignore[misc]

        connect = lambda: MemoryTransport(id, hub)  # noqa: E731
        return Seat(
            id, workers, connect, start_servers, said.append, seed, strategy, deadline_s, groups=groups
        )

    def run_body(id: int) -> None:
        results[id] = body(id)

    for id in range(workers):
        start(lambda id=id: run_body(id), seat_of(id))  # type: ignore[misc]
    for thread in threads:  # servers are appended while the workers run
        while thread.is_alive() and not errors:
            thread.join(0.05)
        if errors:
            raise errors[0]
    return results
