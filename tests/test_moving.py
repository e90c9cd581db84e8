"""Moving tensors with what `me` offers, in all worlds: simulated, threads over letters, processes over memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fast
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from moving_bodies import PROGRAMS, Moves, move, values
from preset_bodies import simulation

WORKERS = 3


@pytest.fixture(
    scope="module", params=["simulated", "threads", pytest.param("processes", marks=pytest.mark.real)]
)
def seen(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each worker saw in each step."""
    if request.param == "simulated":
        simulated = simulation(Moves(), [len(PROGRAMS)] * WORKERS)
        simulated.run()
        return [worker.me.state for worker in simulated.workers]
    if request.param == "threads":
        return run_threads(WORKERS, lambda id: move(), serve)
    return request.getfixturevalue("runner").results("moving_bodies:move", WORKERS)


def close(found: Any, expected: torch.Tensor, tolerance: float = 1e-6) -> bool:
    return torch.allclose(torch.tensor(found), expected, rtol=tolerance, atol=tolerance)


def test_letters_carry_any_tensor(seen: list[dict[str, Any]]) -> None:
    assert [worker["letters"] for worker in seen] == [True] * WORKERS


def test_what_a_codec_leaves_out_comes_later(seen: list[dict[str, Any]]) -> None:
    for worker in range(WORKERS):
        peers = [peer for peer in range(WORKERS) if peer != worker]
        heard = seen[worker]["encoded"]
        for first, second, peer in zip(heard[:2], heard[2:], peers, strict=True):
            brought = torch.arange(10.0) ** 1.3 + peer
            assert first == [0.0] * 7 + brought[7:].tolist()
            doubled = torch.cat([brought[:7] * 2, brought[7:]])  # what was left out counts twice now
            kept = doubled.topk(3).indices
            assert second == torch.zeros(10).index_copy(0, kept, doubled[kept]).tolist()


def test_rounds_are_the_plain_sums(seen: list[dict[str, Any]]) -> None:
    own = [values(worker, 3, 4) for worker in range(WORKERS)]
    total = own[0] + own[1] + own[2]
    for worker in range(WORKERS):
        got = seen[worker]["rounds"]
        assert got["sum"] == total.tolist()
        assert close(got["ring"], total)
        assert close(got["any"], total / 3)
        assert close(got["mean"], (own[0] + 2 * own[1] + 3 * own[2]) / 6)
        assert close(got["narrow"], total / 3, 0.02)
        assert got["gathered"] == torch.stack(own).tolist()
        assert got["first"] == own[-1].tolist()
        assert close(got["mixed"], total / 3), "on a ring of three everybody hears everybody"
        assert got["counts"] == [3, 3]
    pieces = [piece for worker in seen for piece in worker["rounds"]["mine"]]
    assert close(pieces, total.view(-1) / 3)
    for name in ("sum", "ring", "any", "mean", "narrow", "gathered"):
        assert seen[0]["rounds"][name] == seen[1]["rounds"][name] == seen[2]["rounds"][name]


def test_tickets_may_be_awaited_in_any_order(seen: list[dict[str, Any]]) -> None:
    means = [sum(values(worker, 5, seed=number) for worker in range(WORKERS)) / 3 for number in range(4)]
    gathered = torch.cat([values(worker, 2, seed=4) for worker in range(WORKERS)])
    for worker in range(WORKERS):
        found = seen[worker]["tickets"]
        assert found[0] == gathered.tolist()
        assert close(found[1], means[3], 0.02)
        for number in range(3):
            assert close(found[4 - number], means[number])


def test_windows_show_what_is_there(seen: list[dict[str, Any]]) -> None:
    assert [worker["windows"] for worker in seen] == [
        [7 * (100.0 + peer) for peer in range(WORKERS)]
    ] * WORKERS


def test_a_round_may_take_what_another_gave(seen: list[dict[str, Any]]) -> None:
    for worker in seen:
        assert worker["chained"] == [18.0, 2.0] * 6 + [6.0]


def test_tickets_may_hold_several_rounds_and_lanes_come_back(seen: list[dict[str, Any]]) -> None:
    """(1 + 2 + 3) / 3 = 2, and then 2 (1 + 2 + 3) / 3 = 4."""
    for worker in seen:
        assert worker["many"] == [40.0, 4.0, *map(float, range(40))]


# What is refused


class Careless(fast.Strategy):
    """Does one thing that can't be meant."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.bucket_bytes = 1 if what == "early" else None

    async def fail(self, me: fast.Me) -> None:
        await me.mean(torch.zeros(3))
        raise fast.UsageError("after the mean")

    async def step(self, me: fast.Me) -> None:
        match self.what:
            case "forgets":
                me.start(me.mean(torch.zeros(3)))
            case "looks":
                await me.read(0, "weights")
            case "order":
                await me.mean(torch.zeros(3), order="random")
            case "algorithm":
                await me.all_reduce(torch.zeros(3), algorithm="rign")
            case "too many":
                for _ in range(32):
                    me.start(me.mean(torch.zeros(1)))
            case "early":
                me.apply(me.gradient)
            case "fails":
                await me.start(self.fail(me))
            case "integers":
                me.send(me.peers, torch.arange(3), tag="x", codec=fast.codecs.int8())


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("forgets", "1 rounds were started and not awaited"),
        ("looks", "Set `racy = True`"),
        ("order", "'canonical' order"),
        ("algorithm", "Did you mean 'ring'?"),
        ("too many", "more than 31 rounds are under way"),
        ("early", "its step ended before all of the gradient was computed"),
        ("fails", "after the mean"),
        ("integers", "floating point numbers and got torch.int64"),
    ],
)
def test_careless_programs_are_answered(what: str, answer: str) -> None:
    with pytest.raises(fast.UsageError) as raised:
        simulation(Careless(what), [1, 1]).run()
    assert answer in str(raised.value)


class Overlapping(fast.Strategy):
    """A ticket for the gradient itself, whose last parts are not computed when it starts."""

    synchronous = True
    bucket_bytes = 1

    async def step(self, me: fast.Me) -> None:
        other = me.start(me.mean(torch.full((3,), float(me.id))))
        gradient = me.start(me.mean_gradient(weight=me.samples))
        me.apply(await gradient)
        assert float((await other)[0]) == 1.0


def test_a_ticket_may_wait_for_the_gradient() -> None:
    simulations = [simulation(strategy, [6] * 3) for strategy in (Overlapping(), fast.presets.allreduce())]
    for each in simulations:
        each.run()
    one, two = ([worker.me.weights for worker in each.workers] for each in simulations)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


class Waiting(fast.Strategy):
    """Has an encoded round in each turn, and one that is left out now and then."""

    synchronous = True
    codec = fast.codecs.error_feedback(fast.codecs.top_k(0.25))

    def state(self, me: fast.Me) -> dict[str, torch.Tensor]:
        return {"named": torch.zeros(4), "rare": torch.zeros(4), "begun": torch.zeros(4)}

    async def begin(self, me: fast.Me) -> None:
        me.state["begun"] += await me.mean(torch.full((4,), 100.0), codec=self.codec)

    async def step(self, me: fast.Me) -> None:
        if me.steps % 3 == 0:
            me.state["rare"] += await me.mean(torch.full((4,), 10.0), codec=self.codec, channel="rare")
        me.state["named"] += await me.mean(torch.full((4,), 1.0), codec=self.codec, channel="named")
        me.apply(me.gradient)


def test_each_channel_has_a_memory_of_its_own() -> None:
    """A quarter of the values at a time: after 8 steps no more than 3 of each value are still to come."""
    simulated = simulation(Waiting(), [8, 8])
    simulated.run()
    for worker in simulated.workers:
        for name, unit, rounds in (("named", 1.0, 8), ("rare", 10.0, 3), ("begun", 100.0, 9)):
            total = float(worker.me.state[name].sum())
            assert total % unit == 0 and 0 < total <= 4 * unit * rounds, (name, total)
            assert float(worker.me.state[name].max()) < 10 * rounds * unit, (
                "nothing of another channel is inside"
            )


class Sums(fast.Strategy):
    """As the page on moving tensors has it."""

    synchronous = True
    bucket_bytes = 1

    async def step(self, me: fast.Me) -> None:
        sums = [(bucket, me.start(me.all_reduce(bucket.values))) async for bucket in me.buckets()]
        merged = me.scratch("merged")
        for bucket, ticket in sums:
            merged[bucket.start : bucket.stop] = await ticket
        me.apply(merged / len(me.workers))


def test_buckets_may_be_summed_by_hand() -> None:
    by_hand, preset = (simulation(strategy, [6] * 3) for strategy in (Sums(), fast.presets.allreduce()))
    by_hand.run()
    preset.run()
    for one, other in zip(by_hand.workers, preset.workers, strict=True):
        assert torch.allclose(one.me.weights, other.me.weights, atol=1e-6)


class Own(fast.codecs.fp16):
    """A codec that isn't one of the package's."""

    name = "own"


@pytest.mark.parametrize(
    ("say", "answer"),
    [
        (lambda me: me.send(me.peers, torch.ones(3), "x", codec="int8"), "without quotes"),
        (lambda me: me.send(me.peers, torch.ones(3), "x", codec=fast.codecs.int8), "with the brackets"),
        (lambda me: me.send(me.peers, torch.ones(3), "x", codec=Own()), "isn't one of fast.codecs"),
        (lambda me: me.send(me.peers, 3.0, "x"), "it sends tensors"),
        (lambda me: me.all_reduce(3.0), "it takes tensors"),
    ],
)
def test_what_is_no_codec_and_no_tensor_is_answered(say: Any, answer: str) -> None:
    class Says(fast.Strategy):
        async def step(self, me: fast.Me) -> None:
            waiting = say(me)
            if waiting is not None:
                await waiting

    with pytest.raises(fast.UsageError) as raised:
        simulation(Says(), [1, 1]).run()
    assert answer in str(raised.value)


@pytest.mark.parametrize(
    ("build", "answer"),
    [
        (lambda: fast.presets.choco(codec=fast.codecs.ef_sign()), "sends it twice"),
        (lambda: fast.presets.allreduce(codec=fast.codecs.int8(), algorithm="ring"), "bytes can't be added"),
        (
            lambda: fast.presets.allreduce(codec=fast.codecs.top_k(0.1), algorithm="ring"),
            "values with their places",
        ),
    ],
)
def test_combinations_that_can_not_work_are_refused_when_built(build: Any, answer: str) -> None:
    with pytest.raises(fast.UsageError) as raised:
        build()
    assert answer in str(raised.value)
