"""Time, networks and computing: what people write and what comes of it."""

import math

import pytest

from fast.core.seeds import gradient_seed, stream_seed
from fast.errors import UsageError
from fast.sim import (
    NETWORKS,
    Compute,
    Network,
    Straggler,
    TraceHash,
    parse_duration,
    parse_network,
    parse_straggler,
)
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


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("20ms", 20_000_000),
        ("1.5s", 1_500_000_000),
        ("100us", 100_000),
        ("7ns", 7),
        ("0.02", 20_000_000),
        ("1e-3", 1_000_000),
        (" 2 MS ", 2_000_000),
    ],
)
def test_durations(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "fast", "-1ms", "1h", "1.2.3s", "nan", "inf", "20 m s"])
def test_no_durations(text):
    with pytest.raises(UsageError, match=r"is not a duration\. Write for example 20ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [
        ("1gbit", 125e6, 100e-6),
        ("WAN", 12.5e6, 30e-3),
        ("100mbit,1ms", 12.5e6, 1e-3),
        ("100e6,1e-3", 12.5e6, 1e-3),
        ("8 kbit/s, 0", 1e3, 0.0),
    ],
)
def test_networks(text, rate, latency):
    assert parse_network(text) == Network(rate, latency)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1gibt", "Did you mean 1gbit?"),
        ("infinband", "Did you mean infiniband?"),
        ("x", "Known: loopback, 1gbit, 10gbit, infiniband, wan."),
        ("1,2,3", "rate,latency such as 100mbit,1ms"),
        ("fast,1ms", "'fast' is not a rate"),
        ("1gbit,soon", "'soon' is not a duration"),
        ("0,1ms", "carries nothing"),
    ],
)
def test_no_networks(text, hint):
    with pytest.raises(UsageError) as caught:
        parse_network(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize(("rate", "latency"), [(0, 0), (-1, 0), (math.nan, 0), (1, -1), (1, math.inf)])
def test_impossible_networks(rate, latency):
    with pytest.raises(UsageError, match="can't be"):
        Network(rate, latency)


def test_costs_of_a_mean():
    network = Network(1e6, 1e-3)
    assert network.mean_ns([0], 10**6) == 0
    assert network.mean_ns([0, 1, 2, 3], 10**6) == round(2 * 3 / 4 * 1e9) + 2_000_000
    assert Network(math.inf, 0.0).mean_ns([0, 1], 10**9) == 0
    slow = Network(1e6, 1e-3, {(0, 1): Network(1e3, 0.0), (0, 5): Network(1.0, 0.0)})
    assert slow.mean_ns([0, 1], 1000) == 1_000_000_000


def test_the_profiles_are_ordered_as_people_expect():
    rates = [NETWORKS[name].rate_bytes_per_s for name in ("wan", "1gbit", "10gbit", "infiniband")]
    assert rates == sorted(rates)


def test_stragglers():
    always = Compute(0.02, parse_straggler("4x"))
    assert [always.duration_ns(worker, 3, 5, 0) for worker in range(3)] == [
        20_000_000,
        20_000_000,
        80_000_000,
    ]
    sometimes = Compute(0.02, parse_straggler("5x@0.1"))
    drawn = [[sometimes.duration_ns(worker, 3, step, 1) for step in range(2000)] for worker in range(3)]
    for own in drawn:
        assert set(own) == {20_000_000, 100_000_000}
        assert 140 < own.count(100_000_000) < 260  # 200 expected, 4.5 standard deviations
    assert drawn[0] != drawn[1]
    assert Compute(0.02, Straggler(5, 0.0)).duration_ns(0, 1, 0, 0) == 20_000_000
    assert Compute(0.02, workers_s={1: 0.5}).duration_ns(1, 2, 0, 0) == 500_000_000


@pytest.mark.parametrize(
    "text", ["", "4", "x", "-1x", "0x", "4x@", "4x@2", "4x@-0.1", "nanx", "infx", "4x@nan"]
)
def test_no_stragglers(text):
    with pytest.raises(UsageError, match=r"is no straggler\. Write 4x"):
        parse_straggler(text)


def test_impossible_computing():
    with pytest.raises(UsageError, match="a step of -1"):
        Compute(-1)
    with pytest.raises(UsageError, match="a step of inf"):
        Compute(workers_s={0: math.inf})


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
