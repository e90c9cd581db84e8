"""Handwritten digits of 8 x 8 pixels: the task that is always there and takes seconds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import nn

from fast.lab import datasets
from fast.lab.datasets.bundled import DIGITS_COLUMNS
from fast.lab.tasks.classifying import Classification, Divided, permutation

_TEST_IMAGES = 700
_VALIDATION_IMAGES = 201


@final
class Digits(Classification):
    """scikit-learn's bundled 1,797 images: 896 to train, 201 to validate, 700 for the test.

    896 is seven steps of four workers with 32 images each: a short last step would be a rough one, since it
    moves the weights as far as a whole one does.

    The rate was chosen on the validation images with batches of 128, what four workers do with `allreduce`.
    From 0.5 to 1 the target is reached in 4 to 9 epochs, below and above it takes longer; 0.5 leaves
    the most room for gradients that come late. On the test images that takes 12 epochs, a fifth of all, so that
    slower strategies have time to get there too.
    """

    name = "digits"
    about = "8 x 8 digits, MLP 64-64-10; always there, takes seconds"
    target = 0.94
    batch_size = 32
    epochs: ClassVar[float] = 60.0
    rate: ClassVar[float] = 0.5

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def train(self) -> Sequence[int]:
        images = datasets.DIGITS.size_bytes // DIGITS_COLUMNS
        return range(images - _TEST_IMAGES - _VALIDATION_IMAGES)

    def data(self) -> Sequence[str]:
        return (datasets.DIGITS.name,)

    def divided(self) -> Divided:
        return _divided()


@functools.cache
def _divided() -> Divided:
    """The images as floats, made once per process."""
    table = torch.frombuffer(bytearray(datasets.bundled(datasets.DIGITS)["table"]), dtype=torch.uint8)
    rows = table.view(-1, DIGITS_COLUMNS)
    images, labels = rows[:, :-1].float() / 16, rows[:, -1].long()
    order = permutation(len(labels))
    test, validation = order[:_TEST_IMAGES], order[_TEST_IMAGES : _TEST_IMAGES + _VALIDATION_IMAGES]
    return Divided(
        images,
        labels,
        train=order[_TEST_IMAGES + _VALIDATION_IMAGES :],
        validation=(images[validation], labels[validation]),
        test=(images[test], labels[test]),
    )
