"""`me`: a participant's handle on itself and its world. All that a strategy ever touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fast.core.account import Account
from fast.core.buckets import Bucket, bucket_cuts, buckets_of
from fast.core.coding import Coding, Opener
from fast.core.letter import GRADIENT, Letter, Tag, union
from fast.core.replica import Replica, Tapped
from fast.core.rounds import Rounds
from fast.core.together import Together
from fast.core.world import Labour, Need, World
from fast.errors import PeerLost, UsageError
from fast.parts.codecs.base import Codec
from fast.parts.factors import Factors, Place
from fast.parts.topology import Topology
from fast.trace import Applied, Included, Received, Sent
from fast.view import View
from fast.wire import HEADER_BYTES

if TYPE_CHECKING:
    from fast.core.strategy import Strategy


@final
class Me(Together):
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
        self.fresh = False
        """Whether this participant has come while others were training already."""
        self._everybody = self.view.everybody
        self._changes = 0
        self._ties: dict[str, Any] = {}
        """What the topology says, as long as the view stays the same."""
        self._scratch: dict[str, Tensor] = {}
        self._tags: dict[str, Tag] = {tag.name: tag for tag in strategy.tags}
        self._unused: list[Letter] = []
        self._rounds = Rounds(self)
        self.coding = Coding(world.seed, self.id, replica.layout, replica.weights.device)
        self._opener = Opener(replica.layout)
        self.turn = ""
        """Which program is under way: begin, step, serve or end."""
        world.layout = replica.layout
        if strategy.uses_factors and isinstance(replica, Tapped):
            replica.tap_factors()
        self._buckets = buckets_of(replica.gradient, bucket_cuts(replica.layout, strategy.bucket_bytes))
        world.pieces = len(self._buckets)

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
        return self._tie("neighbours")  # type: ignore[no-any-return]

    @property
    def _topology(self) -> Topology:
        if self.strategy.topology is None:
            raise UsageError(f"{self.strategy!r} has no topology, so nobody has neighbours. Set `topology`.")
        return self.strategy.topology

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Whom I hear in this round."""
        return self._tie("heard")  # type: ignore[no-any-return]

    @property
    def audience(self) -> Mapping[int, float]:
        """Who hears me in this round, with the share of a push-sum that each gets; the rest is mine."""
        return self._tie("audience")  # type: ignore[no-any-return]

    def _tie(self, kind: str) -> Any:
        """Asked several times in each step: kept where the links don't change from round to round."""
        topology = self._topology
        if topology.changing:
            return getattr(topology, kind)(self.index, self.view, self.steps)
        if kind not in self._ties:
            self._ties[kind] = getattr(topology, kind)(self.index, self.view, self.steps)
        return self._ties[kind]

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

    def factors(self, places: Sequence[Place]) -> list[Factors | None]:
        """For each of these linear layers the activations and errors whose product is this step's
        gradient, where that is less to send; for strategies with `uses_factors`."""
        if not isinstance(self.replica, Tapped):
            return [None] * len(places)
        return self.replica.factors(places, len(self.world.start_view.workers))

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
        self._rounds.check_guards()
        included, merged = self._unused if of is None else of, self._rounds.merged
        if merged is not None and gradient is merged.tensor:
            present = merged.present
        else:
            present = None if self.is_server and not included else self._present_with(included)
            if merged is not None:  # the gradient was made of a mean over all of theirs
                present = union(present, merged.present)
        self._report_included(included)
        if of is None:
            self._unused = []
        self.world.working()
        self.replica.apply(gradient, present, rates)
        self.world.worked(Labour.APPLY, self.replica.layout.nbytes)
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
        tensor: Tensor | Bucket,
        tag: str,
        *,
        codec: Codec | None = None,
        into: Tensor | None = None,
        **note: Any,
    ) -> None:
        """Send values to one peer or several. Never waits; ordered per pair and tag; as of now.

        Any tensor: of any shape and dtype, contiguous or not. A `codec` makes its bytes fewer; without
        one the tag's own is used, if it has any. What the codec remembers belongs to the tag and to
        this shape: one residual per channel, however many peers hear it. `into` gets the values
        that the receivers will decode.
        """
        targets = (to,) if isinstance(to, int) else tuple(to)
        if not targets and into is None:
            return
        self._rounds.check_guards()
        self.check_known(targets)
        codec = codec or self._codec_of(tag)
        if codec is not None:
            codec = self.in_use(codec)
        letter = self._letter(tensor, tag, note)
        letter.tensor = self.world.outgoing(letter.tensor)
        if codec is not None:
            letter = self.coding.encoded(letter, codec, into)
        elif into is not None:
            into.copy_(letter.tensor)
        if not targets:
            return
        if not self.world.observed:
            self.world.send(targets, letter)
            return
        began_ns = self.world.now()
        self.world.send(targets, letter)
        now = self.world.now()
        nbytes = len(targets) * (HEADER_BYTES + letter.tensor.numel() * letter.tensor.element_size())
        self.world.emit(Sent(self.id, now, targets, tag, nbytes, self.steps, now - began_ns, letter.whole))

    def _letter(self, what: Tensor | Bucket, tag: str, note: dict[str, Any]) -> Letter:
        carries_gradient = self._carries(tag) == GRADIENT
        bucket = what if isinstance(what, Bucket) else None
        tensor = what.values if isinstance(what, Bucket) else what
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"me.send got {tensor!r} for letter {tag!r}; it sends tensors: torch.tensor({tensor!r})"
            )
        present = None
        if carries_gradient:
            own = tensor is self.gradient or bucket is not None
            present = self.present_in(bucket) if own else self._present_with(self._unused)
        return Letter(
            sender=self.id,
            tag=tag,
            tensor=tensor.detach(),
            steps=(self.steps,),
            view=self.view.number,
            version=self.version,
            weight=float(self.samples) if carries_gradient else 1.0,
            note=note,
            present=present,
            part=None if bucket is None else bucket.part,
        )

    def check_known(self, peers: tuple[int, ...]) -> None:
        """Refuse to talk to somebody who doesn't exist, or when nobody answers any more."""
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

    def present_in(self, bucket: Bucket | None) -> int | None:
        """Which parameters have a gradient: of all, or of those in this bucket."""
        if bucket is None or bucket.part is None:
            return self.replica.present
        present = self.replica.present
        return bucket.segments if present is None else present & bucket.segments

    def _carries(self, tag: str) -> str:
        declared = self._tags.get(tag)
        return declared.carries if declared else ""

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

    def _codec_of(self, tag: str) -> Codec | None:
        declared = self._tags.get(tag)
        return declared.codec if declared else None

    async def buckets(self) -> AsyncIterator[Bucket]:
        """This step's gradient in slices, each as soon as backward has computed it: the last
        parameters first. All in one where the strategy has no `bucket_bytes`."""
        for bucket in self._buckets:
            await self.world.gradient_ready(bucket.number)
            yield bucket

    async def stream(
        self, to: int | Iterable[int], tag: str, *, codec: Codec | None = None, **note: Any
    ) -> None:
        """Send this step's gradient, bucket by bucket as they become ready; it arrives as one letter."""
        targets = (to,) if isinstance(to, int) else tuple(to)
        async for bucket in self.buckets():
            self.send(targets, bucket if bucket.part else self.gradient, tag, codec=codec, **note)

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
        got = {}
        for peer in wanted:
            letter = self.world.take_one(tag, peer)
            if letter is not None:
                got[peer] = letter
        read = dict(zip(got, self._read(list(got.values())), strict=True))
        return read, tuple(peer for peer in wanted if peer not in read)

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
        if letters and self.world.observed:
            now = self.world.now()
            for letter in letters:
                steps = tuple(letter.steps)
                self.world.emit(Received(self.id, now, letter.sender, letter.tag, steps, letter.letters))
        letters = [letter if letter.codec is None else self._opener.open(letter) for letter in letters]
        device = self.weights.device
        for letter in letters:
            if letter.tensor.device != device:
                letter.tensor = letter.tensor.to(device)
            if self._carries(letter.tag) == GRADIENT:
                self._unused.append(letter)
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
                self.world.emit(Included(self.id, now, letter.sender, letter.tag, late, step))

    # Turns, called by core.turns

    def _look_around(self) -> None:
        """See which view holds now."""
        known, step = len(self.world.changes()), self.steps if self.strategy.synchronous else None
        if not known or (step is None and known == self._changes):
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
        self._unused = []
        self._rounds.open()

    def close_turn(self) -> None:
        self._rounds.close()
        self._opener.recycle()
        self.world.turn_ended()
