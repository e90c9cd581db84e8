"""Presets know their own call and their place, and refuse what can't work."""

from __future__ import annotations

from math import inf, nan

import pytest

from fast.core import Me, Strategy
from fast.errors import PeerLost, UsageError
from fast.parts import Full, Torus, sum_
from fast.parts.staleness import by_staleness
from fast.strategies import Preset, catalogue, find
from fast.strategies.catalogue import canonical_call
from fast.strategies.presets import (
    allreduce,
    dpsgd,
    essp,
    gossip,
    local_sgd,
    mxnet,
    parameter_server,
    petuum,
    pytorch,
    ssp,
    torus,
    vap,
)
from fast.testing import check_strategy


def test_a_preset_builds_a_strategy_that_knows_its_call() -> None:
    strategy = local_sgd(4)
    assert isinstance(strategy, Strategy)
    assert strategy.call == repr(strategy) == "local_sgd(tau=4, moments='keep', rule=mean)"
    assert local_sgd().call == "local_sgd(tau=10, moments='keep', rule=mean)"


def test_calls_spell_out_every_argument() -> None:
    assert torus(sum_, topology=Torus(rows=2)).call == (
        "torus(rule=sum, send='auto', topology=torus(rows=2, columns=None), codec=None, bucket_mb=None)"
    )
    assert dpsgd(Full()).call == "dpsgd(topology=full(), moments='keep', rule=mean)"
    assert canonical_call("f", {"a": 1.5, "b": "x_", "c": (1, [2]), "d": None}) == (
        "f(a=1.5, b='x_', c=(1, [2]), d=None)"
    )


def test_the_catalogue_has_every_preset_under_its_own_name() -> None:
    known = catalogue()
    assert set(known) >= {"allreduce", "local_sgd", "ssp", "dpsgd", "torus", "gossip"}
    assert all(isinstance(each, Preset) and each.name == name for name, each in known.items())
    assert find("torus") is torus


def test_the_catalogue_goes_along_the_taxonomy() -> None:
    places = [preset.place for preset in catalogue().values()]
    assert [place.optimization for place in places] == sorted(place.optimization for place in places)
    central = [place.scheduling.split()[0].strip(",") for place in places if place.optimization == "central"]
    assert list(dict.fromkeys(central)) == ["synchronous", "bounded", "unbounded"]


def test_two_strategies_of_one_preset_are_two_objects() -> None:
    assert allreduce() is not allreduce()


@pytest.mark.parametrize("preset", catalogue().values(), ids=catalogue().keys())
def test_a_row_of_the_taxonomy_is_complete(preset: Preset) -> None:
    row = preset.row()
    assert row["name"] == preset.name
    assert row["scheduling"].startswith(("synchronous", "bounded delay", "unbounded delay"))
    assert row["optimization"] in ("central", "decentral")
    assert all(row.values()), f"an empty cell in {row}"


def test_wrong_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean allreduce"):
        find("allreduc")
    with pytest.raises(
        UsageError, match=r"Known: allreduce, .*, ssp, .*, downpour, .*, local_sgd, .*, torus\b.*\."
    ):
        find("zzzzzz")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: local_sgd(tau=0), "from 1 on"),
        (lambda: local_sgd(tau=2.5), "whole number"),
        (lambda: ssp(bound=-1), "0 or more"),
        (lambda: ssp(bound=nan), "0 or more"),
        (lambda: ssp(bound="3"), "0 or more"),
        (lambda: ssp(servers=0), "'workers' for a shard beside every worker"),
        (lambda: ssp(servers="all"), "'workers' for a shard beside every worker"),
        (lambda: ssp(bound=2, rule=sum_), "Take bound=0, or leave the rule out"),
        (lambda: ssp(bound=0, rule=3), "a rule is mean, sum"),
        (lambda: ssp(bound=0, correction=by_staleness()), "in lock-step nothing is stale"),
        (lambda: essp(bound=inf), "a whole number from 0 on"),
        (lambda: essp(servers=-1), "'workers' for a shard beside every worker"),
        (lambda: petuum(bound=1.5), "a whole number from 0 on"),
        (lambda: parameter_server(tau=-1), "the tau counts whole steps, 0 or more"),
        (lambda: vap(limit=-0.1), "how far weights may move, 0 or more"),
        (lambda: vap(limit=nan), "how far weights may move, 0 or more"),
        (lambda: mxnet("local"), "'dist_sync' or 'dist_async'"),
        (lambda: pytorch(bucket_mb=0), "more than 0"),
        (lambda: torus(send="both"), "'own'"),
        (lambda: torus(rule=3), "a rule is mean, sum"),
        (lambda: gossip(p=1.5), "from 0 to 1"),
    ],
)
def test_values_that_make_no_sense_are_refused_when_built(call: Preset, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        call()


# The public kit for strategies, which every preset passes (tests/test_every_preset.py)


class Idle(Strategy):
    """Never applies anything."""

    async def step(self, me: Me) -> None:
        pass


class Hoarder(Strategy):
    """Keeps in itself what belongs into me.state, so that a second run goes another way."""

    def __init__(self) -> None:
        self.seen = 0

    async def step(self, me: Me) -> None:
        self.seen += 1
        me.apply(me.gradient)
        if self.seen > 150:
            me.apply(me.gradient)


class Liar(Strategy):
    """Says that alone it is plain SGD, and halves every gradient."""

    identity_alone = True

    async def step(self, me: Me) -> None:
        me.apply(me.gradient / 2)


class Clinging(Strategy):
    """Waits for a letter of everybody, also of those who have left."""

    async def step(self, me: Me) -> None:
        others = tuple(worker for worker in me.all_workers if worker != me.id)
        me.send(others, me.gradient, tag="own")
        for other in others:
            await me.receive("own", other)
        me.apply(me.gradient)


@pytest.mark.parametrize(
    ("broken", "error", "why"),
    [
        (Idle, AssertionError, "the mean of the replicas is 5.55 away"),
        (Hoarder, AssertionError, "two different traces"),
        (Liar, AssertionError, "differ from those of plain SGD"),
        (Clinging, PeerLost, "still waits for its letter 'own'"),
    ],
)
def test_the_kit_has_teeth(broken: type[Strategy], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        check_strategy(broken, workers=(1, 2), steps=120)
