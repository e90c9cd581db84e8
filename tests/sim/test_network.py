"""Networks: what people write, and how letters and means travel, against plain little loops."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fast.core.world import Link
from fast.errors import UsageError
from fast.sim import NETWORKS, Network, parse_duration, parse_network
from fast.sim.cluster import Hosts, Racks, Traffic, Work
from fast.sim.cluster import traffic as traffic_module
from fast.sim.events import Events

GB = 1e9
"""A rate of one byte per nanosecond, so that all sums below are exact."""


# What people write


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("20ms", 20_000_000),
        ("1.5s", 1_500_000_000),
        ("100us", 100_000),
        ("7ns", 7),
        ("1e-3s", 1_000_000),
        (" 2 MS ", 2_000_000),
    ],
)
def test_durations(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text",
    ["", "fast", "20", "0.02", "-1ms", "1h", "1.2.3s", "nan", "inf", "20 m s", "1e9999s", "1e999999999999s"],
)
def test_no_durations(text):
    with pytest.raises(UsageError, match=r"is not a duration with its unit\. Write for example 20ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [
        ("1gbit", 125e6, 100e-6),
        ("WAN", 12.5e6, 30e-3),
        ("100mbit,1ms", 12.5e6, 1e-3),
        ("100e6,1e-3s", 12.5e6, 1e-3),
        ("8 kbit/s, 0", 1e3, 0.0),
        ("4gbyte, 1us", 4e9, 1e-6),
        ("unlimited, 1us", math.inf, 1e-6),
    ],
)
def test_networks(text, rate, latency):
    network = parse_network(text)
    assert (network.rate_bytes_per_s, network.latency_s, network.shared) == (rate, latency, True)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1gibt", "Did you mean 1gbit?"),
        ("infinband", "Did you mean infiniband?"),
        ("wi-fi", "Did you mean wifi?"),
        ("x", "Known: loopback, 1gbit, 10gbit, infiniband, wan, wifi."),
        ("1,2,3", "rate,latency such as 100mbit,1ms"),
        ("fast,1ms", "'fast' is not a rate"),
        ("1gbit,soon", "'soon' is not a duration"),
        ("1gbit,1e300s", "'1e300s' is longer than 1e+09 s, which is the most"),
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


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Network(1, 0, message_s=-1), "can't be"),
        (lambda: Network(1, 0, receive_bytes_per_s=0), "can't be"),
        (lambda: Network(1, 0, {(0, 1): Network(1, 0, shared=True)}), "a single link"),
        (lambda: Network(1, 0, inside=Network(1, 0, racks=Racks(1, 1))), "a single link"),
        (lambda: Hosts(0), "0 workers to a host"),
        (lambda: Hosts(of=(0, -1)), "-1 is below"),
        (lambda: Racks(0, 1), "racks of 0 hosts"),
        (lambda: Racks(1, 1, -1), "racks of 1 hosts"),
    ],
)
def test_impossible_parts(make, why):
    with pytest.raises(UsageError, match=why):
        make()


def test_the_profiles_are_ordered_as_people_expect():
    rates = [NETWORKS[name].rate_bytes_per_s for name in ("wifi", "wan", "1gbit", "10gbit", "infiniband")]
    assert rates == sorted(rates)
    assert not NETWORKS["loopback"].shared
    assert all(NETWORKS[name].shared for name in NETWORKS if name != "loopback")


# Who is where


def hosts_of(hosts: Hosts, workers: int, servers: int = 0) -> list[int]:
    known = hosts.known(workers)
    return [known.host(who) for who in range(workers + servers)]


def test_hosts():
    assert hosts_of(Hosts(), 3, 2) == [0, 1, 2, 3, 4]
    assert hosts_of(Hosts(2), 5, 2) == [0, 0, 1, 1, 2, 3, 4]
    assert hosts_of(Hosts(2, beside=True), 4, 3) == [0, 0, 1, 1, 0, 1, 0]
    assert hosts_of(Hosts(None), 3, 2) == [0, 0, 0, 0, 0]
    assert hosts_of(Hosts(of=(4, 4, 0)), 4, 1) == [4, 4, 0, 5, 6]
    assert [Hosts(2).host(who) for who in range(5)] == [0, 0, 1, 1, 2]


def test_the_way_between_two():
    racks = Racks(2, 5e5, 1e-2)
    network = Network(1e6, 1e-3, {(0, 5): Network(7, 7)}, hosts=Hosts(2), racks=racks, message_s=1e-6)
    inside = NETWORKS["loopback"]
    assert network.between(0, 1) == inside
    assert replace(network, inside=Network(9, 9)).between(0, 1) == Network(9, 9)
    assert network.between(0, 2) == Network(1e6, 1e-3, message_s=1e-6)
    assert network.between(0, 4) == Network(5e5, 1.1e-2, message_s=1e-6)
    assert network.between(0, 5) == Network(7, 7)
    traffic = Traffic(network, Events())
    assert traffic.latency_ns(0, 4) == 11_000_000
    assert traffic.link(0, 4) == Link(1.1e-2, 5e5)
    assert NETWORKS["wifi"].between(0, 1).rate_bytes_per_s == NETWORKS["wifi"].rate_bytes_per_s
    fast_out = Network(1e6, 0, receive_bytes_per_s=1e3)
    assert fast_out.between(0, 1).rate_bytes_per_s == 1e3


# Letters

Sent = tuple[int, int, int, int]
"""Sender, receiver, bytes, and when it is handed over."""


def carried(network: Network, letters: list[Sent]) -> list[int]:
    """When each letter arrives; all are handed over to Traffic in the order of time."""
    events = Events()
    traffic, arrived = Traffic(network, events), [-1] * len(letters)

    def hand_over(number: int) -> None:
        sender, to, nbytes, _ = letters[number]

        def arrive() -> None:
            arrived[number] = events.now_ns

        traffic.carry(sender, to, nbytes, arrive, events.now_ns)

    for number in sorted(range(len(letters)), key=lambda number: letters[number][3]):
        events.at(letters[number][3], lambda number=number: hand_over(number))
    while events:
        events.run_next()
    return arrived


def on_separate_links(network: Network, letters: list[Sent]) -> list[int]:
    """Plain: one letter after another on each pair's own link."""
    free: dict[tuple[int, int], int] = {}
    arrived = [0] * len(letters)
    for number in sorted(range(len(letters)), key=lambda number: letters[number][3]):
        sender, to, nbytes, leaves_ns = letters[number]
        link = network.links.get((sender, to), network)
        begins = max(leaves_ns, free.get((sender, to), 0))
        free[sender, to] = begins + round(nbytes / link.rate_bytes_per_s * 1e9)
        arrived[number] = free[sender, to] + round(link.latency_s * 1e9)
    return arrived


def starts_on_shared_interfaces(network: Network, letters: list[Sent]) -> tuple[list[int], list[int]]:
    """When each begins to leave its sender's host, and when it takes its places in the queues behind: at
    once if nobody is before it, else when it begins to leave."""
    free: dict[int, int] = {}
    waiting: dict[int, int] = {}
    starts, takes = [0] * len(letters), [0] * len(letters)
    for number in sorted(range(len(letters)), key=lambda number: letters[number][3]):
        sender, _, nbytes, leaves_ns = letters[number]
        host = network.host(sender)
        starts[number] = max(leaves_ns, free.get(host, 0)) + round(network.message_s * 1e9)
        takes[number] = leaves_ns
        if free.get(host, 0) > leaves_ns or waiting.get(host, -1) >= leaves_ns:
            takes[number] = waiting[host] = starts[number]
        free[host] = starts[number] + round(nbytes / network.rate_bytes_per_s * 1e9)
    return starts, takes


def through_shared_interfaces(network: Network, letters: list[Sent]) -> list[int]:
    """Plain: first all senders' interfaces, then everything behind in the order in which it is taken."""
    starts, takes = starts_on_shared_interfaces(network, letters)
    free: dict[tuple[str, int], int] = {}
    arrived = [0] * len(letters)
    for number in sorted(range(len(letters)), key=lambda number: takes[number]):
        sender, to, nbytes, _ = letters[number]
        start, end = network.host(sender), network.host(to)
        behind, latency = {("in", end): network.receives}, network.latency_s
        racks = network.racks
        if racks is not None and start // racks.hosts != end // racks.hosts:
            behind["up", start // racks.hosts] = behind["down", end // racks.hosts] = racks.rate_bytes_per_s
            latency += racks.latency_s
        ends = [starts[number] + round(nbytes / network.rate_bytes_per_s * 1e9)]
        for key, rate in behind.items():
            free[key] = max(starts[number], free.get(key, 0)) + round(nbytes / rate * 1e9)
            ends.append(free[key])
        arrived[number] = max(ends) + round(latency * 1e9)
    return arrived


@st.composite
def letters_between(draw: st.DrawFn, participants: int, most: int = 20) -> list[Sent]:
    def letter() -> Sent:
        sender = draw(st.integers(0, participants - 1))
        to = draw(st.integers(0, participants - 2))
        leaves_ns = draw(st.integers(0, 50_000))
        return sender, to + (to >= sender), draw(st.integers(0, 9_999)), leaves_ns

    return [letter() for _ in range(draw(st.integers(1, most)))]


rates = st.sampled_from([GB, GB / 2, GB / 7, 3 * GB, math.inf])
seconds = st.integers(0, 20_000).map(lambda ns: ns / 1e9)


@given(letters_between(4), rates, seconds, rates, seconds)
def test_links_of_their_own_carry_one_letter_after_another(
    letters, rate, latency_s, other_rate, other_latency_s
):
    network = Network(rate, latency_s, {(0, 1): Network(other_rate, other_latency_s)})
    assert carried(network, letters) == on_separate_links(network, letters)


@st.composite
def shared_networks(draw: st.DrawFn) -> Network:
    racks = Racks(draw(st.integers(1, 3)), draw(rates), draw(seconds)) if draw(st.booleans()) else None
    receive = draw(st.one_of(st.none(), rates))
    return Network(
        draw(rates), draw(seconds), message_s=draw(seconds), receive_bytes_per_s=receive, shared=True, racks=racks
    )  # fmt: skip


@given(letters_between(6), shared_networks())
def test_shared_interfaces_and_uplinks(letters, network):
    _, takes = starts_on_shared_interfaces(network, letters)
    leaves = [letter[3] for letter in letters]
    assume(len(set(takes)) == len(takes) and len(set(leaves)) == len(leaves))
    assert carried(network, letters) == through_shared_interfaces(network, letters)


def test_by_hand():
    """Two letters of 1000 bytes to one receiver, from two hosts, and one to another receiver."""
    network = Network(GB, 100e-9, message_s=10e-9, shared=True)
    letters = [(0, 2, 1000, 0), (1, 2, 1000, 0), (0, 3, 1000, 0)]
    first, second, third = carried(network, letters)
    assert first == 10 + 1000 + 100
    assert second == 10 + 1000 + 1000 + 100  # waits for the receiver's interface
    assert third == 10 + 1000 + 10 + 1000 + 100  # waits for the sender's
    inside = replace(network, hosts=Hosts(2), inside=Network(2 * GB, 5e-9))
    assert carried(inside, [(0, 1, 1000, 0), (0, 2, 1000, 0)]) == [500 + 5, 10 + 1000 + 100]


def test_a_letter_that_waits_at_its_sender_does_not_block_its_receiver():
    """The first letter keeps sender 0 busy until 100,000; the second of it, to 2, waits behind it. What
    sender 1 sends to 2 meanwhile goes through at once."""
    network = Network(GB, 0.0, shared=True)
    letters = [(0, 3, 100_000, 0), (0, 2, 5_000, 1), (1, 2, 1_000, 2)]
    assert carried(network, letters) == [100_000, 105_000, 1_002]


def test_what_one_host_sends_shares_its_interface():
    network = Network(GB, 0.0, shared=True, hosts=Hosts(2))
    assert carried(network, [(0, 2, 1000, 0), (1, 4, 1000, 0)]) == [1000, 2000]
    alone = Network(GB, 0.0, shared=True)
    assert carried(alone, [(0, 2, 1000, 0), (1, 4, 1000, 0)]) == [1000, 1000]


@settings(max_examples=60)
@given(
    letters_between(6, most=30),
    shared_networks(),
    st.sampled_from([Hosts(), Hosts(2), Hosts(None), Hosts(3)]),
)
def test_promises_of_every_network(letters, network, hosts):
    """Order per pair; never faster than the slowest part of the way; and no interface ever carries
    more than its rate allows, whatever span of time is looked at."""
    network = replace(network, hosts=hosts)
    arrived = carried(network, letters)
    by_pair: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number in sorted(range(len(letters)), key=lambda number: letters[number][3]):
        sender, to, nbytes, leaves_ns = letters[number]
        way = network.between(sender, to)
        soonest = leaves_ns + way.message_ns + nbytes / way.rate_bytes_per_s * 1e9 + way.latency_ns
        assert arrived[number] >= soonest - 1
        by_pair.setdefault((sender, to), []).append((leaves_ns, arrived[number]))
    for pairs in by_pair.values():
        assert [came for _, came in pairs] == sorted(came for _, came in pairs)
    for host in {network.host(who) for who in range(6)}:
        across = [(s, t, n, leaves, came) for (s, t, n, leaves), came in zip(letters, arrived, strict=True)
                  if network.host(s) != network.host(t)]  # fmt: skip
        out = [each for each in across if network.host(each[0]) == host]
        in_ = [each for each in across if network.host(each[1]) == host]
        check_capacity(network, out, network.rate_bytes_per_s)
        check_capacity(network, in_, network.receives)


def check_capacity(network: Network, letters: list[tuple[int, int, int, int, int]], rate: float) -> None:
    done = [came - network.between(s, t).latency_ns for s, t, _, _, came in letters]
    for since in {leaves for _, _, _, leaves, _ in letters}:
        for until in done:
            inside = [
                nbytes
                for (_, _, nbytes, leaves, _), ended in zip(letters, done, strict=True)
                if leaves >= since and ended <= until
            ]
            assert not inside or sum(inside) <= (until - since + len(inside)) * rate / 1e9 + 1e-6


def test_letters_that_are_handed_over_later_keep_their_order():
    """Work delays what a sender hands over; at the very time of the second, the third comes in between."""
    for network in (Network(GB, 0.0), Network(math.inf, 0.0, shared=True), Network(GB, 0.0, shared=True)):
        events = Events()
        traffic, seen = Traffic(network, events), []
        events.at(5, lambda traffic=traffic, seen=seen: traffic.carry(0, 1, 0, lambda: seen.append("c"), 5))
        traffic.carry(0, 1, 0, lambda seen=seen: seen.append("a"), 5)
        traffic.carry(0, 1, 0, lambda seen=seen: seen.append("b"), 5)
        while events:
            events.run_next()
        # The event at 5 was asked for first, but its letter was handed over last.
        assert seen == ["a", "b", "c"]


def test_nobody_overtakes_a_letter_that_is_about_to_leave():
    """The second letter waits until 1000 for the first; the third is handed over at 1000, a moment before
    the second is moved on, and finds the interface free."""
    events, seen = Events(), []
    traffic = Traffic(Network(GB, 0.0, shared=True), events)
    events.at(1000, lambda: traffic.carry(0, 1, 0, lambda: seen.append("third"), 1000))
    traffic.carry(0, 1, 1000, lambda: seen.append("first"), 0)
    traffic.carry(0, 1, 0, lambda: seen.append("second"), 0)
    while events:
        events.run_next()
    assert seen == ["first", "second", "third"]


def test_a_letter_handed_over_later_is_not_in_anybodys_way():
    network, events = Network(GB, 0.0, shared=True, hosts=Hosts(2)), Events()
    traffic, arrived = Traffic(network, events), {}
    traffic.carry(0, 2, 1000, lambda: arrived.update(late=events.now_ns), 50_000)
    traffic.carry(1, 2, 1000, lambda: arrived.update(soon=events.now_ns), 0)
    while events:
        events.run_next()
    assert arrived == {"soon": 1000, "late": 51_000}


@given(letters_between(4, most=60), st.integers(1, 6), st.integers(1, 6))
def test_what_is_kept_of_the_ways_changes_nothing(letters, links, ways):
    """Links and ways are forgotten all the time here, and nothing that is in use may be."""
    network = Network(GB, 1e-6, {(0, 1): Network(GB / 3, 0.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic_module, "_LINKS", links)
        patch.setattr(traffic_module, "_WAYS", ways)
        assert carried(network, letters) == on_separate_links(network, letters)


def test_a_link_that_was_forgotten_is_not_used_beside_a_new_one(monkeypatch):
    """The link to 1 is idle when that to 3 is made, and forgotten; then it is used again, and after all ways
    have been forgotten too it is still the one that is busy."""
    monkeypatch.setattr(traffic_module, "_LINKS", 2)
    monkeypatch.setattr(traffic_module, "_WAYS", 3)
    events, arrived = Events(), []
    traffic = Traffic(Network(GB, 0.0), events)
    traffic.carry(0, 1, 100, lambda: None, 0)

    def send_more() -> None:
        for to in (2, 3, 1, 4, 1):
            traffic.carry(0, to, 500, lambda to=to: arrived.append((to, events.now_ns)), 1000)

    events.at(1000, send_more)
    while events:
        events.run_next()
    assert arrived == [(2, 1500), (3, 1500), (1, 1500), (4, 1500), (1, 2000)]


def test_idle_links_are_forgotten(monkeypatch):
    """Memory grows with what is under way, not with all pairs that ever met; and nothing else changes."""
    monkeypatch.setattr(traffic_module, "_LINKS", 8)
    network, events = Network(GB, 0.0), Events()
    traffic = Traffic(network, events)
    arrived: list[int] = []
    for number in range(500):
        events.now_ns = number * 10
        traffic.carry(number, number + 1, 25, lambda: arrived.append(events.now_ns), events.now_ns)
        traffic.carry(number, number + 1, 25, lambda: arrived.append(events.now_ns), events.now_ns)
    assert len(traffic._links) <= 32
    while events:
        events.run_next()
    assert sorted(arrived) == sorted([10 * n + 25 for n in range(500)] + [10 * n + 50 for n in range(500)])


# Means


def mean_ns(network: Network, members: tuple[int, ...], nbytes: int, work: Work | None = None) -> int:
    return Traffic(network, Events(), work).mean(members, nbytes)


def test_costs_of_a_mean():
    network = Network(1e6, 1e-3)
    assert mean_ns(network, (0,), 10**6) == 0
    assert mean_ns(network, (0, 1, 2, 3), 10**6) == round(2 * 3 / 4 * 1e9) + 2_000_000
    assert mean_ns(Network(math.inf, 0.0), (0, 1), 10**9) == 0
    slow = Network(1e6, 1e-3, {(0, 1): Network(1e3, 0.0), (0, 5): Network(1.0, 0.0)})
    assert mean_ns(slow, (0, 1), 1000) == 1_000_000_000
    assert mean_ns(slow, (0, 2), 1000) == 3_000_000
    crowded = Network(GB, 0.0, hosts=Hosts(2), inside=Network(math.inf, 0.0))
    assert mean_ns(crowded, (0, 1, 2), 3000) == 3000  # who is alone sends one half, twice
    shared = Network(1e6, 1e-3, shared=True, message_s=1e-4)
    assert mean_ns(shared, (0, 1, 2, 3), 10**6) == round(2 * 3 / 4 * 1e9) + 2_000_000 + 2 * 3 * 100_000
    assert mean_ns(replace(shared, receive_bytes_per_s=1e5), (0, 1), 10**6) == 10**10 + 2_000_000


def mean_by_pairs(network: Network, members: tuple[int, ...], nbytes: int) -> Fraction:
    """Plain: every ordered pair of hosts carries 2/H of the tensor, in two letters for each member of the largest,
    and every ordered pair of members of one host 2/n, through all that is on its way; what has most to do sets the
    pace."""
    load: dict[tuple[str, int], Fraction] = {}
    share, letters_ns = Fraction(2 * nbytes, len(members)), 2 * Fraction(round(network.message_s * 1e9))
    latency, racks, inside = Fraction(0), network.racks, Fraction(0)

    def put(key: tuple[str, int], ns: Fraction) -> None:
        load[key] = load.get(key, Fraction(0)) + ns

    for a in members:
        for b in members:
            if a != b and network.host(a) == network.host(b):
                put(("inside", a), share * 10**9 / Fraction(network.within.rate_bytes_per_s))
                inside = Fraction(round(network.within.latency_s * 1e9))
    there = [network.host(member) for member in members]
    slices, part = max(map(there.count, there)), Fraction(2 * nbytes, len(set(there)))
    for start in set(there):
        for end in set(there) - {start}:
            put(("out", start), part * 10**9 / Fraction(network.rate_bytes_per_s) + slices * letters_ns)
            put(("in", end), part * 10**9 / Fraction(network.receives))
            way = Fraction(round(network.latency_s * 1e9))
            if racks is not None and start // racks.hosts != end // racks.hosts:
                put(("up", start // racks.hosts), part * 10**9 / Fraction(racks.rate_bytes_per_s))
                put(("down", end // racks.hosts), part * 10**9 / Fraction(racks.rate_bytes_per_s))
                way += round(racks.latency_s * 1e9)
            latency = max(latency, way)
    within = max((ns for (what, _), ns in load.items() if what == "inside"), default=Fraction(0))
    across = max((ns for (what, _), ns in load.items() if what != "inside"), default=Fraction(0))
    return max(within + 2 * inside, across + 2 * latency)


finite_rates = st.sampled_from([GB, GB / 2, GB / 8, 4 * GB])


@given(
    st.sets(st.integers(0, 11), min_size=2), st.integers(0, 10**6), finite_rates, finite_rates, finite_rates,
    seconds, seconds, st.sampled_from([Hosts(), Hosts(2), Hosts(5), Hosts(None)]), st.integers(0, 3),
)  # fmt: skip
def test_a_mean_takes_as_long_as_the_busiest_part(
    members, nbytes, rate, receive, up, latency_s, message_s, hosts, racks
):
    network = Network(
        rate, latency_s, message_s=message_s, receive_bytes_per_s=receive, shared=True, hosts=hosts,
        racks=Racks(racks, up, 3e-6) if racks else None,
    )  # fmt: skip
    group = tuple(sorted(members))
    assert mean_ns(network, group, nbytes) == pytest.approx(
        float(mean_by_pairs(network, group, nbytes)), abs=1.0
    )


def test_means_of_one_group_follow_each_other():
    for shared in (False, True):
        events = Events()
        traffic = Traffic(Network(GB, 1e-6, shared=shared), events)
        assert traffic.mean((0, 1), 1000) == 1000 + 2000
        assert traffic.mean((0, 1), 1000) == 2000 + 2000  # latencies overlap, bytes don't
        assert traffic.mean((0, 1), 0) == 2000 + 2000
        events.now_ns = 10_000
        assert traffic.mean((0, 1), 1000) == 10_000 + 1000 + 2000


def test_a_group_of_which_one_has_left_is_still_that_group():
    events = Events()
    traffic = Traffic(Network(GB, 0.0), events)
    assert traffic.mean((0, 1, 2), 3000) == 4000
    assert traffic.mean((0, 1), 1000, group=(0, 1, 2)) == 5000
    assert traffic.mean((0, 1), 1000) == 1000  # another group has links of its own


def test_means_and_letters_share_interfaces():
    events = Events()
    traffic, arrived = Traffic(Network(GB, 0.0, shared=True), events), []
    traffic.carry(0, 5, 700, lambda: None, 0)
    assert traffic.mean((0, 1), 1000) == 700 + 1000
    traffic.carry(1, 6, 100, lambda: arrived.append(events.now_ns), 0)
    assert traffic.mean((2, 3), 1000) == 1000
    while events:
        events.run_next()
    assert arrived == [1800]


def test_means_by_shared_memory():
    """On one host and where measured: as measured, one after another; elsewhere over the network."""
    work = Work(means=((2, 1000, 1e-6), (4, 1000, 4e-6)))
    network, events = Network(GB, 0.0, shared=True, hosts=Hosts(4)), Events()
    traffic = Traffic(network, events, work)
    assert traffic.mean((0, 1), 1000) == 1000
    assert traffic.mean((0, 1), 1000) == 2000
    assert traffic.mean((4, 5, 6), 1000) == 2500
    assert traffic.mean((8, 12), 1000) == 1000
    assert mean_ns(network, (0, 1), 3000) == 1000 + 30_000  # nothing measured: loopback


def test_many_groups_are_forgotten_and_nothing_else_changes(monkeypatch):
    monkeypatch.setattr(traffic_module, "_MEMBERS", 10)
    traffic = Traffic(Network(GB, 0.0, shared=True), Events())
    took = [traffic.mean((2 * pair, 2 * pair + 1), 1000) for pair in range(50)]
    assert took == [1000] * 50
    assert len(traffic._groups) <= 5
    assert traffic.mean((0, 1), 1000) == 2000
