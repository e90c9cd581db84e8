"""An ordinary PyTorch loop with two changed lines. Alone, on two workers, on four:

python examples/digits.py
fast run --workers 2 examples/digits.py
fast run --workers 4 --strategy "local_sgd(tau=8)" examples/digits.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fast

data = load_digits()
images = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
train = TensorDataset(images[:1300], labels[:1300])
loader = DataLoader(train, batch_size=32, shuffle=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

model, optimizer = fast.join(model, optimizer, strategy="allreduce")  # the first changed line
for _ in range(30):
    for x, y in fast.shard(loader):  # the second
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

final = fast.consolidate(model)  # one model out of all replicas, the same on every worker
accuracy = (final(images[1300:]).argmax(1) == labels[1300:]).float().mean()
print(f"accuracy on {len(labels) - 1300} images that nobody trained on: {accuracy:.3f}")
