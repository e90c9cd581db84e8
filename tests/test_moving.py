"""Moving tensors with what `me` offers, in all worlds: simulated, threads over letters, processes over memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fast
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from moving_bodies import Moves, move, values
from preset_bodies import simulation

WORKERS = 3


@pytest.fixture(
    scope="module", params=["simulated", "threads", pytest.param("processes", marks=pytest.mark.real)]
)
def seen(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each worker saw in each step."""
    if request.param == "simulated":
        simulated = simulation(Moves(), [5] * WORKERS)
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


# What is refused


class Careless(fast.Strategy):
    """Does one thing that can't be meant."""

    def __init__(self, what: str) -> None:
        self.what = what

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
            case "integers":
                me.send(me.peers, torch.arange(3), tag="x", codec=fast.codecs.int8())


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("forgets", "1 rounds were started and not awaited"),
        ("looks", "Set `racy = True`"),
        ("order", "'canonical' order"),
        ("algorithm", "Did you mean 'ring'?"),
        ("integers", "floating point numbers and got torch.int64"),
    ],
)
def test_careless_programs_are_answered(what: str, answer: str) -> None:
    with pytest.raises(fast.UsageError, match="." if not answer else None) as raised:
        simulation(Careless(what), [1, 1]).run()
    assert answer in str(raised.value)
