# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Digits, learned with PyTorch, restartable with Backstay.

    python examples/python/digits.py [EPOCHS]
    torchrun --nproc-per-node 2 examples/python/digits.py [EPOCHS]

Kill it and run it again, on another number of processes if you like: it goes on in the middle of the epoch. On the same
number it ends with the same loss to the last bit.
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import backstay.torch

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
digits = load_digits()
data = torch.utils.data.TensorDataset(
    torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    sampler = torch.utils.data.DistributedSampler(data)
else:
    sampler = torch.utils.data.RandomSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=64, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
recent = torch.zeros(())

with backstay.torch.Checkpointer(
    model=model, optimizer=optimizer, scheduler=schedule, loader=loader, extra={"recent loss": recent}, job="digits",
) as checkpointer:
    print(checkpointer.restore() or "from the beginning", flush=True)
    while checkpointer.epoch < epochs and not checkpointer.should_leave:
        for images, labels in checkpointer.batches():
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            recent.copy_(loss.detach())
            checkpointer.step()
            if checkpointer.should_leave:
                break
        print(f"epoch {checkpointer.epoch}: loss {recent.item():.17g}", flush=True)

if dist.is_initialized():
    dist.barrier()  # torch 2.15 may end the program by std::terminate without it.
    dist.destroy_process_group()
