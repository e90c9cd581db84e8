"""What must hold for each preset alike: one table, the same tests for every row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import isfinite
from random import Random
from typing import Any

import pytest
import torch

from fast.core.seeds import stream_seed
from fast.engine import Outcome
from fast.loop.loading import strategy_from
from fast.sim import Compute, Straggler, TraceHash
from fast.strategies import catalogue
from fast.strategies.decentral.pairwise import drawn_pairs
from fast.testing import check_strategy
from fast.trace import Meter
from fast.view import View
from preset_bodies import FLAT_BYTES, OPTIMUM, own_weights, simulation, train_alone
from running import Runner, as_text, from_text, plainly
from table import ALIKE, CALLS, PRESETS

WORKERS, STEPS = 3, 60
EQUAL, UNEQUAL = (STEPS,) * WORKERS, (20, 60, 35)
LETTER_BYTES = FLAT_BYTES + 256
MEAN_BYTES = 2 * (WORKERS - 1) * FLAT_BYTES // WORKERS


def on_real_workers(calls: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "call", [pytest.param(call, marks=[pytest.mark.long] if call in ALIKE else []) for call in calls]
    )


every_call = pytest.mark.parametrize("call", CALLS)
every_call_for_real = on_real_workers(CALLS)


def can_pause(call: str) -> bool:
    """Whether all can stand still after so many steps: who is late for a quorum, or whose push is too large for
    what somebody computes on, has done fewer of them, and waits for others that have paused."""
    strategy = strategy_from(call)
    return strategy.synchronous or not (strategy.never_stale or isfinite(strategy.reach))


every_saved_call = pytest.mark.parametrize(
    "call", [call for call in CALLS if not strategy_from(call).racy and can_pause(call)]
)
every_synchronous_call_for_real = on_real_workers(call for call in CALLS if strategy_from(call).synchronous)


def test_the_table_has_every_preset():
    assert set(PRESETS) == set(catalogue()) and set(ALIKE) <= set(CALLS)
    for name, calls in PRESETS.items():
        assert calls and all(strategy_from(call).call.startswith(f"{name}(") for call in calls)


# Two runs of each call on real workers, used by several tests


class RealRuns:
    """Each run once, whoever asks. With equal numbers of steps nobody leaves before all are done."""

    def __init__(self, runner: Runner) -> None:
        self._outcome = cache(
            lambda call, steps: runner.outcome(
                "preset_bodies:train",
                len(steps),
                serve="preset_bodies:serve",
                strategy=call,
                steps=steps,
                together=len(set(steps)) == 1,
            )
        )

    def outcome(self, call: str, steps: tuple[int, ...]) -> Outcome:
        outcome = self._outcome(call, steps)
        assert outcome.failure is None, f"{outcome.failure.message}\n{outcome.failure.traceback}"
        return outcome

    def results(self, call: str, steps: tuple[int, ...]) -> list[Any]:
        return self.outcome(call, steps).results


@pytest.fixture(scope="module")
def real(runner: Runner) -> RealRuns:
    return RealRuns(runner)


# It converges


@every_call
def test_it_passes_the_kit_on_simulated_workers(call):
    """Converges to the known optimum, repeats itself, survives departures, is the identity alone."""
    check_strategy(lambda: strategy_from(call), workers=(1, 3), steps=80)


@pytest.mark.real
@every_call_for_real
def test_it_converges_on_real_workers(call, real):
    for result in real.results(call, EQUAL):
        final = from_text(result["final"], torch.float32)
        assert float((final - OPTIMUM).norm() / OPTIMUM.norm()) < 0.02


# The same bits


@every_call
def test_same_seed_same_trace_and_same_bits(call):
    ends = []
    for _ in range(2):
        trace = TraceHash()
        simulated = simulation(strategy_from(call), (9, 9, 9, 9), seed=4, observers=[trace])
        simulated.run()
        ends.append((trace.hexdigest(), trace.records, simulated.now_ns, own_weights(simulated)))
    assert ends[0] == ends[1]
    assert ends[0][1] > 0


@pytest.mark.real
@every_synchronous_call_for_real
@pytest.mark.parametrize("steps", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_real_equals_simulated_bit_for_bit(call, steps, real):
    """Also where workers leave early: then every view changes at the same step in both worlds."""
    simulated = simulation(strategy_from(call), steps)
    simulated.run()
    results = real.results(call, steps)
    assert [result["settled"] for result in results] == own_weights(simulated)


# Staleness and bytes


@pytest.mark.real
@every_call_for_real
def test_staleness_stays_within_its_bound(call, real):
    """At a server with bound s, each other worker can push 2 s + 1 times between a read and the push
    that answers it: it may be s clocks behind at the read, and s + 1 ahead at the push."""
    outcome = real.outcome(call, EQUAL)
    measured = [meter_of(result) for result in (*outcome.results, *outcome.server_results)]
    slow_worker = Meter()
    simulated = simulation(
        strategy_from(call), EQUAL, observers=[slow_worker], compute=Compute(0.02, Straggler(5.0))
    )
    simulated.run()
    bound = {"ssp(bound=2)": (WORKERS - 1) * 5}.get(
        call, strategy_from(call).late if strategy_from(call).synchronous else None
    )
    for meter in (*measured, slow_worker):
        if bound is not None:
            assert meter.max_staleness <= bound
    if not strategy_from(call).synchronous and not strategy_from(call).never_stale:
        assert slow_worker.max_staleness > 0, "nobody is late, although one worker is five times slower"


def meter_of(result: dict[str, Any]) -> Meter:
    return Meter(staleness=dict(result["staleness"]))


@pytest.mark.real
@every_call_for_real
def test_bytes_sent_are_the_formula_in_both_worlds(call, real):
    if call == "ad_psgd":
        return check_bytes_of_pairs([result["bytes"] for result in real.results(call, EQUAL)])
    if call == "mpca_sgd(tau=5)":
        return check_bytes_of_snapshots([result["bytes"] for result in real.results(call, EQUAL)])
    expected = [bytes_of(call, worker) for worker in range(WORKERS)]
    # Who shares memory sends nothing, and neither does who trains alone.
    assert min(expected) > 0 or strategy_from(call).one_host or call == "one_shot"
    assert [result["bytes"] for result in real.results(call, EQUAL)] == expected
    meters = [Meter() for _ in range(WORKERS + strategy_from(call).servers(WORKERS))]
    simulated = simulation(
        strategy_from(call),
        [STEPS + can_pause(call)] * WORKERS,
        observers=[lambda record: meters[record.who](record)],
    )
    simulated.run(pause_after=STEPS if can_pause(call) else None)  # so that nobody has left
    assert [meter.bytes_sent for meter in meters[:WORKERS]] == expected


def check_bytes_of_pairs(sent: list[int]) -> None:
    """How often somebody asks depends on when the answers come: places 0 and 2 at most once per step, and place 1
    answers each of them at most once."""
    letters = [nbytes // LETTER_BYTES for nbytes in sent]
    assert [count * LETTER_BYTES for count in letters] == sent
    assert all(1 <= letters[asks] <= STEPS + 1 for asks in (0, 2))
    assert letters[0] + letters[2] - 2 <= letters[1] <= letters[0] + letters[2]  # all but those still open


def check_bytes_of_snapshots(sent: list[int]) -> None:
    """How often all exchange depends on when the answers come: every 5 steps at most. Worker 1 passes on to the master
    what worker 2 sends it, and to worker 2 what comes back."""
    letters = [nbytes // LETTER_BYTES for nbytes in sent]
    assert [count * LETTER_BYTES for count in letters] == sent
    assert all(1 <= letters[leaf] <= STEPS // 5 for leaf in (0, 2))
    assert 2 <= letters[1] <= 2 * STEPS // 5


def bytes_of(call: str, worker: int) -> int:
    """What the preset's docstring says, for STEPS steps of one worker of WORKERS."""
    strategy = strategy_from(call)
    name = call.partition("(")[0]
    if call == "allreduce(rule=median)":  # everybody's gradient goes to everybody
        return STEPS * (WORKERS - 1) * LETTER_BYTES
    if name in ("allreduce", "pytorch"):
        return STEPS * allreduce_bytes(call, worker)
    if name == "sfb":
        return STEPS * MEAN_BYTES  # no layer is large enough
    if name == "local_sgd" and "rule" in call:  # everybody's weights go to everybody
        return STEPS // strategy.tau * (WORKERS - 1) * LETTER_BYTES
    if name == "local_sgd":  # averaged momentum is as much again
        return STEPS // strategy.tau * MEAN_BYTES * (2 if "average" in call else 1)
    if name in ("slowmo", "diloco"):
        return STEPS // strategy.interval * MEAN_BYTES
    if name == "streaming_diloco":
        return streamed_bytes(worker)
    if name == "noloco":  # slow weights and their change, where there is somebody to meet
        rounds = range(1, STEPS // strategy.interval + 1)
        met = sum(drawn_pairs(WORKERS, 0, number)[worker] is not None for number in rounds)
        return met * (256 + 2 * FLAT_BYTES)
    if name == "post_local_sgd":  # every step until the switch, then every tau
        return (strategy.after + STEPS // strategy.tau - strategy.after // strategy.tau) * MEAN_BYTES
    if name in ("sparknet", "easgd", "eamsgd"):
        return STEPS // strategy.tau * LETTER_BYTES
    if name == "tree_easgd":  # workers 1 and 2 are below worker 0
        return (STEPS // 2 if worker else 2 * (STEPS // 3)) * LETTER_BYTES
    if name == "one_shot":
        return 0
    if name == "ssp" and "bucket" in call:
        return STEPS * letter_bytes(call)
    if name == "firecaffe":  # the server hears places 1 and 2; worker 1, at place 2, tells worker 2
        return STEPS * (2 if worker == 1 else 1) * LETTER_BYTES
    if name == "project_adam":  # no layer is large enough, nor could one be: a matrix with one row
        return STEPS * LETTER_BYTES
    if name == "proxies":  # however many servers there are, it knows one of them
        return STEPS * LETTER_BYTES
    if name == "hogwild":  # worker 0 tells the others once that the memory is there
        return 0 if worker else (WORKERS - 1) * 256
    if name in ("gossip", "gosgd"):
        return gossip_sends(worker, 0.3) * letter_bytes(call)
    if strategy.servers(WORKERS):
        return pushed_bytes(call)
    neighbours = len(strategy.topology.neighbours(worker, View(0, tuple(range(WORKERS))), 0))
    early = name in ("dpsgd", "osgp", "gossipgrad")  # these send at the start, then after every step
    rounds = STEPS + 1 if early else STEPS
    return rounds * neighbours * letter_bytes(call)


def letter_bytes(call: str) -> int:
    """Of the flat tensor: 8 weights and 1 bias, padded to 16 values each."""
    if "codec=fp16, bucket" in call:
        return 2 * (256 + 16 * 2)
    if "codec=int8, bucket" in call:
        return 256 + (4 + 8) + 256 + (4 + 1)  # a scale and a byte for each value, piece by piece
    if "codec=int8" in call:
        return 256 + (4 + 8) + (4 + 1)
    if "moments='average'" in call:  # the momentum behind the weights
        return LETTER_BYTES + FLAT_BYTES
    return LETTER_BYTES


def pushed_bytes(call: str) -> int:
    """To one server or to shards: a header for each, and one for each fetch that no push asks for."""
    strategy = strategy_from(call)
    push, fetch = getattr(strategy, "push", 1), getattr(strategy, "fetch", 1)
    servers = strategy.servers(WORKERS)
    payload = 2 * (16 + 16) if "fp16" in call else FLAT_BYTES
    asks = len([step for step in range(1, STEPS + 1) if step % fetch == 0 and step % push])
    return STEPS // push * (servers * 256 + payload) + asks * servers * 256


def allreduce_bytes(call: str, worker: int) -> int:
    others = WORKERS - 1
    if "ring" in call:  # who is there, and 32 values in slices of 10, 11 and 11, all but one of them twice
        cuts = (10, 11, 11)
        slices = 2 * 32 - cuts[worker] - cuts[(worker + 1) % WORKERS]
        return others * 256 + 2 * others * 256 + 4 * slices
    if "top_k" in call:  # three tenths of 32 values with their indices, to everybody
        return others * (256 + 10 * 8)
    if "int8" in call:  # per bucket: slices to their owners, sums from them; only the last slice isn't empty
        return 2 * 2 * others * 256 + (others if worker == 2 else 1) * ((4 + 8) + (4 + 1))
    return MEAN_BYTES


def streamed_bytes(worker: int) -> int:
    """Two fragments of one cache line each, which the last member averages; to the others go empty letters. One
    begins its rounds at steps 5, 10, ..., 60, the other at 2, 7, ..., 57; means are sent two steps later."""
    begun, averaged = 12 + 12, 11 + 12
    parts, means = (0, 2 * 64) if worker == WORKERS - 1 else (64, 0)
    return begun * (2 * 256 + parts) + averaged * (2 * 256 + means)


def gossip_sends(worker: int, p: float) -> int:
    """How often this worker's own stream of random numbers says so; a send draws its receiver too."""
    stream, sends = Random(stream_seed(0, "draw", worker)), 0
    for _ in range(STEPS):
        if stream.random() < p:
            sends += 1
            stream.random()
    return sends


# Leaving


@pytest.mark.real
@every_call_for_real
def test_a_worker_that_ends_early_leaves_politely(call, real):
    results = real.results(call, UNEQUAL)
    assert [result["steps"] for result in results] == list(UNEQUAL)
    assert len({result["final"] for result in results}) == 1
    final = from_text(results[0]["final"], torch.float32)
    assert float((final - OPTIMUM).norm() / OPTIMUM.norm()) < 0.2
    replicas = [from_text(result["settled"], torch.float32) for result in results]
    if strategy_from(call).replicas_agree:  # who left early only has an older version
        assert torch.equal(final, replicas[UNEQUAL.index(max(UNEQUAL))])
    elif strategy_from(call).one_host:  # one memory, whose last state all of them end with
        assert all(torch.equal(final, replica) for replica in replicas)
    elif not strategy_from(call).servers(WORKERS):
        assert torch.equal(final, ((replicas[0] + replicas[1]) + replicas[2]) / 3)


# Save and resume


@every_saved_call
@pytest.mark.parametrize("steps", [(12, 12, 12), (12, 4, 9)], ids=["equal", "unequal"])
def test_resumed_equals_continued(call, steps):
    """A checkpoint between two turns holds all that the rest of the training depends on."""

    def second_half(resume):
        trace = TraceHash()
        simulated = simulation(strategy_from(call), steps, seed=2, observers=[trace])
        if resume is None:
            simulated.run(pause_after=5)
        else:
            simulated.restore(resume)
        saved = simulated.checkpoint()
        trace.__init__()
        simulated.run()
        return (trace.hexdigest(), trace.records, simulated.now_ns, own_weights(simulated)), saved

    continued, saved = second_half(None)
    assert second_half(saved)[0] == continued
    assert second_half(saved)[0] == continued  # a checkpoint can be used again


# Alone


@every_call
def test_alone_it_is_the_identity(call):
    """A plain script that nobody launched, with every preset, gives the bits of the one without FAST."""
    same = as_text(plainly(lambda: train_alone(call))) == as_text(train_alone(None))
    assert same == strategy_from(call).identity_alone  # an outer optimizer acts alone too


@pytest.mark.real
def test_one_launched_worker_is_the_identity_too(runner):
    """Unless a seed was asked for: then it also decides about dropout, as on many workers."""
    calls = [call for call in CALLS if strategy_from(call).identity_alone]
    (pairs,) = runner.results("preset_bodies:alone", 1, strategies=calls, seed=None)
    for call, (with_fast, without) in zip(calls, pairs, strict=True):
        assert with_fast == without, call
    seeded = [
        runner.results("preset_bodies:alone", 1, strategies=CALLS[:2], seed=seed)[0] for seed in (0, 0, 1)
    ]
    assert seeded[0] == seeded[1] != seeded[2]
