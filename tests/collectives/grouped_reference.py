"""A grouped mean as plainly as it can be said: numpy scalars, one after another."""

from __future__ import annotations

import numpy
import torch

_NUMPY = {torch.float32: numpy.float32, torch.float64: numpy.float64}


def reference(tensors, weights, groups, *, divide=True):
    """`tensors` and `weights` by worker, `groups` of those workers: each group's sum by ascending worker, then the
    sums in the order of the groups' lowest workers."""
    dtype = tensors[min(tensors)].dtype
    number = _NUMPY.get(dtype, numpy.float32)
    there = [sorted(set(group) & set(tensors)) for group in groups]
    ordered = sorted((group for group in there if group), key=min)
    given = [weights[worker] for worker in tensors]
    equal = len(set(given)) == 1 or sum(given) == 0 or not divide
    divisor = number(len(tensors) if equal else sum(weights[worker] for worker in sorted(tensors)))
    result = []
    for place in range(len(tensors[min(tensors)])):
        total = None
        for group in ordered:
            partial = None
            for worker in group:
                term = number(float(tensors[worker][place]))
                term = term if equal else number(term * number(weights[worker]))
                partial = term if partial is None else number(partial + term)
            total = partial if total is None else number(total + partial)
        result.append(number(total / divisor) if divide else total)
    return torch.from_numpy(numpy.array(result, dtype=number)).to(dtype)
