"""What a push counts for where each is applied as it comes: its samples among those of all who train now."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from fast.core import Me, Strategy
from fast.sim import Simulation
from fast.strategies.presets import essp, project_adam, ssp, vap

from .problem import Batch, LeastSquares, RandomCompute, close

PROBLEM = LeastSquares()
UNEQUAL = [2, 7, 4, 5]


def batch(step: int, size: int) -> Batch:
    return tuple(range(step, step + size))


def run(strategy: Strategy, batches: list[list[Batch]], seed: int) -> tuple[list[Tensor], list[Any]]:
    """What the server applies, and whose steps end, with their gradients and samples, in this order.

    Letters take no time and nobody waits for anybody, so pushes come in the order in which steps end."""
    simulation = PROBLEM.simulation(strategy, batches, lr=1e-3, compute=RandomCompute(), seed=seed)
    applied, ended = applied_by(simulation), list[Any]()

    def watch(me: Me, now: int) -> None:
        ended.append((me.id, me.gradient.clone(), me.samples))

    simulation.run(on_step=watch)
    return applied, ended


def applied_by(simulation: Simulation) -> list[Tensor]:
    """The gradients that the one server's optimizer gets from now on."""
    replica, found = simulation.servers[0].me.replica, list[Tensor]()
    apply = replica.apply

    def spy(gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        found.append(gradient.clone())
        apply(gradient, present, rates)

    replica.apply = spy  # type: ignore[method-assign]
    return found


def shares(ended: list[Any], counts: list[int]) -> list[float]:
    """Its samples over P times the mean of everybody's last ones; who has taken its last step counts no more."""
    last, left, found = dict[int, int](), list(counts), list[float]()
    for worker, _, samples in ended:
        last[worker] = samples
        here = sum(each > 0 for each in left)
        found.append(samples / (sum(last.values()) / len(last) * here))
        left[worker] -= 1
        if not left[worker]:
            del last[worker]
    return found


each_strategy = pytest.mark.parametrize("strategy", [ssp(inf), essp(60), vap(inf), project_adam()], ids=repr)


@each_strategy
@pytest.mark.parametrize("counts", [[9, 9, 9, 9], [9, 4, 12, 7]], ids=repr)
def test_a_push_counts_for_its_part_of_the_samples(strategy: Strategy, counts: list[int]) -> None:
    """Batches of different sizes, of which a worker's last one is short, and workers that leave."""
    sizes = [[size] * (count - 1) + [1] for size, count in zip(UNEQUAL, counts, strict=True)]
    batches = [[batch(step, size) for step, size in enumerate(own)] for own in sizes]
    for seed in range(3):
        applied, ended = run(strategy, batches, seed)
        expected = [share * g for share, (_, g, _) in zip(shares(ended, counts), ended, strict=True)]
        assert len(applied) == len(expected) == sum(counts)
        assert close(torch.stack(applied), torch.stack(expected))


@each_strategy
def test_the_short_last_batches_of_others_do_not_raise_a_rate_for_ever(strategy: Strategy) -> None:
    """Who is alone at the end takes the steps of one worker, whatever those who left pushed last."""
    batches = [[batch(0, 8), batch(1, 1)]] * 3 + [[batch(step, 8) for step in range(20)]]
    applied, ended = run(strategy, batches, 0)
    assert [worker for worker, _, _ in ended[-5:]] == [3] * 5
    assert close(torch.stack(applied[-5:]), torch.stack([g for _, g, _ in ended[-5:]]))
