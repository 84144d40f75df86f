# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Digits, learned with Accelerate, restartable with Backstay.

    python examples/python/accelerate_digits.py [EPOCHS]

Kill it and run it again: it goes on, and ends with the same loss to the last bit.
"""

import hashlib
import sys

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.nn import functional

from backstay.torch.hugging_face import for_accelerator

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
data = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10)
net = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net, optimizer, loader, scheduler = accelerator.prepare(
    net, optimizer, torch.utils.data.DataLoader(data, batch_size=64, shuffle=True),
    torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9))
total = torch.zeros((), dtype=torch.float64)


class Total:  # What is registered is resumed too: the losses of an epoch, added up.
    def state_dict(self):
        return {"total": total}

    def load_state_dict(self, stored):
        total.copy_(stored["total"])


accelerator.register_for_checkpointing(Total())
with for_accelerator(accelerator, job="accelerate-digits", interval=0.02) as checkpointer:
    checkpointer.restore()
    while checkpointer.epoch < epochs:
        for images, labels in checkpointer.batches():
            with accelerator.accumulate(net):
                accelerator.backward(loss := functional.cross_entropy(net(images), labels))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.detach()
            if accelerator.sync_gradients:
                checkpointer.step()
            if checkpointer.should_leave:
                sys.exit()
        print(f"epoch {checkpointer.epoch - 1}: loss {total.item().hex()}", flush=True)
        total.zero_()
    weights = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
    print(f"end: weights {hashlib.sha256(weights).hexdigest()}")
