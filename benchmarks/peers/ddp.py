"""A plain DistributedDataParallel script, for torchrun: what a user would write without FAST.

    torchrun --nproc-per-node 4 benchmarks/peers/ddp.py TASK EPOCHS SEED FILE

Model, loss, data and score are those of a built-in task; loop, sampler, seeding, exchange and
stop-watch are torch's and this script's own. Writes {"score", "samples_per_s"} to FILE.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from fast.lab import load_task


def main() -> None:
    task, epochs, seed, to = load_task(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
    optimizer = task.optimizer(model)
    sampler = DistributedSampler(range(len(task.train())), shuffle=True, seed=seed)  # type: ignore[arg-type]
    dist.barrier()
    began, samples = time.perf_counter(), 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = list(sampler)
        for start in range(0, len(order), task.batch_size):
            indices = order[start : start + task.batch_size]
            optimizer.zero_grad()
            task.loss(model, task.batch(indices)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            samples += len(indices)
    dist.barrier()
    took = time.perf_counter() - began
    if dist.get_rank() == 0:
        with torch.no_grad():
            score = task.score(model.module.eval(), task.test())
        result = {"score": score, "samples_per_s": samples * dist.get_world_size() / took}
        Path(to).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
