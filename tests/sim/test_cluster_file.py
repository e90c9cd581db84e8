"""Clusters as files, options and words."""

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import NETWORKS, Cluster, Compute, Network, Straggler
from fast.sim.cluster import (
    Hosts,
    Racks,
    Speed,
    Work,
    cluster_of,
    load_cluster,
    parse_hosts,
    parse_racks,
    read_cluster,
    to_toml,
)
from fast.sim.cluster.units import duration_text, parse_rate, parse_seconds, rate_text
from fast.sim.cluster.words import rate_in_words, time_in_words

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "clusters.md").read_text(encoding="utf-8")


class OwnCompute:
    """A model that no file knows."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        return 1


durations = st.one_of(
    st.sampled_from([0.0, 0.02, 1e-4, 5e-6, 1 / 3]), st.floats(0, 1e6, allow_nan=False, allow_subnormal=False)
)
rates = st.one_of(
    st.sampled_from([125e6, 3e9, 1e3, math.inf]),
    st.floats(1e-3, 1e15, allow_nan=False, allow_subnormal=False),
)
links = st.builds(Network, rates, durations, message_s=durations)
hosts = st.one_of(
    st.builds(Hosts, st.one_of(st.none(), st.integers(1, 64)), beside=st.booleans()),
    st.builds(Hosts, of=st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple)),
)
networks = st.builds(
    Network,
    rates,
    durations,
    st.dictionaries(st.tuples(st.integers(0, 9), st.integers(0, 9)), links, max_size=3),
    message_s=durations,
    receive_bytes_per_s=st.one_of(st.none(), rates),
    shared=st.booleans(),
    hosts=hosts,
    inside=st.one_of(st.none(), links),
    racks=st.one_of(st.none(), st.builds(Racks, st.integers(1, 9), rates, durations)),
)
factors = st.floats(1e-3, 1e3, allow_nan=False)
stragglers = st.one_of(
    st.builds(Straggler, factors),
    st.builds(Straggler, factors, st.floats(0, 1, allow_subnormal=False), st.integers(1, 1000)),
)
computes = st.builds(
    Compute,
    durations,
    st.one_of(st.none(), stragglers),
    st.dictionaries(st.integers(0, 99), durations, max_size=3),
    st.floats(0, 5, allow_nan=False, allow_subnormal=False),
    st.lists(factors, max_size=4).map(
        lambda all_: tuple(Speed(5 * place, 5 * place + 3, each) for place, each in enumerate(all_))
    ),
    st.lists(st.lists(durations, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    st.one_of(st.none(), st.floats(1e-6, 1e3)),
)
costs = dict.fromkeys(("turn_s", "apply_s", "send_s", "message_s", "read_s", "op_s"), durations)
costs |= dict.fromkeys(("apply_rate", "send_rate", "read_rate", "op_rate"), rates)
works = st.builds(
    Work,
    **costs,
    means=st.lists(st.tuples(st.integers(2, 64), st.integers(0, 10**9), durations), max_size=3).map(tuple),
    servers=st.one_of(st.none(), st.builds(Work, **costs)),
    cores=st.one_of(st.none(), st.integers(1, 128)),
    slice_s=st.floats(1e-6, 1.0),
    crowding=st.lists(st.tuples(st.integers(1, 99), st.floats(1, 9)), max_size=3).map(tuple),
)


@given(st.builds(Cluster, computes, networks, works))
def test_what_is_written_reads_back(cluster):
    text = to_toml(cluster)
    assert read_cluster(text) == cluster
    assert to_toml(read_cluster(text)) == text
    assert tomllib.loads(text)["schema"] == 1


@given(durations, rates)
def test_quantities_read_back(seconds, rate):
    assert parse_seconds(duration_text(seconds)) == seconds
    assert parse_rate(rate_text(rate)) == parse_rate(rate_text(rate, "byte")) == rate


@pytest.mark.parametrize(
    ("seconds", "text", "words"),
    [
        (0.02, "20ms", "20 ms"),
        (1e-4, "100us", "100 µs"),
        (1.5, "1.5s", "1.5 s"),
        (2e-9, "2ns", "2 ns"),
        (0, "0s", "0 s"),
    ],
)
def test_durations_are_written_as_people_do(seconds, text, words):
    assert duration_text(seconds) == text
    assert time_in_words(seconds) == words


def test_rates_are_written_as_people_do():
    assert [rate_text(rate) for rate in (125e6, 12.5e6, 1.25e9, math.inf)] == [
        "1gbit",
        "100mbit",
        "10gbit",
        "unlimited",
    ]
    assert [rate_in_words(rate) for rate in (125e6, 125.0, 7e9)] == ["1 Gbit/s", "1 kbit/s", "56 Gbit/s"]


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        'schema = 1\n[compute]\nstep = "5ms"\nspeeds = "0:2"\n'
        '[network]\nprofile = "10gbit"\nlatency = "1ms"\nhosts = "all"\n'
        '[network.inside]\nrate = "8gbit"\nlatency = "1us"\n[work]\nread_rate = "2gbyte"\n'
    )
    expected = Network(
        1.25e9, 1e-3, message_s=3e-6, shared=True, hosts=Hosts(None), inside=Network(1e9, 1e-6)
    )
    assert load_cluster(path) == Cluster(
        Compute(0.005, speeds=(Speed(0, 0, 2),)), expected, Work(read_rate=2e9)
    )
    assert read_cluster("schema = 1") == Cluster()
    assert read_cluster('schema = 1\n[network]\nrate = "8mbit"\nlatency = "0s"').network == Network(
        1e6, 0.0, shared=True
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "schema = None, and this version reads schema = 1"),
        ("schema = 2", "schema = 2"),
        ("schema = 1\n[netwrok]", "Did you mean network?"),
        ("schema = 1\n[compute]\nstpe = '1ms'", "[compute] has no key 'stpe'. Did you mean step?"),
        ("schema = 1\n[compute]\nzzz = 1", "Known: step, spread"),
        ("schema = 1\n[compute]\nstep = 20", "[compute] step: 20 should be a text with its unit"),
        ("schema = 1\n[compute]\nstep = '20h'", "[compute] step: '20h' is not a duration"),
        ("schema = 1\n[compute]\nspread = 'much'", "should be a number"),
        ("schema = 1\n[compute]\nspread = true", "should be a number"),
        ("schema = 1\n[compute]\nspread = 9", "a spread of 9"),
        ("schema = 1\n[compute]\ntrace = '20ms'", "should be a list of durations"),
        ("schema = 1\n[compute]\ntrace = ['20ms', ['1ms']]", "should be a list of durations"),
        ("schema = 1\n[compute]\ntrace = []", "at least one duration"),
        ("schema = 1\n[compute]\nworkers = { a = '1ms' }", "workers with their durations"),
        ("schema = 1\n[compute]\nstraggler = 4", "should be a text"),
        ("schema = 1\n[network]", "[network] needs a profile"),
        ("schema = 1\n[network]\nrate = '1gbit'", "[network] needs a profile"),
        ("schema = 1\n[network]\nprofile = '1gibt'", "Did you mean 1gbit?"),
        ("schema = 1\n[network]\nprofile = 'wan'\nshared = 1", "should be true or false"),
        ("schema = 1\n[network]\nprofile = 'wan'\nhosts = 1.5", "should be a whole number"),
        ("schema = 1\n[network]\nprofile = 'wan'\nhosts = 0", "0 workers to a host"),
        ("schema = 1\n[network]\nprofile = 'wan'\nservers = 'up'", '"apart" on hosts of their own'),
        ("schema = 1\n[network]\nprofile = 'wan'\n[network.inside]\nrate = '1gbit'", "needs rate and latency"),
        ("schema = 1\n[network]\nprofile = 'wan'\n[network.racks]\nhosts = 2", "needs hosts and rate"),
        ("schema = 1\n[network]\nprofile = 'wan'\nlinks = 3", "[[network.links]]"),
        ("schema = 1\n[network]\nprofile = 'wan'\n[[network.links]]\nfrom = 0", "needs from and to"),
        ("schema = 1\n[network]\nprofile = 'wan'\nracks = 3", "racks = 3 should be a table"),
        ("schema = 1\n[work]\nmeans = [[1, 2]]", "rows of members, bytes and a duration"),
        ("schema = 1\n[work]\ncores = 'two'", "should be a whole number"),
        ("schema = 1\n[work.servers]\ncores = 2", "[work.servers] has no key 'cores'"),
        ("schema = 1\nwork = 3", "work = 3 should be a table"),
        ("schema = ", "Invalid value"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file(text, why):
    with pytest.raises(UsageError) as caught:
        read_cluster(text, "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert why in str(caught.value)


def test_files_that_can_not_be_read(tmp_path):
    with pytest.raises(UsageError, match="can't be read: No such file"):
        load_cluster(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not a text file"):
        load_cluster(tmp_path / "binary")


def test_models_of_ones_own_have_no_file():
    with pytest.raises(UsageError, match="OwnCompute has no place in a file"):
        to_toml(Cluster(OwnCompute()))


# Options


def test_options():
    assert cluster_of() == Cluster() == Cluster(Compute(0.02), NETWORKS["1gbit"], Work())
    cluster = cluster_of(
        network="wan", step="5ms", straggler="4x", spread=0.2, speeds="1,0.5", hosts="4", racks="2,1gbit,1ms"
    )
    assert cluster.compute == Compute(0.005, Straggler(4), {}, 0.2, (Speed(0, 0, 1.0), Speed(1, 1, 0.5)))
    assert cluster.network == replace(NETWORKS["wan"], hosts=Hosts(4), racks=Racks(2, 125e6, 1e-3))


def test_options_take_the_place_of_what_a_file_says():
    text = (
        'schema = 1\n[compute]\ntrace = ["1ms"]\nspread = 0.5\n'
        '[network]\nprofile = "wifi"\nhosts = 2\nservers = "beside"\n'
        '[[network.links]]\nfrom = 0\nto = 1\nrate = "8bit"\nlatency = "1s"\n[work]\ncores = 2\n'
    )
    kept = cluster_of(text)
    assert kept == read_cluster(text) and kept.compute.trace == ((0.001,),)
    other = cluster_of(text, network="10gbit", step="3ms", hosts="all")
    assert other.compute == Compute(0.003, spread=0.5)
    assert other.network == replace(
        NETWORKS["10gbit"], hosts=Hosts(None, beside=True), links={(0, 1): Network(1.0, 1.0)}
    )
    assert other.work == Work(cores=2)
    assert cluster_of(text, spread=0.0).compute == Compute(trace=((0.001,),))


def test_hosts_and_racks_as_text():
    assert parse_hosts(" 4 ") == Hosts(4) and parse_hosts("ALL") == Hosts(None)
    assert parse_racks("8,10gbit") == Racks(8, 1.25e9) and parse_racks("8, 10gbit, 50us") == Racks(
        8, 1.25e9, 50e-6
    )
    for text in ("", "four", "-1", "1.5"):
        with pytest.raises(UsageError, match="Write 4, or all"):
            parse_hosts(text)
    for text in ("", "8", "x,10gbit", "8,10gbit,1us,1"):
        with pytest.raises(UsageError, match="are no racks"):
            parse_racks(text)
    with pytest.raises(UsageError, match="0 workers to a host"):
        parse_hosts("0")


# Words


def words(cluster: Cluster, workers: int, servers: int = 0) -> str:
    return "\n".join(cluster.in_words(workers, servers))


def test_a_plain_cluster_in_words():
    assert words(Cluster(), 1) == "1 worker alone\na step takes 20 ms"
    assert words(Cluster(), 4) == (
        "4 workers, each on a host of its own\n"
        "a host sends at 1 Gbit/s and receives at 1 Gbit/s, all its letters together; a letter is 100 µs on the way "
        "and keeps its sender's interface busy for 5 µs, besides its bytes\n"
        "a step takes 20 ms"
    )


def test_a_cluster_with_everything_in_words():
    cluster = cluster_of(
        network="wifi",
        step="50ms",
        straggler="5x@0.1/50",
        spread=0.3,
        speeds="0-7:2",
        hosts="4",
        racks="2,1gbit,1ms",
    )
    work = Work(
        1e-5,
        0,
        4e9,
        read_s=2e-5,
        op_s=1e-6,
        servers=Work(read_s=3e-5),
        cores=2,
        crowding=((8, 1.2), (16, 1.5)),
    )
    cluster = Cluster(replace(cluster.compute, pace_s=0.07), cluster.network, work)
    said = words(cluster, 64, 2)
    for part in (
        "64 workers and 2 servers, 4 to a host, on 18 hosts",
        "sends at 20 Mbit/s and receives at 50 Mbit/s",
        "two on one host have 24 Gbit/s between them",
        "9 racks of up to 2 hosts, each with 1 Gbit/s each way",
        "a letter between racks is 1 ms longer on the way",
        "a step takes 50 ms; log-normal, two of three steps 0.74 to 1.3 times that; speeds 0-7:2; "
        "padded to 70 ms by sleeping; each worker is 5 times slower in a random 0.1 of its stretches of 50 steps",
        "local work: a turn 10 µs, applying its bytes at 4 GB/s, reading a letter 20 µs, an operation on tensors 1 µs",
        "on servers: reading a letter 30 µs",
        "a host has 2 cores, handed on after 3 ms",
        "computing and work on crowded hosts take 1.2 times as long with 8, 1.5 times as long with 16 on a host",
    ):
        assert part in said
    assert len(said.splitlines()) == 9


def test_other_models_in_words():
    apart = Cluster(network=Network(1e6, 1e-3, {(0, other): Network(1e6, 0.5) for other in range(1, 6)}))
    said = words(apart, 6)
    assert "any two have 8 Mbit/s to themselves" in said and "from 0 to 1 there is a link of 8 Mbit/s" in said
    assert "2 more pairs with links of their own" in said
    assert "what OwnCompute says" in words(Cluster(OwnCompute()), 2)
    trace = Compute(trace=((0.01, 0.02), (0.03,)), straggler=Straggler(4))
    said = words(Cluster(trace), 8)
    assert "steps take their times from 2 lists of 3 measured steps, 20 ms in the mean" in said
    assert "worker 7 is always 4 times slower" in said
    slow = Compute(workers_s={0: 0.1, 9: 5.0})
    assert "a step takes 20 ms, 100 ms on worker 0" in words(Cluster(slow), 4) and "5 s" not in words(
        Cluster(slow), 4
    )
    assert "beside workers" in words(
        Cluster(network=replace(NETWORKS["1gbit"], hosts=Hosts(2, beside=True))), 4, 1
    )


# The page about it


def test_the_examples_on_the_page_are_read():
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    full, traced = map(read_cluster, blocks)
    assert full.network.links and full.network.inside and full.network.racks and full.work.servers
    assert traced.compute.trace == ((0.019, 0.02, 0.024), (0.038, 0.041))
    assert read_cluster(to_toml(full)) == full


def test_the_page_explains_every_key():
    """Whatever can be written has its line, with a comment that says what it is."""
    link = Network(1, 1, message_s=1)
    everything = Cluster(
        Compute(0.1, Straggler(2), {1: 1.0}, 0.1, (Speed(0, 0, 2),), ((1.0,),), 1.0),
        Network(1.0, 1.0, {(0, 1): link}, 1.0, 2.0, True, Hosts(2, beside=True), link, Racks(1, 1, 1)),
        Work(*[1] * 11, ((2, 1, 1.0),), Work(*[1] * 11), 1, 1.0, cold=((0.1, 0.1),), warm_s=1.0, crowding=((2, 2.0),)),
    )  # fmt: skip
    page = "\n".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    for line in to_toml(everything).splitlines():
        if " = " in line and not line.startswith(" "):
            assert re.search(rf"^{line.partition(' = ')[0]} = ", page, re.MULTILINE), (
                f"{line} isn't explained"
            )


def test_the_profiles_on_the_page():
    for name, network in NETWORKS.items():
        row = re.search(rf"^\| `{name}` \| (.*?) \|$", PAGE, re.MULTILINE)
        assert row is not None, f"{name} has no row"
        said = row[1].split(" | ")
        rates = [rate_in_words(network.rate_bytes_per_s), rate_in_words(network.receives)]
        assert said[:4] == [*rates, time_in_words(network.latency_s), time_in_words(network.message_s)]
