"""A torus by hand: a worker is filled with the code of one iteration, and with who hears whom.

    python examples/torus_by_hand.py
    fast run --workers 4 examples/torus_by_hand.py

This is what the preset `torus(send='merged')` does, written out. Change it: it is your loop.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fast


def iteration(me: fast.Me, batch: tuple[Tensor, Tensor], updates: Sequence[fast.Letter]) -> None:
    """One step: compute, include what the neighbours told, pass it on, move. Nobody waits."""
    x, y = batch
    me.backward(F.cross_entropy(me.model(x), y))
    merged = fast.rules.mean(me.gradient, me.samples, updates)
    me.send(me.neighbours, merged, tag="update")
    me.apply(merged)


worker = fast.Worker(fast.topologies.Torus(), iteration)


def main() -> None:
    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    loader = DataLoader(TensorDataset(images[:1300], labels[:1300]), batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    worker.train(model, optimizer, loader, epochs=30)

    final = fast.consolidate(model)
    accuracy = (final(images[1300:]).argmax(1) == labels[1300:]).float().mean()
    print(f"accuracy on {len(labels) - 1300} images that nobody trained on: {accuracy:.3f}")


if __name__ == "__main__":
    main()
