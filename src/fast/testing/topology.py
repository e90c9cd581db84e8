"""The kit for topologies: graphs, mixing weights and shares that strategies may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx
import torch

from fast.errors import UsageError
from fast.parts import Topology
from fast.parts.topology.spectrum import OfPlace, mixing_matrix, push_matrix
from fast.view import View

__all__ = ["check_topology", "contraction", "mixing_matrix", "push_matrix"]

LEAVERS = 16
"""So many departures from the largest size are tried."""


def check_topology(
    topology: Topology,
    sizes: Iterable[int] = range(1, 17),
    *,
    rounds: Iterable[int] | None = None,
    connected: bool = True,
    departures: bool = True,
) -> None:
    """Fail with AssertionError where this topology breaks the contract.

    Sizes that the topology itself refuses (`check` raises UsageError) are left out, but at least
    one must remain. With `departures`, the sizes below the largest must work too, accepted or not:
    workers leave, and nobody asks again. With `connected`, the links of any `period` rounds in a
    row must join all workers: each must hear of each other one. Of a topology that changes, all
    rounds of two periods are tried unless `rounds` are given.

    >>> from fast.parts import Ring
    >>> check_topology(Ring())
    """
    accepted = [size for size in sizes if _accepts(topology, size)]
    assert accepted, f"{topology!r} refuses every number of workers that was tried"
    below = range(max(1, max(accepted) - LEAVERS), max(accepted)) if departures else ()
    for size in dict.fromkeys([*accepted, *below]):
        period = topology.period(size)
        assert period >= 1, (
            f"{topology!r} with {size} workers: a period of {period} rounds; at least 1 is needed"
        )
        tried = tuple(range(max(3, 2 * period)) if rounds is None else rounds)
        for round_ in tried:
            _check_links(topology, size, round_)
            _check_ids(topology, size, round_)
            _check_shares(topology, size, round_)
            _check_weights(topology, size, round_)
            if connected:
                _check_connected(topology, size, range(round_, round_ + period))
        _check_changing(topology, size, tried)


def contraction(topology: Topology, size: int, rounds: int | None = None) -> float:
    """By which factor the distance from the mean shrinks per round, at worst: 0 is at once, 1 never.

    For a graph that doesn't change this is the second largest |eigenvalue| of W; else it is taken
    over `rounds`, by default a period, as the norm of W_t ... W_1 minus the mean, per round.
    """
    count = topology.period(size) if rounds is None else rounds
    product = torch.eye(size, dtype=torch.float64)
    for round_ in range(count):
        product = mixing_matrix(topology, size, round_) @ product
    worst = float(torch.linalg.matrix_norm(product - 1 / size, 2))
    return float(worst ** (1 / count)) if worst > 1e-13 else 0.0  # below that it is rounding


def _accepts(topology: Topology, size: int) -> bool:
    try:
        topology.check(size)
    except UsageError:
        return False
    return True


def _mixes(topology: Topology, size: int, round_: int) -> bool:
    """Whether there are mixing weights; if not for one place, then not for the whole."""
    try:
        mixing_matrix(topology, size, round_)
    except UsageError:
        mixes = False
    else:
        mixes = True
    assert mixes or topology.directed, (
        f"{topology!r} isn't directed and refuses to give mixing weights for {size} workers"
    )
    return mixes


def _where(topology: Topology, size: int, round_: int) -> str:
    return f"{topology!r} with {size} workers, round {round_}"


def _check_changing(topology: Topology, size: int, rounds: tuple[int, ...]) -> None:
    graphs = {tuple(topology.links(index, size, round_) for index in range(size)) for round_ in rounds}
    assert topology.changing or len(graphs) <= 1, (
        f"{topology!r} with {size} workers: links differ from round to round; a topology that changes says so"
    )


def _check_links(topology: Topology, size: int, round_: int) -> None:
    where = _where(topology, size, round_)
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
            assert topology.directed or index in links[other], (
                f"{where}: {index} hears {other}, but {other} doesn't hear {index}; a directed topology says so"
            )
        assert topology.in_degree(index, size, round_) == len(others), (
            f"{where}: in_degree of place {index} is {topology.in_degree(index, size, round_)}, and it hears {others}"
        )
    for index in range(size):
        told = topology.told(index, size, round_)
        hearers = tuple(other for other in range(size) if index in links[other])
        assert told == hearers, f"{where}: place {index} tells {told}, but those who hear it are {hearers}"


def _check_ids(topology: Topology, size: int, round_: int) -> None:
    """Ids are names: other ids in the same places give the same graph."""
    ids = tuple(7 + 5 * place for place in range(size))
    mixes = _mixes(topology, size, round_)
    for index in range(size):
        if mixes:
            _check_named(topology, topology.neighbours, topology.links, (index, round_), ids)
        _check_named(topology, topology.audience, topology.told, (index, round_), ids)
        heard = topology.heard(index, View(3, ids), round_)
        expected = tuple(ids[place] for place in topology.links(index, size, round_))
        assert heard == expected, f"{topology!r}: heard {heard} differ from links {expected}"


def _check_named(
    topology: Topology,
    of_place: OfPlace,
    places: Callable[[int, int, int], tuple[int, ...]],
    at: tuple[int, int],
    ids: tuple[int, ...],
) -> None:
    index, round_ = at
    found = dict(of_place(index, View(3, ids), round_))
    plain = of_place(index, View(0, tuple(range(len(ids)))), round_)
    assert found == {ids[place]: weight for place, weight in plain.items()}, (
        f"{topology!r} with workers {ids}: place {index} gets {found}, and with workers 0 to {len(ids) - 1} "
        f"it gets {dict(plain)}; a topology is a function of places in the view"
    )
    expected = tuple(ids[place] for place in places(index, len(ids), round_))
    assert tuple(found) == expected, (
        f"{topology!r}: {of_place.__name__} of place {index} are {tuple(found)}, and by its links "
        f"they would be {expected}"
    )


def _check_shares(topology: Topology, size: int, round_: int) -> None:
    """What a place gives away and keeps adds up to 1 by construction; so it must not give too much."""
    matrix = push_matrix(topology, size, round_)
    assert bool((matrix >= 0).all()) and bool((matrix.diagonal() > 0).all()), (
        f"{_where(topology, size, round_)}: a place gives away all that it has, or more than that:\n{matrix}"
    )


def _check_weights(topology: Topology, size: int, round_: int) -> None:
    if not _mixes(topology, size, round_):
        return
    where = _where(topology, size, round_)
    matrix = mixing_matrix(topology, size, round_)
    assert bool((matrix >= -1e-12).all()), f"{where}: a mixing weight is negative:\n{matrix}"
    for axis, name in ((0, "columns"), (1, "rows")):
        sums = matrix.sum(axis)
        assert torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-12), (
            f"{where}: the mixing weights' {name} add up to {sums.tolist()}; each must be 1"
        )
    assert topology.directed or torch.equal(matrix.tril(-1), matrix.T.tril(-1)), (
        f"{where}: the mixing weights aren't symmetric:\n{matrix}"
    )


def _check_connected(topology: Topology, size: int, rounds: range) -> None:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(size))
    for round_ in rounds:
        graph.add_edges_from((j, i) for i in range(size) for j in topology.links(i, size, round_))
    parts = [sorted(part) for part in networkx.strongly_connected_components(graph)]
    assert len(parts) == 1, (
        f"{topology!r} with {size} workers falls apart into {parts} in rounds {rounds.start} to {rounds.stop - 1}"
    )
