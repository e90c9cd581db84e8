"""What a script for DistributedDataParallel becomes; docs/how-to/from-ddp.md shows each part before and after.

python examples/from_ddp.py
fast run --workers 4 examples/from_ddp.py
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fast

EPOCHS, ACCUMULATE = 16, 2
CHECKPOINT = Path("from_ddp.pt")

data = load_digits()
images = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
train, test = TensorDataset(images[:1300], labels[:1300]), (images[1300:], labels[1300:])


def evaluate(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        right = model(test[0]).argmax(1) == test[1]
    return float(right.float().mean())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
model = fast.SyncBatchNorm.convert(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

first_epoch = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first_epoch = saved["epoch"] + 1


def clip() -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


model, optimizer = fast.join(model, optimizer, before_apply=clip)

loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
steps = EPOCHS * (len(fast.shard(loader)) // ACCUMULATE)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
if CHECKPOINT.exists():
    scheduler.load_state_dict(saved["scheduler"])

for epoch in range(first_epoch, EPOCHS):
    for number, (x, y) in enumerate(fast.shard(loader), start=1):
        loss = F.cross_entropy(model(x), y) / ACCUMULATE
        loss.backward()
        if number % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    if epoch % 4 == 0:
        common = fast.snapshot(model)  # all workers call it
        if fast.is_main():
            print(f"epoch {epoch}: accuracy {evaluate(common):.3f}")
            state = {"model": common.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state | {"scheduler": scheduler.state_dict()}, CHECKPOINT)

final = fast.consolidate(model)  # all workers call it
if fast.is_main():
    print(f"accuracy on {len(test[1])} images that nobody trained on: {evaluate(final):.3f}")
