"""Every transport passes the kit; and what is special about each."""

from __future__ import annotations

import math
import os
import re
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fast.core import Letter
from fast.core.framing import DTYPES
from fast.core.world import Round
from fast.errors import UsageError
from fast.testing import check_transport
from fast.transport import MemoryHub, MemoryTransport, Phase, ShmTransport, create_arenas
from fast.transport.base import Patience
from fast.transport.control import RING, WINDOWS
from fast.transport.shm_reduce import GROUPS
from fast.wire import HEADER_BYTES


def make_memory(size: int) -> list[MemoryTransport]:
    hub = MemoryHub(size)
    return [MemoryTransport(id, hub) for id in range(size)]


@pytest.fixture
def make_shm():
    """Several ends on the same arenas, in one process; the descriptors are closed at the end."""
    opened = []

    def make(size: int) -> list[ShmTransport]:
        arenas = create_arenas(size)
        opened.extend(arenas)
        return [ShmTransport(id, arenas) for id in range(size)]

    yield make
    for fd in opened:
        os.close(fd)


def reduce(end, tensor, among, weight, present, patience):
    under_way = end.reduce(Round(tensor, among, weight=weight, present=present))
    under_way.finish(patience)
    return under_way.reduction


class NoPatience(Patience):
    def check(self, peers, why):
        raise TimeoutError(f"{why} of {peers}")


class MuchPatience(Patience):
    def check(self, peers, why):
        """Wait on; a test has its own time limit."""


def letter(values, sender=0, **fields):
    return Letter(sender, "test", torch.as_tensor(values), steps=(0,), **fields)


def used_bytes(end):
    """What this participant's shared memory takes, as the system counts it."""
    return os.fstat(end._arena.fd).st_blocks * 512


# The kit


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_memory_passes_the_kit(size):
    check_transport(make_memory, [size])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shared_memory_passes_the_kit(make_shm, size):
    check_transport(make_shm, [size])


@pytest.mark.parametrize(
    ("verb", "why"),
    [
        ("post", "arrived"),
        ("release", "no room"),
        ("set_phase", "phase, steps and samples: found .*STARTING"),
        ("set_progress", "seen by"),
        ("publish", "was published, and 0 doesn't see it"),
        ("window", "not the memory to write into"),
        ("beat", "alive_ns didn't grow"),
    ],
)
def test_the_kit_finds_a_verb_that_does_nothing(verb, why):
    idle = type("Idle", (MemoryTransport,), {verb: lambda self, *_: ()})

    def make(size):
        hub = MemoryHub(size)
        return [idle(id, hub) for id in range(size)]

    with pytest.raises(AssertionError, match=why):
        check_transport(make, [2])


def test_the_kit_finds_letters_that_alias_the_sender():
    class Aliasing(MemoryTransport):
        def post(self, to, letter, limit):
            for peer in to:
                self._hub.queues[peer].append(letter)
            return ()

    def make(size):
        hub = MemoryHub(size)
        return [Aliasing(id, hub) for id in range(size)]

    with pytest.raises(AssertionError, match="the sender changed its tensor"):
        check_transport(make, [2])


def test_the_kit_finds_notes_that_alias_the_sender():
    class Aliasing(MemoryTransport):
        def post(self, to, letter, limit):
            refused = super().post(to, letter, limit)
            for peer in set(to) - set(refused):
                self._hub.queues[peer][-1].note = letter.note
            return refused

    def make(size):
        hub = MemoryHub(size)
        return [Aliasing(id, hub) for id in range(size)]

    with pytest.raises(AssertionError, match="the sender changed its list"):
        check_transport(make, [2])


def test_the_kit_finds_windows_that_stand_still():
    class Copying(MemoryTransport):
        def peek(self, peer, name):
            found = super().peek(peer, name)
            return None if found is None else found.clone()

    def make(size):
        hub = MemoryHub(size)
        return [Copying(id, hub) for id in range(size)]

    with pytest.raises(AssertionError, match="a window after its owner wrote into it"):
        check_transport(make, [2])


def test_the_kit_finds_another_order_of_the_sum(make_shm):
    class Backwards(ShmTransport):
        def reduce(self, round_):
            under_way = super().reduce(round_)
            finish = under_way.finish

            def spoil(patience):
                finish(patience)
                under_way.reduction.tensor.mul_(1 + 1e-7)

            under_way.finish = spoil
            return under_way

    def make(size):
        arenas = create_arenas(size)
        return [Backwards(id, arenas) for id in range(size)]

    with pytest.raises(AssertionError, match="other bits than canonical_mean"):
        check_transport(make, [2])


def test_the_kit_finds_letters_that_are_kept():
    class Keeping(MemoryTransport):
        def release(self, letters):
            self._kept = [*getattr(self, "_kept", ()), *letters]
            super().release(letters)

    def make(size):
        hub = MemoryHub(size)
        return [Keeping(id, hub) for id in range(size)]

    with pytest.raises(AssertionError, match=r"each released, \d+ bytes are still held"):
        check_transport(make, [2])


def test_the_kit_finds_descriptors_that_stay_open():
    opened = []

    class Opening(MemoryTransport):
        def post(self, to, letter, limit):
            opened.append(os.open(os.devnull, os.O_RDONLY))
            return super().post(to, letter, limit)

    def make(size):
        hub = MemoryHub(size)
        return [Opening(id, hub) for id in range(size)]

    try:
        with pytest.raises(AssertionError, match="each released, 300 more descriptors are open"):
            check_transport(make, [2])
    finally:
        for fd in opened:
            os.close(fd)


# Shared memory


def test_a_thousand_letters_need_no_more_memory_than_ten(make_shm):
    sender, *receivers = make_shm(3)

    def send(count):
        for number in range(count):
            assert sender.post([1, 2], letter(torch.full((500,), float(number))), 3) == ()
            for receiver in receivers:
                (arrived,) = receiver.arrivals()
                assert arrived.tensor[0] == number
                receiver.release([arrived])

    send(10)
    size = used_bytes(sender)
    send(1000)
    assert used_bytes(sender) == size


def test_a_letter_to_many_takes_one_slot(make_shm):
    sender, *receivers = make_shm(5)
    size = used_bytes(sender)
    payload = torch.zeros(100_000)
    sender.post([1, 2, 3, 4], letter(payload), 8)
    grown = used_bytes(sender) - size
    assert payload.numel() * 4 <= grown < 1.1 * payload.numel() * 4
    tensors = [receiver.arrivals()[0].tensor for receiver in receivers]
    assert all(tensor.shape == payload.shape for tensor in tensors)


def test_a_slot_is_not_used_again_while_one_receiver_still_reads(make_shm):
    sender, one, two = make_shm(3)
    sender.post([1, 2], letter([1.0]), 4)
    (read,), (kept,) = one.arrivals(), two.arrivals()
    one.release([read])
    sender.post([1], letter([2.0]), 4)
    assert kept.tensor.item() == 1.0
    two.release([kept])
    size = used_bytes(sender)
    sender.post([1], letter([3.0]), 4)
    assert used_bytes(sender) == size


def test_the_ring_of_letters_has_an_end_whatever_the_limit(make_shm):
    sender, receiver = make_shm(2)
    for number in range(RING):
        assert sender.post([1], letter([float(number)]), 10_000) == ()
    assert sender.post([1], letter([0.0]), 10_000) == (1,)
    arrived = receiver.arrivals()
    assert [int(x.tensor) for x in arrived] == list(range(RING))
    receiver.release(arrived)
    assert sender.post([1], letter([0.0]), 10_000) == ()


def test_the_names_of_what_is_published_run_out_with_a_sentence(make_shm):
    (end,) = make_shm(1)
    for number in range(WINDOWS):
        end.publish(f"name {number}", torch.zeros(1))
    with pytest.raises(UsageError, match=f"can't publish 'one more': {WINDOWS} names are taken"):
        end.publish("one more", torch.zeros(1))


def test_notes_that_can_not_travel_are_refused_before_anything_is_sent(make_shm):
    sender, receiver = make_shm(2)
    with pytest.raises(UsageError, match="can't be sent"):
        sender.post([1], letter([1.0], note={"x": object()}), 4)
    assert receiver.arrivals() == []


def test_members_of_a_round_must_bring_the_same(make_shm):
    a, b = make_shm(2)
    for other in (torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float16)):
        found = []

        def join(end, tensor, found=found):
            try:
                reduce(end, tensor, (0, 1), 1.0, None, MuchPatience())
            except UsageError as error:
                found.append(str(error))

        threads = [threading.Thread(target=join, args=args) for args in ((a, torch.zeros(3)), (b, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 2, "both are told"
        assert all(
            "All members of a round bring tensors of the same size and dtype" in text for text in found
        )


def test_a_round_alone_needs_nobody(make_shm):
    ends = make_shm(3)
    found = reduce(ends[1], torch.tensor([3.0]), (1,), 2.0, 5, NoPatience())
    assert (found.tensor.item(), found.members, found.present) == (3.0, (1,), 5)


def test_groups_run_out_with_a_sentence(make_shm):
    ends = make_shm(GROUPS + 2)
    for end in ends[1:]:
        end.set_phase(Phase.DONE)
    for number in range(GROUPS):
        reduce(ends[0], torch.zeros(1), (0, number + 1), 1.0, None, NoPatience())
    with pytest.raises(UsageError, match=f"more than {GROUPS} groups"):
        reduce(ends[0], torch.zeros(1), (0, 1, 2), 1.0, None, NoPatience())


def test_reductions_say_for_whom_they_waited(make_shm):
    a, b = make_shm(2)

    class UntilItLeaves(Patience):
        def check(self, peers, why):
            assert peers == (1,)
            b.set_phase(Phase.DONE)

    reduce(a, torch.zeros(1), (0, 1), 1.0, None, UntilItLeaves())
    waited = a.take_waited_ns()
    assert set(waited) == {1} and waited[1] > 0
    assert a.take_waited_ns() == {}


# What is published in shared memory


def test_what_lies_in_the_arena_is_never_copied_into_a_window(make_shm):
    owner, peer = make_shm(2)
    flat = owner.allocate(1 << 20).view(torch.float32).fill_(1)
    owner.window("weights", flat)
    size = used_bytes(owner)
    for number in range(100):
        assert owner.window("weights", flat) is flat
        owner.window("slice", flat[7 * number : 7 * number + 5])
        flat[7 * number] = number
        assert peer.peek(0, "slice").tolist()[0] == number
    assert used_bytes(owner) == size


def test_what_lies_elsewhere_gets_memory_once(make_shm):
    owner, peer = make_shm(2)
    copy = owner.window("values", torch.zeros(1000))
    size = used_bytes(owner)
    for number in range(100):
        again = owner.window("values", torch.full((1000 - number,), float(number)))
        assert again.data_ptr() == copy.data_ptr()
        assert peer.peek(0, "values").tolist() == [number] * (1000 - number)
    assert used_bytes(owner) == size


def test_a_reader_never_finds_half_an_entry(make_shm):
    """Small and long, in turn, in different places: what is read is one of them as a whole."""
    owner, peer = make_shm(2)
    memory = owner.allocate(1 << 16).view(torch.int64)
    memory[:8], memory[1024:2048] = 1, 2
    owner.window("w", memory[:8])
    done = threading.Event()

    def change():
        for number in range(5000):
            owner.window("w", memory[1024:2048] if number % 2 == 0 else memory[:8])
        done.set()

    changing = threading.Thread(target=change)
    changing.start()
    seen = set()
    while not done.is_set():
        found = peer.peek(0, "w")
        if found is not None:  # on a busy machine the writer may stand still in the middle of an entry
            seen.add((len(found), int(found.min()), int(found.max())))
    changing.join()
    assert peer.peek(0, "w").tolist() == [1] * 8
    assert seen <= {(8, 1, 1), (1024, 2, 2)}


def test_names_that_are_too_long_are_refused(make_shm):
    (end,) = make_shm(1)
    with pytest.raises(UsageError, match="too long a name to publish under; 40 bytes is the limit"):
        end.publish("ü" * 21, torch.zeros(1))
    end.publish("ü" * 20, torch.ones(1))
    assert end.peek(0, "ü" * 20).tolist() == [1]


# Bytes and memory


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1000,)])
def test_the_bytes_of_a_letter_are_its_payload_and_256(make_shm, shape):
    sender, receiver = make_shm(2)
    for dtype in DTYPES.values():
        tensor = torch.zeros(math.prod(shape) * dtype.itemsize, dtype=torch.uint8).view(dtype).view(shape)
        sender.post([1], letter(tensor, note={"share": 0.5}, part=(0, tensor.numel(), 10_000)), 4)
        _, header_bytes, nbytes = sender._mine.descriptor(1, sender._mine.posted(1))
        assert header_bytes + nbytes == HEADER_BYTES + tensor.numel() * tensor.element_size()
        receiver.release(receiver.arrivals())


@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_tags_that_were_used_once_leave_nothing_behind(kind, make_shm):
    sender, receiver = make_memory(2) if kind == "memory" else make_shm(2)
    for number in range(1000):
        assert sender.post([1], Letter(0, f"round {number}", torch.ones(1), steps=(0,)), limit=2) == ()
        receiver.release(receiver.arrivals())
    kept = sender._hub.unread if kind == "memory" else sender._outgoing._unread[1]
    assert len(kept) <= 1


def test_a_tensor_of_any_strides_is_copied_once(make_shm):
    """Straight into its slot: nothing of its size is made on the way."""
    sender, receiver = make_shm(2)
    turned = torch.randn(50, 40).T
    operations = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.numel() == turned.numel():
                operations.append(str(function))
            return result

    with Watching():
        sender.post([1], letter(turned), 4)
    made = [name for name in operations if not re.search(r"view|alias|detach|slice", name)]
    assert made == ["aten.copy_.default"]
    assert torch.equal(receiver.arrivals()[0].tensor, turned)


# Memory


def test_a_heartbeat_loses_nothing_that_is_told_at_the_same_time():
    """The background thread beats while the main thread tells how far it is."""
    (end,) = make_memory(1)
    stop = threading.Event()

    def beat():
        while not stop.is_set():
            end.beat()

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        for step in range(20_000):
            end.set_progress(step, step)
            assert end.status(0).steps == step
            end.set_waits("x")
            assert end.status(0).wait_number == step + 1
    finally:
        stop.set()
        heart.join()


@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_an_unread_letter_is_never_overwritten_however_many_others_pass_it(kind, make_shm):
    sender, receiver = make_memory(2) if kind == "memory" else make_shm(2)
    assert not sender.post([1], Letter(0, "kept", torch.tensor([123.0]), steps=(0,)), limit=64)
    (kept,) = receiver.arrivals()
    for number in range(3 * RING):
        passing = Letter(0, "passing", torch.tensor([float(number)]), steps=(0,))
        if sender.post([1], passing, limit=2):
            break  # refusing is fine; overwriting isn't
        receiver.release(receiver.arrivals())
    assert float(kept.tensor) == 123.0


@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_letters_of_one_tag_leave_room_for_another(kind, make_shm):
    sender, _ = make_memory(2) if kind == "memory" else make_shm(2)
    for _ in range(2):
        assert not sender.post([1], Letter(0, "a", torch.ones(1), steps=(0,)), limit=2)
    assert sender.post([1], Letter(0, "a", torch.ones(1), steps=(0,)), limit=2) == (1,)
    assert not sender.post([1], Letter(0, "b", torch.ones(1), steps=(0,)), limit=2)
