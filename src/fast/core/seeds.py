"""Seeds that are the same on every machine: one number, many independent streams."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *words: object) -> int:
    """The seed of the stream that these words name: 63 bits, equal wherever it is computed.

    Python's own `hash` differs between processes and a sum of seeds lets neighbouring streams
    overlap; a hash of the words does neither.
    """
    text = repr((seed, *words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def gradient_seed(seed: int, worker: int, step: int) -> int:
    """What torch's generator is seeded with before this worker's gradient of this step."""
    return stream_seed(seed, "gradient", worker, step)
