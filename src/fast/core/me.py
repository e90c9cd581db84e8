"""`me`: a participant's handle on itself and its world. All that a strategy ever touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fast.core.account import Account
from fast.core.buckets import Bucket, bucket_cuts, buckets_of
from fast.core.coding import Coding, Opener
from fast.core.letter import GRADIENT, Letter, union
from fast.core.replica import Replica, Tapped
from fast.core.rounds import Rounds
from fast.core.shards import Cutting, Shards, Whose
from fast.core.together import Together
from fast.core.world import Labour, Need, World
from fast.errors import PeerLost, UsageError
from fast.parts.codecs.base import Codec
from fast.parts.factors import Factors, Place
from fast.parts.topology import Topology
from fast.trace import Applied, Dropped, Included, Received, Sent
from fast.view import View
from fast.wire import HEADER_BYTES

if TYPE_CHECKING:
    from fast.core.strategy import Strategy


@final
class Me(Shards, Together):
    """One participant. Worlds make it; a strategy's programs are called with it."""

    def __init__(self, world: World, replica: Replica, strategy: Strategy) -> None:
        self.world = world
        self.replica = replica
        self.strategy = strategy
        self.account = Account(world)
        self.id = world.id
        self.is_server = world.id in world.start_view.owners
        self.state: Any = None
        self.steps = 0
        self.version = 0
        """On a server: updates applied so far. On a worker: the server's version it last adopted."""
        self.versions: dict[int, int] = {}
        """On a worker: the version of each server's weights that was read last."""
        self.view = world.start_view
        self.ending = False
        """Whether this is the last turn, when nobody is there any more to talk to."""
        self.fresh = False
        """Whether this participant has come while others were training already."""
        self._everybody = self.view.everybody
        self._changes = 0
        self._ties: dict[str, Any] = {}
        """What the topology says, as long as the view stays the same."""
        self._scratch: dict[str, Tensor] = {}
        self._codecs = {tag.name: tag.codec for tag in strategy.tags}
        self._of_gradients = frozenset(tag.name for tag in strategy.tags if tag.carries == GRADIENT)
        """Tags whose letters carry gradients."""
        self._unused: list[Letter] = []
        self._rounds = Rounds(self)
        self._device = replica.weights.device
        self.coding = Coding(world.seed, self.id, replica.layout, self._device)
        self._opener = Opener()
        self.turn = ""
        """Which program is under way: begin, step, serve or end."""
        world.layout = replica.layout
        self._several = len(world.start_view.servers) > 1 and not self.is_server
        if strategy.sharded and not self.is_server:
            world.shards = self.shards
        if strategy.uses_factors and isinstance(replica, Tapped):
            replica.tap_factors()
        self._nbytes = replica.layout.nbytes
        self._buckets = buckets_of(replica.gradient, bucket_cuts(replica.layout, strategy.bucket_bytes))
        world.pieces = len(self._buckets)

    # Who I am and who is there

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
        return self._ties.get("neighbours") or self._tie("neighbours")  # type: ignore[no-any-return]

    @property
    def _topology(self) -> Topology:
        if self.strategy.topology is None:
            raise UsageError(
                f"{self.strategy!r} has no topology, so its workers have no neighbours. Set `topology`."
            )
        return self.strategy.topology

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Whom I hear in this round."""
        return self._ties.get("heard") or self._tie("heard")  # type: ignore[no-any-return]

    @property
    def audience(self) -> Mapping[int, float]:
        """Who hears me in this round, with the share of a push-sum that each gets; the rest is mine."""
        return self._ties.get("audience") or self._tie("audience")  # type: ignore[no-any-return]

    def _tie(self, kind: str) -> Any:
        """Asked several times in each step: kept where the links don't change from round to round."""
        topology = self._topology
        tie = getattr(topology, kind)(self.index, self.view, self.steps)
        if not topology.changing:
            self._ties[kind] = tie
        return tie

    @property
    def peers(self) -> tuple[int, ...]:
        """All other workers."""
        return tuple(w for w in self.view.workers if w != self.id)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The workers to send an update to that must not be lost: those that hear me in this round (without a
        topology, all peers), and those that have taken their last step and still receive. These include it in `end`."""
        there = self.peers if self.strategy.topology is None else tuple(self.audience)
        if self.view.number == self.world.start_view.number:
            return there
        listening = self.world.listening()
        finished = [peer for peer in self._first_audience() if peer in listening] if listening else []
        return tuple(dict.fromkeys((*there, *finished)))

    def _first_audience(self) -> Iterable[int]:
        """The workers that would hear me in this round if nobody had left."""
        everybody, topology = self.world.start_view, self.strategy.topology
        if topology is None:
            return (worker for worker in everybody.workers if worker != self.id)
        return topology.audience(everybody.index(self.id), everybody, self.steps)

    # What I train

    @property
    def weights(self) -> Tensor:
        return self.replica.weights

    @property
    def gradient(self) -> Tensor:
        return self.replica.gradient

    def factors(self, places: Sequence[Place], *, workers: int | None = None) -> list[Factors | None]:
        """For each of these linear layers the activations and errors whose product is this step's
        gradient, where that is less to send; for strategies with `uses_factors`. They are compared with a
        mean among all workers, or among so many: 2 for one letter to a server."""
        if not isinstance(self.replica, Tapped):
            return [None] * len(places)
        return self.replica.factors(places, workers or len(self.world.start_view.workers))

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
            self._scratch[name] = self.weights.new_empty(self.weights.shape)
        return self._scratch[name]

    def apply(
        self, gradient: Tensor, *, of: Sequence[Letter] | None = None, rates: list[float] | None = None
    ) -> None:
        """The user's optimizer, on this replica, with this gradient.

        `of` names the letters whose updates are inside; left out, it is every gradient that was
        read in this turn. From them come the staleness that is reported and which parameters
        have a gradient at all.
        """
        if self._rounds.used:
            self._rounds.check_guards()
        included, merged = self._unused if of is None else of, self._rounds.merged
        if merged is not None and gradient is merged.tensor:
            present = merged.present
        else:
            present = None if self.is_server and not included else self._present_with(included)
            if merged is not None:  # the gradient was made of a mean over all of theirs
                present = union(present, merged.present)
        if self.world.observed:
            self._report_included(included)
        if of is None:
            self._unused = []
        self.world.working()
        self.replica.apply(gradient, present, rates)
        self.world.worked(Labour.APPLY, self._nbytes)
        if self.is_server:
            self.version += 1
        if self.world.observed:
            self.world.emit(Applied(self.id, self.world.now(), self.version))

    def _present_with(self, included: Sequence[Letter]) -> int | None:
        present = 0 if self.is_server else self.replica.present
        for letter in included:
            present = union(present, letter.present)
        return present

    # What my optimizer remembers

    def moments(self) -> dict[str, Tensor]:
        """What the optimizer remembers of earlier gradients (momentum, Adam's moments), by its own names: a flat
        copy of each. All workers have the same names; one that had no gradient yet has zeros."""
        return self.replica.moments()

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Let the optimizer go on with these."""
        self.replica.set_moments(moments)

    def forget_moments(self) -> None:
        """Let the optimizer go on as if it had never taken a step; the weights stay."""
        self.replica.forget_moments()

    # Randomness

    def random(self) -> float:
        return self.world.draw()

    def pick_peer(self, among: Sequence[int] | None = None) -> int:
        """One of the other workers (or of `among`), each as likely as the next."""
        count = self._others if among is None else len(among)
        if not count:
            raise UsageError("there is no other worker to pick; check `me.peers` first")
        chosen = int(self.random() * count)
        if among is not None:
            return among[chosen]
        return self.workers[chosen + (not self.is_server and chosen >= self.index)]

    @property
    def _others(self) -> int:
        """How many `peers` there are, without making a list of them."""
        return len(self.workers) - (not self.is_server)

    # Letters

    def send(
        self,
        to: int | Iterable[int],
        tensor: Tensor | Bucket | Cutting,
        tag: str,
        *,
        codec: Codec | None = None,
        into: Tensor | None = None,
        present: int | Whose | None = Whose.MINE,
        weight: float | None = None,
        **note: Any,
    ) -> None:
        """Send values to one peer or several. Never waits; ordered per pair and tag; as of now.

        Any tensor: of any shape and dtype, contiguous or not. A `codec` makes its bytes fewer; without
        one the tag's own is used, if it has any. What the codec remembers belongs to the tag and to
        this shape: one residual per channel, however many peers hear it. `into` gets the values
        that the receivers will decode. `present` and `weight` are for a gradient of several steps: the
        parameters that have one in any of them, a bit each, and the samples of all of them.
        """
        targets = (to,) if isinstance(to, int) else tuple(to)
        if not targets and into is None:
            return
        if self._rounds.used:
            self._rounds.check_guards()
        self.check_known(targets)
        codec = codec or self._codecs.get(tag)
        if codec is not None:
            codec = self.in_use(codec)
        letter = self._letter(tensor, tag, note, present)
        letter.weight = letter.weight if weight is None else weight
        letter.tensor = self.world.outgoing(letter.tensor)
        if codec is not None and letter.tensor.numel():
            letter = self.coding.encoded(letter, codec, into, _place_of(tensor))
        elif into is not None:
            into.copy_(letter.tensor)
        if self._several:
            for one, group in self._by_version(letter, targets):
                self._hand_over(one, group, tag)
        elif targets:
            self._hand_over(letter, self.in_turn(targets), tag)

    def _by_version(
        self, letter: Letter, targets: tuple[int, ...]
    ) -> Iterator[tuple[Letter, tuple[int, ...]]]:
        """To each server with the version of its own weights that was read last."""
        owners, groups = self.world.start_view.owners, dict[int, list[int]]()
        for target in targets:
            version = self.versions.get(target, 0) if target in owners else self.version
            groups.setdefault(version, []).append(target)
        for version, group in groups.items():
            yield letter if version == letter.version else replace(letter, version=version), tuple(group)

    def _hand_over(self, letter: Letter, targets: tuple[int, ...], tag: str, *, asks: bool = False) -> None:
        if not self.world.observed:
            self.world.send(targets, letter)
            return
        began_ns = self.world.now()
        self.world.send(targets, letter)
        now = self.world.now()
        nbytes = len(targets) * (HEADER_BYTES + letter.tensor.numel() * letter.tensor.element_size())
        took_ns = now - began_ns
        self.world.emit(Sent(self.id, now, targets, tag, nbytes, self.steps, took_ns, letter.whole, asks))

    def request(self, to: int | Iterable[int], tag: str, **note: Any) -> None:
        """Ask for something, with a letter that carries no update (its weight is 0). It keeps its place
        among the letters of its tag, so who answers it has read all that was sent before."""
        targets = (to,) if isinstance(to, int) else tuple(to)
        self.check_known(targets)
        letter = self._letter(self.weights.new_empty(0), tag, note)
        letter.weight, letter.present = 0.0, None if letter.present is None else 0
        for one, group in self._by_version(letter, targets) if self._several else [(letter, targets)]:
            self._hand_over(one, group, tag, asks=True)

    def _letter(
        self,
        what: Tensor | Bucket | Cutting,
        tag: str,
        note: dict[str, Any],
        present: int | Whose | None = Whose.MINE,
    ) -> Letter:
        carries_gradient = tag in self._of_gradients
        tensor = what if isinstance(what, Tensor) else getattr(what, "values", what)
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"me.send got {tensor!r} for letter {tag!r}; it sends tensors: torch.tensor({tensor!r})"
            )
        if isinstance(present, Whose):
            if isinstance(what, Cutting):
                present = what.present
            else:
                present = self.present_for(what, tag) if carries_gradient else None
        tensor = tensor.detach() if tensor.requires_grad else tensor
        weight = float(self.samples) if carries_gradient else 1.0
        return Letter(
            self.id, tag, tensor, (self.steps,), self.view.number, self.version, weight, note, present,
            part=None if isinstance(what, Tensor) else what.part,
        )  # fmt: skip

    def present_for(self, what: Tensor | Bucket, tag: str) -> int | None:
        """Which parameters have a gradient in what is sent under this tag; None for all, or for no gradient."""
        if tag not in self._of_gradients:
            return None
        if isinstance(what, Bucket):
            return self.present_in(what)
        return self.replica.present if what is self.gradient else self._present_with(self._unused)

    def check_known(self, peers: tuple[int, ...]) -> None:
        """Refuse to talk to somebody who doesn't exist, or when nobody answers any more."""
        if self.ending:
            raise UsageError(
                f"{self.strategy!r} sends or waits in end(), when all workers have taken their last step and "
                "none answers any more. There, read what has arrived with me.letters(tag), and apply it."
            )
        if not self._everybody.issuperset(peers):
            there = self.world.start_view
            raise UsageError(
                f"participant {self.id} addressed peer {min(set(peers) - self._everybody)}, which doesn't exist. There "
                f"are workers {there.workers} and servers {there.servers}; me.peers has the others."
            )

    def present_in(self, bucket: Bucket | None) -> int | None:
        """Which parameters have a gradient: of all, or of those in this bucket."""
        if bucket is None or bucket.part is None:
            return self.replica.present
        present = self.replica.present
        return bucket.segments if present is None else present & bucket.segments

    def in_use(self, codec: Codec | None) -> Codec | None:
        """With one worker there is nobody to send less to, so that alone every strategy stays what it is
        without FAST; unless the codec is a part of the optimizer."""
        if codec is not None and not isinstance(codec, Codec):
            raise UsageError(
                f"codec={codec!r} is no codec. In Python it is an object that is made by a call, such as "
                "fast.codecs.int8(), with the brackets and without quotes."
            )
        alone = len(self.world.start_view.workers) == 1
        return None if codec is not None and alone and not codec.has_momentum else codec

    async def buckets(self) -> AsyncIterator[Bucket]:
        """This step's gradient in slices, each as soon as backward has computed it: the last
        parameters first. All in one where the strategy has no `bucket_bytes`."""
        for bucket in self._buckets:
            await self.world.gradient_ready(bucket.number)
            yield bucket

    def letters(self, tag: str, from_: Iterable[int] | None = None) -> list[Letter]:
        """What has arrived since (from these peers), ordered by sender. Never waits."""
        return self._read(self.world.take(tag, None if from_ is None else tuple(from_)))

    async def receive(self, tag: str, from_: int) -> Letter:
        """The next letter of one peer. PeerLost if it can't come any more."""
        self.check_known((from_,))
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
        self.check_known(wanted)
        await self.world.wait(tag, wanted, Need.ALL)
        take_one = self.world.take_one
        taken = [letter for peer in wanted if (letter := take_one(tag, peer)) is not None]
        read = {letter.sender: letter for letter in self._read(taken)}
        gone = () if len(read) == len(wanted) else tuple(peer for peer in wanted if peer not in read)
        return read, gone

    async def news(self, tag: str) -> list[Letter]:
        """What has arrived, after waiting for at least one letter or a change of view."""
        await self.world.wait(tag, self.view.workers, Need.ANY)
        self._look_around()
        return self.letters(tag)

    async def ask(self, server: int, tensor: Tensor, tag: str, **note: Any) -> Letter:
        """Send to a server and wait for its reply, which comes under the same tag."""
        self.send(server, tensor, tag, **note)
        return await self.receive(tag, server)

    def _read(self, letters: list[Letter]) -> list[Letter]:
        observed = self.world.observed
        if letters and observed:
            now = self.world.now()
            for letter in letters:
                steps = tuple(letter.steps)
                self.world.emit(Received(self.id, now, letter.sender, letter.tag, steps, letter.letters))
        for place, letter in enumerate(letters):
            if letter.codec is not None:
                letters[place] = letter = self._opened(letter)
            if letter.tensor.device != self._device:
                letter.tensor = letter.tensor.to(self._device)
            if letter.tag in self._of_gradients:
                letter.age = sum(self._late(letter)) / max(1, letter.count)
                self._unused.append(letter)
            elif letter.sender in self.world.start_view.owners:
                self.version = self.versions[letter.sender] = letter.version
            elif observed:
                self._report_included([letter])
        return letters

    def _opened(self, letter: Letter) -> Letter:
        return self._opener.open(letter, self.world.layout_of(letter.sender))

    def include(self, letters: Sequence[Letter]) -> None:
        """Say that the updates of these letters are in what is passed on from here; `apply` says so itself."""
        if self.world.observed:
            self._report_included(letters)

    def discard(self, letter: Letter, why: str) -> None:
        """Throw away what was read: its update becomes part of nothing. Nothing is swallowed: it is reported."""
        self._unused = [other for other in self._unused if other is not letter]
        if self.world.observed:  # as no letter, since as a letter it was read
            now, tag, steps = self.world.now(), letter.tag, tuple(letter.steps)
            self.world.emit(Dropped(self.id, now, letter.sender, self.id, tag, why, steps, letters=0))

    def _report_included(self, letters: Sequence[Letter]) -> None:
        now = self.world.now()
        for letter in letters:
            if letter.weight == 0:
                continue
            for step, late in zip(letter.steps, self._late(letter), strict=True):
                self.world.emit(Included(self.id, now, letter.sender, letter.tag, late, step))

    def _late(self, letter: Letter) -> list[int]:
        """How late each update inside is."""
        if self.is_server:
            return [self.version - letter.version] * letter.count
        return [max(0, self.steps - step) for step in letter.steps]

    # Turns, called by core.turns

    def _look_around(self) -> None:
        """See which view holds now."""
        known = len(self.world.changes())
        if not known:
            return
        step = self.steps if self.strategy.synchronous else None
        if step is None and known == self._changes:
            return
        self._changes = known
        topology, size = self.strategy.topology, len(self.world.start_view.workers)
        view = self.world.view_at(step, 1 if topology is None else topology.period(size))
        if view.number != self.view.number:
            self.view = view
            self._ties.clear()

    def retire(self) -> None:
        """After its last step it is alone: ten thousand who have left don't each keep the view they had."""
        workers, servers = ((), (self.id,)) if self.is_server else ((self.id,), ())
        self.view = View(self.view.number, workers, servers)
        self._ties.clear()

    def open_turn(self, turn: str) -> None:
        self.turn = turn
        # A server's view changes in `news`, so that no departure passes it by. At the end nobody is there.
        if turn != "end" and not self.is_server:
            self._look_around()
        if self._unused:
            self._unused = []
        if self._rounds.used:
            self._rounds.open()

    def close_turn(self) -> None:
        if self._rounds.used:
            self._rounds.close()
        if self._opener.lent:
            self._opener.recycle()
        self.world.turn_ended()


def _place_of(what: Tensor | Bucket | Cutting) -> int | None:
    """Where in the flat tensor it begins, if it is a slice of it."""
    if isinstance(what, Tensor) or (isinstance(what, Bucket) and what.part is None):
        return None
    return what.start
