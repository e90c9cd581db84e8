"""The director: what becomes of letters, who comes and goes, and what the hostile send, in numbers."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core import Letter, Strategy, Tag, fold_newest
from fast.core.seeds import stream_seed
from fast.sim import Compute, Network, TraceHash
from fast.sim.faults import Director, parse_scenario
from fast.sim.faults.deeds import Flip, Noise, NotANumber, Scale
from fast.sim.faults.hostile import Liar
from fast.sim.faults.letters import DETOUR_NS
from fast.sim.interference import UNHARMED
from fast.strategies.presets import allreduce, dpsgd, gossip, local_sgd, ssp, torus
from fast.trace import Dropped, Stepped

from .problem import LeastSquares, close, equal, weights

PROBLEM = LeastSquares()
S, MS = 10**9, 10**6
STEP_NS = 20 * MS


class Program(Strategy):
    """A strategy made of one function, that stands whatever is done to it."""

    admits = survives_loss = True

    def __init__(self, step, tags=(), serve=None):
        self._step, self.tags, self._serve = step, tags, serve

    def servers(self, workers):
        return 0 if self._serve is None else 1

    async def step(self, me):
        await self._step(me)

    async def serve(self, me):
        await self._serve(me)


async def own_step(me):
    me.apply(me.gradient)


def simulation(strategy, batches, text, *, seed=0, **options):
    scenario = parse_scenario(text)
    scenario.check(strategy, len(batches), strategy.servers(len(batches)))
    return PROBLEM.simulation(
        strategy, batches, faults=Director(scenario, seed), absent=scenario.absent, seed=seed, **options
    )


def run(strategy, steps, text, *, workers=4, **options):
    ready = simulation(strategy, PROBLEM.batches(workers, steps), text, **options)
    ready.run()
    return ready


def director(text, *, seed=0, workers=4, servers=0):
    """One that is ready to be asked, in a simulation that doesn't run."""
    made = Director(parse_scenario(text), seed)
    program = Program(own_step, serve=own_step if servers else None)
    made.prepare(PROBLEM.simulation(program, PROBLEM.batches(workers, 1)))
    return made


def fate(made, sender=0, to=1, now_ns=0):
    return made.fate(Letter(sender, "x", torch.zeros(1), (0,)), to, now_ns)


def delay(made, sender=0, to=1, now_ns=0):
    """Of a letter that arrives once."""
    (late_ns,) = fate(made, sender, to, now_ns).delays_ns
    return late_ns


# Letters: cuts and delays, to the nanosecond


def test_without_clauses_about_letters_nothing_is_asked_or_counted():
    made = director("worker 1 dies at 1s; worker 2 flips signs")
    assert fate(made) is UNHARMED
    assert made.held_ns((0, 1, 2), 0) == 0


@pytest.mark.parametrize(
    ("now_ns", "late_ns"),
    [
        (4 * S - 1, 0),
        (4 * S, S + 200 * MS),
        (4 * S + 300 * MS, 900 * MS),
        (5 * S - 1, 200 * MS + 1),
        (5 * S, 0),
    ],
)
def test_a_letter_under_a_cut_waits_until_it_is_healed_and_sent_again(now_ns, late_ns):
    made = director("workers 0,1 can't reach 2,3 from 4s for 1s")
    assert delay(made, 0, 2, now_ns) == delay(made, 1, 3, now_ns) == late_ns
    assert delay(made, 2, 0, now_ns) == delay(made, 0, 1, now_ns) == 0, "one way, and only between the two"


def test_cut_apart_is_both_ways_and_reaches_servers():
    made = director("workers 0,1 with server 0 and workers 2,3 are cut apart for 1s", servers=1)
    server = 4
    for one in (0, 1, server):
        for other in (2, 3):
            assert delay(made, one, other) == delay(made, other, one) == S + 200 * MS
    assert delay(made, 0, server) == delay(made, 2, 3) == 0


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500)), min_size=1, max_size=4),
    st.integers(1, 400),
    st.integers(0, 4000),
)
def test_several_cuts_are_waited_for_one_after_another(cuts, resend_ms, now_ms):
    sentences = [f"worker 0 can't reach 1 from {start}ms for {length}ms" for start, length in cuts]
    made = director("; ".join([f"lost letters are sent again after {resend_ms}ms", *sentences]))
    sent_ms = now_ms
    while True:  # the plainest reference: who meets a cut tries again a resend time after its end
        healed = [start + length for start, length in cuts if start <= sent_ms < start + length]
        if not healed:
            break
        sent_ms = healed[0] + resend_ms
    assert delay(made, now_ns=now_ms * MS) == (sent_ms - now_ms) * MS


def test_delays_add_up():
    made = director("letters from 1 to 2 take 50ms longer from 2s for 1s; letters from 1 take 3ms longer")
    assert delay(made, 1, 2, 2 * S) == 53 * MS
    assert delay(made, 1, 2, 3 * S) == delay(made, 1, 0, 2 * S) == 3 * MS
    assert delay(made, 2, 1, 2 * S) == 0


def test_a_cut_that_is_never_healed_loses_letters_for_those_who_stand_it():
    made = director("worker 0 can't reach 1 from 1s")
    assert fate(made, 0, 1, S).delays_ns == ()
    assert fate(made, 0, 1, S - 1) is UNHARMED


# Letters: chance


def test_jitter_is_uniform_and_below_its_bound():
    made = director("letters take up to 5ms longer")
    drawn = [delay(made) for _ in range(4000)]
    assert 0 <= min(drawn) < 0.01 * MS and 4.99 * MS < max(drawn) < 5 * MS
    assert abs(sum(drawn) / 4000 - 2.5 * MS) < 0.1 * MS
    quarters = Counter(late_ns * 4 // (5 * MS) for late_ns in drawn)
    assert all(abs(quarters[quarter] - 1000) < 120 for quarter in range(4))


def test_what_is_lost_in_a_stream_comes_later_as_often_as_it_was_lost():
    made = director("30% of letters are lost; lost letters are sent again after 10ms")
    counts = Counter(delay(made) for _ in range(10_000))
    assert set(counts) <= {10 * MS * k for k in range(20)}
    for k in range(5):
        expected = 10_000 * 0.7 * 0.3**k
        assert abs(counts[10 * MS * k] - expected) < 4 * expected**0.5


def test_a_lost_datagram_is_gone_and_one_under_a_cut_too():
    made = director(
        "letters travel as datagrams; 25% of letters are lost; worker 0 can't reach 1 from 9s for 1s"
    )
    fates = [fate(made) for _ in range(4000)]
    assert abs(sum(not each.delays_ns for each in fates) - 1000) < 120
    assert all(each.delays_ns in ((), (0,)) for each in fates)
    assert not any(each.ordered for each in fates if each.delays_ns)
    assert {fate(made, now_ns=9 * S).delays_ns for _ in range(50)} == {()}


def test_doubled_and_overtaken_datagrams():
    doubled = director("letters travel as datagrams; 50% of letters are doubled")
    fates = [fate(doubled).delays_ns for _ in range(2000)]
    twice = [each for each in fates if len(each) == 2]
    assert abs(len(twice) - 1000) < 120
    assert all(first == 0 and 0 < second <= DETOUR_NS + 1 for first, second in twice)
    overtaken = director("letters travel as datagrams; 50% of letters are overtaken")
    late = [delay(overtaken) for _ in range(2000)]
    assert abs(sum(late_ns > 0 for late_ns in late) - 1000) < 120
    assert max(late) <= DETOUR_NS + 1 and len(set(late)) > 900


LOSSY = (
    "letters travel as datagrams; 10% of letters are lost; 10% of letters are doubled; "
    "letters take up to 5ms longer"
)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([*permutations(range(4), 2)]), max_size=60), st.integers(0, 2**32))
def test_a_letters_luck_depends_on_its_pair_and_number_only(order, seed):
    """Whatever else is sent, and in whatever order."""
    mixed = director(LOSSY, seed=seed)
    seen = {pair: [] for pair in permutations(range(4), 2)}
    for pair in order:
        seen[pair].append(fate(mixed, *pair))
    for pair, fates in seen.items():
        alone = director(LOSSY, seed=seed)
        assert [fate(alone, *pair) for _ in fates] == fates


def test_another_clause_leaves_the_luck_of_the_others_alone():
    few = director("5% of letters are lost; letters take up to 5ms longer")
    more = director("letters from 3 take 1ms longer; letters take up to 5ms longer; 5% of letters are lost")
    assert [delay(few) for _ in range(300)] == [delay(more) for _ in range(300)]


def test_seeds_and_pairs_have_luck_of_their_own():
    def lucks(seed, pair):
        made = director("letters take up to 1s longer", seed=seed)
        return tuple(delay(made, *pair) for _ in range(5))

    drawn = [lucks(seed, pair) for seed in range(5) for pair in permutations(range(4), 2)]
    assert len(set(drawn)) == len(drawn) == 60
    assert lucks(3, (1, 2)) == lucks(3, (1, 2))


# Rounds


def test_a_round_waits_for_its_slowest_letter_twice():
    made = director("letters from 0 to 1 take 30ms longer; letters take 2ms longer")
    assert made.held_ns((0, 1, 2), 0) == 2 * 32 * MS
    assert made.held_ns((0, 2), 0) == 2 * 2 * MS
    assert made.held_ns((1,), 0) == 0


def test_a_round_under_a_cut_begins_when_it_is_healed():
    made = director(
        "workers 0,1 and 2,3 are cut apart from 1s for 1s; worker 3 can't reach 0 from 2100ms for 1s"
    )
    assert made.held_ns((0, 1, 2), 1 * S) == S + 200 * MS
    assert made.held_ns((0, 1, 2, 3), 1 * S) == 3100 * MS + 200 * MS - 1 * S, "and meets the next one"
    assert made.held_ns((0, 1), 1 * S) == 0


def test_the_unluckiest_letter_of_a_round_is_as_late_as_the_unluckiest_of_many():
    """Against so many single letters, each lost with the same chance, of which the last is waited for."""
    made = director("10% of letters are lost; lost letters are sent again after 1ms", workers=4)
    single = director("10% of letters are lost; lost letters are sent again after 1ms", seed=7)
    pairs, rounds = 12, 1500
    held = Counter(made.held_ns((0, 1, 2, 3), 0) // MS for _ in range(rounds))
    plain = Counter(
        sum(max(delay(single) // MS for _ in range(pairs)) for _phase in range(2)) for _ in range(rounds)
    )
    assert held.keys() & {1, 2, 3}
    for late in range(5):
        assert abs(held[late] - plain[late]) < 5 * (plain[late] + 20) ** 0.5


# Hostile workers


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
)
def test_lies(dtype):
    values = torch.tensor([1.0, -2.0, 0.5], dtype=dtype)
    kept = values.clone()
    liar = Liar(3, 2)
    assert equal(liar.told(values, Flip()), torch.tensor([-1.0, 2.0, -0.5], dtype=dtype))
    assert equal(liar.told(values, Scale(4.0)), torch.tensor([4.0, -8.0, 2.0], dtype=dtype))
    assert liar.told(values, NotANumber()).isnan().all()
    noisy = liar.told(values, Noise(0.5))
    assert noisy.dtype == dtype and not equal(noisy, values)
    assert equal(values, kept), "what it has itself stays as it is"


@pytest.mark.parametrize(
    "values", [torch.tensor([0, 255, 7], dtype=torch.uint8), torch.tensor([True, False])]
)
def test_whole_numbers_are_left_alone(values):
    for lie in (Flip(), Scale(4.0), NotANumber(), Noise(1.0)):
        assert Liar(0, 0).told(values, lie) is values


def test_noise_has_its_size_and_a_stream_of_its_own():
    zeros = torch.zeros(20_000, dtype=torch.float64)
    liar = Liar(3, 2)
    first, second = (liar.told(zeros, Noise(0.5)) for _ in range(2))
    assert abs(float(first.std()) - 0.5) < 0.01 and abs(float(first.mean())) < 0.02
    assert not equal(first, second)
    for number, drawn in enumerate((first, second)):
        own = torch.Generator().manual_seed(stream_seed(3, "noise", 2, number))
        assert equal(drawn, 0.5 * torch.randn(20_000, generator=own, dtype=torch.float64))


def descend(steps, workers, merged, lr=0.05):
    """Synchronous descent by hand: everybody has the same weights, `merged` makes one gradient of all."""
    batches = PROBLEM.batches(workers, steps)
    w = PROBLEM.start.clone()
    for step in range(steps):
        gradients = [PROBLEM.gradient(w, batches[worker][step]) for worker in range(workers)]
        w -= lr * merged(step, gradients)
    return w


def test_allreduce_with_a_sign_flipper_takes_the_mean_with_the_flipped_gradient():
    flipped = run(allreduce(), 12, "worker 2 flips signs from step 5 for 4 steps")

    def merged(step, gradients):
        gradients[2] = -gradients[2] if 5 <= step < 9 else gradients[2]
        return sum(gradients) / 4

    assert all(close(w, descend(12, 4, merged)) for w in weights(flipped))


@pytest.mark.parametrize("start", [100, 81])
def test_a_lie_by_the_clock_is_about_what_is_sent_in_that_time(start):
    """Steps end at 20, 40, ... ms, without a network: those at 100, 120 and 140 ms are steps 4, 5 and 6."""
    scaled = run(allreduce(), 12, f"worker 1 scales by 10 from {start}ms for 60ms")

    def merged(step, gradients):
        gradients[1] = 10 * gradients[1] if 4 <= step < 7 else gradients[1]
        return sum(gradients) / 4

    assert all(close(w, descend(12, 4, merged)) for w in weights(scaled))


def test_two_lies_of_one_worker_follow_each_other():
    lied = run(allreduce(), 5, "worker 0 scales by 3; worker 0 flips signs")
    expected = descend(5, 4, lambda step, gradients: (-3 * gradients[0] + sum(gradients[1:])) / 4)
    assert all(close(w, expected) for w in weights(lied))


def test_nan_at_one_step_reaches_everybody_in_that_step():
    first_nan = {}

    def watch(me, now_ns):
        if me.weights.isnan().any():
            first_nan.setdefault(me.id, me.steps)

    ready = simulation(allreduce(), PROBLEM.batches(3, 9), "worker 1 sends NaN at step 7")
    ready.run(on_step=watch)
    assert first_nan == {0: 8, 1: 8, 2: 8}


def test_what_a_worker_sends_ahead_for_a_step_belongs_to_it():
    """D-PSGD sends its weights for step s at the end of step s - 1."""
    sent = {}

    class Spy(Strategy):
        async def begin(self, me):
            me.send(1 - me.id, me.weights, tag="n")

        async def step(self, me):
            sent[me.id, me.steps] = (await me.receive("n", 1 - me.id)).tensor.clone()

    simulation(Spy(), PROBLEM.batches(2, 6), "worker 0 scales by 0 from step 3 for 2 steps").run()
    zeros = [step for step in range(6) if not sent[1, step].any()]
    assert zeros == [3, 4]


# Letters, in a run


def arrivals(text, *, steps):
    """When worker 1 reads each of the letters that worker 0 sends, one at the end of each of its steps."""
    got = []

    async def step(me):
        if me.id == 0:
            me.send(1, torch.full((3,), float(me.steps), dtype=torch.float64), tag="n")
        else:
            for _ in range(steps):
                letter = await me.receive("n", 0)
                got.append((int(letter.tensor[0]), me.world.now()))

    batches = PROBLEM.batches(2, [steps, 1])
    simulation(Program(step), batches, text, network=Network(float("inf"), 0.001)).run()
    return got


def test_in_a_run_a_letter_under_a_cut_arrives_when_the_reference_says():
    """Sent at 20, 40, 60 ms. The cut of 1 s begins at 30 ms; 1 ms on the way."""
    cut = "worker 0 can't reach 1 from 30ms for 1s; lost letters are sent again after 100ms"
    assert arrivals(cut, steps=3) == [(0, 21 * MS), (1, 1131 * MS), (2, 1131 * MS)]


def test_what_follows_a_late_letter_in_a_stream_waits_behind_it():
    late = "letters take 50ms longer from 20ms for 1ms"
    assert arrivals(late, steps=3) == [(0, 71 * MS), (1, 71 * MS), (2, 71 * MS)]


def test_datagrams_overtake_each_other():
    late = "letters travel as datagrams; letters take 50ms longer from 20ms for 1ms"
    assert arrivals(late, steps=3) == [(1, 41 * MS), (2, 61 * MS), (0, 71 * MS)]


def test_a_cut_may_begin_with_a_step_of_the_first_one_named():
    """Worker 0 has done its second step at 40 ms; what it sends then has just left."""
    cut = "worker 0 can't reach 1 from step 2 for 1s"
    assert arrivals(cut, steps=3) == [(0, 21 * MS), (1, 41 * MS), (2, 1241 * MS)]


def test_lost_datagrams_are_reported():
    dropped = []

    async def step(me):
        me.send(1 - me.id, me.weights, tag="n")
        me.letters("n")

    ready = simulation(
        Program(step, tags=(Tag("n", fold=fold_newest),)),
        PROBLEM.batches(2, 50),
        "letters travel as datagrams; 40% of letters from 0 are lost",
        observers=[lambda record: dropped.append(record) if isinstance(record, Dropped) else None],
    )
    ready.run()
    lost = [record for record in dropped if "lost" in record.why]
    reference = director("letters travel as datagrams; 40% of letters from 0 are lost", workers=2)
    assert len(lost) == sum(not fate(reference).delays_ns for _ in range(50)) > 10
    assert {(record.sender, record.to) for record in lost} == {(0, 1)}


def test_a_mean_under_a_cut_takes_that_much_longer_and_changes_no_bit():
    calm, cut = (
        run(allreduce(), 5, text)
        for text in (
            "",
            "workers 0,1 and 2,3 are cut apart from 50ms for 1s; lost letters are sent again after 5ms",
        )
    )
    assert equal(weights(calm), weights(cut))
    assert (calm.now_ns, cut.now_ns) == (5 * STEP_NS, 5 * STEP_NS + 1055 * MS - 60 * MS)


# Who comes and goes, in a run


def steps_of(ready):
    return [worker.me.steps for worker in ready.workers]


def test_a_worker_that_stops_leaves_before_its_next_step():
    ready = run(Program(own_step), 10, "worker 1 stops at step 4; worker 2 stops at 90ms")
    assert steps_of(ready) == [10, 4, 5, 10]


def test_a_worker_that_dies_is_gone_in_the_middle_of_its_step():
    ready = run(Program(own_step), 10, "worker 1 dies at step 4; worker 2 dies at 90ms")
    assert steps_of(ready) == [10, 4, 4, 10]


def test_after_a_death_in_allreduce_the_others_wait_until_they_notice_and_go_on():
    """It dies at 90 ms, in its fifth step; the others come to its mean at 100 ms and wait until 340 ms."""
    ready = run(allreduce(), 12, "worker 3 dies at 90ms; deaths are noticed after 250ms")
    assert steps_of(ready) == [12, 12, 12, 4]
    assert ready.now_ns == 340 * MS + 7 * STEP_NS

    def merged(step, gradients):
        alive = gradients if step < 4 else gradients[:3]
        return sum(alive) / len(alive)

    assert all(close(w, descend(12, 4, merged)) for w in weights(ready)[:3])
    assert close(weights(ready)[3], descend(4, 4, merged)), "the dead one stays where it was"


def test_a_frozen_worker_goes_on_where_it_was():
    calm, frozen = run(allreduce(), 6, ""), run(allreduce(), 6, "worker 1 freezes at 50ms for 500ms")
    assert equal(weights(calm), weights(frozen))
    assert frozen.now_ns == calm.now_ns + 500 * MS


def test_a_frozen_server_serves_later():
    calm, frozen = run(ssp(bound=0), 6, ""), run(ssp(bound=0), 6, "server 0 freezes at 50ms for 500ms")
    assert equal(weights(calm), weights(frozen))
    assert frozen.now_ns == calm.now_ns + 500 * MS - 10 * MS, "at 60 ms it would have been needed"


def test_local_sgd_with_a_late_joiner_that_adopts():
    """It joins at 90 ms, when the others have done 4 steps: it takes part from step 5 on with the
    weights of the first who gets there."""
    tau, steps, lr = 4, 11, 0.05
    batches = PROBLEM.batches(3, steps)
    ready = simulation(local_sgd(tau=tau), [*batches[:2], batches[2][:6]], "worker 2 joins at 90ms")
    ready.run()
    w = {0: PROBLEM.start.clone(), 1: PROBLEM.start.clone()}
    count = dict.fromkeys(w, 0)
    taken = 0
    for step in range(steps):
        if step == 5:
            w[2], count[2] = w[0].clone(), 0
        for worker in w:
            batch = batches[2][taken] if worker == 2 else batches[worker][step]
            w[worker] = w[worker] - lr * PROBLEM.gradient(w[worker], batch)
            count[worker] += len(batch)
        taken += step >= 5
        if (step + 1) % tau == 0:
            total = sum(count.values())
            mean = sum(w[worker] * count[worker] for worker in w) / total
            w, count = {worker: mean.clone() for worker in w}, dict.fromkeys(w, 0)
    assert steps_of(ready) == [11, 11, 11]
    assert all(close(ready.me(worker).weights, w[worker]) for worker in range(3))


def test_a_worker_that_returns_takes_part_again():
    text = "worker 1 dies at 50ms; deaths are noticed after 30ms; worker 1 returns at 210ms"
    ready = run(Program(own_step), 20, text)
    assert steps_of(ready)[0] == 20
    died, adopted = 2, 10
    own_batches = 20 - 3  # two steps done, and the third batch died with it
    assert steps_of(ready)[1] == adopted + own_batches
    assert died < adopted


def test_a_return_before_the_death_is_noticed_is_put_off_until_then():
    text = "worker 1 dies at step 2; worker 1 returns at step 3; deaths are noticed after 150ms"
    adopted = {}
    ready = simulation(Program(own_step), PROBLEM.batches(2, 30), text)
    ready.run(on_step=lambda me, now_ns: adopted.setdefault(now_ns, me.steps) if me.id == 1 else None)
    later = [now_ns for now_ns in adopted if now_ns > 40 * MS]
    assert min(later) == 40 * MS + 150 * MS + STEP_NS


def test_a_return_at_the_very_moment_of_the_news_comes_after_it():
    text = "worker 1 dies at 50ms; worker 1 returns at 150ms; deaths are noticed after 100ms"
    assert run(Program(own_step), 20, text, workers=2).workers[1].me.fresh


def test_what_comes_too_late_or_twice_does_not_happen():
    assert steps_of(run(Program(own_step), 3, "worker 1 dies at 9s; worker 2 freezes at 9s for 1s")) == [
        3,
        3,
        3,
        3,
    ]
    assert run(Program(own_step), 3, "worker 1 joins at 9s").now_ns == 3 * STEP_NS
    twice = "worker 1 dies at step 2; worker 1 freezes at 1s for 1s; worker 1 flips signs from step 9 for 1s"
    assert steps_of(run(Program(own_step), 3, twice)) == [3, 2, 3, 3]


# Every house strategy, every fault at once, the same every time

DAY = (
    "worker 3 dies at 90ms; worker 1 freezes at 50ms for 70ms; workers 0,1 and 2,3 are cut apart from 110ms for 60ms; "
    "deaths are noticed after 50ms; letters take up to 3ms longer; 5% of letters are lost; worker 2 flips signs from "
    "step 3; lost letters are sent again after 15ms"
)


@pytest.mark.parametrize(
    "make", [allreduce, local_sgd, lambda: ssp(bound=0), lambda: ssp(bound=2), dpsgd, torus, gossip]
)
def test_a_bad_day_is_the_same_every_time(make):
    def traced(seed):
        trace = TraceHash()
        ready = run(
            make(), 15, DAY, network=Network(1e8, 1e-3), observers=[trace], seed=seed, compute=Compute(0.02)
        )
        assert steps_of(ready)[:3] == [15, 15, 15] and ready.workers[3].dead
        return trace.hexdigest(), weights(ready)

    (one, some), (again, same), (other, _) = traced(1), traced(1), traced(2)
    assert one == again and equal(some, same)
    assert other != one


def test_a_scenario_of_nothing_changes_no_event():
    def traced(**options):
        trace = TraceHash()
        ready = PROBLEM.simulation(torus(), PROBLEM.batches(4, 10), observers=[trace], **options)
        ready.run()
        return trace.hexdigest()

    assert traced() == traced(faults=Director(parse_scenario(""), 5))


def test_steps_are_reported_once_each():
    seen = Counter()
    ready = simulation(
        gossip(p=0.5),
        PROBLEM.batches(4, 10),
        "worker 1 dies at step 4; 5% of letters are lost",
        observers=[lambda record: seen.update([record.who]) if isinstance(record, Stepped) else None],
    )
    ready.run()
    assert seen == {0: 10, 1: 4, 2: 10, 3: 10}
