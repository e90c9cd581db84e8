"""`me`: which workers it means, and what it says about the model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fast import GRADIENT, WEIGHTS, Me, Strategy, Tag, UsageError
from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.trace import Observer, Record

Look = Callable[[Me], object]


class Watching(Strategy):
    """Notes in each step, and on each server in each turn, what it sees."""

    tags = (Tag("push", carries=GRADIENT), Tag("read", carries=WEIGHTS))

    def __init__(self, look: Look, *, servers: int = 0, look_on_server: Look | None = None) -> None:
        self.look, self.look_on_server, self.count = look, look_on_server, servers
        self.seen: dict[int, list[object]] = {}

    def servers(self, workers: int) -> int:
        return self.count

    async def step(self, me: Me) -> None:
        self.seen.setdefault(me.id, []).append(self.look(me))
        if not me.servers:
            me.apply(me.gradient)
            return
        me.send(me.servers[0], me.gradient, tag="push", rates=me.rates)
        me.weights.copy_((await me.receive("read", me.servers[0])).tensor)

    async def serve(self, me: Me) -> None:
        for push in await me.news("push"):
            if self.look_on_server is not None:
                self.seen.setdefault(me.id, []).append(self.look_on_server(me))
            self.apply(me, push)
            me.send(push.sender, me.weights, tag="read")

    def apply(self, me: Me, push: Any) -> None:
        me.apply(push.tensor, of=[push], rates=push.note["rates"])


class Model(nn.Module):
    """With a layer that no loss depends on, so that it never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.never = nn.Linear(6, 4).double(), nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that remembers, and that would move a parameter without a gradient if it was told to."""
    assert isinstance(model, Model)
    slow, quick = (
        {"params": list(model.never.parameters())},
        {"params": list(model.used.parameters()), "lr": 0.1},
    )
    return torch.optim.AdamW([slow, quick], lr=0.01, weight_decay=0.5)


def simulated(strategy: Strategy, steps: list[int], observers: list[Observer] | None = None) -> Simulation:
    workers = []
    for worker, own in enumerate(steps):
        model = Model()
        replica = TorchReplica(model, decaying(model))
        generator = torch.Generator().manual_seed(worker)
        data = [torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(own)]

        def compute(x: Tensor, replica: TorchReplica = replica) -> None:
            replica.compute(lambda: replica.model(x).square().mean())

        workers.append(SimWorker(replica, iter(data), compute))
    servers = server_replicas(workers[0].replica, strategy.servers(len(steps)), sharded=False)  # type: ignore[arg-type]
    return Simulation(
        strategy,
        workers,
        server_replicas=servers,
        compute=Compute(),
        network=Network(1e9, 1e-4),
        observers=observers or [],
        seed=7,
    )


def run(
    strategy: Watching, steps: list[int], observers: list[Observer] | None = None
) -> dict[int, list[Any]]:
    simulated(strategy, steps, observers).run()
    return strategy.seen


# Which workers


def test_the_numbering_of_the_run_stays_when_workers_leave() -> None:
    seen = run(Watching(lambda me: (me.id, me.all_workers, me.all_servers, me.workers), servers=1), [2, 9, 5])
    assert {look[:3] for own in seen.values() for look in own} == {(w, (0, 1, 2), (3,)) for w in range(3)}
    assert seen[1][0][3] == (0, 1, 2) and seen[1][-1][3] == (1,)


def test_who_has_left_is_known_with_its_steps() -> None:
    seen = run(
        Watching(lambda me: dict(me.departed), servers=1, look_on_server=lambda me: dict(me.departed)),
        [2, 9, 5],
    )
    assert seen[1][0] == seen[3][0] == {}
    assert seen[1][-1] == seen[3][-1] == {0: 2, 2: 5}


def test_the_last_one_that_is_left_is_not_alone() -> None:
    """Alone is a run with one worker, in which training is what it is without FAST."""
    seen = run(Watching(lambda me: (me.alone, me.peers)), [2, 9])
    assert seen[1][0] == (False, (0,)) and seen[1][-1] == (False, ())
    assert run(Watching(lambda me: (me.alone, me.peers)), [3]) == {0: [(True, ())] * 3}


def test_all_have_the_seed_of_the_run() -> None:
    assert run(Watching(lambda me: me.seed), [2, 2]) == {0: [7, 7], 1: [7, 7]}


# The model and its optimizer


def test_which_parameters_have_a_gradient_and_where_they_lie() -> None:
    ((present, values),) = run(
        Watching(lambda me: (me.present, me.gradient[me.layout.places["used.bias"]].clone())), [1]
    )[0]
    segments = [segment.name for segment in segments_of_model()]
    assert [name for bit, name in enumerate(segments) if present >> bit & 1] == ["used.weight", "used.bias"]
    assert values.shape == (4,) and bool(values.any())


def segments_of_model() -> tuple[Any, ...]:
    model = Model()
    return TorchReplica(model, decaying(model)).layout.segments


def test_the_optimizer_says_what_it_is() -> None:
    ((spec, groups),) = run(Watching(lambda me: (me.optimizer_spec(), me.groups())), [1])[0]
    assert spec["name"] == "AdamW" and [group["options"]["lr"] for group in spec["groups"]] == [0.01, 0.1]
    assert groups == [["never.weight", "never.bias"], ["used.weight", "used.bias"]]
    assert groups == [group["segments"] for group in spec["groups"]]


def test_a_server_says_that_it_has_no_groups() -> None:
    with pytest.raises(UsageError, match="parameter groups"):
        run(Watching(lambda me: None, servers=1, look_on_server=lambda me: me.groups()), [1])
    seen = run(Watching(lambda me: None, servers=1, look_on_server=lambda me: me.optimizer_spec()), [1])
    assert seen[1] == [None]


# What would be


class Trying(Watching):
    """Makes a dry run before each update; or, for comparison, doesn't."""

    def __init__(self, *, dry: bool, servers: int, fails: bool = False) -> None:
        super().__init__(lambda me: None, servers=servers)
        self.dry, self.fails, self.moved = dry, fails, 0

    async def step(self, me: Me) -> None:
        if me.servers:
            await super().step(me)
        else:
            self._apply(me, me.gradient, of=[], rates=None)

    def apply(self, me: Me, push: Any) -> None:
        self._apply(me, push.tensor, of=[push], rates=push.note["rates"])

    def _apply(self, me: Me, gradient: Tensor, **options: Any) -> None:
        before, there = me.weights.clone(), None
        if self.dry:
            there = self._tried(me, gradient, **options)
            assert torch.equal(me.weights, before)
        me.apply(gradient, **options)
        if there is not None:
            assert torch.equal(me.weights, there) and not torch.equal(there, before)
            never = me.layout.places["never.weight"]
            assert torch.equal(there[never], before[never])
            self.moved += 1

    def _tried(self, me: Me, gradient: Tensor, **options: Any) -> Tensor:
        if self.fails:
            with pytest.raises(ZeroDivisionError), me.dry_run(gradient, **options):
                raise ZeroDivisionError
        with me.dry_run(gradient, **options):
            return me.weights.clone()


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_a_dry_run_shows_the_weights_and_changes_nothing(servers: int, fails: bool) -> None:
    """Neither weights nor what Adam remembers, nor what is reported."""
    ends = []
    for dry in (False, True):
        records: list[Record] = []
        strategy = Trying(dry=dry, servers=servers, fails=fails)
        ended = simulated(strategy, [5, 5], [records.append])
        ended.run()
        assert strategy.moved == 10 * dry
        ends.append((records, torch.stack([worker.me.weights for worker in ended.participants])))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])
