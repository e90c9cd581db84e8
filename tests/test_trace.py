"""Records in both worlds: what they say, and that the times add up to the time there was."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise

import msgspec
import pytest
import torch

from fast.core import Letter, Me, Need, Reduction, drive
from fast.core.world import Round
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop import join
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.loop.worker import Worker
from fast.parts import Ring
from fast.runtime import RealWorld
from fast.sim import Compute, Network, Straggler
from fast.sim.world import SimWorld
from fast.trace import (
    Applied,
    Computed,
    Dropped,
    Included,
    Meter,
    Received,
    Reduced,
    Sent,
    Stepped,
    Turned,
    Waited,
)
from fast.transport import MemoryHub, MemoryTransport, Phase
from fast.transport.base import Reducing
from fast.view import View
from preset_bodies import FLAT_BYTES, batches, loss_of, make_model, make_optimizer, simulation
from table import DIFFERENT

every_call = pytest.mark.parametrize("call", DIFFERENT)
SLOW = Network(1e6, 2e-3)
UNEQUAL = Compute(0.02, Straggler(3.0, share=0.3), workers_s={1: 0.013, 3: 0.05})


def simulated(call, steps, **options):
    """A run of a preset: all records, and a meter of each participant."""
    records, strategy = [], strategy_from(call)
    meters = [Meter() for _ in range(len(steps) + strategy.servers(len(steps)))]
    simulated = simulation(
        strategy, steps, observers=[records.append, lambda record: meters[record.who](record)], **options
    )
    simulated.run()
    return records, meters, simulated


def of(records, kind, who=None):
    return [record for record in records if isinstance(record, kind) and who in (None, record.who)]


def parts(meter):
    return meter.computed_ns + meter.sent_ns + meter.waited_ns + meter.merged_ns


# The parts are the whole


@every_call
@pytest.mark.parametrize("steps", [[6], [9, 9, 9, 9], [4, 9, 2, 7]], ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_parts_of_every_workers_time_are_its_virtual_time(call, steps, seed):
    finished = {}
    records, meters, run = simulated(call, steps, seed=seed, compute=UNEQUAL, network=SLOW)
    for record in of(records, Stepped):
        finished[record.who] = record.at_ns
    for worker in run.workers:
        who, meter = worker.me.id, meters[worker.me.id]
        assert parts(meter) == of(records, Turned, who)[-1].at_ns == finished[who]
        assert meter.computed_ns == sum(
            UNEQUAL.duration_ns(who, len(steps), step, seed) for step in range(steps[who])
        )
        assert meter.merged_ns == 0, "in the simulator merging takes no time"
    for server in run.servers:
        meter = meters[server.me.id]
        assert parts(meter) == of(records, Turned, server.me.id)[-1].at_ns
        assert (meter.computed_ns, meter.merged_ns) == (0, 0)
        assert meter.waited_ns > 0


@every_call
def test_computing_and_turns_follow_each_other_without_a_gap(call):
    records, _, run = simulated(call, [7, 5, 9], compute=UNEQUAL, network=SLOW)
    for worker in run.workers:
        tiles = [record for record in records if record.who == worker.me.id]
        tiles = [record for record in tiles if isinstance(record, Computed | Turned)]
        assert [type(tile) for tile in tiles] == [Computed, Turned] * worker.me.steps
        assert tiles[0].began_ns == 0
        assert all(later.began_ns == earlier.at_ns for earlier, later in pairwise(tiles))
    for server in run.servers:
        turns = of(records, Turned, server.me.id)
        assert turns[0].began_ns == 0
        assert all(later.began_ns == earlier.at_ns for earlier, later in pairwise(turns))


@every_call
def test_the_times_of_a_run_on_threads_add_up_as_well(call):
    """A real clock: nothing can be said about the parts but that they are the whole, and none is negative."""
    logs = {}

    def body(id):
        records, meter = logs.setdefault(id, []), Meter()
        model = make_model()
        optimizer = make_optimizer(model)
        join(model, optimizer, call, observers=[records.append, meter])
        for batch in batches(id, 6):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        close_sessions(current_seat())
        return meter

    def serve_and_watch(strategy, number):
        records, meter = logs.setdefault(100 + number, []), Meter()
        serve(strategy, number, observers=[records.append, meter])
        logs[200 + number] = meter

    for id, meter in enumerate(run_threads(3, body, serve_and_watch)):
        tiles = of(logs[id], Computed | Turned)
        assert [type(tile) for tile in tiles] == [Computed, Turned] * 6
        assert all(later.began_ns == earlier.at_ns for earlier, later in pairwise(tiles))
        assert parts(meter) == tiles[-1].at_ns - tiles[0].began_ns
        assert meter.computed_ns > 0 and meter.merged_ns > 0
        assert meter.waited_ns >= 0 and meter.sent_ns >= 0
        letters = of(logs[id], Sent)
        assert all(letter.took_ns > 0 for letter in letters)
    for number in range(strategy_from(call).servers(3)):
        turns, meter = of(logs[100 + number], Turned), logs[200 + number]
        assert parts(meter) == turns[-1].at_ns - turns[0].began_ns
        assert meter.computed_ns == 0


def test_a_program_that_computes_its_own_gradient_computes_until_it_has_it():
    """The real world can't see where its computing ends; `me.backward` says so."""
    logs = {}

    def iteration(me, batch, updates):
        me.backward(loss_of(me.model, batch))
        me.send(me.neighbours, me.gradient, "update")
        me.apply(me.gradient)

    def body(id):
        logs[id] = []
        model = make_model()
        worker = Worker(Ring(), iteration)
        worker.train(model, make_optimizer(model), list(batches(id, 4)), observers=[logs[id].append])
        close_sessions(current_seat())

    run_threads(2, body, serve)
    for records in logs.values():
        tiles = of(records, Computed | Turned)
        assert [type(tile) for tile in tiles] == [Computed, Turned] * 2  # `shard` gives each half of them
        first = next(record.at_ns for record in records if isinstance(record, Applied))
        assert tiles[0].began_ns < tiles[0].at_ns < first < tiles[1].at_ns
        assert all(later.began_ns == earlier.at_ns for earlier, later in pairwise(tiles))


@pytest.mark.parametrize("call", ["allreduce", "ssp(bound=1)", "dpsgd", "torus", "gossip(p=0.5)"])
def test_nothing_is_recorded_for_nobody(call, monkeypatch):
    monkeypatch.setattr(SimWorld, "emit", lambda self, record: pytest.fail(f"nobody listens: {record}"))
    run = simulation(strategy_from(call), [4, 4])
    run.run()
    assert [worker.me.steps for worker in run.workers] == [4, 4]


# A mean: what was waited for, and what it took


def test_waiting_for_a_mean_and_the_mean_itself_are_two_things():
    compute = Compute(workers_s={0: 0.010, 1: 0.020, 2: 0.030})
    records, meters, _ = simulated("allreduce", [1, 1, 1], compute=compute, network=SLOW)
    took_ns = round(2 * 2 / 3 * FLAT_BYTES / 1e6 * 1e9) + 2 * 2_000_000
    waits = sorted((r.who, r.at_ns, r.on, r.why, r.waited_ns) for r in of(records, Waited))
    assert waits == [
        (0, 30_000_000, (1, 2), "mean", 20_000_000),
        (1, 30_000_000, (2,), "mean", 10_000_000),
    ]
    reduced = {(r.at_ns, r.took_ns, r.members) for r in of(records, Reduced)}
    assert reduced == {(30_000_000 + took_ns, took_ns, (0, 1, 2))}
    assert [meter.waited_ns for meter in meters] == [20_000_000, 10_000_000, 0]
    assert [meter.sent_ns for meter in meters] == [took_ns] * 3
    assert [meter.means for meter in meters] == [{(0, 1, 2): [1, 2 * 2 * FLAT_BYTES // 3]}] * 3


def test_a_mean_alone_takes_nothing():
    records, (meter,), _ = simulated("allreduce", [3], network=SLOW)
    assert [record.took_ns for record in of(records, Reduced)] == [0, 0, 0]
    assert (meter.sent_ns, meter.waited_ns) == (0, 0)


class Stopwatch(RealWorld):
    """A real world whose time passes only when somebody says so."""

    time_ns = 1_000

    def now(self):
        return self.time_ns


class Done(Reducing):
    """A round that is over as soon as it begins."""

    def __init__(self, reduction):
        self.reduction = reduction

    def poll(self):
        return True

    def finish(self, patience):
        pass


class ReducingTransport(MemoryTransport):
    """Takes 70 ns for a mean and says that it has waited in between."""

    def can_reduce(self, tensor):
        return True

    def reduce(self, round_):
        self.world.time_ns += 70
        return Done(Reduction(round_.tensor.clone(), round_.among))

    def take_waited_ns(self):
        return self.waits.popleft()


@pytest.fixture
def stopwatch():
    """A world of three, of whom only worker 0 exists, and what it reports."""
    transport = ReducingTransport(0, MemoryHub(3))
    records = []
    world = transport.world = Stopwatch(transport, View(0, (0, 1, 2)), (), observers=[records.append])
    transport.waits = deque([{1: 10, 2: 20}, {}])
    yield world, records
    world.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_in_a_real_mean_what_was_waited_and_what_it_took_is_all_the_time(stopwatch, read_only):
    world, records = stopwatch
    group = (0, 1, 2)
    first = drive(world.collective(Round(torch.zeros(1), group, read_only=read_only)))
    assert first.took_ns == 70 - 30
    assert records == [Waited(0, 1_000 + 30, (2,), "mean", 30)]
    second = drive(world.collective(Round(torch.zeros(1), group, read_only=read_only)))
    assert second.took_ns == 70
    assert len(records) == 1, "nobody had to be waited for"


def test_a_mean_by_letters_waits_for_a_mean(stopwatch):
    world, records = stopwatch
    others = MemoryTransport(1, world.transport._hub)

    def sleep(token, seconds):
        world.time_ns += 25
        note = {"round": "mean of 32 float32 by exchange"}
        others.post((0,), Letter(1, "fast.0", torch.full((32,), 3.0), steps=(0,), note=note), 64)

    world.transport.can_reduce = lambda round_: False
    world.transport.sleep = sleep
    reduction = drive(world.collective(Round(torch.ones(32), (0, 1))))
    assert torch.equal(reduction.tensor, torch.full((32,), 2.0))
    assert records == [Waited(0, 1_025, (1,), "mean", 25)]
    assert reduction.took_ns == 0, "nothing but the wait took any time"


# Letters


def test_a_letter_is_reported_when_the_world_has_taken_it(stopwatch):
    world, records = stopwatch
    post = world.transport.post

    def slow_post(to, letter, limit):
        assert not records
        world.time_ns += 40
        return post(to, letter, limit)

    world.transport.post = slow_post
    me = Me(world, simulation(strategy_from("dpsgd"), [1, 1]).me(0).replica, strategy_from("dpsgd"))
    me.steps = 5
    me.send([1, 2], torch.zeros(4), "weights")
    assert records == [Sent(0, 1_040, (1, 2), "weights", 2 * (256 + 16), 5, 40)]


def test_a_wait_for_letters_begins_and_ends_with_the_same_clock(stopwatch):
    world, records = stopwatch

    def sleep(token, seconds):
        world.time_ns += 25
        world.transport._hub.statuses[1] = world.transport.status(1)._replace(phase=Phase.DONE)

    world.transport.sleep = sleep
    drive(world.wait("news", (1,), Need.ALL))
    assert records == [Waited(0, 1_025, (1,), "news", 25)]


@every_call
def test_every_letter_that_is_read_was_sent_before(call):
    records, meters, _ = simulated(call, [6, 9, 4, 7], compute=UNEQUAL, network=SLOW)
    sent, dropped = Counter(), 0
    for record in records:
        match record:
            case Sent(who=who, to=to, tag=tag, step=step, nbytes=nbytes, took_ns=took_ns):
                sent.update((who, peer, tag, step) for peer in to)
                assert took_ns == 0
                assert nbytes % len(to) == 0
            case Received(who=who, sender=sender, tag=tag, steps=steps):
                assert isinstance(steps, tuple)
                for step in steps:
                    sent[sender, who, tag, step] -= 1
                    assert sent[sender, who, tag, step] >= 0
            case Dropped():
                dropped += 1
    letters = sum(link[0] for meter in meters for link in meter.links.values())
    assert letters == sum(len(record.to) for record in of(records, Sent))
    assert bool(of(records, Received)) == bool(letters)
    assert dropped == sum(meter.dropped for meter in meters)


def test_letters_are_received_in_a_turn_of_their_reader():
    """dpsgd on two: everybody reads the other's weights of the same step, one latency after it was sent."""
    records, meters, _ = simulated(
        "dpsgd", [3, 3], compute=Compute(0.02), network=Network(float("inf"), 0.03)
    )
    assert [(r.at_ns, r.sender, r.tag, r.steps) for r in of(records, Received, 1)] == [
        (30_000_000, 0, "mix", (0,)),
        (60_000_000, 0, "mix", (1,)),
        (90_000_000, 0, "mix", (2,)),
    ]
    assert meters[1].links == {0: [4, 4 * (FLAT_BYTES + 256)]}
    assert (meters[1].computed_ns, meters[1].waited_ns) == (60_000_000, 30_000_000)


# The meter, by hand


def test_a_meter_adds_up():
    meter = Meter()
    for record in (
        Sent(0, 5, (1, 2), "weights", 600, 0, 5),  # while the run is set up: counted, but no part of a step
        Computed(0, 110, 10),
        Sent(0, 118, (2,), "weights", 300, 0, 8),
        Waited(0, 150, (1,), "mean", 30),
        Reduced(0, 160, 77, (0, 1), 9),
        Included(0, 160, 1, "weights", 3),
        Included(0, 160, 1, "weights", 0),
        Applied(0, 165, 0),
        Stepped(0, 170, 1, 32),
        Turned(0, 175, 110),
        Computed(0, 275, 175),
        Dropped(0, 276, 0, 1, "weights", "gone"),
        Stepped(0, 277, 2, 32),
        Turned(0, 280, 275),
    ):
        meter(record)
    assert meter.computed_ns == 200
    assert meter.sent_ns == 8 + 9
    assert meter.waited_ns == 30
    assert meter.merged_ns == 65 - 8 - 30 - 9 + 5
    assert parts(meter) == 280 - 10
    assert (meter.bytes_sent, meter.steps, meter.samples, meter.dropped) == (977, 2, 64, 1)
    assert meter.links == {1: [1, 300], 2: [2, 600]}
    assert meter.means == {(0, 1): [1, 77]}
    assert (meter.staleness, meter.updates) == ({3: 1, 0: 1}, 2)
    assert (meter.mean_staleness, meter.max_staleness) == (1.5, 3)


def test_records_are_values():
    assert Sent(0, 5, (1,), "weights", 600, 3) == Sent(0, 5, (1,), "weights", 600, 3, took_ns=0)
    assert Computed(0, 5, 1) != Turned(0, 5, 1)
    with pytest.raises(AttributeError):
        Computed(0, 5, 1).at_ns = 6
    record = Received(1, 7, 0, "gradient", (3, 4))
    assert msgspec.json.decode(msgspec.json.encode(record), type=Received) == record


def test_a_world_calls_only_those_who_take_a_kind_of_record(stopwatch):
    """An observer that is choosy is asked once per kind; one that isn't gets everything."""
    world, everything = stopwatch
    asked, taken, meter = [], [], Meter()

    class Picky:
        def __call__(self, record):
            pytest.fail("it has said whom to call")

        def taker(self, kind):
            asked.append(kind)
            return taken.append if kind is Stepped else None

    world.observe([everything.append, Picky(), meter])
    sequence = [Stepped(0, 1, 1, 32), Applied(0, 2, 0), Stepped(0, 3, 2, 32), Applied(0, 4, 0)]
    for record in sequence:
        world.emit(record)
    assert everything == sequence
    assert taken == sequence[::2]
    assert asked == [Stepped, Applied]
    assert (meter.steps, meter.samples) == (2, 64)
    world.observe([])
    world.emit(Stepped(0, 5, 3, 32))
    assert not world.observed and len(everything) == 4
