# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A training in shards with Lightning, for test_lightning_sharded.py: Lightning starts the other processes itself.

    lightning_sharded_job.py FOLDER PROCESSES STEPS OUT [pause]
"""

import hashlib
import os
import pathlib
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from backstay.torch.lightning_sharded import BackstayModelParallelStrategy  # noqa: E402


class Model(pl.LightningModule):
    """Two layers in shards, whose rows do not come out even."""

    def __init__(self):
        super().__init__()
        self.net = None

    def configure_model(self):
        if self.net is None:
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.ReLU(), torch.nn.Linear(65, 3))
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(24, 1), batch_size=4)

    def training_step(self, batch):
        time.sleep(PAUSE)
        # Lightning begins a loader again in the middle of an epoch: what is learnt goes by the step alone.
        generator = torch.Generator().manual_seed(self.global_step)
        inputs, labels = torch.randn(4, 33, generator=generator), torch.randint(0, 3, (4,), generator=generator)
        return torch.nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-2)


class Told(pl.Callback):
    """What there is where the training begins, and where it ends."""

    def on_train_start(self, trainer, module):
        self.began, self.loaded = trainer.global_step, digest(module)

    def on_train_end(self, trainer, module):
        self.ids = trainer.strategy._writer().checkpoint_ids()
        self.ended = digest(module)


def digest(module):
    """All weights and moments, whole, as something that prints."""
    found = hashlib.sha256()
    optimizer = module.optimizers().optimizer
    for parameter in module.parameters():
        for one in (parameter, *optimizer.state.get(parameter, {}).values()):
            whole = one.full_tensor() if hasattr(one, "full_tensor") else one
            found.update(whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


folder, processes, steps, out = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
PAUSE = float(sys.argv[5]) if len(sys.argv) > 5 else 0
torch.set_num_threads(1)
told = Told()
kept = ModelCheckpoint(folder, save_top_k=2, monitor="step", mode="max", save_last=True, every_n_train_steps=2)
trainer = pl.Trainer(
    accelerator="cpu", devices=processes, max_steps=steps, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[kept, told], use_distributed_sampler=False,
    strategy=BackstayModelParallelStrategy(data_parallel_size=processes, tensor_parallel_size=1))
trainer.fit(Model(), ckpt_path="last")
if trainer.global_rank == 0:
    told = {name: getattr(told, name) for name in ("began", "loaded", "ids", "ended")}
    pathlib.Path(out).write_text(repr(told))
torch.distributed.barrier()
# torch 2.15 may end a program by std::terminate where its threads of gloo are taken down.
os._exit(0)
