"""A small language model: which character comes next?"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fast.core import Task
from fast.lab import datasets
from fast.lab.datasets import DataSet

_BYTES = 256
_CONTEXT = 64
_WIDTH = 64
_HEADS = 4
_RECENT = 4
_WINDOW = _CONTEXT + 1
"""Characters of a sample: each but the first is to be predicted from those before it."""
_BLOCK = 16
"""So many windows in a row are all for training, all for validation or all for the test."""
_PERIOD = 64
"""One block in so many is for validation, and one for the test."""
_CHUNK = 64
"""So many windows are scored at once."""
_SECTIONS = 10


@final
class Layer(nn.Module):
    """Attention to what came before, then a small network; each adds to what it was given. Both begin
    by adding nothing: plain SGD learns faster from there."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.ask, self.answer = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.inner, self.outer = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        nn.init.zeros_(self.answer.weight)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.before_attention(x))
        y: Tensor = self.outer(F.relu(self.inner(self.before_network(x))))
        return x + y

    def _attention(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        asked = self.ask(x).view(samples, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(asked[0], asked[1], asked[2], is_causal=True)
        answer: Tensor = self.answer(found.transpose(1, 2).reshape(samples, length, _WIDTH))
        return answer


@final
class CharacterModel(nn.Module):
    """A transformer of one layer over bytes: for each character, a score for every one that may follow it.

    A convolution over the last four characters comes first. With plain SGD, attention alone is very slow to
    find out that neighbours matter: it predicts a third of the characters where this predicts 0.46.
    """

    def __init__(self) -> None:
        super().__init__()
        self.character, self.position = nn.Embedding(_BYTES, _WIDTH), nn.Embedding(_CONTEXT, _WIDTH)
        self.recent, self.layer = nn.Conv1d(_WIDTH, _WIDTH, _RECENT), Layer()
        self.last, self.next = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _BYTES)
        nn.init.normal_(self.character.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        x = self.character(text.long())
        recent = self.recent(F.pad(x.transpose(1, 2), (_RECENT - 1, 0))).transpose(1, 2)
        scores: Tensor = self.next(self.last(self.layer(x + recent + self.position.weight[: text.shape[1]])))
        return scores


@final
class Kjv(Task):
    """The King James Bible (or a text of the user's own), byte by byte, with a small transformer.

    A sample is a window of 65 characters, of which 64 are predicted. Windows don't overlap. The text
    is cut into blocks of 16 windows; of every 64 blocks one is for validation and one for the test.
    Labels are the tenth of the text that a window comes from, so that a split by class gives each worker
    books of its own.

    The score is the share of characters that are predicted right, not the loss: it lies between 0 and 1
    like the scores of other tasks, a target in it means something, and one wild guess can't spoil
    it. Characters are the bytes of UTF-8, so that the model doesn't depend on the text.

    The rate was chosen on the validation windows with batches of 64, what four workers do with `allreduce`:
    from 0.3 to 0.55 the target is reached after about 300 steps, a fifth of all, with 0.2 a little later.
    """

    name = "kjv"
    stackable = True
    about = "next character of the King James Bible, small transformer"
    source: ClassVar[DataSet] = datasets.KJV
    target = 0.45
    batch_size = 16
    epochs: ClassVar[float] = 1.5
    rate: ClassVar[float] = 0.3

    def model(self) -> nn.Module:
        return CharacterModel()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten().long())

    def train(self) -> Sequence[int]:
        windows = datasets.size_of(self.source, "text") // _WINDOW
        return range(len(_rows(windows)[0]))

    def data(self) -> Sequence[str]:
        return (self.source.name,)

    def labels(self) -> Sequence[int]:
        rows = _rows(len(self._windows()))[0]
        sections: list[int] = (rows * _SECTIONS // len(self._windows())).tolist()
        return sections

    def batch(self, indices: Sequence[int]) -> Tensor:
        windows = self._windows()
        return windows[_rows(len(windows))[0][torch.tensor(indices)]]

    def validation(self) -> Tensor:
        windows = self._windows()
        return windows[_rows(len(windows))[1]]

    def test(self) -> Tensor:
        windows = self._windows()
        return windows[_rows(len(windows))[2]]

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Tensor) -> float:
        """The share of next characters that are predicted right."""
        pieces = (batch[start : start + _CHUNK] for start in range(0, len(batch), _CHUNK))
        right = sum(int((model(piece[:, :-1]).argmax(2) == piece[:, 1:]).sum().item()) for piece in pieces)
        return right / (len(batch) * _CONTEXT)

    def _windows(self) -> Tensor:
        return _windows(self.source, datasets.cache_folder())


@functools.cache
def _windows(source: DataSet, cache: Path) -> Tensor:
    """The text as rows of bytes, mapped from its file. The cache is an argument so that each has its own."""
    path = datasets.load(source)["text"]
    windows = path.stat().st_size // _WINDOW
    text = torch.from_file(str(path), size=windows * _WINDOW, dtype=torch.uint8)
    return text.view(windows, _WINDOW)


@functools.cache
def _rows(windows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which windows are for training, for validation and for the test."""
    rows = torch.arange(windows)
    place = rows // _BLOCK % _PERIOD
    validation, test = place == _PERIOD // 3, place == 2 * _PERIOD // 3
    return rows[~(validation | test)], rows[validation], rows[test]
