"""Servers that own shards, in the simulator: the same bits as one server and as no server at all."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
import torch

from fast.adapters import ServerReplica
from fast.adapters.rows import Rows
from fast.adapters.server_replica import server_replicas
from fast.core import GRADIENT, Me, Strategy, Tag
from fast.errors import UsageError
from fast.lab.sizes import Sizes
from fast.sim import NETWORKS, Compute, Network, Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.sim.cluster.hosts import Hosts
from fast.sim.faults import Director, parse_scenario
from fast.strategies.presets import allreduce
from fast.trace import Applied, Included, Received, Record, Sent
from fast.wire import HEADER_BYTES
from slice_bodies import (
    OPTIMIZERS,
    LockStep,
    OnArrival,
    batches,
    loss_of,
    make_net,
    replicas_of,
    simulation_of,
)

from .problem import INSTANT, LeastSquares, equal, weights

PROBLEM = LeastSquares()
MANY = [1, 2, 3, 5, 17]
"""The model has six parameters."""


def trained(strategy: Strategy, optimizer: str, steps: int = 6, **options: object) -> torch.Tensor:
    simulation = simulation_of(strategy, [steps] * 3, optimizer, **options)
    simulation.run()
    return weights(simulation)


def put_together(simulation: Simulation) -> torch.Tensor:
    return torch.cat([server.me.weights for server in simulation.servers])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_number_of_shards_is_one_server_is_allreduce_bit_for_bit(optimizer: str) -> None:
    expected, start = trained(allreduce(), optimizer), weights(simulation_of(allreduce(), [1] * 3, optimizer))
    assert not equal(expected, start)
    for servers in MANY:
        assert equal(trained(LockStep(servers), optimizer), expected), f"{servers} servers"
    for servers in (3, 17):
        assert equal(trained(LockStep(servers, bucket_bytes=64), optimizer), expected), (
            f"{servers}, in pieces"
        )


def test_parameters_without_a_gradient_stay_where_they_are() -> None:
    """Weight decay would move them if a server took their zeros for a gradient."""
    simulation = simulation_of(LockStep(5), [4] * 2, "decay")
    start = simulation.me(0).weights.clone()
    simulation.run()
    for segment in simulation.me(0).replica.layout.segments:
        moved = not equal(segment.of(simulation.me(0).weights), segment.of(start))
        assert moved == (not segment.name.startswith("unused")), segment.name


@pytest.mark.parametrize("optimizer", ["momentum", "adafactor"])
def test_the_servers_slices_are_the_model(optimizer: str) -> None:
    for servers in MANY[1:]:
        simulation = simulation_of(LockStep(servers), [3] * 3, optimizer)
        simulation.run()
        assert equal(put_together(simulation), simulation.me(0).weights)
        assert [s.me.weights.numel() for s in simulation.servers] == [
            cut.stop - cut.start for cut in simulation.me(0).shards.values()
        ]
        for server in simulation.servers:
            assert dict(server.me.shards) == dict(simulation.me(0).shards)
            assert server.me.gradient.shape == server.me.weights.shape


def test_least_squares_in_float64_against_a_plain_loop() -> None:
    own = PROBLEM.batches(3, 10)
    w = PROBLEM.start
    for step in range(10):
        gradients = [PROBLEM.gradient(w, own[i][step]) for i in range(3)]
        w = w - 0.05 * ((gradients[0] + gradients[1] + gradients[2]) / 3)
    for servers in (1, 2, 3, 4):
        simulation = PROBLEM.simulation(LockStep(servers), own)
        simulation.run()
        assert all(equal(row, w) for row in weights(simulation))


def test_rows_have_the_bits_of_shards_too() -> None:
    ends = []
    for strategy in (allreduce(), LockStep(3), LockStep(8)):
        model = make_net()
        rows = Rows(model, OPTIMIZERS["adam"](model.parameters()), loss_of, 3)

        def worker(number: int, rows: Rows = rows) -> SimWorker:
            def compute(x: torch.Tensor) -> None:
                rows.evaluate([number], [x])

            return SimWorker(rows.replicas[number], batches(number, 5), compute)

        first = rows.replicas[0]
        servers = server_replicas(first, strategy.servers(3), sharded=strategy.sharded)
        simulation = Simulation(strategy, [worker(n) for n in range(3)], server_replicas=servers)
        simulation.run()
        ends.append(weights(simulation))
    assert equal(ends[0], ends[1]) and equal(ends[0], ends[2])


# Staleness


class HandCount:
    """The staleness of every push at every server, counted from who sent what to whom and when it was read.

    A server's reply stands for as many updates as it had applied by then; letters of one pair are read
    in order, where they fold the newest.
    """

    def __init__(self) -> None:
        self.applied: dict[int, int] = defaultdict(int)
        self.replies: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self.known: dict[tuple[int, int], int] = defaultdict(int)
        self.pushes: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self.expected: dict[int, list[int]] = defaultdict(list)
        self.reported: dict[int, list[int]] = defaultdict(list)

    def __call__(self, record: Record) -> None:
        match record:
            case Applied(who=server):
                self.applied[server] += 1
            case Sent(who=server, tag="read", to=to):
                for worker in to:
                    self.replies[server, worker].append(self.applied[server])
            case Received(who=worker, tag="read", sender=server, letters=letters):
                for _ in range(letters):
                    self.known[server, worker] = self.replies[server, worker].popleft()
            case Sent(who=worker, tag="push", to=to):
                for server in to:
                    self.pushes[server, worker].append(self.known[server, worker])
            case Included(who=server, sender=worker, tag="push", staleness=staleness):
                self.expected[server].append(self.applied[server] - self.pushes[server, worker].popleft())
                self.reported[server].append(staleness)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_staleness_is_exact_at_every_server(servers: int, skip: bool) -> None:
    count = HandCount()
    simulation = simulation_of(
        OnArrival(servers, skip=skip),
        [25, 20, 9],
        compute=Compute(workers_s={0: 0.010, 1: 0.013, 2: 0.031}),
        network=Network(2e5, 1e-3),
        observers=[count],
    )
    simulation.run()
    assert count.reported == count.expected and len(count.reported) == servers
    for late in count.reported.values():
        assert len(late) == 54 and max(late) >= 3
    if skip and servers > 1:
        assert count.reported[3] != count.reported[4]  # their weights were read at different times


def test_staleness_of_a_schedule_that_can_be_counted_by_hand() -> None:
    """Worker 0 pushes at 10, 20, 30, ... ms and worker 1 at 35 and 70; letters take no time. When worker 1 first
    pushes, three updates were made since the start; the next of worker 0 misses that one."""
    late: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def watch(record: Record) -> None:
        if isinstance(record, Included):
            late[record.who].append((record.sender, record.staleness))

    simulation = PROBLEM.simulation(
        OnArrival(2),
        PROBLEM.batches(2, [7, 2]),
        compute=Compute(workers_s={0: 0.010, 1: 0.035}),
        network=INSTANT,
        observers=[watch],
    )
    simulation.run()
    by_hand = [(0, 0), (0, 0), (0, 0), (1, 3), (0, 1), (0, 0), (0, 0)]
    for server in (2, 3):
        assert late[server][:7] == by_hand
        assert sorted(late[server][7:]) in ([(0, 0), (1, 4)], [(0, 1), (1, 3)])  # both at 70 ms


def test_what_is_sent_to_one_server_has_its_own_version() -> None:
    """Also with me.send and me.request, and read with me.receive or me.letters."""
    seen: list[tuple[str, int, int]] = []

    class Asking(Strategy):
        tags = (Tag("push", carries=GRADIENT),)
        sharded = True

        def servers(self, workers: int) -> int:
            return 2

        async def step(self, me: Me) -> None:
            first, second = me.servers
            for server, times in ((first, 1), (second, 2)):
                for _ in range(times):
                    me.send(server, me.gradient[me.shards[server]], "push", times=times)
                    await me.receive("answer", server)
            assert dict(me.versions) == {first: me.steps + 1, second: 2 * me.steps + 2}
            me.send(me.servers, me.gradient, "look")
            me.request(me.servers, "ask")

        async def serve(self, me: Me) -> None:
            for letter in await me.news("push"):
                me.apply(letter.tensor, of=[letter])
                me.send(letter.sender, me.weights, "answer")
            for tag in ("look", "ask"):
                seen.extend((tag, me.id, letter.version) for letter in me.letters(tag))

    PROBLEM.simulation(Asking(), PROBLEM.batches(1, 3), network=INSTANT).run()
    for tag in ("look", "ask"):
        assert [version for *who, version in seen if who == [tag, 1]] == [1, 2, 3]
        assert [version for *who, version in seen if who == [tag, 2]] == [2, 4, 6]


# What is sent


def test_bytes_are_those_of_the_slices() -> None:
    sent: dict[tuple[int, int], int] = defaultdict(int)

    def watch(record: Record) -> None:
        if isinstance(record, Sent):
            for to in record.to:
                sent[record.who, to] += record.nbytes // len(record.to)

    simulation = simulation_of(LockStep(3), [4] * 2, observers=[watch])
    simulation.run()
    shards = simulation.me(0).shards
    for server, cut in shards.items():
        for worker in (0, 1):
            assert (
                sent[worker, server]
                == sent[server, worker]
                == 4 * (HEADER_BYTES + 4 * (cut.stop - cut.start))
            )
    assert len(sent) == 2 * 2 * 3


def test_codecs_work_on_slices() -> None:
    """Each slice is a channel of its own. One byte per value and a scale: the errors stay small."""
    plain = trained(LockStep(1), "sgd")
    for servers in (1, 5, 17):
        for bucket_bytes in (None, 64):
            found = trained(LockStep(servers, bucket_bytes=bucket_bytes, encoded=True), "sgd")
            assert 0 < float((found - plain).abs().max()) < 0.05


def test_me_push_and_pull_say_what_they_need() -> None:
    class Wrong(LockStep):
        async def step(self, me: Me) -> None:
            me.push(me.gradient[:8], "push")

    class Late(LockStep):
        async def step(self, me: Me) -> None:
            me.push(me.gradient, "push", rates=me.rates)
            await me.pull("read", me.weights[:8])

    class Everything(LockStep):
        sharded = False

        def __init__(self) -> None:
            super().__init__(2)
            self.sharded = False

    class Short(LockStep):
        async def serve(self, me: Me) -> None:
            for letter in await me.news("push"):
                me.send(letter.sender, me.weights[:1], "read")

    class Pushing(LockStep):
        async def serve(self, me: Me) -> None:
            me.push(me.weights, "push")

    for strategy, words in (
        (Wrong(2), r"me.push got a tensor of shape \(8,\)"),
        (Late(2), r"me.pull got a tensor of shape \(8,\)"),
        (Everything(), "2 servers that each have all of the weights"),
        (Short(2), "server 1 sent 1 values under 'read', and it owns 8"),
        (Pushing(2), "server 1 calls me.push"),
    ):
        with pytest.raises(UsageError, match=words):
            PROBLEM.simulation(strategy, PROBLEM.batches(1, 2)).run()


def test_replicas_must_have_the_shards_sizes() -> None:
    replicas = replicas_of(2, "sgd")
    whole = [ServerReplica(replicas[0].optimizer_spec(), replicas[0].layout, replicas[0].weights.clone())] * 3
    workers = [SimWorker(replica, iter(()), lambda batch: None) for replica in replicas]
    with pytest.raises(UsageError, match="is sharded, so its 3 servers own"):
        Simulation(LockStep(3), workers, server_replicas=whole)


# Where servers stand


def test_a_colocated_server_stands_on_its_workers_host() -> None:
    for each, of in ((1, ()), (2, ()), (3, ()), (None, ()), (1, (4, 4, 0, 2, 2))):
        hosts = Hosts(each, of).known(5, colocated=True)
        assert [hosts.host(5 + j) for j in range(5)] == [hosts.host(j) for j in range(5)]
        assert not hosts.alone
    apart = Hosts(2).known(5)
    assert [apart.host(5 + j) for j in range(3)] == [3, 4, 5]
    assert Hosts(1, (0, 1, 7)).known(2, colocated=True).host(2) == 7  # it was named


def letter_times(strategy: Strategy, network: Network) -> dict[tuple[int, int], int]:
    """When the first push of each worker was applied at each server, and how the first step ended."""
    arrived: dict[tuple[int, int], int] = {}

    def watch(record: Record) -> None:
        if isinstance(record, Included):
            arrived.setdefault((record.sender, record.who), record.at_ns)

    simulation = simulation_of(strategy, [1, 1], network=network, compute=Compute(0.02), observers=[watch])
    simulation.run()
    return arrived


def test_letters_between_a_worker_and_its_own_shard_stay_on_the_host() -> None:
    """The slices of both workers for the other one's shard go over the network at once; one's own takes
    what a copy inside the host takes."""
    rate, latency_s, inside = 1e6, 5e-3, Network(1e9, 1e-5)
    network = Network(rate, latency_s, shared=True, inside=inside)
    near = letter_times(OnArrival(2, colocated=True), network)
    sizes = {
        2 + n: 256 + 4 * (cut.stop - cut.start) for n, cut in enumerate(replicas_of(1, "sgd")[0].shards(2))
    }
    for worker, server in ((0, 2), (1, 3)):
        assert near[worker, server] == 20_000_000 + 10_000 + round(sizes[server] / 1e9 * 1e9)
    for worker, server in ((0, 3), (1, 2)):
        assert near[worker, server] == 20_000_000 + 5_000_000 + round(sizes[server] / rate * 1e9)
    apart = letter_times(OnArrival(2), network)
    assert apart[0, 2] >= 20_000_000 + 5_000_000 + round(sizes[2] / rate * 1e9)
    assert apart[0, 3] >= apart[0, 2] + round(sizes[3] / rate * 1e9)  # one interface for both


def test_how_long_a_step_takes_with_one_server_with_four_and_with_a_shard_in_every_worker() -> None:
    """What passes through the busiest interface, S bytes in 4 s: one server takes in 4 S and sends out 4 S;
    each of four takes in and sends out 4 S / 4; and where they stand with the workers, 3 S / 4."""
    sizes, taken = Sizes.of_parameters(1e6), {}
    for strategy in (LockStep(1), LockStep(4), in_workers(LockStep(4))):
        replicas = [sizes.replica() for _ in range(4)]
        simulation = Simulation(
            strategy,
            [SimWorker(replica, iter([1]), replica.compute) for replica in replicas],
            server_replicas=sizes.servers(strategy, 4),
            network=Network(1e6, 0.0, shared=True, inside=INSTANT),
            compute=Compute(0.0),
            seed_torch=False,
        )
        simulation.run()
        taken[strategy.count, strategy.colocated] = simulation.now_ns / 1e9
    assert taken == pytest.approx({(1, False): 32, (4, False): 8, (4, True): 6}, rel=0.01)


def in_workers(strategy: LockStep) -> LockStep:
    strategy.colocated = True
    return strategy


# Comings, goings, checkpoints


def test_a_checkpoint_resumes_to_the_same_bits_and_versions() -> None:
    def build() -> Simulation:
        return simulation_of(
            OnArrival(3, skip=True), [12] * 3, "adam", compute=Compute(workers_s={0: 0.01, 1: 0.02, 2: 0.03})
        )

    whole = build()
    whole.run()
    first = build()
    first.run(pause_after=5)
    saved = first.checkpoint()
    assert any(len(p["versions"]) == 3 for p in saved["participants"])
    second = build()
    second.restore(saved)
    assert [p.me.versions for p in second.participants] == [p.me.versions for p in first.participants]
    second.run()
    first.run()
    assert equal(weights(first), weights(second)) and equal(put_together(first), put_together(second))
    assert [p.me.version for p in first.servers] == [p.me.version for p in second.servers] == [36] * 3


def test_who_comes_knows_what_its_donor_has_read() -> None:
    """Whose weights it begins with: with versions of 0 its first push would seem a hundred updates late."""
    late: list[int] = []

    def watch(record: Record) -> None:
        if isinstance(record, Included):
            late.append(record.staleness)

    simulation = simulation_of(
        OnArrival(2),
        [200, 200],
        compute=Compute(0.02),
        faults=Director(parse_scenario("worker 1 dies at 60ms; worker 1 returns at 2s"), 0),
        observers=[watch],
    )
    simulation.run(stop=lambda sim: sim.now_ns > 3_000_000_000)
    assert simulation.me(1).fresh and simulation.servers[0].me.version > 150
    assert max(late) <= 2


def test_workers_that_leave_do_not_disturb_the_shards() -> None:
    ends = []
    for servers in (1, 3, 17):
        simulation = simulation_of(LockStep(servers), [3, 9, 6], "momentum")
        simulation.run()
        assert equal(put_together(simulation), simulation.me(1).weights)
        ends.append(simulation.me(1).weights)
    assert equal(ends[0], ends[1]) and equal(ends[0], ends[2])


@pytest.mark.parametrize("strategy", [LockStep(3), LockStep(17), OnArrival(3), OnArrival(2, skip=True)])
def test_checkers_find_nothing(strategy: Strategy) -> None:
    checkers = Checkers(strategy)
    simulation = simulation_of(
        strategy, [6, 9, 4], observers=[checkers], spoil_letters=True, network=NETWORKS["10gbit"]
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()


@pytest.mark.parametrize("strategy", [LockStep(3), LockStep(17), OnArrival(3, colocated=True)])
def test_sizes_alone_have_the_same_events(strategy: Strategy) -> None:
    def watched(records: list[Record]) -> dict[str, object]:
        return {"observers": [records.append], "network": NETWORKS["1gbit"]}

    real: list[Record] = []
    with_values = simulation_of(strategy, [5] * 3, "adafactor", **watched(real))
    with_values.run()
    first = with_values.me(0).replica
    sizes = Sizes("net", first.layout, samples=4, rates=first.rates, whole_parameters=True)
    found: list[Record] = []
    replicas = [sizes.replica() for _ in range(3)]
    simulation = Simulation(
        strategy,
        [SimWorker(replica, iter([4] * 5), replica.compute) for replica in replicas],
        server_replicas=sizes.servers(strategy, 3),
        seed_torch=False,
        **watched(found),  # type: ignore[arg-type]
    )
    simulation.run()

    assert found == real and simulation.now_ns == with_values.now_ns
