"""The kit for topologies: graphs and mixing weights that strategies may rely on."""

from __future__ import annotations

from collections.abc import Iterable

import networkx
import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts import Topology
from fast.view import View


def check_topology(
    topology: Topology,
    sizes: Iterable[int] = range(1, 17),
    *,
    rounds: Iterable[int] = range(3),
    connected: bool = True,
) -> None:
    """Fail with AssertionError where this topology breaks the contract.

    Sizes that the topology itself refuses (`check` raises UsageError) are left out, but at least
    one must remain. With `connected`, the links of all `rounds` together must join all workers.

    >>> from fast.parts import Ring
    >>> check_topology(Ring())
    """
    accepted = [size for size in sizes if _accepts(topology, size)]
    assert accepted, f"{topology!r} refuses every number of workers that was tried"
    all_rounds = tuple(rounds)
    for size in accepted:
        for round_ in all_rounds:
            _check_links(topology, size, round_)
            _check_ids(topology, size, round_)
            _check_weights(topology, size, round_)
        if connected:
            _check_connected(topology, size, all_rounds)


def mixing_matrix(topology: Topology, size: int, round_: int = 0) -> Tensor:
    """W, with what a worker keeps of its own on the diagonal, in float64."""
    view = View(0, tuple(range(size)))
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for index in range(size):
        for other, weight in topology.neighbours(index, view, round_).items():
            matrix[index, other] = weight
        matrix[index, index] = 1.0 - matrix[index].sum()
    return matrix


def _accepts(topology: Topology, size: int) -> bool:
    try:
        topology.check(size)
    except UsageError:
        return False
    return True


def _check_links(topology: Topology, size: int, round_: int) -> None:
    where = f"{topology!r} with {size} workers, round {round_}"
    links = [topology.links(index, size, round_) for index in range(size)]
    again = [topology.links(index, size, round_) for index in range(size)]
    assert links == again, f"{where}: links differ when asked twice; a topology is pure"
    for index, others in enumerate(links):
        assert list(others) == sorted(set(others)), (
            f"{where}: place {index} hears {others}; needed is each place once, sorted"
        )
        assert index not in others, f"{where}: place {index} hears itself"
        assert all(0 <= other < size for other in others), (
            f"{where}: place {index} hears {others}, which are not all places from 0 to {size - 1}"
        )
        for other in others:
            assert index in links[other], f"{where}: {index} hears {other}, but {other} doesn't hear {index}"


def _check_ids(topology: Topology, size: int, round_: int) -> None:
    """Ids are names: other ids in the same places give the same graph."""
    ids = tuple(7 + 5 * place for place in range(size))
    view = View(3, ids)
    for index in range(size):
        found = dict(topology.neighbours(index, view, round_))
        plain = topology.neighbours(index, View(0, tuple(range(size))), round_)
        assert found == {ids[place]: weight for place, weight in plain.items()}, (
            f"{topology!r} with workers {ids}: place {index} gets {found}, and with workers 0 to {size - 1} "
            f"it gets {dict(plain)}; a topology is a function of places in the view"
        )
        expected = tuple(ids[place] for place in topology.links(index, size, round_))
        assert tuple(found) == expected, (
            f"{topology!r}: neighbours {tuple(found)} differ from links {expected}"
        )


def _check_weights(topology: Topology, size: int, round_: int) -> None:
    where = f"{topology!r} with {size} workers, round {round_}"
    matrix = mixing_matrix(topology, size, round_)
    assert bool((matrix >= -1e-12).all()), f"{where}: a mixing weight is negative:\n{matrix}"
    for axis, name in ((0, "columns"), (1, "rows")):
        sums = matrix.sum(axis)
        assert torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-12), (
            f"{where}: the mixing weights' {name} add up to {sums.tolist()}; each must be 1"
        )


def _check_connected(topology: Topology, size: int, rounds: tuple[int, ...]) -> None:
    graph = networkx.Graph()
    graph.add_nodes_from(range(size))
    for round_ in rounds:
        graph.add_edges_from((i, j) for i in range(size) for j in topology.links(i, size, round_))
    parts = [sorted(part) for part in networkx.connected_components(graph)]
    assert len(parts) == 1, f"{topology!r} with {size} workers falls apart into {parts}"
