"""Worlds in memory whose letters arrive, and whose programs go on, in a random order that a seed decides."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from random import Random

import torch

from fast.collectives.performing import Performer
from fast.core.world import Link, Need, World

LINK = Link(50e-6, 1.25e9)
HEADER_BYTES = 256


class Yield:
    def __await__(self):
        yield self


@dataclass(frozen=True)
class Sent:
    sender: int
    to: int
    numel: int
    nbytes: int
    is_entry: bool
    """Whether it is a member's first word in a round: that it is there."""


class Switch:
    """Carries letters between the worlds; in order per pair, and in no order else."""

    def __init__(self, size, seed=0):
        self.random = Random(seed)
        self.flying = defaultdict(deque)
        self.departed = set()
        self.sent = []
        self.worlds = [SwitchWorld(id, self) for id in range(size)]

    def letters_of(self, sender):
        return [each for each in self.sent if each.sender == sender]

    def run(self, programs):
        """Drive these programs, by id, until all have ended; whoever has ended has left. Gives their results."""
        running, waits, results = dict(programs), {}, {}
        while running:
            ready = [id for id in running if id not in waits or waits[id]()]
            links = [link for link, letters in self.flying.items() if letters]
            assert ready or links, f"nobody can go on: {sorted(running)} wait for ever"
            pick = self.random.choice([*ready, *links])
            if isinstance(pick, tuple):
                self.worlds[pick[1]].arrive(self.flying[pick].popleft())
                continue
            try:
                waits[pick] = running[pick].send(None).ready
            except StopIteration as stop:
                results[pick] = stop.value
                del running[pick]
                self.worlds[pick].check_untouched()
                self.departed.add(pick)
        return results

    def check_read(self, members):
        """Nothing was sent to these that they have not read."""
        assert not [link for link, letters in self.flying.items() if letters and link[1] in members]
        assert not [id for id in members if self.worlds[id].waiting()]


class Wait(Yield):
    def __init__(self, ready):
        self.ready = ready


class SwitchWorld(World):
    """Only the verbs that a round may use; all others fail."""

    def __init__(self, id, switch):
        self.id, self.switch, self.link = id, switch, LINK
        self.boxes = defaultdict(deque)
        self.taken = {}

    def departures(self):
        return dict.fromkeys(self.switch.departed, 0)

    def send(self, to, letter):
        assert letter.sender == self.id and self.id not in to
        for peer in to:
            nbytes = letter.tensor.numel() * letter.tensor.element_size() + HEADER_BYTES
            self.switch.sent.append(
                Sent(
                    self.id,
                    peer,
                    letter.tensor.numel(),
                    nbytes,
                    bool(letter.note) and not letter.tensor.numel(),
                )
            )
            if peer not in self.switch.departed:
                self.switch.flying[self.id, peer].append(replace(letter, tensor=letter.tensor.clone()))

    def arrive(self, letter):
        self.boxes[letter.tag, letter.sender].append(letter)

    def take_one(self, tag, sender):
        """The letter before it is overwritten, as a transport may do; nobody may have written into it."""
        box = self.boxes[tag, sender]
        if not box:
            return None
        if (tag, sender) in self.taken:
            tensor, copy = self.taken.pop((tag, sender))
            assert bits(tensor) == bits(copy), "a letter was written into"
            tensor.view(torch.uint8).fill_(0xFF)
        letter = box.popleft()
        self.taken[tag, sender] = letter.tensor, letter.tensor.clone()
        return letter

    def check_untouched(self):
        assert all(bits(tensor) == bits(copy) for tensor, copy in self.taken.values())

    def waiting(self):
        return sum(map(len, self.boxes.values()))

    def ready(self, tag, peers, need):
        assert need is Need.ALL
        return all(self.boxes[tag, peer] or self.is_gone(peer) for peer in peers)

    def is_gone(self, peer):
        return peer in self.switch.departed and not self.switch.flying[peer, self.id]

    async def block(self, tag, peers, need):
        while not self.ready(tag, peers, need):
            await Wait(lambda: self.ready(tag, peers, need))


def _unused(self, *args, **kwargs):
    raise AssertionError("a round uses send, wait, take_one and departures only")


for _name in World.__abstractmethods__ & SwitchWorld.__abstractmethods__:
    setattr(SwitchWorld, _name, _unused)
SwitchWorld.__abstractmethods__ = frozenset()


def bits(tensor):
    return (tensor.dtype, tensor.shape, tensor.contiguous().view(torch.uint8).numpy().tobytes())


def perform_all(rounds, seed=0, gone=(), late=()):
    """One round with these members' parts, by id. Gives their reductions.

    Those in `gone` have left before; those in `late` leave at some time during it, without coming.
    """
    switch = Switch(max([*rounds, *gone, *late]) + 1, seed)
    switch.departed.update(gone)
    programs = {id: Performer(switch.worlds[id]).perform(round_) for id, round_ in rounds.items()}
    found = switch.run({**programs, **{id: leave() for id in late}})
    switch.check_read(tuple(rounds))
    for id in rounds:
        assert found[id].nbytes == sum(each.nbytes for each in switch.letters_of(id))
    return {id: found[id] for id in rounds}, switch


async def leave():
    """A worker whose loop has ended, a while before anybody notices."""
    for _ in range(3):
        await Wait(lambda: True)


def normal(shape, dtype, *seed):
    """Values whose sums depend on the order of their terms, in floating point."""
    generator = torch.Generator().manual_seed(hash(seed) % (1 << 31))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(
        -50, 50, tuple(shape) if not isinstance(shape, int) else (shape,), generator=generator
    ).to(dtype)
