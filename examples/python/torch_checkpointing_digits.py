# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Digits, learned with PyTorch and saved with torch_checkpointing, in Backstay's store.

    python examples/python/torch_checkpointing_digits.py FOLDER [EPOCHS]

Kill it and run it again: it goes on, and ends with the same loss to the last bit. All that is Backstay's is the
storage. A checkpoint is saved under another name and renamed: a folder that has the number of an epoch is whole.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch_checkpointing import CheckpointManager

from backstay.torch.storage import BackstayStorageConfig

root, epochs = Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 10
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
torch.manual_seed(0)
layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

config = CheckpointManager.Config.with_sync_save()
config.storage_config = BackstayStorageConfig(root=root, job="digits")
storage, manager = config.storage_config.create_storage(), CheckpointManager(config)
storage.mkdir(root)
done = sorted(int(name) for name in storage.ls(root) if name.isdecimal())
if done:
    into = {"model": model.state_dict(), "optimizer": None, "random": None}
    found = manager.load(str(root / str(done[-1])), into=into)
    optimizer.load_state_dict(found["optimizer"])
    torch.set_rng_state(found["random"])

for epoch in range(done[-1] + 1 if done else 0, epochs):
    total = 0.0
    for batch in torch.randperm(len(images)).split(64):
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    print(f"epoch {epoch}: loss {(total / len(images)).hex()}", flush=True)
    if storage.exists(root / "new"):  # Left by a kill.
        storage.rmdir(root / "new")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    manager.save(str(root / "new"), state)
    storage.rename(root / "new", root / str(epoch), is_directory=True)
    for old in done[:-1]:
        storage.rmdir(root / str(old))
    done = [*done[-1:], epoch]
manager.close()
