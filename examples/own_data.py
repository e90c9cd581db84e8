"""Data that stays with its worker, in unequal amounts: worker i has i + 1 times as much as worker 0.

    python examples/own_data.py
    fast run --workers 2 examples/own_data.py

`fast.own` counts the samples of each batch, and the merged gradient is weighted by them: with
batches in proportion to the data, every sample counts the same, whoever has it.
"""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fast

STEPS = 400

me, workers = fast.whoami()  # on machines of their own, each just opens its own files
data = load_digits()
images = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
edges = [1300 * k * (k + 1) // (workers * (workers + 1)) for k in range(workers + 1)]
mine = slice(edges[me], edges[me + 1])
loader = DataLoader(TensorDataset(images[mine], labels[mine]), batch_size=16 * (me + 1), shuffle=True)


def endless() -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch. Everybody takes the same number of steps, so nobody leaves early."""
    while True:
        yield from fast.own(loader)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

model, optimizer = fast.join(model, optimizer)
for x, y in islice(endless(), STEPS):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

final = fast.consolidate(model)
accuracy = (final(images[1300:]).argmax(1) == labels[1300:]).float().mean()
print(f"{len(labels[mine])} images of its own, accuracy of the common model: {accuracy:.3f}")
