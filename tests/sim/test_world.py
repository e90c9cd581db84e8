"""The simulated world's own behaviour: waits, collectives, departures, deadlocks, servers."""

import re
from dataclasses import dataclass

import pytest
import torch

from fast.core import OTHER, Strategy, Tag, fold_newest
from fast.core.seeds import gradient_seed
from fast.errors import Deadlock, FastError, PeerLost, UsageError
from fast.parts import Torus
from fast.sim import Compute, Network, Simulation
from fast.strategies.presets import allreduce, ssp, torus
from fast.trace import Included, Waited

from .problem import LeastSquares, equal

PROBLEM = LeastSquares()
SLOW = Network(1e6, 1e-3)


class Program(Strategy):
    """A strategy made of one function, for workers; and another one for servers."""

    def __init__(self, step, *, serve=None, tags=(), topology=None, state=None):
        self._step, self._serve, self.tags, self.topology = step, serve, tags, topology
        self._state = state

    def servers(self, workers):
        return 0 if self._serve is None else 1

    def state(self, me):
        return self._state() if self._state else None

    async def step(self, me):
        await self._step(me)

    async def serve(self, me):
        await self._serve(me)


def simulate(step, counts, *, serve=None, tags=(), topology=None, state=None, **options):
    program = Program(step, serve=serve, tags=tags, topology=topology, state=state)
    return PROBLEM.simulation(program, PROBLEM.batches(len(counts), counts), **options)


def value(number):
    return torch.full((3,), float(number), dtype=torch.float64)


# Deadlocks


def test_a_deadlock_says_who_waits_for_whom():
    async def step(me):
        if me.id == 0:
            await me.receive("answer", 1)
        else:
            await me.gather("question", [0, 2])

    with pytest.raises(Deadlock) as caught:
        simulate(step, [1, 1, 1]).run()
    text = str(caught.value)
    assert "worker 0 (step 0) waits for letter 'answer' from 1" in text
    assert "worker 1 (step 0) waits for letter 'question' from 0, 2" in text
    assert "worker 2 (step 0) waits for letter 'question' from 0" in text  # it waits for itself too
    assert caught.value.peers == (0, 1, 2)


def test_a_deadlock_in_a_mean_says_who_is_missing():
    async def step(me):
        if me.id == 0:
            await me.receive("never", 1)
        else:
            await me.mean(me.gradient)

    with pytest.raises(Deadlock, match=r"worker 1 .* waits for the mean, to which 0 must still come"):
        simulate(step, [1, 1]).run()


def test_waiting_for_a_paused_worker_is_a_deadlock_that_says_so():
    async def step(me):
        if me.id == 1:
            await me.receive("later", 0)
        elif me.steps == 3:
            me.send(1, me.weights, tag="later")

    with pytest.raises(Deadlock, match=r"workers 0 have left or paused"):
        simulate(step, [4, 1]).run(pause_after=2)
    simulate(step, [4, 1]).run()


def test_awaiting_something_foreign_is_refused():
    class Foreign:
        def __await__(self):
            yield "a future"

    async def step(me):
        await Foreign()

    with pytest.raises(FastError, match=r"await only what `me` offers; never asyncio"):
        simulate(step, [1]).run()


# Departures


@pytest.mark.parametrize("network", [SLOW, Network(float("inf"), 0.0)], ids=["slow", "instant"])
def test_a_leavers_letters_arrive_before_it_counts_as_gone(network):
    got = []

    async def step(me):
        if me.id == 0:
            for number in range(3):
                me.send(1, value(number), tag="n")
            return
        for _ in range(5):
            letters, gone = await me.gather("n", [0])
            got.append(int(letters[0].tensor[0]) if letters else gone)

    simulate(step, [1, 1], network=network, compute=Compute(0.0)).run()
    assert got == [0, 1, 2, (0,), (0,)]


def test_receive_from_somebody_who_has_left_is_peer_lost():
    async def step(me):
        if me.id == 1:
            await me.receive("n", 0)

    with pytest.raises(PeerLost, match="peer 0 left after 1 steps") as caught:
        simulate(step, [1, 1], network=SLOW).run()
    assert caught.value.peers == (0,)


def test_the_news_of_a_departure_travels():
    """Worker 0 leaves at 20 ms; worker 1, who waits for it, knows one latency later."""
    waits = []

    async def step(me):
        if me.id == 1:
            await me.gather("n", [0])

    simulate(
        step,
        [1, 1],
        network=SLOW,
        observers=[lambda r: waits.append(r) if isinstance(r, Waited) else None],
    ).run()
    assert waits == [Waited(1, 21_000_000, (0,), "n", 1_000_000)]


# Letters


def test_letters_queue_on_their_link_and_keep_their_order():
    """24 + 256 bytes at 1 MB/s: 0.28 ms each, one after another, 1 ms under way."""
    arrivals = []

    async def step(me):
        if me.id == 0:
            for number in range(3):
                me.send(1, value(number), tag="n")
            me.send(2, value(9), tag="n")
            return
        for _ in range(3 if me.id == 1 else 1):
            letter = await me.receive("n", 0)
            arrivals.append((me.id, int(letter.tensor[0]), me.world.now() - 20_000_000))

    simulate(step, [1, 1, 1], network=SLOW).run()
    one = 280_000
    assert sorted(arrivals) == [
        (1, 0, one + 1_000_000),
        (1, 1, 2 * one + 1_000_000),
        (1, 2, 3 * one + 1_000_000),
        (2, 9, one + 1_000_000),
    ]


def test_links_may_differ_in_each_direction():
    times = {}

    async def step(me):
        other = 1 - me.id
        me.send(other, value(0), tag="n")
        await me.receive("n", other)
        times[me.id] = me.world.now() - 20_000_000

    fast, slow = Network(float("inf"), 0.001), Network(float("inf"), 0.5)
    simulate(step, [1, 1], network=Network(1.0, 1.0, {(0, 1): slow, (1, 0): fast})).run()
    assert times == {0: 1_000_000, 1: 500_000_000}


def test_folding_happens_in_the_mailbox():
    got = []

    async def step(me):
        if me.id == 0:
            me.send(1, value(me.steps), tag="n")
        elif me.steps == 0:
            got.extend(int(letter.tensor[0]) for letter in me.letters("n"))

    simulate(
        step,
        [3, 1],
        tags=(Tag("n", OTHER, fold_newest),),
        compute=Compute(0.01, workers_s={1: 1.0}),
    ).run()
    assert got == [2]


def test_receivers_of_one_letter_do_not_share_its_note():
    async def step(me):
        if me.id == 0:
            me.send([1, 2], value(0), tag="n", values=[1, 2])
            return
        letter = await me.receive("n", 0)
        letter.note["values"].append(me.id)
        assert letter.note["values"] == [1, 2, me.id]

    simulate(step, [1, 1, 1]).run()


def test_a_note_that_cannot_travel_is_refused_as_in_the_real_world():
    async def step(me):
        me.send(1 - me.id, value(0), tag="n", what=object())

    with pytest.raises(UsageError, match="can't be sent"):
        simulate(step, [1, 1]).run()


@pytest.mark.parametrize("call", ["send", "receive", "mean"])
def test_unknown_peers_are_refused(call):
    async def step(me):
        match call:
            case "send":
                me.send(7, value(0), tag="n")
            case "receive":
                await me.receive("n", 7)
            case "mean":
                await me.mean(value(0), [0, 7])

    with pytest.raises(UsageError, match=r"participant 0 addressed peer 7, which doesn't exist"):
        simulate(step, [1, 1]).run()


# Collectives


def test_mean_over_groups_with_weights_and_departures():
    seen = {}

    async def step(me):
        everybody = await me.mean(value(me.id), weight=1 + me.id)
        pair = await me.mean(value(me.id), [0, 2]) if me.id in (0, 2) else None
        seen[me.id, me.steps] = (float(everybody[0]), None if pair is None else float(pair[0]))

    simulate(step, [2, 1, 3]).run()
    assert seen[0, 0] == seen[2, 0] == ((0 * 1 + 1 * 2 + 2 * 3) / 6, 1.0)
    assert seen[1, 0] == (8 / 6, None)
    assert seen[0, 1] == seen[2, 1] == ((0 * 1 + 2 * 3) / 4, 1.0)
    assert seen[2, 2] == (2.0, 2.0)


@pytest.mark.parametrize(("bits", "expected"), [((0b001, 0b100), 0b101), ((0b001, None), None)])
def test_a_mean_has_every_gradient_that_any_member_has(bits, expected):
    applied = []

    async def step(me):
        me.replica.present = bits[me.id]
        me.replica.apply = lambda gradient, present, rates=None: applied.append(present)
        me.apply(await me.mean(me.gradient))

    simulate(step, [1, 1]).run()
    assert applied == [expected, expected]


def test_a_mean_belongs_to_its_caller_and_leaves_its_input():
    async def step(me):
        own = value(me.id)
        result = await me.mean(own)
        assert float(result[0]) == 0.5
        result.add_(1 + me.id)
        assert float((await me.mean(result))[0]) == 2.0
        assert equal(own, value(me.id))
        assert float(result[0]) == 1.5 + me.id

    simulate(step, [2, 2]).run()


def test_a_read_only_mean_is_one_memory_and_writing_into_it_is_refused():
    results = []

    async def step(me):
        results.append(await me.mean(value(me.id), read_only=True))
        if me.steps == 1:
            results[-1].add_(1)

    with pytest.raises(UsageError, match="read_only"):
        simulate(step, [2, 2]).run()
    assert results[0] is results[1]


def test_a_mean_among_strangers_is_refused():
    async def step(me):
        await me.mean(value(0), [1 - me.id])

    with pytest.raises(UsageError, match="doesn't belong"):
        simulate(step, [1, 1]).run()


def test_a_mean_alone_costs_no_time():
    simulation = PROBLEM.simulation(allreduce(), PROBLEM.batches(1, 3), network=SLOW)
    simulation.run()
    assert simulation.now_ns == 60_000_000


def test_waits_are_attributed():
    waits = []

    async def step(me):
        await me.mean(value(0))

    simulate(
        step,
        [1, 1, 1],
        compute=Compute(0.01, workers_s={2: 0.03, 1: 0.02}),
        observers=[
            lambda r: waits.append((r.who, r.on, r.why, r.waited_ns)) if isinstance(r, Waited) else None
        ],
    ).run()
    assert sorted(waits) == [(0, (1, 2), "mean", 20_000_000), (1, (2,), "mean", 10_000_000)]


# Servers


def test_a_server_that_only_looks_does_not_stop_the_time():
    async def step(me):
        me.send(me.servers[0], value(me.steps), tag="n")

    got = []

    async def serve(me):
        got.extend(int(letter.tensor[0]) for letter in me.letters("n"))

    simulate(step, [3, 2], serve=serve, network=SLOW).run()
    assert sorted(got) == [0, 0, 1, 1, 2]


def test_a_server_that_waits_for_letters_of_everybody_ends_with_the_last_worker():
    rounds = []

    async def step(me):
        me.send(me.servers[0], value(me.id), tag="n")

    async def serve(me):
        letters, _ = await me.gather("n", me.all_workers)
        rounds.append(sorted(letters))

    simulate(step, [1, 3, 2], serve=serve, network=SLOW).run()
    assert [r for r in rounds if r] == [[0, 1, 2], [1, 2], [1]]


async def read_both(me):
    """A server's turn that reads a letter and then waits for a second one."""
    await me.receive("n", 0)
    await me.receive("n", 1)


def test_a_server_between_turns_can_be_paused():
    async def step(me):
        me.send(me.servers[0], value(me.id), tag="n")

    simulation = simulate(step, [2, 2], serve=read_both)
    simulation.run(pause_after=1)
    assert [len(state["letters"]) for state in simulation.checkpoint()["participants"]] == [0, 0, 0]


def test_a_server_inside_a_turn_cannot_be_paused():
    async def step(me):
        if me.id == 0:
            me.send(me.servers[0], value(me.id), tag="n")

    with pytest.raises(Deadlock, match=r"server 2 .* waits for letter 'n' from 1"):
        simulate(step, [2, 2], serve=read_both).run(pause_after=1)


def test_the_number_of_server_replicas_is_checked():
    batches = PROBLEM.batches(2, 1)
    workers = PROBLEM.simulation(torus(), batches).workers
    with pytest.raises(
        UsageError, match=r"ssp\(bound=3, .*\) on 2 workers needs 1 server replicas and got 0"
    ):
        Simulation(ssp(), [p.worker for p in workers], network=SLOW, compute=Compute())


def test_the_topology_is_checked_first():
    with pytest.raises(UsageError, match=re.escape("doesn't hold 5 workers")):
        PROBLEM.simulation(torus(topology=Torus(2, 2)), PROBLEM.batches(5, 1))


# Errors and randomness


def test_what_a_worker_raises_comes_out_as_it_is():
    async def step(me):
        if me.id == 1 and me.steps == 2:
            raise ZeroDivisionError("mine")
        await me.mean(me.gradient)

    simulation = simulate(step, [5, 5])
    with pytest.raises(ZeroDivisionError, match="mine"):
        simulation.run()
    with pytest.raises(FastError, match="ended in an error"):
        simulation.run()


@dataclass
class Drawn:
    numbers: list


def test_each_worker_draws_from_its_own_stream():
    async def step(me):
        me.state.numbers.append(me.random())

    def numbers(seed, counts):
        simulation = simulate(step, counts, seed=seed, state=lambda: Drawn([]))
        simulation.run()
        return [p.me.state.numbers for p in simulation.workers]

    two, three = numbers(1, [4, 4]), numbers(1, [4, 4, 2])
    assert two == three[:2]
    assert len({x for own in three for x in own}) == 10
    assert numbers(2, [4, 4])[0] != two[0]


@pytest.mark.parametrize("seeded", [True, False])
def test_torch_is_seeded_for_each_gradient(seeded):
    drawn = []

    async def step(me):
        drawn.append((me.id, me.steps, float(noise[me.id])))

    noise = {}
    simulation = simulate(step, [2, 2], seed=3, seed_torch=seeded)
    for p in simulation.workers:
        p.worker.compute = lambda batch, who=p.me.id: noise.update({who: torch.rand(())})
    torch.manual_seed(0)
    simulation.run()
    expected = [
        (
            who,
            step,
            float(torch.rand((), generator=torch.Generator().manual_seed(gradient_seed(3, who, step)))),
        )
        for step in range(2)
        for who in range(2)
    ]
    assert (drawn == expected) == seeded


def test_an_unobserved_run_is_the_same_run():
    batches, seen = PROBLEM.batches(3, 5), []
    quiet = PROBLEM.simulation(torus(), batches)
    loud = PROBLEM.simulation(torus(), batches, observers=[seen.append])
    quiet.run()
    loud.run()
    assert all(equal(quiet.me(i).weights, loud.me(i).weights) for i in range(3))
    assert any(isinstance(record, Included) for record in seen)


# The last turn, and wrong programs


@pytest.mark.parametrize("act", ["mean", "send"])
def test_in_the_last_turn_nobody_answers(act):
    class Late(Strategy):
        async def step(self, me):
            me.apply(me.gradient)

        async def end(self, me):
            if act == "mean":
                await me.mean(me.weights)
            else:
                me.send(1 - me.id, me.weights, tag="late")

    simulation = PROBLEM.simulation(Late(), PROBLEM.batches(2, 3))
    with pytest.raises(UsageError, match="sends or waits in end"):
        simulation.run()


def test_a_turn_that_is_not_async_is_refused_when_it_is_written():
    with pytest.raises(UsageError, match=r"Plain\.step is a turn and must be written `async def step"):

        class Plain(Strategy):
            def step(self, me):
                me.apply(me.gradient)


def test_what_is_made_of_a_mean_has_the_parameters_of_all():
    """A parameter that has a gradient on one worker counts as zero on the others, also after a change."""

    async def step(me):
        me.apply(await me.mean(me.gradient) / 2)

    simulation, seen = simulate(step, [1, 1]), {}
    for id, bits in enumerate((0b01, 0b10)):
        replica = simulation.me(id).replica
        replica.present = bits
        replica.apply = lambda gradient, present, rates=None, id=id: seen.update({id: present})
    simulation.run()
    assert seen == {0: 0b11, 1: 0b11}
