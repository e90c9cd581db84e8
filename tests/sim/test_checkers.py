"""Each checker: with records written by hand, and with runs in which one thing is changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from fast.core import GRADIENT, WEIGHTS, Letter, Strategy, Tag, fold_newest, fold_sum
from fast.errors import UsageError, Violation
from fast.sim import Simulation
from fast.sim.checkers import (
    Checker,
    Checkers,
    Conservation,
    CountedOnce,
    FiniteWeights,
    GoneIsGone,
    Lead,
    LettersAccounted,
    ReachKept,
    ReadsComplete,
    RoundsAgree,
    Staleness,
    TimeGoesOn,
    ViewsAgree,
)
from fast.sim.checkers.letters import LOOK_EVERY
from fast.sim.faults import parse_scenario
from fast.sim.fuzzing import Case, Machines
from fast.strategies.presets import allreduce, dpsgd, essp, gossip, local_sgd, ssp, torus, vap
from fast.trace import (
    Applied,
    Computed,
    Dropped,
    Included,
    Received,
    Record,
    Reduced,
    Sent,
    Stepped,
    Turned,
    Waited,
)
from fast.view import View

from .bench import simulation_of

# By hand: a stage with as much of a simulation as checkers look at


class Stage:
    """Three workers and a server, as a checker sees them."""

    def __init__(self, checker: Checker, workers: int = 3, servers: int = 1) -> None:
        view = View(0, tuple(range(workers)), tuple(range(workers, workers + servers)))
        self.participants = [self._participant(who, view) for who in sorted(view.everybody)]
        self.workers, self.servers = self.participants[:workers], self.participants[workers:]
        self.now_ns = 0
        self.strategy = "this strategy"
        self.flying: list[tuple[int, Letter]] = []
        self.waiting: dict[int, list[Letter]] = {}
        self.checker = checker
        checker.attach(self)  # type: ignore[arg-type]

    def _participant(self, who: int, view: View) -> Any:
        me = SimpleNamespace(id=who, steps=0, samples=2, view=view, state=None, weights=torch.zeros(2))
        is_server = who in view.servers
        return SimpleNamespace(
            me=me,
            worker=None if is_server else object(),
            name=f"{'server' if is_server else 'worker'} {who}",
            alive=True, dead=False, left=False, absent=False, started=True,
        )  # fmt: skip

    def on_the_way(self) -> list[tuple[int, Letter]]:
        return self.flying

    def unread(self, who: int) -> list[Letter]:
        return self.waiting.get(who, [])

    def steps(self, *steps: int) -> None:
        for participant, count in zip(self.workers, steps, strict=False):
            participant.me.steps = count

    def kill(self, who: int) -> None:
        participant = self.participants[who]
        participant.dead, participant.alive = True, False
        self.checker.died(who)

    def tell(self, *records: Record) -> None:
        """These records in one event."""
        for record in records:
            taker = self.checker.takers().get(type(record))
            if taker is not None:
                taker(record)
        self.checker.after_event()

    def look(self) -> None:
        """Events without anything, until the checker has looked at the letters."""
        for _ in range(LOOK_EVERY):
            self.tell()


def letter(sender: int, tag: str = "x", *, steps: tuple[int, ...] = (0,), **options: Any) -> Letter:
    return Letter(sender, tag, torch.zeros(1), steps, **options)


def sent(who: int, to: int, tag: str = "x", step: int = 0, **options: Any) -> Sent:
    return Sent(who, 0, (to,), tag, 100, step, **options)


# Conservation


def with_shares(*shares: float) -> Stage:
    stage = Stage(Conservation("share"))
    for worker, share in zip(stage.workers, shares, strict=True):
        worker.me.state = SimpleNamespace(share=share)
    stage.tell()
    return stage


def test_a_share_may_travel():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.workers[0].me.state.share = 0.25
    stage.flying = [(1, letter(0, note={"share": 0.25}))]
    stage.tell(sent(0, 1))
    stage.flying, stage.waiting = [], {1: [letter(0, note={"share": 0.25})]}
    stage.tell()
    stage.waiting = {}
    stage.workers[1].me.state.share = 0.5
    stage.tell(Stepped(1, 0, 1, 2))


def test_a_share_that_is_sent_and_kept_is_found():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.flying = [(1, letter(0, note={"share": 0.25}))]
    with pytest.raises(Violation) as found:
        stage.tell(sent(0, 1))
    assert found.value.found == (
        "the sum of 'share' should be 1 and is 1.25: worker 0 has 0.5, worker 1 has 0.25, worker 2 has 0.25; "
        "letters carry 0.25 from worker 0"
    )


def test_rounding_is_no_violation_and_anything_more_is():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.workers[0].me.state.share += 1e-12
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[0].me.state.share += 1e-6
    with pytest.raises(Violation, match=r"should be 1 and is 1\.000001"):
        stage.tell(Stepped(0, 0, 2, 2))


def test_what_went_with_the_dead_the_dropped_and_the_doubled_is_known():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.kill(2)
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[0].me.state.share = 0.25
    stage.checker.dropped(letter(0, note={"share": 0.25}), 2)
    stage.tell(sent(0, 2))
    stage.workers[1].me.state.share = 0.125
    stage.flying = [(0, letter(1, note={"share": 0.125}))] * 2
    stage.checker.doubled(letter(1, note={"share": 0.125}), 0)
    stage.tell(sent(1, 0))
    stage.workers[1].me.state.share = 0.1
    with pytest.raises(
        Violation, match=r"should be 0\.625 \(after: worker 2 died; a letter from worker 0 to worker 2 "
    ):
        stage.tell(Stepped(1, 0, 1, 2))


def test_who_comes_back_brings_what_its_new_state_has():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.kill(1)
    stage.tell()
    stage.workers[1].dead, stage.workers[1].alive = False, True
    stage.workers[1].me = SimpleNamespace(**{**vars(stage.workers[1].me), "state": None})
    stage.checker.came(1)
    stage.tell(Stepped(0, 0, 1, 2))  # it has no state of its own yet
    stage.workers[1].me.state = SimpleNamespace(share=0.125)
    stage.tell()
    stage.tell(Stepped(0, 0, 2, 2))
    stage.workers[1].me.state.share = 0.25
    with pytest.raises(Violation, match=r"should be 0\.875"):
        stage.tell(Stepped(0, 0, 3, 2))


def test_a_number_that_no_state_has_is_a_mistake_of_the_strategy():
    stage = Stage(Conservation("share"))
    for worker in stage.workers:
        worker.me.state = SimpleNamespace(weight=1.0)
    with pytest.raises(UsageError, match=r"conserves 'share', and the state of worker 0 has no such number"):
        stage.tell()


def test_who_had_left_and_comes_back_takes_its_old_share_out_of_the_sum():
    stage = with_shares(0.5, 0.25, 0.25)
    stage.workers[1].me = SimpleNamespace(
        **{**vars(stage.workers[1].me), "state": SimpleNamespace(share=0.0)}
    )
    stage.checker.died(1)
    stage.checker.came(1)
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[1].me.state = SimpleNamespace(share=0.125)
    stage.tell(Stepped(1, 0, 1, 2))
    stage.workers[0].me.state.share = 0.75
    with pytest.raises(Violation, match=r"should be 0\.875"):
        stage.tell(Stepped(0, 0, 2, 2))


# Bounds


def test_the_lead_is_that_over_the_slowest_who_is_alive():
    stage = Stage(Lead(2))
    stage.steps(2, 0, 1)
    stage.tell(Stepped(0, 0, 2, 2))
    stage.steps(3, 0, 1)
    with pytest.raises(Violation) as found:
        stage.tell(Stepped(0, 0, 3, 2))
    assert found.value.found == (
        "worker 0 has taken 3 steps and worker 1 only 0, which is 3 apart; the lead is 2"
    )
    stage = Stage(Lead(2))
    stage.kill(1)
    stage.steps(3, 0, 1)
    stage.tell(Stepped(0, 0, 3, 2))
    stage.steps(4, 0, 1)
    with pytest.raises(Violation, match="worker 2 only 1"):
        stage.tell(Stepped(0, 0, 4, 2))


def test_the_lead_holds_for_one_who_comes_late_and_is_behind():
    stage = Stage(Lead(1))
    stage.workers[2].alive = False
    for step in range(1, 6):
        stage.steps(step, step)
        stage.tell(Stepped(0, 0, step, 2), Stepped(1, 0, step, 2))
    stage.workers[2].alive = True
    stage.steps(6, 5, 5)
    stage.tell(Stepped(0, 0, 6, 2), Stepped(2, 0, 5, 2))
    stage.steps(7, 6, 5)
    with pytest.raises(Violation, match="worker 0 has taken 7 steps and worker 2 only 5"):
        stage.tell(Stepped(0, 0, 7, 2))


def test_in_lock_step_updates_are_as_late_as_the_strategy_says():
    stage = Stage(Staleness(float("inf"), late=2))
    stage.steps(4, 4, 4)
    stage.tell(Included(0, 0, 1, "mix", 2, 2))
    with pytest.raises(Violation, match="with staleness 3, and at most 2"):
        stage.tell(Included(0, 0, 1, "mix", 3, 1))


def test_in_lock_step_nothing_is_stale_nor_from_the_future():
    stage = Stage(Staleness(float("inf"), late=0))
    stage.steps(4, 4, 4)
    stage.tell(Included(0, 0, 1, "mix", 0, 4), Included(3, 0, 1, "push", 0, 4))
    with pytest.raises(Violation, match=r"'mix' of worker 1 from its step 3 with staleness 1, and at most 0"):
        stage.tell(Included(0, 0, 1, "mix", 1, 3))
    with pytest.raises(
        Violation, match=r"'mix' of worker 1 from its step 5 in its own step 4, although they go in"
    ):
        stage.tell(Included(0, 0, 1, "mix", 0, 5))


def test_a_server_may_be_ahead_by_what_the_others_may_have_pushed_in_between():
    stage = Stage(Staleness(3, late=None))
    stage.steps(5, 5, 5)
    stage.tell(Received(0, 0, 3, "read", (0,)))  # in its step 5
    stage.tell(sent(0, 3, "push", 6))
    stage.steps(7, 5, 5)
    stage.tell(Received(0, 0, 3, "read", (0,)))  # too late for what is on its way
    bound = 2 * (2 * 3 + 1 + 1) + 1 + 3
    stage.tell(Included(3, 0, 0, "push", bound, 6))
    with pytest.raises(Violation, match=f"staleness {bound + 1}, and at most {bound} is promised"):
        stage.tell(Included(3, 0, 0, "push", bound + 1, 6))
    stage.tell(Included(1, 0, 0, "gradient", 1000, 0))  # between workers letters may take any time


# Reads


def reading(misses: float = 1, workers: int = 3, servers: int = 1) -> Stage:
    return Stage(ReadsComplete(ssp(misses)), workers, servers)


def push(stage: Stage, worker: int, step: int, server: int = 3) -> None:
    stage.tell(sent(worker, server, "push", step), Included(server, 0, worker, "push", 0, step))


def read(stage: Stage, worker: int, letters: int = 1, server: int = 3) -> None:
    stage.tell(*(sent(server, worker, "read") for _ in range(letters)))
    stage.tell(Received(worker, 0, server, "read", (0,), letters))


def stepped(stage: Stage, worker: int, step: int) -> None:
    stage.workers[worker].me.steps = step
    stage.tell(Stepped(worker, 0, step, 2))


def test_a_read_holds_everybodys_updates_up_to_the_bound():
    stage = reading(misses=1)
    for worker in range(3):
        push(stage, worker, 0)
    push(stage, 0, 1)
    read(stage, 0)
    stepped(stage, 0, 2)  # clock 2 may miss clock 1
    push(stage, 0, 2)
    push(stage, 2, 1)
    read(stage, 0)
    with pytest.raises(Violation) as found:
        stepped(stage, 0, 3)
    assert found.value.found == (
        "worker 0 begins clock 3 with weights of server 3 that hold the updates of worker 1 only up to its clock 0, "
        "and 1 is promised"
    )


def test_a_read_holds_what_its_letter_held_when_it_was_sent():
    stage = reading(misses=0, workers=2)
    push(stage, 0, 0, server=2)
    stage.tell(sent(2, 0, "read"))
    push(stage, 1, 0, server=2)  # too late for that letter
    stage.tell(Received(0, 0, 2, "read", (0,)))
    with pytest.raises(Violation, match="hold the updates of worker 1 only up to its clock -1, and 0 is"):
        stepped(stage, 0, 1)
    read(stage, 0, server=2)
    stepped(stage, 0, 1)


def test_letters_that_were_folded_are_read_as_the_newest():
    stage = reading(misses=0, workers=2)
    stage.tell(sent(2, 0, "read"), sent(2, 1, "read"))
    push(stage, 0, 0, server=2)
    push(stage, 1, 0, server=2)
    stage.tell(sent(2, 0, "read"))
    stage.tell(Received(0, 0, 2, "read", (0,), 2))
    stepped(stage, 0, 1)


def test_a_read_holds_enough_of_every_shard():
    stage = reading(misses=0, workers=2, servers=2)
    for server in (2, 3):
        push(stage, 0, 0, server)
    push(stage, 1, 0, server=3)
    for server in (2, 3):
        read(stage, 0, server=server)
    with pytest.raises(Violation, match=r"weights of server 2 that hold the updates of worker 1 only"):
        stepped(stage, 0, 1)


def test_nobody_misses_what_will_never_be_made():
    stage = reading(misses=0)
    push(stage, 0, 0)
    stage.workers[1].alive, stage.workers[1].me.steps = False, 0  # has left before its first step
    stage.workers[2].me.steps = 5
    stage.checker.came(2)  # with five steps of somebody else
    read(stage, 0)
    stepped(stage, 0, 1)
    stage.workers[0].me.samples = 0
    stage.tell(sent(0, 3, "push", 1))  # a step that doesn't count is in no server's weights
    read(stage, 0)
    stepped(stage, 0, 2)


def near(limit: float) -> Stage:
    return Stage(ReachKept(vap(limit)))


def applied(stage: Stage, weights: list[float], server: int = 3) -> None:
    stage.servers[server - 3].me.weights = torch.tensor(weights)
    stage.tell(Applied(server, 0, 1))


def test_a_server_stays_near_to_what_anybody_computes_on():
    stage = near(0.5)
    applied(stage, [0.4, -0.4])
    with pytest.raises(
        Violation, match=r"server 3 is 0.5 away from what worker 0 computes on, and less than 0.5"
    ):
        applied(stage, [0.4, -0.5])
    for worker in range(3):
        stage.tell(Received(3, 0, worker, "push", (0,)))
    applied(stage, [3.0, 3.0])  # nobody computes
    stage.tell(sent(3, 1, "read"))
    applied(stage, [3.2, 3.0])
    with pytest.raises(Violation, match="what worker 1 computes on"):
        applied(stage, [3.2, float("nan")])
    stage.workers[1].alive = False
    applied(stage, [9.0, 9.0])
    stage.tell(Applied(0, 0, 1))  # what a worker does to its own weights is its own business


# Agreement


def test_views_of_one_number_have_the_same_members():
    stage = Stage(ViewsAgree())
    stage.workers[0].me.view = View(1, (0, 1), (3,))
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[1].me.view = View(1, (0, 1), (3,))
    stage.tell(Turned(1, 0, 0))
    stage.workers[2].me.view = View(1, (1, 2), (3,))
    with pytest.raises(Violation) as found:
        stage.tell(sent(2, 1))
    assert found.value.found == (
        "in view 1 worker 0 sees workers (0, 1) and servers (3,), and worker 2 sees workers (1, 2) and servers (3,)"
    )


def test_a_view_never_goes_back():
    stage = Stage(ViewsAgree())
    stage.workers[0].me.view = View(2, (0,), (3,))
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[0].me.view = View(1, (0, 1), (3,))
    with pytest.raises(Violation, match="the view of worker 0 went back from 2 to 1"):
        stage.tell(Stepped(0, 0, 2, 2))


def test_who_has_left_may_see_itself():
    stage = Stage(ViewsAgree())
    stage.workers[0].me.view = View(1, (0, 1), (3,))
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[2].me.view, stage.workers[2].alive = View(1, (0, 2), (3,)), False
    stage.tell(Turned(2, 0, 0))


def test_members_of_a_round_agree_on_its_step_if_they_go_in_lock_step():
    for synchronous in (True, False):
        stage = Stage(RoundsAgree(synchronous=synchronous))
        stage.steps(4, 4, 5)
        stage.tell(Reduced(0, 0, 10, (0, 1, 2)), Reduced(1, 0, 10, (0, 1, 2)))
        if synchronous:
            with pytest.raises(
                Violation, match=r"worker 2 ended round 1 of .* in step 5, and worker 0 .* in step 4"
            ):
                stage.tell(Reduced(2, 0, 10, (0, 1, 2)))
        else:
            stage.tell(Reduced(2, 0, 10, (0, 1, 2)))
            stage.checker.finish()


def test_members_of_a_round_agree_on_who_was_in_it():
    stage = Stage(RoundsAgree(synchronous=True))
    stage.tell(Reduced(0, 0, 10, (0, 1, 2)), Reduced(1, 0, 10, (0, 1, 2)), Reduced(2, 0, 10, (1, 2)))
    with pytest.raises(Violation, match=r"and worker 2 never was in such a round"):
        stage.checker.finish()
    with pytest.raises(Violation, match="worker 0 ended a round of worker 1, worker 2, in which it isn't"):
        stage.tell(Reduced(0, 0, 10, (1, 2)))


def test_who_died_need_not_have_ended_its_round():
    stage = Stage(RoundsAgree(synchronous=True))
    stage.tell(Reduced(0, 0, 10, (0, 1, 2)), Reduced(1, 0, 10, (0, 1, 2)))
    stage.kill(2)
    stage.checker.finish()


# Letters


def test_letters_that_were_read_dropped_or_doubled_are_accounted_for():
    stage = Stage(LettersAccounted())
    stage.tell(*(sent(0, 1) for _ in range(4)), sent(0, 1, whole=False))
    stage.checker.doubled(letter(0), 1)
    stage.tell(Received(1, 0, 0, "x", (0,), 3))
    stage.tell(Dropped(1, 0, 0, 1, "x", "unread at the end", (0, 0), 2))
    stage.checker.finish()


def test_a_letter_that_is_dropped_before_it_is_reported_as_sent_is_fine():
    stage = Stage(LettersAccounted())
    stage.tell(Dropped(0, 0, 0, 1, "x", "peer 1 has left"), sent(0, 1))
    stage.checker.finish()


def test_a_letter_that_nobody_sent_is_found_at_once():
    stage = Stage(LettersAccounted())
    stage.tell(sent(0, 1), sent(2, 1))
    with pytest.raises(Violation) as found:
        stage.tell(Received(1, 0, 0, "x", (0,), 2))
    assert found.value.found == (
        "worker 0 sent worker 1 1 letters 'x'; 2 were read, 0 dropped, and 0 wait or are on their way"
    )


def test_a_letter_that_vanishes_is_found_after_a_while_and_at_the_end():
    stage = Stage(LettersAccounted())
    stage.flying = [(1, letter(0))]
    stage.waiting = {1: [letter(0, letters=2)]}
    stage.tell(*(sent(0, 1) for _ in range(3)))
    stage.look()
    stage.flying = []
    with pytest.raises(
        Violation, match="3 letters 'x'; 0 were read, 0 dropped, and 2 wait or are on their way"
    ):
        stage.look()
    with pytest.raises(Violation, match="3 letters 'x'; 0 were read, 0 dropped"):
        stage.checker.finish()


def test_letters_of_rounds_and_pieces_are_nobodys():
    stage = Stage(LettersAccounted())
    stage.flying = [(1, letter(0, "fast.0")), (1, letter(0, part=(8, 16, 16)))]
    stage.tell(Dropped(0, 0, 0, 1, "fast.0", "peer 1 has left"))
    stage.look()
    stage.checker.finish()


class Tagged(Strategy):
    tags = (
        Tag("g", carries=GRADIENT, fold=fold_sum),
        Tag("latest", carries=GRADIENT, fold=fold_newest),
        Tag("w", carries=WEIGHTS),
    )


def test_an_update_is_merged_once_and_not_twice():
    stage = Stage(CountedOnce(Tagged()))
    stage.tell(sent(0, 1, "w", 4), sent(0, 1, "w", 5), Included(1, 0, 0, "w", 0, 4))
    with pytest.raises(Violation) as found:
        stage.tell(Included(1, 0, 0, "w", 0, 4))
    assert (
        found.value.found
        == "worker 1 merged the update 'w' of worker 0 from its step 4 once more than it was sent"
    )
    stage.tell(Included(1, 0, 0, "w", 0, 5))


def test_two_updates_of_one_step_may_both_be_merged_and_so_may_a_doubled_one():
    stage = Stage(CountedOnce(Tagged()))
    stage.tell(sent(0, 1, "w"), sent(0, 1, "w"), Included(1, 0, 0, "w", 0, 0), Included(1, 0, 0, "w", 0, 0))
    stage.checker.doubled(letter(0, "w"), 1)
    stage.tell(Included(1, 0, 0, "w", 0, 0))


def test_a_gradient_that_nobody_merges_is_missed_at_the_end():
    stage = Stage(CountedOnce(Tagged()))
    stage.tell(sent(0, 1, "g", 3), sent(0, 1, "g", 4), Included(1, 0, 0, "g", 0, 4))
    with pytest.raises(Violation, match="worker 1 never merged the update 'g' of worker 0 from its step 3"):
        stage.checker.finish()
    stage.tell(Dropped(1, 0, 0, 1, "g", "unread at the end", (3,)))
    stage.checker.finish()


def test_what_need_not_be_merged_is_not_missed():
    stage = Stage(CountedOnce(Tagged()))
    stage.tell(sent(0, 1, "w"), sent(0, 1, "latest"), sent(3, 1, "w"))
    stage.workers[0].me.samples = 0
    stage.tell(sent(0, 1, "g"))  # a step that doesn't count
    stage.workers[0].me.samples = 2
    stage.tell(sent(0, 2, "g"))
    stage.kill(2)
    stage.tell(Dropped(0, 0, 0, 1, "g", "lost on its way", (9,)), sent(0, 1, "g", 9))
    stage.checker.finish()


# Order


def test_time_goes_on_for_everybody():
    stage = Stage(TimeGoesOn())
    stage.tell(Computed(0, 50, 0), Stepped(1, 10, 1, 2), Waited(0, 20, (1,), "mean", 5))
    with pytest.raises(Violation, match="worker 0 reported Computed at 50 ns and then Turned at 49 ns"):
        stage.tell(Turned(0, 49, 40))
    stage.now_ns = 100
    stage.tell()
    stage.now_ns = 99
    with pytest.raises(Violation, match="the clock went from 100 ns to 99 ns"):
        stage.tell()


def test_who_is_gone_takes_no_turns():
    stage = Stage(GoneIsGone())
    stage.tell(Stepped(0, 0, 1, 2), Applied(1, 0, 1))
    stage.workers[0].alive, stage.workers[0].left = False, True
    stage.tell(Applied(0, 0, 1), Included(0, 0, 1, "g", 0, 1))  # its last turn, after everybody's last step
    with pytest.raises(Violation, match="worker 0 has left, and reported Stepped"):
        stage.tell(Stepped(0, 0, 2, 2))
    stage.kill(1)
    with pytest.raises(Violation, match="worker 1 has died, and reported Sent"):
        stage.tell(sent(1, 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_stay_finite(value: float):
    stage = Stage(FiniteWeights())
    stage.tell(Stepped(0, 0, 1, 2))
    stage.workers[0].me.weights[1] = value
    with pytest.raises(Violation, match="the weights of worker 0 hold NaN or infinity"):
        stage.tell(Stepped(0, 0, 1, 2))
    stage.servers[0].me.weights[0] = value
    with pytest.raises(Violation, match="the weights of server 3 hold NaN"):
        stage.tell(Applied(3, 0, 1))


# Runs in which one thing is changed

Change = Callable[[Record], list[Record]]
Tamper = Callable[[Simulation], None]
CASE = Case(seed=3, workers=4, steps=12, machines=Machines(spread=0.5, network="1mbit,1ms"))


def run_with(
    strategy: Strategy,
    change: Change = lambda record: [record],
    *,
    tamper: Tamper = lambda simulation: None,
    case: Case = CASE,
) -> Checkers:
    """A run of which the checkers hear what `change` makes of its records, and with which `tamper`
    does what it likes after every event."""
    checkers = Checkers(strategy)

    def hear(record: Record) -> None:
        for each in change(record):
            checkers(each)

    def after_event(simulation: Simulation) -> None:
        tamper(simulation)
        checkers.after_event(simulation)

    simulation_of(case, strategy, checkers, observer=hear).run(after_event=after_event)
    checkers.finish()
    return checkers


class Nth:
    """Changes the n-th record of a kind and leaves all others."""

    def __init__(self, kind: type[Record], number: int, change: Callable[[Any], list[Record]]) -> None:
        self.kind, self.left, self.change = kind, number, change

    def __call__(self, record: Record) -> list[Record]:
        if not isinstance(record, self.kind):
            return [record]
        self.left -= 1
        return self.change(record) if self.left == 0 else [record]


def gone(record: Record) -> list[Record]:
    return []


def twice(record: Record) -> list[Record]:
    return [record, record]


def with_(**changed: Any) -> Callable[[Record], list[Record]]:
    return lambda record: [msgspec.structs.replace(record, **changed)]


STRATEGIES = {
    "gossip": gossip(p=0.4),
    "torus": torus(),
    "streamed": torus(bucket_mb=1e-5),
    "dpsgd": dpsgd(),
    "ssp": ssp(bound=2),
    "ssp0": ssp(bound=0),
    "unbounded": ssp(bound=float("inf")),
    "shards": ssp(bound=1, servers=3),
    "essp": essp(bound=2),
    "vap": vap(limit=0.005),
    "allreduce": allreduce(),
    "local_sgd": local_sgd(tau=3),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_a_run_as_it_is_breaks_no_promise(strategy: Strategy):
    seen = run_with(strategy).seen
    assert seen.steps >= 40
    assert seen.letters + seen.rounds >= 10


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("torus", Nth(Received, 5, gone), "every letter must be accounted for"),
        ("torus", Nth(Received, 5, twice), "every letter must be accounted for"),
        ("streamed", Nth(Sent, 30, gone), "every letter must be accounted for|once more than it was sent"),
        ("gossip", Nth(Sent, 3, gone), "every letter must be accounted for|once more than it was sent"),
        ("torus", Nth(Included, 5, twice), "once more than it was sent"),
        ("torus", Nth(Included, 5, gone), "never merged the update 'gradient'"),
        (
            "ssp",
            Nth(Included, 9, gone),
            "hold the updates of worker 0 only up to its clock 0, and 1 is promised",
        ),
        ("unbounded", Nth(Included, 9, gone), "server 4 never merged the update 'push'"),
        ("dpsgd", Nth(Included, 7, with_(staleness=1)), "with staleness 1, and at most 0 is promised"),
        ("ssp", Nth(Included, 7, with_(staleness=99)), "with staleness 99"),
        ("essp", Nth(Included, 20, with_(step=0)), "once more than it was sent|only up to its clock"),
        ("allreduce", Nth(Reduced, 6, with_(members=(0, 1, 2))), "must agree on who took part"),
        ("local_sgd", Nth(Reduced, 6, gone), "must agree on who took part"),
        ("allreduce", Nth(Reduced, 6, twice), "in step"),
        ("torus", Nth(Stepped, 9, with_(at_ns=1)), "time must not go back"),
    ],
    ids=lambda value: getattr(value, "kind", value).__name__ if isinstance(value, Nth) else str(value)[:20],
)
def test_a_run_of_which_a_record_is_changed_is_noticed(name: str, change: Nth, found: str):
    with pytest.raises(Violation, match=found):
        run_with(STRATEGIES[name], change)


def after(events: int, deed: Tamper) -> Tamper:
    """Do this once, when so many events are over."""
    left = [events]

    def tamper(simulation: Simulation) -> None:
        left[0] -= 1
        if left[0] == 0:
            deed(simulation)

    return tamper


def give(simulation: Simulation) -> None:
    simulation.me(1).state.share += 0.01


def lose(simulation: Simulation) -> None:
    """Somebody reads a letter and says nothing about it."""
    boxes = [p.world.inbox.mailbox for p in simulation.participants if simulation.unread(p.me.id)]
    boxes[0].take(boxes[0].letters()[0].tag)


def spoil(simulation: Simulation) -> None:
    simulation.me(2).weights[0] = torch.nan


def forget(simulation: Simulation) -> None:
    """Worker 3 believes that worker 0 is gone, and worker 2 that worker 1 is."""
    for who, other in ((3, 0), (2, 1)):
        me = simulation.me(who)
        me.view = me.view.without([other])


@pytest.mark.parametrize(
    ("name", "deed", "found"),
    [
        ("gossip", give, "the sum of 'share' should be 1 and is 1.01"),
        ("torus", lose, "every letter must be accounted for"),
        ("torus", spoil, "weights must stay finite"),
        ("gossip", forget, "in view 1 worker"),
    ],
    ids=["give", "lose", "spoil", "forget"],
)
def test_a_run_that_is_tampered_with_is_noticed(name: str, deed: Tamper, found: str):
    with pytest.raises(Violation, match=found):
        run_with(STRATEGIES[name], tamper=after(30, deed))


def test_deaths_and_returns_are_seen_and_what_went_with_the_dead_is_known():
    scenario = parse_scenario(
        "deaths are noticed after 10ms; worker 1 dies at 100ms; worker 1 returns at 150ms"
    )
    case = Case(seed=3, workers=4, steps=20, scenario=scenario)
    seen = run_with(STRATEGIES["gossip"], case=case).seen
    assert (seen.died, seen.came) == (1, 1)
    assert run_with(STRATEGIES["torus"], case=case).seen.died == 1


def test_only_what_a_strategy_promises_is_watched():
    def kinds(strategy: Strategy, **options: Any) -> set[type]:
        return {type(checker) for checker in Checkers(strategy, **options).checkers}

    assert Conservation in kinds(gossip()) and Conservation not in kinds(torus())
    assert {Lead, Staleness, ReadsComplete} <= kinds(ssp(bound=2)) & kinds(essp(bound=2))
    assert not {Lead, Staleness, ReadsComplete} & kinds(ssp(bound=float("inf")))
    assert ReachKept in kinds(vap(limit=0.1)) and ReachKept not in kinds(vap(limit=float("inf")))
    assert Staleness in kinds(dpsgd()) and Lead not in kinds(dpsgd())
    assert FiniteWeights not in kinds(gossip(), finite=False)
    assert len(Checkers(gossip()).promises) == len(Checkers(gossip()).checkers)
