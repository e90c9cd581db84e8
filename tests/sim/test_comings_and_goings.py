"""Workers that stop, die, freeze, come late and come back: what the others make of it, by the value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fast.core import Strategy, Tag
from fast.errors import FastError, PeerSilent, UsageError
from fast.loop.loading import strategy_from
from fast.sim import Network, Simulation, TraceHash, lives
from fast.sim.interference import UNHARMED
from fast.trace import Dropped, Stepped

from .problem import LeastSquares, close, weights

MS = 1_000_000
STEP = 20 * MS


class Deeds:
    """Faults as a function of the simulation; letters are left alone."""

    def __init__(self, prepare: Callable[[Simulation], None]) -> None:
        self.prepare = prepare

    def fate(self, letter, to, now_ns):
        return UNHARMED

    def sent_by(self, who, tensor, now_ns):
        return tensor

    def held_ns(self, members, now_ns):
        return 0


def run(call, prepare, *, workers=4, steps=30, absent=(), **options):
    problem = LeastSquares()
    simulation = problem.simulation(
        strategy_from(call), problem.batches(workers, steps), faults=Deeds(prepare), absent=absent, **options
    )
    simulation.run()
    return problem, simulation


def mean_steps(problem, batches, members_of, steps, lr=0.05):
    """Plain synchronous training: in each step the mean of the members' gradients, each with its next batch."""
    w, taken = problem.start.clone(), dict.fromkeys(range(len(batches)), 0)
    for step in range(steps):
        gradients = []
        for worker in members_of(step):
            gradients.append(problem.gradient(w, batches[worker][taken[worker]]))
            taken[worker] += 1
        w -= lr * sum(gradients) / len(gradients)
    return w


def test_who_comes_late_takes_part_from_the_next_step_on():
    """At 100 ms the others have done 4 steps, or are about to have done 5: it takes the sixth with them."""
    problem, simulation = run("allreduce", lambda s: s.at(100 * MS, lambda: s.admit(3)), absent=[3])
    expected = mean_steps(
        problem, problem.batches(4, 30), lambda step: [0, 1, 2] if step < 5 else [0, 1, 2, 3], 30
    )
    assert close(simulation.me(0).weights, expected)
    assert simulation.me(0).steps == 30
    assert simulation.me(3).fresh and simulation.me(3).steps == 35  # its own batches last longer


def test_who_dies_is_missed_until_it_is_noticed_and_then_not_waited_for():
    """At 50 ms it computes its third gradient. The others wait for that from 60 ms to 80 ms."""
    problem, simulation = run("allreduce", lambda s: s.at(50 * MS, lambda: s.kill(2, notice_ns=30 * MS)))
    expected = mean_steps(
        problem, problem.batches(4, 30), lambda step: [0, 1, 2, 3] if step < 2 else [0, 1, 3], 30
    )
    assert close(simulation.me(0).weights, expected)
    assert simulation.participants[2].dead and simulation.me(2).steps == 2
    assert simulation.now_ns == 30 * STEP + 20 * MS


def test_who_comes_back_adopts_what_the_others_have():
    def prepare(simulation):
        simulation.at(50 * MS, lambda: simulation.kill(1, notice_ns=0))
        simulation.at(150 * MS, lambda: simulation.admit(1))

    problem, simulation = run("allreduce", prepare, workers=3)
    back = next(step for step in range(100) if step >= max(8, 2 + 2 * 3))  # 2 steps done, and 2 P more
    expected = mean_steps(
        problem,
        [own[:2] + own[3:] if who == 1 else own for who, own in enumerate(problem.batches(3, 30))],
        lambda step: [0, 1, 2] if step < 2 or step >= back else [0, 2],
        30,
    )
    assert close(simulation.me(0).weights, expected)
    assert simulation.me(1).fresh


def test_who_is_frozen_holds_up_a_round_by_that_much():
    _, simulation = run(
        "allreduce", lambda s: s.at_step(1, 4, lambda: s.at(s.now_ns + 5 * MS, lambda: s.freeze(1, 70 * MS)))
    )
    assert simulation.now_ns == 30 * STEP + 70 * MS
    _, lively = run("gossip(p=0.5)", lambda s: s.at(50 * MS, lambda: s.freeze(1, 70 * MS)))
    assert lively.now_ns == 30 * STEP + 70 * MS  # the frozen one itself


def test_who_waits_for_the_frozen_gives_up_after_the_deadline():
    with pytest.raises(PeerSilent, match="worker 1 has given no sign of life for 2 s; it had done 2 steps"):
        run("allreduce", lambda s: s.at(50 * MS, lambda: s.freeze(1, 5_000 * MS)), deadline_s=2.0)
    run("gossip(p=0.5)", lambda s: s.at(50 * MS, lambda: s.freeze(1, 5_000 * MS)), deadline_s=2.0)


def test_who_is_told_to_stop_does_no_further_step():
    _, simulation = run("allreduce", lambda s: s.at_step(3, 7, lambda: s.stop(3)))
    assert [p.me.steps for p in simulation.workers] == [30, 30, 30, 7]
    assert all(p.left for p in simulation.workers)


def test_shares_go_with_the_dead_and_newcomers_bring_none():
    def prepare(simulation):
        simulation.at(110 * MS, lambda: simulation.kill(2, notice_ns=10 * MS))
        simulation.at(300 * MS, lambda: simulation.admit(2))
        simulation.at(200 * MS, lambda: simulation.admit(5))

    lost = []
    problem = LeastSquares()
    simulation = problem.simulation(
        strategy_from("gossip(p=0.5)"), problem.batches(6, 40), faults=Deeds(prepare), absent=[5]
    )
    simulation.on_dropped = lambda letter, to: lost.append(letter.note["share"])
    dying = simulation.participants[2]
    simulation.at(110 * MS, lambda: lost.append(dying.me.state.share))  # before or after its death
    simulation.run()
    total = sum(p.me.state.share for p in simulation.workers)
    assert total + sum(lost) == pytest.approx(5 / 6)
    assert simulation.me(5).fresh and simulation.me(5).state.share > 0


def test_letters_for_the_dead_are_reported():
    records = []
    _, simulation = run(
        "torus",
        lambda s: s.at(50 * MS, lambda: s.kill(2, notice_ns=100 * MS)),
        observers=[records.append],
    )
    reasons = {record.why for record in records if isinstance(record, Dropped) and record.to == 2}
    assert "its receiver has died" in reasons  # until it was noticed; then nobody sends to it
    assert torch.isfinite(weights(simulation)).all()


@pytest.mark.parametrize(
    "call", ["allreduce", "local_sgd(tau=3)", "dpsgd", "torus", "gossip(p=0.3)", "ssp(bound=2)"]
)
@pytest.mark.parametrize("workers", [3, 6])
def test_the_same_faults_give_the_same_trace(call, workers):
    def prepare(simulation):
        simulation.at(50 * MS, lambda: simulation.kill(1, notice_ns=15 * MS))
        simulation.at(90 * MS, lambda: simulation.freeze(0, 33 * MS))
        simulation.at(200 * MS, lambda: simulation.admit(1))
        simulation.at_step(0, 6, lambda: simulation.admit(2))

    def traced(seed):
        trace = TraceHash()
        _, simulation = run(
            call, prepare, workers=workers, absent=[2], observers=[trace], seed=seed, steps=25
        )
        assert simulation.me(1).fresh and simulation.me(2).fresh
        return trace.hexdigest(), weights(simulation)

    (first, values), (again, same_values) = traced(3), traced(3)
    assert first == again
    assert torch.equal(values, same_values)
    if "gossip" in call:
        assert traced(4)[0] != first


def test_what_can_not_be():
    with pytest.raises(UsageError, match="can't take in workers"):
        run("choco", lambda s: None, absent=[1])
    with pytest.raises(UsageError, match="at least one must be there"):
        run("gossip", lambda s: None, workers=2, absent=[0, 1])
    with pytest.raises(UsageError, match="before its death has been noticed"):
        run(
            "gossip",
            lambda s: s.at(50 * MS, lambda: (s.kill(1, notice_ns=100 * MS), s.admit(1))),
        )


def test_what_waited_for_somebody_who_comes_anew_is_reported():
    """Worker 2 stops early and comes back; letters that came in between are lost, and told."""
    records = []

    def prepare(simulation):
        simulation.at_step(2, 3, lambda: simulation.stop(2))
        simulation.at(300 * MS, lambda: simulation.admit(2))

    _, simulation = run("torus", prepare, observers=[records.append])
    assert simulation.me(2).fresh
    reasons = {record.why for record in records if isinstance(record, Dropped) and record.to == 2}
    assert "its receiver has come anew" in reasons


def test_neighbours_mix_with_a_newcomer_from_its_first_step_on():
    """dpsgd on a ring, by a plain loop: W_ij = 1/3 for oneself and each neighbour; it starts as worker 0."""
    problem, simulation = run("dpsgd", lambda s: s.at(100 * MS, lambda: s.admit(3)), absent=[3], steps=12)
    batches = problem.batches(4, 12)
    x = {worker: problem.start.clone() for worker in range(3)}
    for step in range(12):
        if step == 5:
            x[3] = x[0].clone()
        ring = sorted(x)
        new = {}
        for place, worker in enumerate(ring):
            near = {ring[place - 1], ring[(place + 1) % len(ring)]}
            batch = batches[worker][step - 5 if worker == 3 else step]
            mixed = (x[worker] + sum(x[other] for other in near)) / 3
            new[worker] = mixed - 0.05 * problem.gradient(x[worker], batch)
        x = new
    for worker in range(3):
        assert close(simulation.me(worker).weights, x[worker])


def test_who_dies_on_its_way_and_comes_again_lives_once():
    """The first adoption is still under way (10 s for 160 bytes) when it dies; only the second becomes a life."""

    def prepare(simulation):
        simulation.at(100 * MS, lambda: simulation.admit(3))
        simulation.at(200 * MS, lambda: simulation.kill(3, notice_ns=0))
        simulation.at(300 * MS, lambda: simulation.admit(3))

    records = []
    problem = LeastSquares()
    simulation = problem.simulation(
        strategy_from("gossip(p=0.1)"),
        problem.batches(4, 60),
        faults=Deeds(prepare),
        absent=[3],
        network=Network(1e3, 0.0),
        observers=[records.append],
    )
    simulation.run()
    steps = [record.step for record in records if isinstance(record, Stepped) and record.who == 3]
    assert steps == sorted(set(steps))
    assert simulation.me(3).fresh and simulation.participants[3].left


class Forgiving(Strategy):
    """Waits for everybody's number; who is silent is asked again, once."""

    synchronous = True
    tags = (Tag("hello"),)

    async def step(self, me):
        me.apply(me.gradient)
        me.send(me.peers, torch.zeros(1), tag="hello")
        try:
            await me.gather("hello", me.peers)
        except PeerSilent:
            await me.gather("hello", me.peers)


def test_who_catches_that_a_peer_is_silent_goes_on():
    problem = LeastSquares()
    simulation = problem.simulation(
        Forgiving(),
        problem.batches(3, 10),
        faults=Deeds(lambda s: s.at(50 * MS, lambda: s.freeze(1, 5_000 * MS))),
        deadline_s=2.0,
    )
    simulation.run()
    assert [(p.me.steps, p.left) for p in simulation.workers] == [(10, True)] * 3


def test_a_server_that_hears_others_does_not_give_up_one_who_is_frozen():
    _, simulation = run(
        "ssp(bound=inf)", lambda s: s.at(50 * MS, lambda: s.freeze(1, 500 * MS)), deadline_s=0.2, steps=60
    )
    assert [p.me.steps for p in simulation.workers] == [60] * 4


def test_freezes_that_overlap_take_no_longer_than_they_last():
    def prepare(simulation):
        simulation.at(50 * MS, lambda: simulation.freeze(1, 70 * MS))
        simulation.at(55 * MS, lambda: simulation.freeze(1, 70 * MS))

    _, simulation = run("allreduce", prepare)
    assert simulation.now_ns == 30 * STEP + 75 * MS
    with pytest.raises(PeerSilent, match=r"no sign of life for 0\.072 s"):
        run("allreduce", prepare, deadline_s=0.072)  # 75 ms together, though neither is that long


def test_who_comes_at_once_comes():
    _, simulation = run("gossip", lambda s: s.at(0, lambda: s.admit(3)), absent=[3])
    assert simulation.me(3).steps == 30


def test_who_comes_back_to_means_needs_no_patience():
    def prepare(simulation):
        simulation.at(60 * MS, lambda: simulation.kill(5, notice_ns=10 * MS))
        simulation.at(100 * MS, lambda: simulation.admit(5))

    _, simulation = run("allreduce", prepare, workers=8, steps=10)
    assert simulation.me(5).fresh and simulation.me(5).steps > 6


def test_who_dies_before_it_is_there_does_not_come():
    def prepare(simulation):
        simulation.at(95 * MS, lambda: simulation.admit(3))
        simulation.at(96 * MS, lambda: simulation.kill(3))

    _, simulation = run("dpsgd", prepare, absent=[3])
    assert simulation.me(3).steps == 0 and simulation.participants[3].absent
    assert simulation.me(0).workers == (0,)
    assert [p.me.steps for p in simulation.workers[:3]] == [30] * 3


def test_a_death_that_nobody_waits_for_does_not_prolong_the_run():
    _, simulation = run("gossip", lambda s: s.at(30 * STEP - 5 * MS, lambda: s.kill(1, notice_ns=1_000 * MS)))
    assert simulation.now_ns == 30 * STEP


class Restless(Strategy):
    def servers(self, workers):
        return 1

    async def step(self, me):
        me.apply(me.gradient)

    async def serve(self, me):
        me.send(0, me.weights, tag="again")


def test_a_server_that_never_waits_is_an_error_and_no_hang(monkeypatch):
    monkeypatch.setattr(lives, "_RESTLESS", 50)
    problem = LeastSquares()
    with pytest.raises(FastError, match="server 2 took 51 turns"):
        problem.simulation(Restless(), problem.batches(2, 3)).run()


def test_checkpoints_are_refused_where_somebody_comes():
    problem = LeastSquares()
    simulation = problem.simulation(strategy_from("gossip"), problem.batches(3, 10), absent=[2])
    simulation.run(pause_after=3)
    with pytest.raises(UsageError, match="can't be saved"):
        simulation.checkpoint()
