"""Cores that stay awake: the part of the weather that a machine can be asked to leave out.

A core with nothing to do halts. On hardware that is shared, a hypervisor then gives the physical core to somebody
else, and who wakes up may find itself beside a busy neighbour: a gradient that always takes 0.14 ms without a pause
took 0.24 to 0.39 ms after naps of 2 ms, for seconds in a row, and went on taking 0.24 ms for half a second without any.
Asked for no latency at all, Linux waits for work without halting instead. Caches still get cold meanwhile: 0.20 ms
after naps of 2 ms, every time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUESTS = Path("/dev/cpu_dma_latency")
"""Where Linux takes a wish for the longest latency of its cores, in microseconds; it holds while the file is open."""


@contextmanager
def cores_awake(requests: Path = REQUESTS) -> Iterator[bool]:
    """No core halts in the meantime. Whether it could be asked for: it takes Linux, and the right to."""
    try:
        request = requests.open("r+b", buffering=0)
    except OSError:
        yield False
        return
    with request:
        request.write(struct.pack("i", 0))
        yield True
