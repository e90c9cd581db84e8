"""The real world's letters and waits, over the transport of one process."""

from __future__ import annotations

import pytest
import torch

from fast.adapters import TorchReplica
from fast.core import GRADIENT, Letter, Me, Need, Strategy, Tag, drive, fold_newest, fold_sum
from fast.core.world import Round
from fast.errors import MailboxFull, UsageError, WireError
from fast.parts import Full, Ring
from fast.runtime import RealWorld
from fast.testing.reducing import together
from fast.trace import Dropped, Waited
from fast.transport import MemoryHub, MemoryTransport, Phase
from fast.view import View

TAGS = (
    Tag("sum", carries=GRADIENT, fold=fold_sum),
    Tag("newest", fold=fold_newest),
    Tag("each", capacity=5),
)


@pytest.fixture
def worlds():
    """Three participants; `records` of each collects what it reports."""
    hub, view = MemoryHub(3), View(0, (0, 1, 2))
    made = []
    for id in range(3):
        records = []
        world = RealWorld(
            MemoryTransport(id, hub), view, TAGS, seed=3, deadline_s=60.0, observers=[records.append]
        )
        world.records = records
        made.append(world)
    yield made
    for world in made:
        world.close()


def letter(sender, tag, value, step=0):
    return Letter(sender, tag, torch.tensor([float(value)]), steps=(step,))


def test_letters_of_several_senders_come_in_order_of_their_ids(worlds):
    worlds[2].send((0,), letter(2, "each", 20))
    for number in range(3):
        worlds[1].send((0,), letter(1, "each", 10 + number))
    assert [x.tensor.item() for x in worlds[0].take("each", None)] == [10, 11, 12, 20]
    assert worlds[0].take("each", None) == []


def test_a_sender_never_waits_and_nothing_is_lost_where_gradients_add_up(worlds):
    """Only two letters of a folding tag wait at the receiver; all others fold before they are sent."""
    sender, receiver = worlds[0], worlds[1]
    for number in range(100):
        sender.send((1,), letter(0, "sum", number, step=number))
    assert len(sender.unsent) == 1
    steps, total = [], 0.0
    while True:
        for got in receiver.take("sum", None):
            steps += got.steps
            total += got.tensor.item()
        receiver.turn_ended()
        if not sender.unsent and not receiver.unread():
            break
    assert steps == list(range(100))
    assert total == sum(range(100))


def test_of_weights_the_newest_remains(worlds):
    for number in range(10):
        worlds[0].send((1,), letter(0, "newest", number, step=number))
    for _ in range(3):
        found = worlds[1].take("newest", None)
        worlds[1].turn_ended()
        assert not worlds[0].unsent or found
        if found and found[-1].tensor.item() == 9:
            return
    pytest.fail("the newest letter didn't arrive")


def test_values_count_as_of_the_send_also_where_letters_had_to_wait(worlds):
    tensor = torch.zeros(1)
    for number in range(5):
        tensor.fill_(number)
        worlds[0].send((1,), Letter(0, "each", tensor, steps=(0,)))
    tensor.fill_(-1)
    got = []
    while worlds[0].unsent or worlds[1].unread():
        got += [x.tensor.item() for x in worlds[1].take("each", None)]
        worlds[1].turn_ended()
    assert got == [0, 1, 2, 3, 4]


def test_letters_that_neither_fold_nor_are_read_are_refused_in_the_end(worlds):
    for number in range(5 + 5):  # as many wait there, and as many here
        worlds[0].send((1,), letter(0, "each", number))
    with pytest.raises(MailboxFull, match="Read them, or declare"):
        worlds[0].send((1,), letter(0, "each", 10))


def test_a_letter_to_one_who_left_is_reported_as_dropped(worlds):
    worlds[1].transport.set_phase(Phase.DONE)
    worlds[0].send((1, 2), letter(0, "each", 1))
    (dropped,) = [r for r in worlds[0].records if isinstance(r, Dropped)]
    assert (dropped.sender, dropped.to, dropped.tag) == (0, 1, "each")
    assert len(worlds[2].take("each", None)) == 1


def test_letters_that_waited_for_room_are_dropped_when_the_receiver_leaves(worlds):
    for number in range(4):
        worlds[0].send((1,), letter(0, "sum", number))
    assert len(worlds[0].unsent) == 1
    worlds[1].transport.set_phase(Phase.DONE)
    assert len(worlds[0].unsent) == 1, "it was sent before, and its receiver still waits for the last letters"
    worlds[1].transport.set_phase(Phase.LEFT)
    assert not worlds[0].unsent
    assert any(isinstance(r, Dropped) for r in worlds[0].records)


def test_a_letter_to_one_who_has_taken_its_last_step_arrives_where_it_listens():
    hub, view, records = MemoryHub(3), View(0, (0, 1, 2)), []
    sender, receiver, _ = ends = [
        RealWorld(MemoryTransport(id, hub), view, TAGS, observers=[records.append], listens=True)
        for id in range(3)
    ]
    assert sender.listening() == ()
    receiver.transport.set_phase(Phase.DONE)
    assert sender.listening() == (1,) and sender.departures() == {1: 0}
    for number in range(20):
        sender.send((1,), letter(0, "sum", number, step=number))
        receiver.pump()  # as it does while it waits for the others
    assert not sender.unsent, "there was room all the time"
    (found,) = receiver.take("sum", None)
    assert (found.count, found.tensor.item()) == (20, sum(range(20)))
    assert not [record for record in records if isinstance(record, Dropped)]
    receiver.transport.set_phase(Phase.LEFT)
    assert sender.listening() == ()
    sender.send((1,), letter(0, "sum", 1))
    assert [record.why for record in records if isinstance(record, Dropped)] == ["the receiver has left"]
    for world in ends:
        world.close()


def test_what_nobody_reads_is_reported_as_dropped(worlds):
    for number in range(3):
        worlds[0].send((1,), letter(0, "sum", number, step=number))
        worlds[1].pump()
    worlds[2].send((1,), letter(2, "each", 1))
    worlds[1].drop_unread()
    found = [(r.sender, r.to, r.tag, r.steps, r.letters) for r in worlds[1].records if isinstance(r, Dropped)]
    assert found == [(0, 1, "sum", (0, 1, 2), 3), (2, 1, "each", (0,), 1)]


class Updates(Strategy):
    async def step(self, me):
        pass

    async def end(self, me):
        pass


@pytest.mark.parametrize("topology", [None, Full(), Ring()], ids=repr)
def test_receivers_are_named_once_also_if_one_finishes_in_the_middle_of_a_turn(topology):
    """Before the view changes it is a peer, and listens already."""
    strategy, hub, view = Updates(), MemoryHub(3), View(0, (0, 1, 2))
    strategy.topology = topology
    worlds = [RealWorld(MemoryTransport(id, hub), view, (), listens=strategy.listens) for id in range(3)]
    model = torch.nn.Linear(1, 1)
    me = Me(worlds[0], TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1)), strategy)
    assert me.receivers == (1, 2)
    worlds[1].transport.set_phase(Phase.DONE)
    me.open_turn("step")
    assert (me.peers, me.receivers) == ((2,), (2, 1))
    worlds[2].transport.set_phase(Phase.DONE)
    assert (me.peers, me.receivers) == ((2,), (2, 1))
    worlds[1].transport.set_phase(Phase.LEFT)
    assert (me.peers, me.receivers) == ((2,), (2,))
    me.open_turn("step")
    assert (me.peers, me.receivers) == ((), (2,))
    for world in worlds:
        world.close()


def test_departures_say_after_how_many_steps(worlds):
    assert worlds[0].departures() == {}
    worlds[2].transport.set_progress(4, 40)
    worlds[2].transport.set_phase(Phase.DONE)
    assert worlds[0].departures() == {2: 4}
    assert worlds[2].departures() == {}, "nobody is told about itself"


def test_what_was_sent_before_leaving_is_still_read(worlds):
    worlds[1].send((0,), letter(1, "each", 5))
    worlds[1].transport.set_phase(Phase.DONE)
    drive(worlds[0].wait("each", (1,), Need.ALL))
    assert worlds[0].take_one("each", 1).tensor.item() == 5
    drive(worlds[0].wait("each", (1,), Need.ALL))
    assert worlds[0].take_one("each", 1) is None


def test_a_wait_for_all_ends_with_the_last_letter_and_is_reported(worlds):
    def answer():
        for sender in (1, 2):
            worlds[sender].send((0,), letter(sender, "each", sender))

    together([lambda: drive(worlds[0].wait("each", (1, 2), Need.ALL)), answer])
    assert [x.sender for x in worlds[0].take("each", None)] == [1, 2]
    waited = [r for r in worlds[0].records if isinstance(r, Waited)]
    assert all(r.why == "each" and set(r.on) <= {1, 2} for r in waited)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_wait_for_news_ends_with_any_letter_or_departure(worlds, leaves):
    def act():
        if leaves:
            worlds[2].transport.set_phase(Phase.DONE)
        else:
            worlds[2].send((0,), letter(2, "each", 1))

    together([lambda: drive(worlds[0].wait("each", (1, 2), Need.ANY)), act])


def test_a_doze_ends_with_the_letter_that_overtakes_or_with_its_time(worlds):
    began_ns = worlds[0].now()
    worlds[0].doze(0.02, "weights")
    assert worlds[0].now() - began_ns >= 20_000_000
    worlds[1].send((0,), letter(1, "other", 1.0))
    worlds[0].doze(0.001, "weights")  # another letter doesn't end it
    together(
        [lambda: worlds[0].doze(600.0, "weights"), lambda: worlds[1].send((0,), letter(1, "weights", 2.0))]
    )
    assert [float(each.tensor[0]) for each in worlds[0].take("weights", None)] == [2.0]


def test_the_stream_of_random_numbers_is_the_participants_own(worlds):
    hub = MemoryHub(3)
    again = RealWorld(MemoryTransport(1, hub), View(0, (0, 1, 2)), (), seed=3)
    other = RealWorld(MemoryTransport(1, hub), View(0, (0, 1, 2)), (), seed=4)
    numbers = [[world.draw() for _ in range(5)] for world in (worlds[0], worlds[1], again, other)]
    for world in (again, other):
        world.close()
    assert numbers[1] == numbers[2]
    assert numbers[0] != numbers[1] != numbers[3]


def test_only_members_ask_for_a_mean(worlds):
    with pytest.raises(UsageError, match=r"participant 0 calls mean\(\) among \(1, 2\)"):
        drive(worlds[0].collective(Round(torch.zeros(1), (1, 2))))


def test_one_turn_may_hold_any_number_of_rounds(worlds):
    """Each letter of a round is given back when the next one is taken, not when the turn ends."""

    def total(world):
        sums = [drive(world.collective(Round(torch.full((9,), float(world.id + n)), (0, 1, 2), algorithm="ring")))
                for n in range(100)]  # fmt: skip
        return float(sums[-1].tensor[0])

    assert together([lambda world=world: total(world) for world in worlds]) == [100.0] * 3


def test_what_one_peer_garbles_is_told_to_who_waits_for_it_and_disturbs_nobody_else(worlds):
    """A piece of a letter that fits no flat tensor of ours: refused, recorded, and the others' letters are read."""
    garbled = Letter(1, "sum", torch.zeros(4), steps=(0,), part=(0, 4, 99))
    worlds[1].send((0,), garbled)
    worlds[2].send((0,), Letter(2, "sum", torch.ones(4), steps=(0,)))
    drive(worlds[0].wait("sum", (2,), Need.ALL))
    (letter,) = worlds[0].take("sum", None)
    assert letter.sender == 2
    with pytest.raises(WireError, match="pieces of 99"):
        drive(worlds[0].wait("sum", (1,), Need.ALL))
