"""How long a step takes: what people write, and what comes of it."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import Compute, Straggler, parse_straggler
from fast.sim.cluster import Speed, parse_speeds
from fast.sim.cluster.draws import draw_bits, draw_unit, log_normal_factor, normal_quantile

MS = 1_000_000
numbers = st.integers(min_value=0, max_value=2**63)


def test_a_constant():
    assert Compute().duration_ns(0, 1, 0, 0) == 20 * MS
    assert Compute(0.0).duration_ns(0, 1, 0, 0) == 0
    assert Compute(0.02, workers_s={1: 0.5}).duration_ns(1, 2, 0, 0) == 500 * MS
    assert Compute(0.02, workers_s={1: 0.5}).duration_ns(0, 2, 0, 0) == 20 * MS


def test_stragglers():
    always = Compute(0.02, parse_straggler("4x"))
    assert [always.duration_ns(worker, 3, 5, 0) for worker in range(3)] == [20 * MS, 20 * MS, 80 * MS]
    sometimes = Compute(0.02, parse_straggler("5x@0.1"))
    drawn = [[sometimes.duration_ns(worker, 3, step, 1) for step in range(2000)] for worker in range(3)]
    for own in drawn:
        assert set(own) == {20 * MS, 100 * MS}
        assert 140 < own.count(100 * MS) < 260  # 200 expected, 4.5 standard deviations
    assert drawn[0] != drawn[1]
    assert Compute(0.02, Straggler(5, 0.0)).duration_ns(0, 1, 0, 0) == 20 * MS
    assert Compute(0.02, Straggler(5, 1.0)).duration_ns(0, 1, 0, 0) == 100 * MS


def test_stragglers_that_come_and_go():
    """Slow for whole stretches, a tenth of them, and each worker at other times."""
    compute = Compute(0.02, parse_straggler("5x@0.1/50"))
    stretches = []
    for worker in range(20):
        slow = [compute.duration_ns(worker, 20, step, 3) == 100 * MS for step in range(5000)]
        own = [slow[first : first + 50] for first in range(0, 5000, 50)]
        assert all(len(set(stretch)) == 1 for stretch in own)
        stretches.append([stretch[0] for stretch in own])
    assert 140 < sum(map(sum, stretches)) < 260  # of 2000, 4.5 standard deviations
    assert len(set(map(tuple, stretches))) == 20


@pytest.mark.parametrize("text", ["4x", "5x@0.1", "1.5x@0.25/7", "2x@0.3333333333333333"])
def test_stragglers_read_as_they_are_written(text):
    assert str(parse_straggler(text)) == text
    assert parse_straggler(f" {text.upper()} ") == parse_straggler(text)


@pytest.mark.parametrize(
    "text",
    ["", "4", "x", "-1x", "0x", "4x@", "4x@2", "4x@-0.1", "nanx", "infx", "4x@nan", "4x/3", "4x@0.1/", "4x@0.1/0",
     "4x@0.1/-3", "4x@0.1/2.5", "4x@0.1@0.2"],
)  # fmt: skip
def test_no_stragglers(text):
    with pytest.raises(UsageError, match=r"is no straggler\. Write 4x"):
        parse_straggler(text)


def test_speeds():
    compute = Compute(0.02, speeds=parse_speeds("0-1:2, 5:0.5, 7-8:0.25"))
    took = [compute.duration_ns(worker, 10, 0, 0) // MS for worker in range(10)]
    assert took == [10, 10, 20, 20, 20, 40, 20, 80, 80, 20]
    assert parse_speeds("1,0.5") == (Speed(0, 0, 1.0), Speed(1, 1, 0.5))
    assert parse_speeds("4-7:0.5,0:1") == (Speed(0, 0, 1.0), Speed(4, 7, 0.5))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "are no speeds"),
        ("fast", "are no speeds"),
        ("0-1:2,3", "are no speeds"),
        ("a:1", "are no speeds"),
        ("0:", "are no speeds"),
        ("0-3", "are no speeds"),
        ("3-0:1", "a range of workers"),
        ("0:0", "a speed above 0"),
        ("0:-1", "a speed above 0"),
        ("0:inf", "a speed above 0"),
    ],
)
def test_no_speeds(text, why):
    with pytest.raises(UsageError, match=why):
        parse_speeds(text)


def test_ranges_of_speeds_must_not_overlap():
    with pytest.raises(UsageError, match="every worker in at most one range"):
        Compute(speeds=parse_speeds("0-3:1,3-5:2"))


def test_traces_are_repeated():
    everybody = Compute(trace=((0.001, 0.002, 0.003),))
    own = Compute(trace=((0.001, 0.002), (0.005,)))
    assert [everybody.duration_ns(1, 2, step, 0) // MS for step in range(5)] == [1, 2, 3, 1, 2]
    assert [own.duration_ns(0, 3, step, 0) // MS for step in range(3)] == [1, 2, 1]
    assert [own.duration_ns(1, 3, step, 0) // MS for step in range(3)] == [5, 5, 5]
    assert [own.duration_ns(2, 3, step, 0) // MS for step in range(3)] == [1, 2, 1]
    slowed = Compute(trace=((0.001,),), straggler=Straggler(3), speeds=parse_speeds("0:0.5"))
    assert [slowed.duration_ns(worker, 2, 9, 0) // MS for worker in range(2)] == [2, 3]


def test_a_pace_pads_steps():
    paced = Compute(0.01, Straggler(4), {1: 0.07}, pace_s=0.05)
    took = [paced.duration_ns(worker, 3, 0, 0) // MS for worker in range(3)]
    assert took == [50, 70, 200]  # one is slower than the pace, and one is told to be four times slower
    assert paced.computing_ns(2, 0, 0) == 10 * MS  # the rest is slept
    assert paced.resting_ns(0, 3, 0, 0, computed_ns=30 * MS) == 20 * MS  # it had to wait for a core
    assert paced.resting_ns(0, 3, 0, 0, computed_ns=60 * MS) == 0
    assert Compute(0.01, Straggler(4)).resting_ns(0, 1, 0, 0, computed_ns=15 * MS) == 45 * MS


def test_everything_can_be_slowed_down():
    slowed = Compute(0.01, workers_s={1: 0.02}, pace_s=0.005).slowed(1.5)
    assert [slowed.duration_ns(worker, 2, 0, 0) // MS for worker in range(2)] == [15, 30]
    assert slowed.pace_s == 0.005
    assert Compute(trace=((0.01,),)).slowed(2).duration_ns(0, 1, 0, 0) == 20 * MS


def test_a_log_normal_has_its_median_and_its_spread():
    compute = Compute(0.1, spread=0.5)
    drawn = [compute.duration_ns(worker, 40, step, 7) for worker in range(40) for step in range(1000)]
    logs = [math.log(took / 1e8) for took in drawn]
    assert abs(statistics.median(logs)) < 0.5 * 1.2533 * 5 / math.sqrt(len(logs))
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=5 / math.sqrt(2 * len(logs)))
    assert statistics.mean(drawn) == pytest.approx(1e8 * math.exp(0.5**2 / 2), rel=0.02)
    assert len({compute.duration_ns(worker, 40, 0, 7) for worker in range(40)}) > 35


def test_the_values_of_a_log_normal_are_those_of_its_quantiles():
    """Against floating point; the table itself doesn't use it."""
    normal = statistics.NormalDist()
    for place in range(4096):
        expected = math.exp(0.75 * normal.inv_cdf((place + 0.5) / 4096))
        assert log_normal_factor(0.75, place) / 2**32 == pytest.approx(expected, rel=1e-8)


def test_quantiles_are_the_same_on_every_machine():
    """None is so near to where rounding goes the other way that the last bits of a machine's
    logarithm or square root could matter: they are some 1e-15 and the room here is 1e-14."""
    normal = statistics.NormalDist()
    for place in range(4096):
        exact = normal.inv_cdf((place + 0.5) / 4096)
        assert abs(exact - float(normal_quantile(place))) <= 0.5e-9 - 1e-14


def plain_splitmix(state: int) -> int:
    """The next output of splitmix64, as its authors write it."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_draws_are_splitmix():
    assert plain_splitmix(1234567) == 6457827717110365317  # the published first output for this seed
    seeded = plain_splitmix((5 + 2 * 0x9E3779B97F4A7C15) % 2**64)
    expected = plain_splitmix((plain_splitmix((seeded + 3) % 2**64) + 8) % 2**64)
    assert draw_bits(5, 2, 3, 8) == expected
    assert draw_unit(5, 2, 3, 8) == (expected >> 11) / 2**53


@given(numbers, numbers, numbers)
def test_draws_are_in_their_range(seed, worker, step):
    assert 0 <= draw_bits(seed, 1, worker, step) < 2**64
    assert 0 <= draw_unit(-seed, 1, worker, step) < 1


def test_draws_differ_by_everything():
    drawn = {
        draw_bits(seed, stream, w, s)
        for seed in range(8)
        for stream in range(4)
        for w in range(32)
        for s in range(32)
    }
    assert len(drawn) == 8 * 4 * 32 * 32


models = st.sampled_from(
    [Compute(spread=0.4), Compute(0.02, Straggler(5, 0.3, 7)), Compute(trace=((0.1, 0.2),), spread=1.0)]
)


@given(numbers, st.integers(0, 9999), st.integers(0, 10**6), models)
def test_the_same_question_has_the_same_answer(seed, worker, step, compute):
    first = compute.duration_ns(worker, 10_000, step, seed)
    assert isinstance(first, int) and first >= 0
    assert compute.duration_ns(worker, 10_000, step, seed) == first


def test_known_durations():
    """Whatever machine this runs on: the trace of events of a simulation depends on it."""
    compute = Compute(0.02, parse_straggler("5x@0.5/2"), spread=0.3, speeds=parse_speeds("1:0.5"))
    took = [compute.duration_ns(worker, 4, step, 11) for worker in (0, 1) for step in range(3)]
    assert took == [12119431, 29149540, 24740903, 221151430, 312982600, 28340950]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step_s": -1}, "a step of -1"),
        ({"workers_s": {0: math.inf}}, "a step of inf"),
        ({"trace": ((0.1, math.nan),)}, "a step of nan"),
        ({"trace": ((),)}, "at least one duration"),
        ({"spread": -0.1}, "a spread of -0.1"),
        ({"spread": math.nan}, "a spread of nan"),
        ({"pace_s": 0.0}, "a pace of 0.0"),
    ],
)
def test_impossible_computing(options, why):
    with pytest.raises(UsageError, match=why):
        Compute(**options)
