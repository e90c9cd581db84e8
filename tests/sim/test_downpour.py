"""Downpour and its kin, against plain loops in float64."""

from __future__ import annotations

from collections import Counter
from math import ceil, inf

import pytest
import torch
from torch import nn

from fast.adapters import ServerReplica, TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.codecs import fp16
from fast.corrections import delay_compensation, explicit_momentum
from fast.errors import UsageError
from fast.sim import Compute, Network, Simulation, SimWorker, TraceHash, parse_straggler
from fast.sim.cluster import Cluster, Work
from fast.strategies.central.downpour import Downpour
from fast.strategies.presets import agn, dc_asgd, distbelief, downpour, ssp
from fast.trace import Applied, Dropped, Included, Received, Sent, Stepped, Waited

from .problem import INSTANT, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01


def asynchronous_loop(batches, *, lr=LR, momentum=0.0, fetch=1, push=1, normalised=False, order=None):
    """Workers in turns, each on what it fetched last and its own steps since; server and workers have
    an optimizer each. Returns the server's weights and the workers'."""
    size, steps = len(batches), len(batches[0])
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    own, own_v, gathered = [w] * size, [v] * size, [v] * size
    for step in range(steps):
        for i in range(size):
            g = PROBLEM.gradient(own[i], batches[i][step])
            gathered[i] = gathered[i] + g
            if (step + 1) % fetch:
                own_v[i] = momentum * own_v[i] + g
                own[i] = own[i] - lr * own_v[i]
            if (step + 1) % push == 0:
                v = momentum * v + gathered[i] / (push if normalised else 1)
                w = w - lr * v
                gathered[i] = torch.zeros_like(w)
            if (step + 1) % fetch == 0:
                own[i] = w
    return w, torch.stack(own)


# Values


def adagrad_loop(batches, *, lr, fetch, push):
    """The same with Adagrad, w <- w - lr G / (sqrt(sum of all G^2) + 1e-10), on the server and on the workers."""
    size, steps = len(batches), len(batches[0])
    w, squares = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    own, own_squares, gathered = [w] * size, [squares] * size, [torch.zeros_like(w)] * size
    for step in range(steps):
        for i in range(size):
            g = PROBLEM.gradient(own[i], batches[i][step])
            gathered[i] = gathered[i] + g
            if (step + 1) % fetch:
                own_squares[i] = own_squares[i] + g * g
                own[i] = own[i] - lr * g / (own_squares[i].sqrt() + 1e-10)
            if (step + 1) % push == 0:
                squares = squares + gathered[i] * gathered[i]
                w = w - lr * gathered[i] / (squares.sqrt() + 1e-10)
                gathered[i] = torch.zeros_like(w)
            if (step + 1) % fetch == 0:
                own[i] = w
    return w


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (4, 2), (2, 3)])
def test_with_adagrad_on_the_servers_it_is_the_plain_loop(fetch, push, servers):
    """The paper's choice, through torch's own optimizer, which the servers build from its description."""
    size, steps, lr = 3, 12, 0.1
    batches = PROBLEM.batches(size, steps)
    replicas, workers = [], []
    for own in batches:
        model = nn.Linear(len(PROBLEM.start), 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(PROBLEM.start)
        replica = TorchReplica(model, torch.optim.Adagrad(model.parameters(), lr=lr))
        replicas.append(replica)

        def compute(batch, replica=replica, model=model):
            rows = list(batch)
            replica.samples = len(rows)
            replica.compute(lambda: (model(PROBLEM.a[rows])[:, 0] - PROBLEM.b[rows]).square().mean() / 2)

        workers.append(SimWorker(replica, iter(own), compute))
    strategy = downpour(fetch=fetch, push=push, servers=servers)
    simulation = Simulation(
        strategy,
        workers,
        server_replicas=server_replicas(replicas[0], servers, sharded=strategy.sharded),
        network=INSTANT,
        compute=RoundRobin(),
    )
    simulation.run(pause_after=steps)
    found = torch.cat([simulation.me(size + k).weights for k in range(servers)])[: len(PROBLEM.start)]
    assert close(found, adagrad_loop(batches, lr=lr, fetch=fetch, push=push))


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 3), (3, 2), (5, 5)])
def test_it_is_the_plain_loop(fetch, push, momentum):
    batches = PROBLEM.batches(4, 30)
    simulation = PROBLEM.simulation(
        downpour(fetch=fetch, push=push), batches, lr=LR, momentum=momentum, compute=RoundRobin()
    )
    simulation.run()
    server, workers = asynchronous_loop(batches, fetch=fetch, push=push, momentum=momentum)
    assert close(simulation.me(4).weights, server)
    assert close(weights(simulation), workers)


@pytest.mark.parametrize(
    "call", [downpour(), downpour(fetch=3, push=2), agn(steps=4), dc_asgd(adaptive=True), distbelief()]
)
def test_one_worker_is_plain_sgd_bit_for_bit(call):
    batches = PROBLEM.batches(1, 12)
    simulation = PROBLEM.simulation(call, batches, lr=LR, momentum=0.9)
    simulation.run()
    w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
    for batch in batches[0]:
        v = 0.9 * v + PROBLEM.gradient(w, batch)
        w -= LR * v
    assert equal(weights(simulation)[0], w)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_in_turns_the_staleness_of_every_gradient_is_that_of_the_others_in_between(size):
    """At the start everybody has version 0; from the second push on, P - 1 others lie in between."""
    found = {worker: [] for worker in range(size)}

    def watch(record):
        if isinstance(record, Included):
            found[record.sender].append(record.staleness)

    batches = PROBLEM.batches(size, 10)
    PROBLEM.simulation(downpour(), batches, lr=LR, compute=RoundRobin(), observers=[watch]).run()
    assert found == {worker: [worker] + [size - 1] * 9 for worker in range(size)}


def test_it_is_ssp_without_a_bound_at_a_rate_p_times_as_large():
    """`ssp` divides by P so that the rate of synchronous training serves; four is a power of two, so that
    not a bit is lost."""
    ends = []
    for strategy, lr in ((downpour(), LR), (ssp(bound=inf), 4 * LR)):
        simulation = PROBLEM.simulation(
            strategy,
            PROBLEM.batches(4, 12),
            lr=lr,
            momentum=0.5,
            compute=RandomCompute(),
            network=random_network(4, 3, participants=5),
        )
        simulation.run(pause_after=12)  # so that nobody has left, and P stays 4
        ends.append(simulation.me(4).weights)
    assert equal(*ends)
    assert not close(ends[0], PROBLEM.start, 1e-3)


@pytest.mark.parametrize("seed", range(10))
def test_statement_1_whatever_the_order_the_server_ends_with_the_sum_of_all(seed):
    """Plain SGD, nothing lost: the order in which pushes come doesn't matter."""
    log = []
    simulation = PROBLEM.simulation(
        downpour(fetch=4, push=2),
        PROBLEM.batches(4, 12),
        lr=LR,
        log=log,
        compute=RandomCompute(),
        network=random_network(4, seed, participants=5),
        seed=seed,
    )
    simulation.run()
    assert close(simulation.me(4).weights, PROBLEM.start - LR * sum(log))


def test_statement_1_fails_with_momentum():
    log = []
    simulation = PROBLEM.simulation(
        downpour(), PROBLEM.batches(4, 12), lr=LR, momentum=0.5, log=log, compute=RandomCompute()
    )
    simulation.run()
    assert not close(simulation.me(4).weights, PROBLEM.start - LR * sum(log), 1e-3)


def test_what_was_gathered_since_the_last_push_is_lost_at_the_end():
    batches = PROBLEM.batches(2, 8)
    longer = [[*own, (0, 1)] for own in batches]
    ends = []
    for given in (batches, longer):
        simulation = PROBLEM.simulation(downpour(fetch=4, push=4), given, lr=LR, compute=RoundRobin())
        simulation.run()
        ends.append(simulation.me(2).weights)
    assert equal(*ends)


# Accumulated gradient normalization


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_agn_is_the_plain_loop_with_what_is_pushed_divided(steps):
    batches = PROBLEM.batches(3, 20)
    simulation = PROBLEM.simulation(agn(steps=steps), batches, lr=LR, momentum=0.4, compute=RoundRobin())
    simulation.run()
    server, workers = asynchronous_loop(batches, fetch=steps, push=steps, normalised=True, momentum=0.4)
    assert close(simulation.me(3).weights, server)
    assert close(weights(simulation), workers)


class Flying:
    """After every event: the letters that are on their way, by sender and step, as they are."""

    def __init__(self):
        self.letters = {}

    def __call__(self, simulation):
        for _, letter in simulation.on_the_way():
            if letter.tag == "push":
                self.letters.setdefault((letter.sender, letter.steps), letter.tensor.clone())


def pushes_of(strategy, batches):
    flying = Flying()
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, network=Network(1e6, 1e-3))
    simulation.run(after_event=flying)
    return flying.letters


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_agn_pushes_what_downpour_pushes_divided_by_the_steps(steps):
    """Until the first fetch both have walked the same way."""
    batches = PROBLEM.batches(3, steps)
    normalised = pushes_of(agn(steps=steps), batches)
    summed = pushes_of(downpour(fetch=steps, push=steps), batches)
    assert normalised.keys() == summed.keys() == {(worker, (steps - 1,)) for worker in range(3)}
    for key, pushed in normalised.items():
        assert close(pushed * steps, summed[key])


@pytest.mark.parametrize(("fetch", "push"), [(3, 3), (4, 2), (2, 3)])
def test_whatever_the_intervals_the_mean_may_be_pushed(fetch, push):
    batches = PROBLEM.batches(3, 24)
    strategy = downpour(fetch=fetch, push=push, normalised=True, correction=explicit_momentum(0.0))
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, compute=RoundRobin())
    simulation.run()
    server, workers = asynchronous_loop(batches, fetch=fetch, push=push, normalised=True)
    assert close(simulation.me(3).weights, server) and close(weights(simulation), workers)


def test_agn_of_one_step_is_downpour():
    traces, ends = [], []
    for strategy in (agn(steps=1), downpour()):
        trace = TraceHash()
        simulation = PROBLEM.simulation(
            strategy, PROBLEM.batches(4, 9), lr=LR, compute=RandomCompute(), observers=[trace]
        )
        simulation.run()
        traces.append(trace.hexdigest())
        ends.append(weights(simulation))
    assert traces[0] == traces[1]
    assert equal(*ends)


# Shards


@pytest.mark.parametrize("call", ["downpour(fetch=2, push=3)", "agn(steps=3)", "dc_asgd", "momentum"])
@pytest.mark.parametrize("servers", [2, 3, "workers"])
def test_shards_that_see_the_same_order_are_one_server_bit_for_bit(call, servers):
    def strategy(count):
        return {
            "downpour(fetch=2, push=3)": lambda: downpour(fetch=2, push=3, servers=count),
            "agn(steps=3)": lambda: agn(steps=3, servers=count),
            "dc_asgd": lambda: dc_asgd(adaptive=True, servers=count),
            "momentum": lambda: downpour(servers=count, correction=explicit_momentum(-0.3)),
        }[call]()

    ends = []
    for count in (1, servers):
        simulation = PROBLEM.simulation(
            strategy(count), PROBLEM.batches(4, 12), lr=LR, momentum=0.5, compute=RoundRobin()
        )
        simulation.run()
        owned = torch.cat([server.me.weights for server in simulation.servers])
        ends.append((weights(simulation), owned))
    assert equal(ends[0][0], ends[1][0])
    assert equal(ends[0][1], ends[1][1])


def test_each_shard_counts_its_own_staleness():
    """Over links of their own the shards see other orders; each of them sees every push once, and its
    staleness is the number of updates since that shard answered the sender's last fetch."""
    found, versions, read = {4: [], 5: []}, Counter(), Counter()

    def watch(record):
        match record:
            case Included(who=server, sender=sender, step=step, staleness=staleness):
                found[server].append((sender, step))
                assert staleness == versions[server] - read[server, sender]
            case Applied(who=server) if server in found:
                versions[server] += 1
            case Sent(who=server, to=to, tag="read"):
                read.update({(server, worker): versions[server] - read[server, worker] for worker in to})

    PROBLEM.simulation(
        downpour(servers=2),
        PROBLEM.batches(4, 12),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(4, 7, participants=6),
        observers=[watch],
    ).run()
    once = sorted((worker, step) for worker in range(4) for step in range(12))
    assert sorted(found[4]) == sorted(found[5]) == once
    assert found[4] != found[5]


# The server's queue


def queue_of(strategy, *, fast_s=1e-5, apply_s=1e-3):
    """One worker much faster than the server, beside a slow one: the most letters of it that ever waited
    or were on their way, and the time that it waited, by whom it waited for."""
    most, waited, unread = Counter(), Counter(), Counter()

    def watch(record):
        if isinstance(record, Waited):
            waited[record.who, record.on, record.why] += record.waited_ns

    def look(simulation):
        letters = [letter for _, letter in simulation.on_the_way()] + simulation.unread(2)
        pushes = Counter(letter.sender for letter in letters if letter.tag == "push")
        unread[0] = max(unread[0], sum(letter.sender == 0 for letter in simulation.unread(2)))
        for sender, count in pushes.items():
            most[sender] = max(most[sender], count)

    cluster = Cluster(
        Compute(0.02, workers_s={0: fast_s, 1: 0.5}), Network(1e8, 1e-4), Work(servers=Work(apply_s=apply_s))
    )
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(2, [200, 2]),
        lr=1e-4,
        observers=[watch],
        cluster=cluster,
        network=None,
        compute=None,
    )
    simulation.run(after_event=look)
    return most, waited, unread[0]


@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (4, 1), (7, 2), (2, 5), (20, 3)])
def test_a_fast_worker_can_not_fill_the_servers_queue(fetch, push):
    most, waited, unread = queue_of(downpour(fetch=fetch, push=push))
    limit = ceil(fetch / push) + 1
    assert max(most.values()) <= limit
    assert unread >= min(2, fetch // push), "the queue was never used, so nothing was tested"
    (on_server,) = [key for key in waited if key[0] == 0]
    assert on_server == (0, (2,), "read")
    assert waited[on_server] > 0.5 * 200 // push * 1e6, (
        "it waits for about as long as the server works for it"
    )


def test_a_worker_that_never_waited_would_fill_it():
    """The negative control: the same worker with a fetch only every 200 steps."""
    most, _, _ = queue_of(Downpour(fetch=200, push=1))
    assert most[0] > 100


# Delay compensation


def compensated_loop(batches, strength, lr=LR):
    size, w = len(batches), PROBLEM.start
    read = [w] * size
    for step in range(len(batches[0])):
        for i in range(size):
            g = PROBLEM.gradient(read[i], batches[i][step])
            w = w - lr * (g + strength * g * g * (w - read[i]))
            read[i] = w
    return w


@pytest.mark.parametrize("strength", [0.04, 0.5])
def test_dc_asgd_with_a_constant_is_the_plain_loop(strength):
    batches = PROBLEM.batches(4, 25)
    simulation = PROBLEM.simulation(
        dc_asgd(adaptive=False, strength=strength), batches, lr=LR, compute=RoundRobin()
    )
    simulation.run()
    assert close(simulation.me(4).weights, compensated_loop(batches, strength))
    assert not close(simulation.me(4).weights, compensated_loop(batches, 0.0), 1e-4)


def test_adaptive_dc_asgd_is_the_plain_loop():
    batches, w = PROBLEM.batches(4, 25), PROBLEM.start
    simulation = PROBLEM.simulation(dc_asgd(adaptive=True), batches, lr=LR, compute=RoundRobin())
    simulation.run()
    read, squares = [w] * 4, torch.zeros_like(w)
    for step in range(25):
        for i in range(4):
            g = PROBLEM.gradient(read[i], batches[i][step])
            squares = 0.95 * squares + 0.05 * g * g
            w = w - LR * (g + 2 / (squares + 1e-7).sqrt() * g * g * (w - read[i]))
            read[i] = w
    assert close(simulation.me(4).weights, w)


@pytest.mark.parametrize("adaptive", [True, False])
def test_dc_asgd_of_strength_0_is_downpour_bit_for_bit(adaptive):
    ends = []
    for strategy in (dc_asgd(adaptive=adaptive, strength=0), downpour()):
        simulation = PROBLEM.simulation(
            strategy,
            PROBLEM.batches(4, 12),
            lr=LR,
            momentum=0.5,
            compute=RandomCompute(),
            network=random_network(4, 5, participants=5),
        )
        simulation.run()
        ends.append(weights(simulation))
    assert equal(*ends)


def test_a_correction_is_saved_and_restored():
    def half(resume):
        simulation = PROBLEM.simulation(
            downpour(fetch=2, push=2, correction=delay_compensation(0.3)),
            PROBLEM.batches(3, 12),
            lr=LR,
            compute=RandomCompute(),
        )
        if resume is None:
            simulation.run(pause_after=6)
        else:
            simulation.restore(resume)
        saved = simulation.checkpoint()
        simulation.run()
        return weights(simulation), saved

    straight, saved = half(None)
    assert set(saved["participants"][3]["state"].memory.backups) == {0, 1, 2}
    assert equal(half(saved)[0], straight)


# The warm start


def started(strategy, counts, **options):
    """When each worker ended its first step, and the order of all steps."""
    order = []

    def watch(record):
        if isinstance(record, Stepped):
            order.append((record.who, record.step))

    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(len(counts), counts), lr=LR, observers=[watch], **options
    )
    return simulation, order


@pytest.mark.parametrize(("fetch", "push", "alone"), [(1, 1, 7), (1, 3, 9), (4, 2, 8)])
def test_the_others_begin_when_worker_0_has_warmed_up(fetch, push, alone):
    """At the first push (or fetch) from the seventh step on."""
    alone = 7 if fetch == 1 else alone
    simulation, order = started(
        distbelief(fetch=fetch, push=push, warm=7, servers=2), [20, 20, 20], network=Network(1e6, 1e-4)
    )
    simulation.run()
    first_other = next(place for place, (who, _) in enumerate(order) if who != 0)
    before = [step for who, step in order[:first_other]]
    assert alone <= len(before) <= alone + 2  # while the others compute their first step, worker 0 goes on
    assert [order.count((who, 20)) for who in range(3)] == [1, 1, 1]


def test_the_others_begin_with_the_weights_of_the_warm_start():
    batches = PROBLEM.batches(2, 9)
    simulation = PROBLEM.simulation(
        distbelief(warm=4, servers=1), batches, lr=LR, compute=Compute(workers_s={0: 0.02, 1: 0.5})
    )
    seen = {}
    simulation.run(on_step=lambda me, now: seen.setdefault(me.id, now), pause_after=4)
    w = PROBLEM.start
    for batch in batches[0][:4]:
        w = w - LR * PROBLEM.gradient(w, batch)
    for batch in batches[1][:4]:
        w = w - LR * PROBLEM.gradient(w, batch)
    assert close(simulation.me(2).weights, w)
    assert seen == {0: 20_000_000, 1: 580_000_000}


@pytest.mark.parametrize("end", ["leaves", "dies", "has nothing"])
def test_a_warm_start_whose_worker_is_gone_is_over(end):
    counts = {"leaves": [3, 9, 9], "dies": [50, 9, 9], "has nothing": [0, 9, 9]}[end]
    simulation, order = started(distbelief(warm=40, servers=2), counts, network=Network(1e6, 1e-4))
    if end == "dies":
        simulation.at(70_000_000, lambda: simulation.kill(0))
    simulation.run()
    assert [order.count((who, 9)) for who in (1, 2)] == [1, 1]


# Which parameters have a gradient at all


class Sometimes(nn.Module):
    """`even` is used in even steps, `odd` in odd ones, `never` not at all."""

    def __init__(self):
        super().__init__()
        self.even, self.odd, self.never = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3))


def test_a_gathered_gradient_knows_which_parameters_any_of_its_steps_had():
    replicas = []
    for _ in range(2):
        model = Sometimes()
        replicas.append(TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.125, weight_decay=0.5)))

    def worker(replica):
        def compute(step):
            replica.samples = 1
            used = replica.model.odd if step % 2 else replica.model.even
            replica.compute(lambda: used.sum())

        return SimWorker(replica, iter(range(2)), compute)

    first = replicas[0]
    server = ServerReplica(first.optimizer_spec(), first.layout, first.weights.clone())
    simulation = Simulation(
        downpour(fetch=2, push=2),
        [worker(replica) for replica in replicas],
        server_replicas=[server],
        network=INSTANT,
        compute=RoundRobin(),
    )
    simulation.run()
    views = dict(zip(("even", "odd", "never"), first.layout.views(server.weights), strict=True))
    w = 1.0
    for _ in range(2):  # each push has a gradient of 1 for both, and weight decay goes with it
        w = w - 0.125 * (1 + 0.5 * w)
    assert views["even"].tolist() == views["odd"].tolist() == [w] * 3
    assert views["never"].tolist() == [1.0] * 3


# Letters


@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (3, 2), (2, 3)])
def test_every_push_is_applied_once_and_a_fetch_is_no_update(fetch, push):
    seen = Counter()

    def watch(record):
        match record:
            case Sent(tag="push"):
                seen["asked" if record.asks else "pushed"] += len(record.to)
                assert record.nbytes == (256 if record.asks else 256 + 160)
            case Included():
                seen["included"] += 1
            case Received(tag="push"):
                seen["received"] += 1
            case Dropped():
                seen["dropped"] += 1

    PROBLEM.simulation(
        downpour(fetch=fetch, push=push),
        PROBLEM.batches(3, 12),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(3, 1, participants=4),
        observers=[watch],
    ).run()
    pushed = 3 * (12 // push)
    asked = 3 * len([step for step in range(1, 13) if step % fetch == 0 and step % push])
    assert seen == Counter(pushed=pushed, included=pushed, asked=asked, received=pushed + asked)


def test_a_codec_makes_pushes_smaller_and_leaves_requests_alone():
    sizes = Counter()

    def watch(record):
        if isinstance(record, Sent) and record.tag == "push":
            sizes[record.asks, record.nbytes] += 1

    PROBLEM.simulation(
        downpour(fetch=1, push=2, codec=fp16()), PROBLEM.batches(2, 4), lr=LR, observers=[watch]
    ).run()
    assert sizes == {(True, 256): 4, (False, 256 + 40): 4}


def test_nobody_waits_for_a_straggler():
    finished = {}
    PROBLEM.simulation(
        downpour(fetch=5, push=5),
        PROBLEM.batches(3, 20),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
    ).run(on_step=lambda me, now: finished.update({me.id: now}))
    assert finished == {0: 400_000_000, 1: 400_000_000, 2: 4_000_000_000}


# Refused


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: downpour(fetch=0), r"downpour\(fetch=0\).*from 1 on"),
        (lambda: downpour(push=1.5), r"downpour\(push=1.5\)"),
        (lambda: downpour(fetch=inf), r"downpour\(fetch=inf\)"),
        (lambda: downpour(servers=0), r"downpour\(servers=0\)"),
        (lambda: agn(steps=True), r"agn\(steps=True\)"),
        (lambda: distbelief(warm=-1), r"distbelief\(warm=-1\).*from 0 on"),
        (lambda: dc_asgd(strength=-1), r"strength=-1"),
        (lambda: downpour(fetch=65), r"up to 65 pushes of each worker.*take push=2"),
        (lambda: distbelief(fetch=1000, push=7), r"up to 142 pushes of each worker.*take push=16"),
    ],
)
def test_what_can_not_be_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()
