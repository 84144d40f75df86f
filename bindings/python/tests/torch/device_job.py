# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Training on a GPU with a checkpoint each step, for test_device.py: prints the step it began at and a digest.

    device_job.py JOB
"""

import hashlib
import sys
import time

import torch
from torch import nn

import backstay.torch

STEPS = 60


def main(job):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(257, 1031), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1031, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, job=job) as checkpointer:
        checkpointer.restore()
        print("began", checkpointer.steps, flush=True)
        while checkpointer.steps < STEPS:
            loss = model(torch.randn(8, 257, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpointer.steps += 1
            checkpointer.checkpoint_start()
            time.sleep(0.02)
        found = hashlib.sha256()
        for parameter in model.parameters():
            found.update(parameter.detach().cpu().numpy().tobytes())
        print("digest", found.hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
