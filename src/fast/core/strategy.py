"""Strategy: a short program, written once against `me`, that does no I/O of its own."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from fast.core.letter import Tag
from fast.errors import UsageError
from fast.parts.merge import check_rule
from fast.parts.topology import Topology

if TYPE_CHECKING:
    from fast.core.me import Me


class Strategy:
    """How the workers talk. Subclass it and write `step`; the rest is optional.

    Every method is a *turn*: the world calls it again and again, and nothing survives a turn but
    `me.state`, `me.weights` and the mailboxes. One object may serve many participants in one
    process, so keep configuration in `self` and everything that changes in `me.state`.
    """

    tags: tuple[Tag, ...] = ()
    """What the letters carry and how they fold while they wait."""
    topology: Topology | None = None
    """Who hears whom; `me.neighbours` comes from it."""
    synchronous: bool = False
    """Whether workers go in lock-step with those they hear. Then a departure changes the view of
    all workers at the same step, and real and simulated runs give the same bits."""
    never_stale: bool = False
    """Whether every update is made of gradients on the very weights that it changes, although workers don't
    go in lock-step: late gradients are thrown away."""
    identity_alone: bool = False
    """Whether with one worker this is exactly training without FAST."""
    replicas_agree: ClassVar[bool] = False
    """Whether all replicas that are still in are equal after every step. Then one that left early
    is only an older version of the others, and the representative model leaves it out."""
    racy: ClassVar[bool] = False
    """Whether it reads peers' memory without asking (`me.publish`, `me.read`, `me.amend`): then no
    run promises bits."""
    one_host: ClassVar[bool] = False
    """Whether all workers must share the memory of one host (`me.amend`)."""
    uses_factors: ClassVar[bool] = False
    """Whether it wants the activations and errors of linear layers beside their gradients."""
    bucket_bytes: int | None = None
    """The least size of a bucket of the gradient that is exchanged while backward still runs; None
    for no such overlap. Only for strategies that use `me.buckets`, `me.stream` or `me.mean_gradient`."""
    computes_gradient: ClassVar[bool] = False
    """Whether `step` computes its gradient itself, with `me.backward(loss)`."""
    knobs: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    """Arguments worth tuning, with the values that a comparison may try beside the default."""
    conserves: ClassVar[str] = ""
    """The name of a number in the workers' states and in the notes of letters whose sum over all of them
    never changes (the shares of a gossip); simulations can watch it."""
    lead: float = inf
    """So many steps a worker may be ahead of the slowest one; simulations can watch it."""
    misses: float = inf
    """Of so many clocks before its own a worker's read from a server may miss updates of others; simulations
    can watch it."""
    late: int = 0
    """In lock-step: so many steps late an update may be when it is merged. Simulations can watch it."""
    reach: float = inf
    """So far (in the infinity norm) a server's weights stay from what any worker computes on; simulations can
    watch it."""
    overtaken_by: str = ""
    """A tag whose letters make the step under way worthless, so that who has one waiting may be spared the
    rest of its computing: the simulator ends it at once, on real workers a pace's sleep ends. `step` is
    called all the same, and finds the letter. Empty for none."""
    survives_loss: bool = False
    """Whether it goes on when letters are lost, doubled or overtaken by later ones: it never waits for one,
    and sends each in one piece."""
    survives_death: bool = True
    """Whether the others can go on when a worker dies in the middle of its turn. Where rounds go over
    letters they can't: its peers may disagree about whether it took part."""
    admits: bool = False
    """Whether workers may come (back) while others train: what they adopt is a live peer's weights, steps
    and optimizer, while `state` is made anew, with `me.fresh` true."""
    sharded: bool = False
    """Whether each server owns one slice of the weights; otherwise each of them has all."""
    colocated: bool = False
    """Whether server number j stands on the host of worker j: a shard in every worker."""
    servers_optimize: ClassVar[bool] = True
    """Whether the optimizer runs on the servers, where there are any; otherwise on each worker, as without them."""
    call: str = ""
    """The canonical call that builds this strategy, with all its arguments."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("begin", "step", "serve", "end"):
            program = vars(cls).get(name)
            if program is not None and not iscoroutinefunction(program):
                raise UsageError(
                    f"{cls.__name__}.{name} is a turn and must be written `async def {name}(self, me)`"
                )

    @property
    def has_end(self) -> bool:
        """Whether it has an `end` of its own."""
        return type(self).end is not Strategy.end

    @property
    def listens(self) -> bool:
        """Whether a worker that has taken its last step still receives letters, for its `end`, until all others have
        taken theirs. In lock-step it doesn't: everything that a step needs arrives in that step."""
        return self.has_end and not self.synchronous

    def servers(self, workers: int) -> int:
        """How many servers take part. `serve` is their program."""
        return 0

    def contributors(self, workers: int) -> int:
        """Of so many gradients one update is made when everybody is there."""
        return workers

    def check(self, workers: int) -> None:
        """Refuse a number of workers on which it can't run; called before anything starts. Its topology
        must connect them, and its `rule`, if it has one, must get as many updates as it needs."""
        if self.topology is not None:
            self.topology.check(workers)
        rule = getattr(self, "rule", None)
        if rule is not None and workers > 1:
            shards = self.servers(workers) if self.sharded else 1
            check_rule(rule, self.contributors(workers), shards)

    def state(self, me: Me) -> Any:
        """The explicit state of one participant: a fresh dataclass, checkpointed with the replica."""
        return None

    async def begin(self, me: Me) -> None:
        """At the end of the step before (and once in `join`): sends here overlap the computation."""

    async def step(self, me: Me) -> None:
        """Once per step: `me.gradient` is ready; leave `me.weights` updated."""
        raise NotImplementedError(f"{type(self).__name__} has no step(me)")

    async def serve(self, me: Me) -> None:
        """A server's program."""
        raise NotImplementedError(f"{type(self).__name__} has servers but no serve(me)")

    async def end(self, me: Me) -> None:
        """Once, after everybody's last step, when all that was sent has arrived: read it with
        `me.letters`. Nobody answers any more, so sending and waiting are refused here."""

    def __repr__(self) -> str:
        return self.call or type(self).__name__
