"""Averages in pairs: what one adds the other subtracts, nobody waits, and a plain loop where the times are fixed."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.parts import Bipartite, Channels, Exponential, Full, Hypercube, Ring, Shuffled, Star, Torus, Tree
from fast.sim import NETWORKS, Compute, Network, parse_straggler
from fast.sim.checkers.sums import SumOfWeights
from fast.strategies.decentral.pairs import sides
from fast.strategies.presets import ad_psgd
from fast.trace import Received, Sent, Waited

from .problem import DIM, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights
from .schedules import FEW_AND_MANY, counts_of, run_watched

PROBLEM = LeastSquares()
LR = 0.02


def starts_of(size, seed=0):
    return list(torch.randn(size, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


# B53: the sum


class Sums:
    """After every event: the sum of all weights, less the deltas on their way, is what the starts and the workers' own
    gradients make of it."""

    def __init__(self, starts, log):
        self.starts, self.log = starts, log
        self.events = self.under_way = 0

    def __call__(self, simulation):
        letters = [letter for _, letter in simulation.on_the_way()]
        letters += [letter for p in simulation.workers for letter in simulation.unread(p.me.id)]
        deltas = [letter.tensor for letter in letters if letter.tag == "answer"]
        found = weights(simulation).sum(0) - sum(deltas, torch.zeros(DIM, dtype=torch.float64))
        expected = sum(self.starts) - LR * sum(self.log, torch.zeros(DIM, dtype=torch.float64))
        assert close(found, expected, 1e-11)
        self.events += 1
        self.under_way += bool(deltas)


@pytest.mark.parametrize("topology", [Bipartite(), Ring(), Star(), Tree()], ids=repr)
@pytest.mark.parametrize("seed", range(6))
def test_the_sum_changes_by_the_own_steps_only_at_every_event(topology, seed):
    """Also where workers leave with a request open, and where others then change sides."""
    counts = [14, 5, 22, 9, 22, 22]
    log, starts = [], starts_of(len(counts), seed)
    check = Sums(starts, log)
    simulation = PROBLEM.simulation(
        ad_psgd(topology=topology),
        PROBLEM.batches(len(counts), counts),
        lr=LR,
        log=log,
        starts=starts,
        compute=RandomCompute(),
        network=random_network(len(counts), seed),
        seed=seed,
    )
    simulation.run(after_event=check)
    check(simulation)
    assert check.events > sum(counts) and check.under_way > 5
    assert not any(
        letter.tag == "answer" for p in simulation.workers for letter in simulation.unread(p.me.id)
    )


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
def test_no_schedule_locks_up_or_loses_a_letter(seeds):
    """Some of these rings are odd when somebody has left; and the balance of deltas is watched at every event."""
    for seed in seeds:
        counts = counts_of(seed)
        topology = Ring() if len(counts) % 2 == 0 and seed % 2 else Bipartite()
        sums = SumOfWeights(lambda me: me.weights, lambda x: -x.tensor if x.tag == "answer" else None)
        simulation = run_watched(ad_psgd(topology=topology), counts, seed, sums)
        assert sum(p.me.state.balance for p in simulation.workers) == 0


# Against a plain loop


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_it_is_the_plain_loop_where_workers_take_turns(size):
    steps, batches, starts = 9, PROBLEM.batches(size, 9), starts_of(size)
    simulation = PROBLEM.simulation(ad_psgd(), batches, lr=LR, starts=starts, compute=RoundRobin())
    simulation.run(pause_after=steps)
    x = [start.clone() for start in starts]
    draws = [Random(stream_seed(0, "draw", i)) for i in range(size)]
    asked, answered, is_open = [[] for _ in x], [[] for _ in x], [False] * size

    def begin(i):
        others = range(1, size, 2)
        if i % 2 == 0 and not is_open[i] and others:
            is_open[i] = True
            asked[others[int(draws[i].random() * len(others))]].append((i, x[i].clone()))

    for i in range(size):
        begin(i)
    for step in range(steps):
        for i in range(size):
            gradient = PROBLEM.gradient(x[i], batches[i][step])
            for delta in answered[i]:
                x[i] = x[i] - delta
                is_open[i] = False
            for who, theirs in sorted(asked[i], key=lambda pair: pair[0]):
                delta = (theirs - x[i]) / 2
                x[i] = x[i] + delta
                answered[who].append(delta)
            answered[i], asked[i] = [], []
            x[i] = x[i] - LR * gradient
            begin(i)
    assert close(weights(simulation), torch.stack(x))


def test_a_pair_that_is_not_disturbed_is_at_its_mean():
    starts = starts_of(2)
    simulation = PROBLEM.simulation(ad_psgd(), [[(0,)] * 2] * 2, lr=0.0, starts=starts, compute=RoundRobin())
    simulation.run(pause_after=2)
    assert close(weights(simulation), ((starts[0] + starts[1]) / 2).expand(2, DIM))


def test_alone_it_is_plain_sgd_bit_for_bit():
    batches = PROBLEM.batches(1, 12)
    simulation = PROBLEM.simulation(ad_psgd(), batches, momentum=0.9, lr=LR)
    simulation.run()
    w, v = PROBLEM.start, torch.zeros(DIM, dtype=torch.float64)
    for batch in batches[0]:
        v = 0.9 * v + PROBLEM.gradient(w, batch)
        w = w - LR * v
    assert equal(weights(simulation)[0], w)


def test_replicas_come_together_at_the_mean_of_where_they_were():
    starts = starts_of(8)
    simulation = PROBLEM.simulation(
        ad_psgd(), [[(0,)] * 120] * 8, lr=0.0, starts=starts, compute=RandomCompute()
    )
    simulation.run(pause_after=120)
    assert close(weights(simulation), torch.stack(starts).mean(0).expand(8, DIM), 1e-3)


# Nobody waits, and how much is sent


def test_nobody_waits_for_a_straggler():
    records, finished = [], {}
    simulation = PROBLEM.simulation(
        ad_psgd(),
        PROBLEM.batches(4, 20),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
        network=NETWORKS["wan"],
        observers=[records.append],
    )
    simulation.run(on_step=lambda me, now: finished.update({me.id: now}))
    assert not [record for record in records if isinstance(record, Waited)]
    assert [finished[i] for i in range(4)] == [20 * 20_000_000] * 3 + [20 * 200_000_000]


@pytest.mark.parametrize(("compute", "mean"), [(RoundRobin(), 1.0), (Compute(), 0.5)], ids=["quick", "slow"])
def test_a_worker_sends_a_letter_per_step_in_the_mean_where_answers_come_in_time(compute, mean):
    """Two who ask and two who answer: in turns, each answer comes before the next step; in lock-step, after it."""
    records, steps = [], 40
    simulation = PROBLEM.simulation(
        ad_psgd(), PROBLEM.batches(4, steps), lr=LR, compute=compute, observers=[records.append]
    )
    simulation.run(pause_after=steps)
    sent = [record for record in records if isinstance(record, Sent)]
    assert {record.nbytes for record in sent} == {8 * DIM + 256}
    assert abs(len(sent) - mean * 4 * steps) <= 4  # the first and the last of the two who ask


def test_at_most_one_request_is_open():
    """Of 65 steps of the asker 6 find an answer: whom it asks is ten times slower."""
    read, sent = [], []

    def watch(record):
        (read if isinstance(record, Received) else sent).append(record)

    simulation = PROBLEM.simulation(
        ad_psgd(), PROBLEM.batches(2, [65, 6]), lr=LR, compute=Compute(0.02, parse_straggler("10x")),
        observers=[watch],
    )  # fmt: skip
    simulation.run(pause_after=65)
    asked = [record for record in sent if isinstance(record, Sent) and record.tag == "ask"]
    assert 6 <= len(asked) <= 7
    assert sum(isinstance(record, Received) and record.tag == "answer" for record in read) == 6


def test_whose_partner_has_left_without_an_answer_asks_somebody_else():
    """Letters take longer than the only step of worker 1, so what it is asked at the start it never reads."""
    seen = 0
    for seed in range(6):
        records = []
        simulation = PROBLEM.simulation(
            ad_psgd(), PROBLEM.batches(4, [40, 1, 40, 40]), lr=LR, network=Network(1e9, 0.05), seed=seed,
            observers=[records.append],
        )  # fmt: skip
        simulation.run()
        asked = [record for record in records if isinstance(record, Sent) and record.tag == "ask"]
        stranded = [record.who for record in asked[:2] if record.to == (1,)]
        seen += len(stranded)
        assert all(sum(record.who == who for record in asked) > 3 for who in stranded if who == 0)
    assert seen > 2


def test_who_answers_and_leaves_closes_no_later_request():
    """Worker 1 answers and leaves, and its answer takes ten steps. By then worker 0 has asked worker 2, which is on the
    other side now and answers at 500 ms: until then nobody else is asked."""
    seen = 0
    for seed in range(8):
        records = []
        PROBLEM.simulation(
            ad_psgd(), PROBLEM.batches(4, [40, 1, 3, 40]), lr=LR, seed=seed, observers=[records.append],
            network=Network(1e9, 1e-4, {(1, 0): Network(1e9, 0.2)}), compute=Compute(workers_s={2: 0.5}),
        ).run()  # fmt: skip
        early = [r for r in records if r.who == 0 and r.at_ns < 500_000_000]
        asked = [r.to for r in early if isinstance(r, Sent) and r.tag == "ask"]
        answered = [r.sender for r in early if isinstance(r, Received) and r.tag == "answer"]
        if asked[0] == (1,):
            assert asked == [(1,), (2,)] and answered == [1]
            seen += 1
    assert seen > 1


# Sides


@pytest.mark.parametrize(
    ("topology", "size"),
    [(Ring(), 3), (Ring(), 7), (Full(), 3), (Torus(), 9), (Channels([(0, 1), (1, 2), (0, 2)]), 3)],
    ids=repr,
)
def test_a_graph_without_two_sides_is_refused(topology, size):
    with pytest.raises(UsageError, match="needs a graph with two sides"):
        ad_psgd(topology=topology).check(size)


@pytest.mark.parametrize(
    ("topology", "size"),
    [(Bipartite(), 7), (Ring(), 8), (Ring(), 2), (Full(), 2), (Hypercube(), 8), (Tree(), 9), (Star(), 5),
     (Torus(), 16), (Channels([(0, 1)]), 3), (Ring(), 1)],
    ids=repr,
)  # fmt: skip
def test_a_graph_with_two_sides_is_taken(topology, size):
    ad_psgd(topology=topology).check(size)
    answers = sides(topology, size).answers
    assert all(answers[i] != answers[j] for i in range(size) for j in topology.links(i, size, 0))
    assert sum(answers) * 2 <= size  # the larger side asks


@pytest.mark.parametrize("topology", [Exponential(), Shuffled(Ring()), Hypercube(one_peer=True)], ids=repr)
def test_links_that_change_or_go_one_way_are_refused(topology):
    with pytest.raises(UsageError, match="undirected and doesn't change"):
        ad_psgd(topology=topology)


def test_the_middle_of_a_star_answers():
    assert sides(Star(), 4).answers == (True, False, False, False)


@settings(max_examples=60)
@given(st.integers(1, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_edges_between_the_sides_still_join_whatever_hung_together(size, pairs):
    """After departures a graph may be any; edges inside a side aren't used."""
    graph = Channels([(a, b) for a, b in pairs if a != b and max(a, b) < size])
    answers = sides(graph, size).answers

    def reached(first, used):
        seen, waiting = {first}, [first]
        while waiting:
            place = waiting.pop()
            fresh = {other for other in graph.links(place, size, 0) if used(place, other)} - seen
            seen |= fresh
            waiting += fresh
        return seen

    for place in range(size):
        everything = reached(place, lambda a, b: True)
        assert reached(place, lambda a, b: answers[a] != answers[b]) == everything
