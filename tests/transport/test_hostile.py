"""A participant that writes anything into its own shared memory, and two honest ones who don't notice."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch

from fast.core import Letter
from fast.core.framing import header_of
from fast.errors import WireError
from fast.transport import Phase, ShmTransport, create_arenas
from fast.transport.arena import PAGE, Arena
from fast.transport.control import RING, Window, control_bytes
from fast.wire import HEADER_LIMIT_BYTES, encode_header

HONEST, OTHER, HOSTILE = 0, 1, 2
WORDS = (0, 1, 2, 8, 63, 64, 65, 255, 256, 4095, 4096, 8192, 2**16, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
"""What a lie is likely to look like."""


class Three:
    """Two honest participants and a hostile one, in one process."""

    def __init__(self) -> None:
        self.fds = create_arenas(3)
        self.honest, self.other, self.hostile = (ShmTransport(id, self.fds) for id in range(3))

    @property
    def mine(self):
        """The hostile one's control block, as itself sees it."""
        return self.hostile._mine

    def forge(self, frame: bytes, *, nbytes: int | None = None, header_bytes: int | None = None) -> int:
        """A slot of the hostile one with these bytes in it; the payload is behind the room for headers."""
        header, payload = frame[:HEADER_LIMIT_BYTES], frame[HEADER_LIMIT_BYTES:]
        offset, memory = self.hostile._arena.allocate(HEADER_LIMIT_BYTES + len(payload))
        memory[: len(frame)] = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        length = len(header.rstrip(b"\0")) if header_bytes is None else header_bytes
        self.describe(offset, -(-length // 256) * 256, len(payload) if nbytes is None else nbytes)
        return offset

    def describe(self, offset: int, header_bytes: int, nbytes: int) -> None:
        number = self.mine.posted(HONEST) + 1
        self.mine.set_descriptor(HONEST, number, offset, header_bytes, nbytes)
        self.mine.set_posted(HONEST, number)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def three() -> Iterator[Three]:
    three = Three()
    yield three
    three.close()


def letter(sender: int, value: float, size: int = 3) -> Letter:
    return Letter(sender, "test", torch.full((size,), value), steps=(0,))


def sound(sender: int = HOSTILE, **fields: object) -> bytes:
    """Twelve bytes of payload and a header that fits them, with some fields changed."""
    header = msgspec.structs.replace(header_of(letter(sender, 1.0)), **fields)
    return encode_header(header).ljust(HEADER_LIMIT_BYTES, b"\0") + bytes(12)


def exchange(three: Three, number: int, *, both: bool = True) -> None:
    """The honest ones write to each other, and read what they wrote."""
    size = 1 + number % 50
    assert three.honest.post([OTHER], letter(HONEST, number, size), 4) == ()
    assert not both or three.other.post([HONEST], letter(OTHER, -number, size), 4) == ()
    for end, sender, value in ((three.other, HONEST, number), (three.honest, OTHER, -number)):
        arrived = end.arrivals()
        found = [each for each in arrived if each.sender == sender]
        if both or sender == HONEST:
            assert [each.tensor.tolist() for each in found] == [[value] * size]
        assert all(each.sender == HOSTILE for each in arrived if each not in found)
        end.release(arrived)


# One lie


Lie = Callable[[Three], object]
LIES: dict[str, tuple[Lie, str]] = {
    "a flipped bit": (lambda t: t.forge(sound()[:40] + bytes([sound()[40] ^ 1]) + sound()[41:]), "checksum"),
    "not ours": (lambda t: t.forge(b"GET " + sound()[4:]), "it isn't ours"),
    "zeros": (lambda t: t.forge(bytes(5000), header_bytes=256), "it isn't ours"),
    "another's name": (lambda t: t.forge(sound(OTHER)), "says it is from 1"),
    "no header": (lambda t: t.describe(t.forge(sound()), 0, 12), "a header of 0 bytes"),
    "long header": (lambda t: t.describe(t.forge(sound()), 4352, 12), "a header of 4352 bytes"),
    "endless header": (lambda t: t.describe(t.forge(sound()), 2**64 - 1, 12), "a header of"),
    "half a header": (lambda t: t.describe(t.forge(sound()), 20, 12), "announces 256 bytes and has 20"),
    "more payload": (lambda t: t.forge(sound(), nbytes=16), "announces 12 bytes and brings 16"),
    "less payload": (lambda t: t.forge(sound(), nbytes=8), "announces 12 bytes and brings 8"),
    "ten gigabytes": (lambda t: t.forge(sound(), nbytes=10 * 2**30), "10737422336 bytes lie at"),
    "all the bytes there are": (lambda t: t.forge(sound(), nbytes=2**64 - 1), "bytes lie at"),
    "one page too many": (lambda t: t.forge(sound(), nbytes=PAGE), "8192 bytes lie at|brings 4096"),
    "outside": (lambda t: t.describe(2**40, 256, 12), "lie at 1099511627776 of its shared memory"),
    "far outside": (lambda t: t.describe(2**64 - PAGE, 256, 12), "of its shared memory"),
    "between pages": (lambda t: t.describe(t.forge(sound()) + 8, 256, 12), "of its shared memory"),
    "its control block": (lambda t: t.describe(0, 256, 12), "it isn't ours"),
}


@pytest.mark.parametrize(("lie", "why"), LIES.values(), ids=LIES)
def test_a_lie_is_refused_and_nobody_else_notices(three: Three, lie: Lie, why: str) -> None:
    """Letters that came before and after it, from its sender and from others, are all there."""
    three.other.post([HONEST], letter(OTHER, 1.0), 9)
    three.hostile.post([HONEST], letter(HOSTILE, 2.0), 9)
    before = three.mine.posted(HONEST)
    lie(three)
    lies = range(before + 1, three.mine.posted(HONEST) + 1)
    three.hostile.post([HONEST], letter(HOSTILE, 3.0), 9)
    three.other.post([HONEST], letter(OTHER, 4.0), 9)
    arrived = three.honest.arrivals()
    fine = [(x.sender, float(x.tensor[0])) for x in arrived if x.tensor.tolist() != [0.0] * 3]
    assert fine == [(OTHER, 1.0), (OTHER, 4.0), (HOSTILE, 2.0), (HOSTILE, 3.0)]
    refusals = three.honest.refusals()
    assert [peer for peer, _ in refusals] == [HOSTILE]
    with pytest.raises(WireError, match=f"letter {lies[-1]} of participant 2 is refused: .*({why})"):
        raise refusals[0][1]
    assert three.honest.refusals() == [], "each is told once"
    assert three.honest._mine.released(HOSTILE, lies[-1]), "a letter that was refused counts as released"
    assert three.other.refusals() == []
    exchange(three, 5)


@pytest.mark.parametrize("steps", [-1, -3, RING + 1, 1000, 2**64 - 4])
def test_a_counter_that_is_wrong_ends_it(three: Three, steps: int) -> None:
    """Nobody knows any more what its next letter would be; it takes no time to say so."""
    for _ in range(3):
        three.hostile.post([HONEST], letter(HOSTILE, 1.0), 9)
    assert len(three.honest.arrivals()) == 3
    three.mine.set_posted(HONEST, (3 + steps) % 2**64)
    assert three.honest.arrivals() == []
    ((peer, error),) = three.honest.refusals()
    assert peer == HOSTILE
    assert f"participant 2 says that it has posted {(3 + steps) % 2**64} letters" in str(error)
    three.mine.set_posted(HONEST, 3)
    three.hostile.post([HONEST], letter(HOSTILE, 1.0), 9)
    assert three.honest.arrivals() == three.honest.refusals() == []
    exchange(three, 5)


def test_letters_that_nobody_has_released_are_not_overwritten(three: Three) -> None:
    """However many are posted over them, no more than a ring of them is ever held."""
    for number in range(3 * RING):
        three.forge(sound())
        arrived = three.honest.arrivals()
        assert len(arrived) == (1 if number < RING else 0)
    assert len(three.honest._incoming._tickets) == RING
    ((peer, error),) = three.honest.refusals()
    assert peer == HOSTILE and "has posted letter 65 over one that is still read" in str(error)


@pytest.mark.parametrize("word", [6, 7, 2**31, 2**32 - 1])
def test_a_phase_that_does_not_exist(three: Three, word: int) -> None:
    three.mine.words32[1] = word
    assert three.honest.phase(HOSTILE) == three.honest.status(HOSTILE).phase == Phase.LEFT
    assert three.honest.phase(HOSTILE) == Phase.LEFT
    ((peer, error),) = three.honest.refusals()
    assert peer == HOSTILE and "participant 2 is in a phase that doesn't exist" in str(error)


def test_a_text_that_is_longer_than_its_place(three: Three) -> None:
    three.hostile.set_waits("x" * 1000)
    three.mine.words64[4] = 0xFFFF
    assert three.honest.status(HOSTILE).waits == "x" * 240
    three.mine._bytes[64:68] = b"\xff\xfe\xfd\xfc"
    assert three.honest.status(HOSTILE).waits.startswith("\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Window(2**40, 1, (3,)), "lie at 1099511627776"),
        (Window(2**64 - 8, 1, (3,)), "of its shared memory"),
        (Window(PAGE, 1, (10 * 2**30,)), "of its shared memory"),
        (Window(PAGE + 2, 1, (3,)), "a place where none can lie"),
        (Window(PAGE, 60_000, (3,)), "'unknown' is not one of those that travel"),
        (Window(PAGE, 1, (2**63, 2**63)), "no memory has room"),
        (Window(PAGE, 1, (0, 2**62, 2**62)), "no memory has room"),
        (Window(PAGE, 1, (2**64 - 1,) * 32), "no memory has room"),
    ],
)
def test_windows_into_nowhere(three: Three, entry: Window, why: str) -> None:
    three.hostile.publish("fine", torch.ones(3))
    three.mine.set_window(5, "w", entry, three.hostile._fence)
    with pytest.raises(WireError, match=rf"participant 2 .*{why}"):
        three.honest.peek(HOSTILE, "w")
    assert three.honest.peek(HOSTILE, "fine").tolist() == [1, 1, 1]


def test_a_window_that_is_always_being_written(three: Three) -> None:
    three.hostile.publish("w", torch.ones(3))
    three.mine.words64[(three.mine._windows + 40) // 8] = 0
    assert three.honest.peek(HOSTILE, "w") is None


# The file behind it


def test_nobody_can_take_shared_memory_away_from_those_who_read_it(three: Three) -> None:
    three.hostile.post([HONEST], letter(HOSTILE, 2.0, 100_000), 9)
    (arrived,) = three.honest.arrivals()
    for size in (0, PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(three.fds[HOSTILE], size)
    assert float(arrived.tensor.sum()) == 200_000


def test_a_place_is_checked_against_the_file_before_it_is_mapped() -> None:
    fd = create_arenas(1)[0]
    try:
        arena = Arena(fd, owner=7)
        size = os.fstat(fd).st_size
        assert len(arena.map(size - PAGE, PAGE)) == PAGE
        assert arena.read(size - 3, 3).numel() == 3
        for offset, nbytes in ((size, 1), (size - PAGE, PAGE + 1), (1, 1), (0, size + 1), (2**63, 2**63)):
            with pytest.raises(WireError, match="participant 7"):
                arena.map(offset, nbytes)
        with pytest.raises(WireError, match="participant 7"):
            arena.read(size - 3, 4)
        os.ftruncate(fd, size + 100)  # a file that doesn't end with a page
        assert bytes(arena.map(size, 100)) == bytes(100)
        with pytest.raises(WireError):
            arena.map(size, 101)
    finally:
        os.close(fd)


def mappings(fd: int) -> int:
    """How many there are of this file in this process."""
    status = os.fstat(fd)
    with open("/proc/self/maps") as maps:
        return sum(line.split()[4] == str(status.st_ino) and "memfd" in line for line in maps)


def test_however_many_places_are_named_mappings_stay_few(three: Three) -> None:
    """Also if the places are all over a file that is larger each time."""
    frame = sound()
    before = len(os.listdir("/proc/self/fd")), mappings(three.fds[HOSTILE])
    for _ in range(1500):
        size = os.fstat(three.fds[HOSTILE]).st_size
        os.ftruncate(three.fds[HOSTILE], size + 2**20)
        three.describe(size, 256, 12)
        three.forge(frame)
        (arrived,) = three.honest.arrivals()
        three.honest.release([arrived])
    after = len(os.listdir("/proc/self/fd")), mappings(three.fds[HOSTILE])
    assert after[0] == before[0] and after[1] - before[1] < 20
    exchange(three, 5)


def test_a_file_that_is_larger_than_all_there_is_can_still_be_read(three: Three) -> None:
    """A file can say that it has more bytes than anybody can map; only those that are needed are."""
    three.hostile.post([HONEST], letter(HOSTILE, 1.0), 9)
    os.ftruncate(three.fds[HOSTILE], 2**62)
    three.hostile.post([HONEST], letter(HOSTILE, 2.0), 9)
    three.describe(2**61, 256, 12)
    assert [float(x.tensor[0]) for x in three.honest.arrivals()] == [1.0, 2.0]
    ((peer, error),) = three.honest.refusals()
    assert peer == HOSTILE and "can't be mapped" in str(error)
    exchange(three, 5)


def test_the_owner_knows_its_own_places_however_its_memory_grew() -> None:
    fd = create_arenas(1)[0]
    try:
        owner, reader = Arena(fd), Arena(fd)
        places = [owner.allocate(8) for _ in range(1100)]
        for number, (_, memory) in enumerate(places):
            memory.view(torch.int64).fill_(number)
        found = [int(reader.read(offset, 8).view(torch.int64)) for offset, _ in places]
        assert found == list(range(1100))
        assert [owner.where(memory) for _, memory in places] == [offset for offset, _ in places]
        assert owner.where(reader.read(places[5][0], 8)) is None, "that is another's view of it"
        assert owner.where(torch.zeros(8)) is None
    finally:
        os.close(fd)


# Anything, anywhere


def scribble(three: Three, dice: random.Random, *, counters: bool) -> None:
    """One thing that a hostile participant may do to its own memory."""
    mine, block = three.mine, control_bytes(3)
    posted_at, released_at = 512 // 8, (512 + 24 + 3 * RING * 32) // 8
    match dice.randrange(6 if counters else 4):
        case 0:  # a frame with something wrong in it, or a sound one
            frame = bytearray(sound(dice.choice((HOSTILE, OTHER))))
            for _ in range(dice.randrange(4)):
                frame[dice.randrange(300)] ^= 1 << dice.randrange(8)
            three.forge(bytes(frame), nbytes=dice.choice((None, None, *WORDS)))
        case 1:  # a descriptor of anything
            place = dice.choice((*WORDS, dice.randrange(2**20) * PAGE))
            three.describe(place, dice.choice((256, *WORDS)), dice.choice((12, *WORDS)))
        case 2:  # more memory, or less
            try:
                os.ftruncate(three.fds[HOSTILE], dice.choice((0, PAGE, dice.randrange(2**30))))
            except PermissionError:
                assert os.fstat(three.fds[HOSTILE]).st_size >= block
        case 3:  # any word behind the counters: descriptors, releases, windows, groups
            mine.words64[dice.randrange(posted_at + 3, block // 8)] = dice.choice(WORDS)
        case 4:  # any word, also the counters and the phase
            mine.words64[dice.randrange(released_at)] = dice.choice(WORDS)
        case 5:  # any bytes
            start = dice.randrange(block - 64)
            mine._bytes[start : start + 64] = dice.randbytes(64)


def look_around(end: ShmTransport) -> None:
    """What the runtime looks at, again and again."""
    assert end.phase(HOSTILE) in Phase
    end.status(HOSTILE)
    with contextlib.suppress(WireError):
        seen = end.peek(HOSTILE, "weights")
        assert seen is None or seen.numel() * seen.element_size() <= os.fstat(end._arenas[HOSTILE].fd).st_size
    assert {peer for peer, _ in end.refusals()} <= {HOSTILE}


def scribbles(seed: int, rounds: int) -> None:
    dice, three = random.Random(seed), Three()
    try:
        three.hostile.publish("weights", torch.ones(100))
        for number in range(rounds):
            for _ in range(dice.randrange(4)):
                try:
                    scribble(three, dice, counters=seed % 2 == 1)
                except (ValueError, OSError):  # its own counters may be too large for it to go on
                    break
            exchange(three, number)
            look_around(three.honest)
            look_around(three.other)
    finally:
        three.close()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_it_scribbles_the_others_do_not_notice(seed: int) -> None:
    scribbles(seed, 60)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_whatever_it_scribbles_the_others_do_not_notice_in_a_thousand_lives() -> None:
    for seed in range(1000):
        try:
            scribbles(seed, 60)
        except BaseException:
            print(f"replay: scribbles({seed}, 60)")
            raise


@pytest.mark.parametrize("seed", [0, 1])
def test_it_scribbles_while_they_read(seed: int, three: Three) -> None:
    """At the same time, not in turns: what was checked may change before it is used."""
    dice, done = random.Random(seed), threading.Event()
    three.hostile.publish("weights", torch.ones(100))

    def keep_scribbling() -> None:
        while not done.is_set():
            try:
                scribble(three, dice, counters=seed == 1)
            except (ValueError, OSError):
                three.mine.set_posted(HONEST, 0)

    scribbling = threading.Thread(target=keep_scribbling)
    scribbling.start()
    try:
        for number in range(300):
            exchange(three, number)
            look_around(three.honest)
    finally:
        done.set()
        scribbling.join()


PROCESS = """
import mmap, random, sys
fd, block, seed, posted = (int(each) for each in sys.argv[1:])
memory = memoryview(mmap.mmap(fd, block)).cast("Q")
dice, words = random.Random(seed), (0, 1, 63, 64, 256, 4096, 2**31, 2**32, 2**63, 2**64 - 1)
sys.stdin.close()
for number in range(400_000):
    place = dice.randrange(posted + 3, len(memory)) if seed % 2 == 0 else dice.randrange(len(memory))
    memory[place] = dice.choice(words) if number % 2 else dice.getrandbits(64)
    if seed % 2 == 0 and number % 50 == 0:
        memory[posted] = number // 50
"""
"""A participant of its own that knows the layout of its memory and nothing else."""


@pytest.mark.real
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hostile_process_scribbles_while_they_read(seed: int, three: Three) -> None:
    """In parallel, word by word: also between two reads of the same function."""
    arguments = [three.fds[HOSTILE], control_bytes(3) // PAGE * PAGE, seed, 512 // 8]
    command = [sys.executable, "-c", PROCESS, *map(str, arguments)]
    with subprocess.Popen(command, pass_fds=[three.fds[HOSTILE]], stdin=subprocess.PIPE) as process:
        number = 0
        while process.poll() is None:
            exchange(three, number)
            look_around(three.honest)
            number += 1
        assert process.returncode == 0 and number > 10
