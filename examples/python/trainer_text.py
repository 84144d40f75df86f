# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A small language model of this repository's text, learned with a Trainer, restartable with Backstay.

    python examples/python/trainer_text.py FOLDER [EPOCHS]

Kill it and run it again: it goes on, and ends with the same loss to the last bit. The tokens are bytes; all that is
Backstay's is the callback, which starts the Trainer.
"""

import hashlib
import pathlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from backstay.torch.hugging_face import BackstayCallback

LENGTH, ROWS = 64, 192


class Text(torch.utils.data.Dataset):
    def __init__(self):
        data = (pathlib.Path(__file__).parents[2] / "README.md").read_bytes()
        self.rows = torch.tensor(list((data * (1 + LENGTH * ROWS // len(data)))[:LENGTH * ROWS])).view(ROWS, LENGTH)

    def __len__(self):
        return ROWS

    def __getitem__(self, at):
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


class Printed(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss'].hex()}", flush=True)


folder, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    folder, num_train_epochs=epochs, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=1e-3,
    logging_steps=4, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=0)
callback = BackstayCallback(job="trainer-text", every_steps=3)
trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=[callback, Printed()])
result = callback.train(trainer)
if not callback.should_leave:
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print(f"end: loss {result.training_loss.hex()} weights {hashlib.sha256(weights).hexdigest()}")
