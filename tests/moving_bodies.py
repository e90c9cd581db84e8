"""A program that moves tensors with all that `me` offers, for workers of either world.

What each worker gets is compared with what follows from everybody's seeds, in the test itself or
right here where it is simplest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fast
import preset_bodies
from fast.codecs import bf16, error_feedback, int8, top_k
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.topologies import Ring

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip


def values(worker: int, *shape: int, seed: int = 0) -> Tensor:
    """What this worker brings; everybody knows how to make it."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * seed + worker))


def odd_tensors(worker: int) -> list[Tensor]:
    """Of all dtypes, and of shapes that are easy to get wrong: none contiguous but the last three."""
    wide = values(worker, 6, 10) * 3
    shaped = [wide.to(dtype).t() if n % 2 else wide.to(dtype)[::2, ::3] for n, dtype in enumerate(DTYPES)]
    return [*shaped, torch.tensor(2.5 + worker), torch.empty(0, 3), torch.arange(5)]


class Moves(fast.Strategy):
    """Each step does one thing and writes down what came of it."""

    topology = Ring()
    racy = True

    def state(self, me: fast.Me) -> dict[str, Any]:
        return {}

    async def begin(self, me: fast.Me) -> None:
        if me.steps == 0:
            me.state["window"] = me.publish("numbers", torch.full((7,), float(me.id), dtype=torch.float64))

    async def step(self, me: fast.Me) -> None:
        program = PROGRAMS[me.steps % len(PROGRAMS)](self, me)
        me.state[program.__name__] = await program
        me.apply(me.gradient)

    async def letters(self, me: fast.Me) -> bool:
        """Any dtype, any shape, contiguous or not; in order; with notes."""
        for number, tensor in enumerate(odd_tensors(me.id)):
            me.send(me.peers, tensor, tag="odd", number=number, of=me.id)
        right = True
        for peer in me.peers:
            for number, expected in enumerate(odd_tensors(peer)):
                letter = await me.receive("odd", peer)
                right &= letter.note == {"number": number, "of": peer}
                right &= letter.tensor.dtype == expected.dtype and letter.tensor.shape == expected.shape
                right &= (
                    torch.equal(letter.tensor.view(torch.uint8), expected.contiguous().view(torch.uint8))
                    if (expected.dim())
                    else bool(letter.tensor == expected)
                )
        return right

    async def encoded(self, me: fast.Me) -> list[list[float]]:
        """A codec per call; what is left out comes with the next letter."""
        heard = []
        for _ in range(2):
            sent = torch.zeros(10)
            me.send(
                me.peers,
                torch.arange(10.0) ** 1.3 + me.id,
                tag="top",
                codec=error_feedback(top_k(0.3)),
                into=sent,
            )
            got, _ = await me.gather("top", me.peers)
            heard += [letter.tensor.tolist() for letter in got.values()]
            me.send(me.peers, values(me.id, 4, 5), tag="rounded", codec=int8())
            got, _ = await me.gather("rounded", me.peers)
            for peer, letter in got.items():
                assert letter.tensor.shape == (4, 5)
                assert float((letter.tensor - values(peer, 4, 5)).abs().max()) < 0.02
        return heard

    async def rounds(self, me: fast.Me) -> dict[str, list[Any]]:
        own = values(me.id, 3, 4)
        return {
            "sum": (await me.all_reduce(own)).tolist(),
            "ring": (await me.all_reduce(own, algorithm="ring")).tolist(),
            "any": (await me.mean(own, order="any")).tolist(),
            "mean": (await me.mean(own, weight=1.0 + me.id)).tolist(),
            "narrow": (await me.mean(own, codec=bf16())).tolist(),
            "gathered": (await me.all_gather(own)).tolist(),
            "mine": (await me.reduce_scatter(own.view(-1))).tolist(),
            "first": (await me.broadcast(own, me.workers[-1])).tolist(),
            "mixed": (await me.neighbour_mean(own)).tolist(),
            "counts": (await me.all_reduce(torch.tensor([me.id, 1]))).tolist(),
        }

    async def tickets(self, me: fast.Me) -> list[list[float]]:
        """Several under way at once, awaited in another order than they were started in."""
        tickets = [me.start(me.mean(values(me.id, 5, seed=number))) for number in range(3)]
        tickets.append(me.start(me.mean(values(me.id, 5, seed=3), codec=bf16())))
        tickets.append(me.start(me.all_gather(values(me.id, 2, seed=4))))
        return [(await ticket).reshape(-1).tolist() for ticket in reversed(tickets)]

    async def windows(self, me: fast.Me) -> list[float]:
        """What is written into a window is there for who looks."""
        me.state["window"].add_(100)
        await me.mean(torch.zeros(1))
        seen = [float((await me.read(peer, "numbers")).sum()) for peer in me.workers]
        await me.mean(torch.zeros(1))
        return seen

    async def chained(self, me: fast.Me) -> list[float]:
        """What one round gives is what the next one takes."""
        found = []
        for algorithm in ("auto", "direct", "ring", "doubling", "rabenseifner", "tree"):
            once = await me.all_reduce(torch.full((6,), 1.0 + me.id), algorithm=algorithm)
            found.append(float((await me.all_reduce(once, algorithm=algorithm))[0]))
            half = await me.mean(torch.full((6,), 1.0 + me.id), algorithm=algorithm)
            found.append(float((await me.mean(half, algorithm=algorithm))[0]))
        row = await me.all_gather(torch.full((2,), 1.0 + me.id))
        found.append(float((await me.all_gather(row[0])).sum()))
        return found

    async def many(self, me: fast.Me) -> list[float]:
        """Any number of tickets, as long as not too many are under way; each may hold several rounds."""

        async def twice(value: float) -> float:
            first = await me.mean(torch.full((3,), value * (1 + me.id)))
            return float((await me.mean(first * (1 + me.id)))[0])

        one, two = me.start(twice(1.0)), me.start(twice(10.0))
        found = [await two, await one]
        for number in range(40):
            found.append(float((await me.start(me.mean(torch.full((2,), float(number)))))[0]))  # noqa: PERF401
        return found


PROGRAMS = (
    Moves.letters, Moves.encoded, Moves.rounds, Moves.tickets, Moves.windows, Moves.chained, Moves.many,
)  # fmt: skip


def move() -> dict[str, Any]:
    """On a real worker: what each of the steps gave."""
    seat = current_seat()
    model = preset_bodies.make_model()
    optimizer = preset_bodies.make_optimizer(model)
    fast.join(model, optimizer, Moves())
    for batch in preset_bodies.batches(seat.id, len(PROGRAMS)):
        preset_bodies.loss_of(model, batch).backward()
        optimizer.step()
    runtime = seat.sessions[-1].runtime
    assert runtime is not None
    seen = {key: value for key, value in runtime.me.state.items() if key != "window"}
    close_sessions(seat)
    return seen
