"""Loose parameters: those of the model that the joined optimizer doesn't train.

All workers start with worker 0's values. Mostly nobody changes them: a frozen backbone, a part that the optimizer was
never given. But a second optimizer, or an average that the script keeps by hand, changes them on each worker alone.
Then the replicas differ in them, and the representative model needs one value for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fast.adapters.parameters import plain_name
from fast.runtime.gathering import Replicas, mean_of
from fast.runtime.journal import digest_of
from fast.runtime.rendezvous import pack, unpacked_like

Told = Callable[[str], None]
Named = list[tuple[str, Tensor]]


def agree_on_loose(model: nn.Module, replicas: Replicas, only: int | None, say: Told) -> None:
    """Give the loose parameters of this copy the same values on every worker.

    Those that differ take the mean of the workers that stand for the model, or the values of worker `only`.
    """
    taken = {segment.name for segment in replicas.layout.segments}
    named = [(plain_name(name), p) for name, p in model.named_parameters()]
    loose = _different(replicas, [(name, p.data) for name, p in named if name not in taken])
    if not loose:
        return
    values = [value for _, value in loose]
    shown = replicas.company.share(pack(values), "parameters outside the joined optimizer")
    copies = {worker: unpacked_like(data, values) for worker, data in shown.items()}
    chosen = _chosen(copies, replicas.workers if only is None else [only])
    for (_, value), alike in zip(loose, zip(*chosen, strict=True), strict=True):
        value.copy_(mean_of(alike))
    say(_in_words(loose, only))


def _different(replicas: Replicas, loose: Named) -> Named:
    """Those whose bits differ between workers: a digest of each is compared, so equal ones are never sent."""
    if not loose:
        return []
    digests = torch.stack([torch.frombuffer(bytearray(digest_of(p)), dtype=torch.uint8) for _, p in loose])
    shown = replicas.company.share(digests, "digests of parameters outside the joined optimizer")
    differ = torch.stack([(each != digests).any(1) for each in shown.values()]).any(0).tolist()
    return [each for each, other in zip(loose, differ, strict=True) if other]


def _chosen(copies: Mapping[int, list[Tensor]], workers: Sequence[int]) -> list[list[Tensor]]:
    """The copies of these workers. A worker that has left can't show its own, so without any of them all count."""
    return [copies[worker] for worker in workers if worker in copies] or list(copies.values())


def _in_words(loose: Named, only: int | None) -> str:
    values = "the mean over the workers" if only is None else f"the values of worker {only}"
    return (
        f"{len(loose)} parameters of the model (first {loose[0][0]!r}) are not in the joined optimizer and differ "
        f"between workers; the model has {values}. To train them together, add them to that optimizer before "
        "fast.join."
    )
