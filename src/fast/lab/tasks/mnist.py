"""MNIST with three sizes of model, and on a small part of it.

Rates were chosen on the validation images, with serial SGD and batches of 128: what four workers with
32 images each do with `allreduce`. Of those that reach the target in about the shortest time the
smaller one was taken, which leaves room for gradients that come late. All tasks train four to six times as long
as the target takes on the test images, so that slower strategies have time to get there too.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

from torch import Tensor, nn

from fast.lab import datasets
from fast.lab.datasets import DataSet
from fast.lab.datasets.idx import SIDE, labels_in, read_images, read_labels
from fast.lab.tasks.classifying import Classification, Divided, permutation

_MEAN, _DEVIATION = 0.1307, 0.3081
"""Of the pixels of the training images, on a scale from 0 to 1."""


@final
class Pixels(nn.Module):
    """Bytes in, standardized floats out.

    Images stay bytes until a model looks at them: the whole set is a quarter of the size, it is
    mapped from its file, and turning 32 images into floats takes microseconds.
    """

    batchable = True
    """Simulated workers may look at theirs together: each image is turned on its own."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(1 / (255 * _DEVIATION)).sub_(_MEAN / _DEVIATION)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(before, after)]
    return nn.Sequential(Pixels(), *layers[1:])


class Mnist(Classification):
    """60,000 images: 55,000 to train and 5,000 to validate; and 10,000 others for the test."""

    source: ClassVar[DataSet] = datasets.MNIST
    validation_images: ClassVar[int] = 5000
    batch_size = 32

    @abstractmethod
    def model(self) -> nn.Module: ...

    def train(self) -> Sequence[int]:
        images = labels_in(self.source.part("train-labels").size_bytes)
        return range(images - self.validation_images)

    def data(self) -> Sequence[str]:
        return (self.source.name,)

    def divided(self) -> Divided:
        return _divided(self.source, self.validation_images, datasets.cache_folder())


@functools.cache
def _divided(source: DataSet, validation_images: int, cache: Path) -> Divided:
    """Made once per process, and per cache: the folder is an argument for that reason only."""
    files = datasets.load(source)
    images, labels = read_images(files["train-images"]), read_labels(files["train-labels"])
    order = permutation(len(labels))
    validation = order[:validation_images]
    return Divided(
        images,
        labels,
        train=order[validation_images:],
        validation=(images[validation], labels[validation]),
        test=(read_images(files["test-images"]), read_labels(files["test-labels"])),
    )


@final
class MnistMlp(Mnist):
    """784-64-10, 204 kB of weights. The target takes 2.4 to 2.7 epochs; with rates of 0.2 and 0.3 about
    3.0 and 2.2, with 0.4 it is hardly kept."""

    name = "mnist-mlp"
    about = "MNIST, MLP 784-64-10"
    target = 0.965
    epochs: ClassVar[float] = 8.0
    rate: ClassVar[float] = 0.25

    def model(self) -> nn.Module:
        return mlp(784, 64, 10)


@final
class MnistWide(Mnist):
    """784-1024-1024-10, 7.5 MB of weights: here the traffic counts. The target takes 1.4 to 1.7 epochs, with
    a rate of 0.2 2.2; 0.5 is no faster, 0.8 diverges."""

    name = "mnist-wide"
    about = "MNIST, MLP 784-1024-1024-10: more weights to send"
    target = 0.97
    epochs: ClassVar[float] = 8.0
    rate: ClassVar[float] = 0.3

    def model(self) -> nn.Module:
        return mlp(784, 1024, 1024, 10)


@final
class MnistCnn(Mnist):
    """Two convolutions that halve the picture, then 784-64-10: more computing per weight. The target
    takes 1.4 to 1.7 epochs, with a rate of 0.3 as well, with 0.15 two."""

    name = "mnist-cnn"
    about = "MNIST, two convolutions: more computing per weight"
    target = 0.975
    epochs: ClassVar[float] = 6.0
    rate: ClassVar[float] = 0.2

    def model(self) -> nn.Module:
        return nn.Sequential(
            Pixels(),
            nn.Unflatten(1, (1, SIDE, SIDE)),
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(784, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


@final
class MnistSmall(Classification):
    """5,000 images of MNIST: 3,500 to train, 500 to validate, 1,000 for the test. The target takes 3.2
    to 3.8 epochs, with rates of 0.2 and 0.4 about 5 and 4."""

    name = "mnist-small"
    about = "5,000 images of MNIST, MLP 784-64-10"
    source: ClassVar[DataSet] = datasets.MNIST_SMALL
    target = 0.93
    batch_size = 32
    epochs: ClassVar[float] = 20.0
    rate: ClassVar[float] = 0.3

    def model(self) -> nn.Module:
        return mlp(784, 64, 10)

    def train(self) -> Sequence[int]:
        return range(labels_in(self.source.part("labels").size_bytes) * 7 // 10)

    def data(self) -> Sequence[str]:
        return (self.source.name,)

    def divided(self) -> Divided:
        return _divided_small(self.source, datasets.cache_folder())


@functools.cache
def _divided_small(source: DataSet, cache: Path) -> Divided:
    """A fifth for the test and a tenth to validate."""
    files = datasets.load(source)
    images, labels = read_images(files["images"]), read_labels(files["labels"])
    order, tenth = permutation(len(labels)), len(labels) // 10
    test, validation = order[: 2 * tenth], order[2 * tenth : 3 * tenth]
    return Divided(
        images,
        labels,
        train=order[3 * tenth :],
        validation=(images[validation], labels[validation]),
        test=(images[test], labels[test]),
    )
