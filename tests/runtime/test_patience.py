"""How long a participant waits: one deadline, and nobody who is alive is given up. The clock is ours."""

from __future__ import annotations

import pytest

from fast.errors import Deadlock, PeerSilent
from fast.runtime import patience
from fast.runtime.patience import Deadline
from fast.transport import MemoryHub, MemoryTransport, Phase

S = 1_000_000_000


class Clock:
    def __init__(self):
        self.now = 1000 * S

    def monotonic_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    monkeypatch.setattr("fast.transport.memory.time", clock)
    return clock


class Case:
    """Three participants of which 0 waits, with a deadline of ten seconds."""

    def __init__(self, clock, deadline_s=10.0):
        hub = MemoryHub(3)
        self.clock, self.said = clock, []
        self.ends = [MemoryTransport(id, hub) for id in range(3)]
        self.deadline = Deadline(self.ends[0], (0, 1, 2), deadline_s, self.said.append)
        for end in self.ends:
            end.set_phase(Phase.READY)
        self.deadline.begin()

    def pass_time(self, seconds, alive=(0, 1, 2)):
        self.clock.now += int(seconds * S)
        for id in alive:
            self.ends[id].beat()


def test_a_peer_without_a_sign_of_life_is_given_up_after_the_deadline(clock):
    case = Case(clock)
    case.ends[2].set_progress(7, 70)
    case.pass_time(9.9, alive=(0, 1))
    case.deadline.check((2,), "letter 'mix'")
    case.pass_time(0.2, alive=(0, 1))
    with pytest.raises(
        PeerSilent, match=r"participant 2 .* 10 s .* 7 steps.* waits for its letter 'mix'"
    ) as found:
        case.deadline.check((1, 2), "letter 'mix'")
    assert found.value.peers == (2,)
    assert found.value.retry


def test_only_those_who_are_waited_for_matter(clock):
    case = Case(clock)
    case.pass_time(100, alive=(0, 1))
    case.deadline.check((1,), "round")


def test_who_has_left_owes_no_sign_of_life(clock):
    case = Case(clock)
    case.ends[2].set_phase(Phase.LEFT)
    case.pass_time(100, alive=(0, 1))
    case.deadline.check((2,), "last step")


def test_who_has_done_its_last_step_still_does(clock):
    """The others wait for its final weights."""
    case = Case(clock)
    case.ends[2].set_phase(Phase.DONE)
    case.pass_time(100, alive=(0, 1))
    with pytest.raises(PeerSilent, match="participant 2"):
        case.deadline.check((2,), "final weights")


def test_a_peer_that_is_alive_is_named_once_per_deadline_and_never_given_up(clock):
    case = Case(clock)
    for _ in range(100):
        case.pass_time(0.35)
        case.deadline.check((1, 2), "round")
    assert len(case.said) == 3
    assert case.said[0] == (
        "participant 0 has waited 10 s for round of 1 (alive, at step 0), 2 (alive, at step 0)"
    )


def test_the_next_wait_starts_from_zero(clock):
    case = Case(clock)
    case.pass_time(9)
    case.deadline.check((1,), "round")
    case.deadline.end()
    case.deadline.begin()
    case.pass_time(9)
    case.deadline.check((1,), "round")
    assert case.said == []


def test_what_is_waited_for_is_told_only_when_it_takes_a_while(clock):
    case = Case(clock)
    case.pass_time(0.01)
    case.deadline.check((1, 2), "round")
    assert case.ends[0].status(0).waits == ""
    case.pass_time(0.5)
    case.deadline.check((1, 2), "round")
    assert case.ends[1].status(0).waits == "round of 1, 2"
    case.deadline.end()
    assert case.ends[1].status(0).waits == ""


def all_wait(case):
    for id, waits in enumerate(("round of 1", "letter 'x' of 2", "letter 'y' of 0")):
        case.ends[id].set_waits(waits)


def check_for(case, seconds, *, looking=(1, 2), why="round", **options):
    """Half a second at a time; the others look as often as the one whose deadline it is."""
    for _ in range(int(seconds / 0.5)):
        case.pass_time(0.5, **options)
        for id in looking:
            case.ends[id].set_looks(case.ends[id].status(id).looks + 1)
        case.deadline.check((1,), why)


def test_a_circle_of_waits_is_a_deadlock_that_names_everybody(clock):
    case = Case(clock)
    all_wait(case)
    with pytest.raises(
        Deadlock, match=r"0 waits for round of 1; 1 waits for letter 'x' of 2; 2 waits for letter 'y' of 0"
    ):
        check_for(case, 9)


@pytest.mark.parametrize(
    ("waits", "who"),
    [
        (("", "round of 0", "round of 0"), "workers 1, 2 did not"),
        (("", "fast.snapshot (policy) of 2", "round of 0"), "worker 2 did not"),
    ],
)
def test_a_snapshot_that_not_all_call_is_named(waits, who, clock):
    case = Case(clock)
    for id, what in enumerate(waits):
        case.ends[id].set_waits(what)
    with pytest.raises(
        Deadlock, match=rf"must be called by all workers at the same step.*; {who}\. Call it outside"
    ):
        check_for(case, 9, why="fast.snapshot (policy)")


def test_it_is_no_deadlock_if_somebody_has_not_looked_again(clock):
    """The machine stood still: who waits may have mail, and has had no time to see it."""
    case = Case(clock)
    all_wait(case)
    check_for(case, 20, looking=(1,))
    with pytest.raises(Deadlock):
        check_for(case, 5)


def test_a_machine_that_stood_still_is_no_deadlock(clock):
    """Two looks with many seconds between them, in which nobody did anything."""
    case = Case(clock)
    all_wait(case)
    check_for(case, 4)
    all_wait(case)
    for _ in range(2):
        case.pass_time(30)
        case.deadline.check((1,), "round")


def test_it_is_no_deadlock_if_one_computes(clock):
    case = Case(clock)
    all_wait(case)
    case.ends[2].set_waits("")
    check_for(case, 9)


def test_it_is_no_deadlock_if_waits_come_and_go(clock):
    case = Case(clock)
    for _ in range(9):
        all_wait(case)
        check_for(case, 2)


def test_it_is_no_deadlock_if_one_has_no_sign_of_life(clock):
    """That one is silent, which is another error with another name."""
    case = Case(clock, deadline_s=60.0)
    all_wait(case)
    check_for(case, 20, alive=(0, 1))


def test_those_who_left_are_not_asked(clock):
    case = Case(clock)
    case.ends[2].set_phase(Phase.LEFT)
    case.ends[0].set_waits("round of 1")
    case.ends[1].set_waits("round of 0")
    with pytest.raises(Deadlock, match="0 waits for round of 1; 1 waits for round of 0") as found:
        check_for(case, 9)
    assert found.value.peers == (0, 1)
