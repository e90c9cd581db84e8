"""`me`: a participant's handle on itself and its world. All that a strategy ever touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fast.core.account import Account
from fast.core.letter import GRADIENT, Letter, Tag, union
from fast.core.world import Need, Reduction, World
from fast.errors import PeerLost, UsageError
from fast.membership import view_now
from fast.trace import Applied, Included, Received, Reduced, Sent
from fast.view import View
from fast.wire import HEADER_BYTES

if TYPE_CHECKING:
    from fast.core.replica import Replica
    from fast.core.strategy import Strategy


@final
class Me:
    """One participant. Worlds make it; a strategy's programs are called with it."""

    def __init__(self, world: World, replica: Replica, strategy: Strategy) -> None:
        self.world = world
        self.replica = replica
        self.strategy = strategy
        self.account = Account(world)
        self.id = world.id
        self.state: Any = None
        self.steps = 0
        self.version = 0
        """On a server: updates applied so far. On a worker: the server's version it last adopted."""
        self.view = world.start_view
        self.ending = False
        """Whether this is the last turn, when nobody is there any more to talk to."""
        self._everybody = frozenset(self.view.workers + self.view.servers)
        self._scratch: dict[str, Tensor] = {}
        self._tags: dict[str, Tag] = {tag.name: tag for tag in strategy.tags}
        self._fresh: list[Letter] = []
        self._reduction: Reduction | None = None
        self._guard: tuple[Tensor, int] | None = None

    # Who I am and who is there

    @property
    def is_server(self) -> bool:
        return self.id in self.world.start_view.servers

    @property
    def workers(self) -> tuple[int, ...]:
        return self.view.workers

    @property
    def servers(self) -> tuple[int, ...]:
        return self.view.servers

    @property
    def index(self) -> int:
        """My place in the view; for topologies only."""
        return self.view.index(self.id)

    @property
    def edges(self) -> Mapping[int, float]:
        """Whom I hear in this round, with the mixing weight of each."""
        if self.strategy.topology is None:
            raise UsageError(f"{self.strategy!r} has no topology, so nobody has neighbours. Set `topology`.")
        return self.strategy.topology.neighbours(self.index, self.view, self.steps)

    @property
    def neighbours(self) -> tuple[int, ...]:
        return tuple(self.edges)

    @property
    def peers(self) -> tuple[int, ...]:
        """All other workers."""
        return tuple(w for w in self.view.workers if w != self.id)

    # What I train

    @property
    def weights(self) -> Tensor:
        return self.replica.weights

    @property
    def gradient(self) -> Tensor:
        return self.replica.gradient

    @property
    def samples(self) -> int:
        """How many samples this step's gradient stands for."""
        return self.replica.samples

    @property
    def rates(self) -> list[float]:
        """The learning rates, one per parameter group."""
        return self.replica.rates

    @property
    def model(self) -> Any:
        """The framework's own model, for programs that compute their gradient themselves."""
        return self.replica.model

    def backward(self, loss: Tensor) -> None:
        """Compute this step's gradient from a loss, for programs that do that themselves."""
        self.replica.backward(loss)
        if self.strategy.computes_gradient:
            self.account.computed_inside()

    def scratch(self, name: str) -> Tensor:
        """A flat tensor to compute in, made once. What is in it doesn't survive the turn."""
        if name not in self._scratch:
            self._scratch[name] = torch.empty_like(self.weights)
        return self._scratch[name]

    def apply(
        self, gradient: Tensor, *, of: Sequence[Letter] | None = None, rates: list[float] | None = None
    ) -> None:
        """The user's optimizer, on this replica, with this gradient.

        `of` names the letters whose updates are inside; left out, it is every gradient that was
        read in this turn. From them come the staleness that is reported and which parameters
        have a gradient at all.
        """
        self._check_guard()
        included = self._fresh if of is None else of
        if self._reduction is not None and gradient is self._reduction.tensor:
            present = self._reduction.present
        else:
            present = None if self.is_server and not included else self._present_with(included)
            if self._reduction is not None:  # the gradient was made of a mean over all of theirs
                present = union(present, self._reduction.present)
        self._report_included(included)
        if of is None:
            self._fresh = []
        self.replica.apply(gradient, present, rates)
        if self.is_server:
            self.version += 1
        if self.world.observed:
            self.world.emit(Applied(self.id, self.world.now(), self.version))

    def _present_with(self, included: Sequence[Letter]) -> int | None:
        present = 0 if self.is_server else self.replica.present
        for letter in included:
            present = union(present, letter.present)
        return present

    # Randomness

    def random(self) -> float:
        return self.world.draw()

    def pick_peer(self, among: Sequence[int] | None = None) -> int:
        """One of the other workers (or of `among`), each as likely as the next."""
        peers = self.peers if among is None else among
        if not peers:
            raise UsageError("there is no other worker to pick; check `me.peers` first")
        return peers[int(self.random() * len(peers))]

    # Letters

    def send(self, to: int | Iterable[int], tensor: Tensor, tag: str, **note: Any) -> None:
        """Send values to one peer or several. Never waits; ordered per pair and tag; as of now."""
        targets = (to,) if isinstance(to, int) else tuple(to)
        if not targets:
            return
        self._check_guard()
        self._check_known(targets)
        carries_gradient = self._carries(tag) == GRADIENT
        letter = Letter(
            sender=self.id,
            tag=tag,
            tensor=tensor,
            steps=(self.steps,),
            view=self.view.number,
            version=self.version,
            weight=float(self.samples) if carries_gradient else 1.0,
            note=note,
            present=self._present_of(tensor) if carries_gradient else None,
        )
        if not self.world.observed:
            self.world.send(targets, letter)
            return
        began_ns = self.world.now()
        self.world.send(targets, letter)
        now = self.world.now()
        nbytes = len(targets) * (HEADER_BYTES + tensor.numel() * tensor.element_size())
        self.world.emit(Sent(self.id, now, targets, tag, nbytes, self.steps, now - began_ns))

    def _check_known(self, peers: tuple[int, ...]) -> None:
        if self.ending:
            raise UsageError(
                f"{self.strategy!r} sends or waits in end(), when everybody has taken its last step and nobody "
                "answers any more. There, read what has arrived with me.letters(tag), and apply it."
            )
        if not self._everybody.issuperset(peers):
            there = self.world.start_view
            raise UsageError(
                f"participant {self.id} addressed peer {min(set(peers) - self._everybody)}, who doesn't exist. There "
                f"are workers {there.workers} and servers {there.servers}; me.peers has the others."
            )

    def _present_of(self, tensor: Tensor) -> int | None:
        if tensor is self.gradient:
            return self.replica.present
        return self._present_with(self._fresh)

    def _carries(self, tag: str) -> str:
        declared = self._tags.get(tag)
        return declared.carries if declared else ""

    def letters(self, tag: str) -> list[Letter]:
        """What has arrived since, ordered by sender. Never waits."""
        return self._read(self.world.take(tag, None))

    async def receive(self, tag: str, from_: int) -> Letter:
        """The next letter of one peer. PeerLost if it can't come any more."""
        self._check_known((from_,))
        await self.world.wait(tag, (from_,), Need.ALL)
        letter = self.world.take_one(tag, from_)
        if letter is None:
            raise PeerLost(
                f"peer {from_} left after {self.world.departures().get(from_, 0)} steps, and participant "
                f"{self.id} still waits for its letter {tag!r}. Use gather() where peers may leave.",
                peers=(from_,),
                view=self.view.number,
            )
        return self._read([letter])[0]

    async def gather(self, tag: str, peers: Iterable[int]) -> tuple[dict[int, Letter], tuple[int, ...]]:
        """The next letter of each of these peers, and who of them is gone."""
        wanted = tuple(peers)
        self._check_known(wanted)
        await self.world.wait(tag, wanted, Need.ALL)
        got = {}
        for peer in wanted:
            letter = self.world.take_one(tag, peer)
            if letter is not None:
                got[peer] = letter
        self._read(list(got.values()))
        return got, tuple(peer for peer in wanted if peer not in got)

    async def news(self, tag: str) -> list[Letter]:
        """What has arrived, after waiting for at least one letter or a change of view."""
        await self.world.wait(tag, self.view.workers, Need.ANY)
        self.view = self._view_now()
        return self.letters(tag)

    async def ask(self, server: int, tensor: Tensor, tag: str, **note: Any) -> Letter:
        """Send to a server and wait for its reply, which comes under the same tag."""
        self.send(server, tensor, tag, **note)
        return await self.receive(tag, server)

    def _read(self, letters: list[Letter]) -> list[Letter]:
        if letters and self.world.observed:
            now = self.world.now()
            for letter in letters:
                self.world.emit(Received(self.id, now, letter.sender, letter.tag, tuple(letter.steps)))
        for letter in letters:
            if letter.tensor.device != self.weights.device:
                letter.tensor = letter.tensor.to(self.weights.device)
            if self._carries(letter.tag) == GRADIENT:
                self._fresh.append(letter)
                continue
            if letter.sender in self.world.start_view.servers:
                self.version = letter.version
            else:
                self._report_included([letter])
        return letters

    def _report_included(self, letters: Sequence[Letter]) -> None:
        if not self.world.observed:
            return
        now = self.world.now()
        for letter in letters:
            if letter.weight == 0:
                continue
            for step in letter.steps:
                late = self.version - letter.version if self.is_server else max(0, self.steps - step)
                self.world.emit(Included(self.id, now, letter.sender, letter.tag, late))

    # Collectives

    async def mean(
        self,
        tensor: Tensor,
        among: Iterable[int] | None = None,
        *,
        weight: float = 1.0,
        read_only: bool = False,
    ) -> Tensor:
        """The mean over the workers who are still in, in canonical order; the input stays intact.

        The result is the caller's until its next `mean`. With `read_only=True` it may be memory
        that all of them read (one copy less): writing into it is refused.
        """
        self._check_guard()
        group = self.world.start_view.workers if among is None else tuple(sorted(among))
        self._check_known(group)
        if not tensor.is_floating_point():
            raise UsageError(
                f"mean() needs floating point numbers and got {tensor.dtype}; convert them first"
            )
        present = self.replica.present if tensor is self.gradient else None
        reduction = await self.world.collective(tensor, group, float(weight), present, read_only)
        self._reduction = reduction if tensor is self.gradient else None
        self._guard = (reduction.tensor, reduction.tensor._version) if read_only else None
        if self.world.observed:
            size, nbytes = len(reduction.members), tensor.numel() * tensor.element_size()
            share = 2 * (size - 1) * nbytes // size
            now, members = self.world.now(), reduction.members
            self.world.emit(Reduced(self.id, now, share, members, reduction.took_ns))
        return reduction.tensor

    def _check_guard(self) -> None:
        """A read-only result that somebody wrote into has spoilt the other peers' results."""
        if self._guard is not None and self._guard[0]._version != self._guard[1]:
            raise UsageError(
                f"{self.strategy!r} changed the result of mean(..., read_only=True) in place, which the "
                "other workers read too. Leave read_only out, and the result is yours to change."
            )

    # Turns, called by core.turns

    def _view_now(self) -> View:
        departures = self.world.departures()
        if not departures:
            return self.view
        step = self.steps if self.strategy.synchronous else None
        return view_now(self.world.start_view, departures, keep=self.id, step=step)

    def open_turn(self) -> None:
        if not self.is_server:  # a server's view changes in `news`, so that no departure passes it by
            self.view = self._view_now()
        self._fresh = []
        self._reduction = None

    def close_turn(self) -> None:
        self._check_guard()
        self.world.turn_ended()
