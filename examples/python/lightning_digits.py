# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Digits, learned with Lightning, restartable with Backstay.

    python examples/python/lightning_digits.py FOLDER [EPOCHS]

Kill it and run it again: it goes on, and ends with the same loss to the last bit. All that is Backstay's is the plugin.
Lightning saves no random generators: order depends on the epoch, which it tells the sampler, dropout on the step.
"""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch.nn import functional

from backstay.torch.lightning import BackstayCheckpointIO

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*(num_workers|not empty|no last checkpoint|LeafSpec).*")


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10)
        self.net = torch.nn.Sequential(*layers)
        self.digits = load_digits()

    def train_dataloader(self):
        images = torch.tensor(self.digits.data, dtype=torch.float32) / 16
        data = torch.utils.data.TensorDataset(images, torch.tensor(self.digits.target))
        sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
        return torch.utils.data.DataLoader(data, batch_size=64, sampler=sampler)

    def training_step(self, batch):
        torch.manual_seed(self.global_step)
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss'].item().hex()}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


folder, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
torch.manual_seed(0)
trainer = pl.Trainer(
    max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    plugins=[BackstayCheckpointIO(job="lightning-digits")],
    callbacks=[ModelCheckpoint(folder, monitor="loss", save_top_k=2, save_last=True)])
trainer.fit(Digits(), ckpt_path="last")
