"""A learning rate that was tuned for one worker, on any number of them: it follows the batch, gradually.

    python examples/large_batch.py
    fast run --workers 4 examples/large_batch.py

Four workers with batch 16 take the steps of one worker with batch 64, a quarter as many. At the
rate for 16 they would not get as far in the same number of epochs.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import fast

data = load_digits()
images = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=16, shuffle=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = StepLR(optimizer, step_size=6, gamma=0.1)  # goes on as always; what it says is multiplied

plan = fast.LargeBatch.of(loader, epochs=2)  # 0.02 is the rate for a batch of the loader
model, optimizer = fast.join(model, optimizer, large_batch=plan)
for _ in range(8):
    for x, y in fast.shard(loader):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()

final = fast.consolidate(model)
accuracy = (final(images[1280:]).argmax(1) == labels[1280:]).float().mean()
print(f"accuracy on {len(labels) - 1280} images that nobody trained on: {accuracy:.3f}")
