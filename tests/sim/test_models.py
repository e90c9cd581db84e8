"""Virtual time, seeds and fingerprints."""

import pytest

from fast.core.seeds import gradient_seed, stream_seed
from fast.sim import TraceHash
from fast.sim.events import Events
from fast.trace import Left


def test_events_happen_by_time_and_then_in_order():
    events, seen = Events(), []
    events.at(5, lambda: seen.append("five"))
    events.at(3, lambda: (seen.append("three"), events.soon(lambda: seen.append("three, later")))[0])
    events.at(3, lambda: seen.append("three, second"))
    while events:
        events.run_next()
    assert seen == ["three", "three, second", "three, later", "five"]
    assert events.now_ns == 5
    with pytest.raises(ValueError, match="already 5"):
        events.at(4, lambda: None)


def test_seeds_are_the_same_everywhere_and_streams_differ():
    # printf "(0, 'draw', 1)" | b2sum -l 64  gives  c502fb005e9edefd; read backwards, without the last bit.
    assert stream_seed(0, "draw", 1) == 0xFDDE9E5E00FB02C5 >> 1
    assert gradient_seed(7, 1, 2) == stream_seed(7, "gradient", 1, 2)
    streams = {stream_seed(seed, word, i) for seed in range(5) for word in "ab" for i in range(50)}
    assert len(streams) == 500
    assert all(0 <= seed < 2**63 for seed in streams)


def test_trace_hash_depends_on_content_and_order():
    def hashed(*records):
        trace = TraceHash()
        for record in records:
            trace(record)
        return trace.hexdigest()

    a, b = Left(0, 1, 2), Left(1, 1, 2)
    assert hashed(a, b) == hashed(Left(0, 1, 2), Left(1, 1, 2))
    assert len({hashed(a, b), hashed(b, a), hashed(a), hashed()}) == 4
