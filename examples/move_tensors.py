"""Move tensors yourself: an idea that no strategy covers, with nothing but what `me` offers.

    python examples/move_tensors.py
    fast run --workers 4 examples/move_tensors.py

Workers on a line of channels. In every step each sends the largest tenth of its gradient to the
workers beside it and does not wait; what doesn't travel is remembered and travels later. Every 25
steps all of them average their weights, as 16-bit numbers, while they go on computing the loss.
"""

from collections.abc import Sequence

import networkx
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast.codecs import bf16, error_feedback, top_k

CHANNELS = fast.topologies.Graph(networkx.path_graph(fast.whoami().workers))


async def iteration(me: fast.Me, batch: tuple[Tensor, Tensor], updates: Sequence[fast.Letter]) -> None:
    """One step of one worker."""
    averaged = me.start(me.mean(me.weights, codec=bf16())) if me.steps % 25 == 24 else None
    x, y = batch
    me.backward(F.cross_entropy(me.model(x), y))
    me.send(me.neighbours, me.gradient, tag="update", codec=error_feedback(top_k(0.1)))
    if averaged is not None:
        me.weights.copy_(await averaged)
    me.apply(fast.rules.mean(me.gradient, me.samples, updates))


def main() -> None:
    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    loader = DataLoader(TensorDataset(images[:1300], labels[:1300]), batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    fast.Worker(CHANNELS, iteration).train(model, optimizer, loader, epochs=30)

    final = fast.consolidate(model)
    accuracy = (final(images[1300:]).argmax(1) == labels[1300:]).float().mean()
    print(f"accuracy on {len(labels) - 1300} images that nobody trained on: {accuracy:.3f}")


if __name__ == "__main__":
    main()
