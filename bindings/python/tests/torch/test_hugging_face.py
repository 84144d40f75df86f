# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trainer and Accelerate: resumed at every step, FSDP2's saving under `install`, and both examples under kill -9."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest
import warm

import backstay

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

from backstay.torch.hugging_face import BackstayCallback, for_accelerator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples" / "python"


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.arange(34 * 6).reshape(34, 6) % 19

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


class Stop(transformers.TrainerCallback):
    """Ends the training after some steps, as a kill would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.steps:
            raise KeyboardInterrupt


def trainer_of(folder, epochs, callbacks, **arguments):
    """A Trainer with dropout, an odd last batch, gradients over two batches, and an evaluation after 4 steps."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=19, n_positions=6, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0))
    chosen = transformers.TrainingArguments(str(folder), **{
        "num_train_epochs": epochs, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "logging_steps": 3, "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 4, "report_to": [],
        "disable_tqdm": True, "use_cpu": True, "seed": 0, **arguments})
    return transformers.Trainer(
        model, chosen, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)


def raw(model):
    return {name: one.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for name, one in model.state_dict().items()}


def history(trainer):
    timed = ("runtime", "per_second", "total_flos")
    return [{key: value for key, value in one.items() if not any(word in key for word in timed)}
            for one in trainer.state.log_history]


def whole(tmp_path, epochs=2, **arguments):
    trainer = trainer_of(tmp_path / "whole", epochs, [], **arguments)
    return trainer, trainer.train()


# ---- Trainer

@pytest.mark.parametrize("seedable", [True, False])
@pytest.mark.parametrize("stopped", [3, 5, 6, 8])
def test_a_trainer_goes_on_as_if_it_had_not_ended(tmp_path, stopped, seedable):
    config = {"accelerator_config": {"use_seedable_sampler": seedable}}
    expected, result = whole(tmp_path, **config)
    callback = BackstayCallback(every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        callback.train(trainer_of(tmp_path, 2, [callback, Stop(stopped)], **config))
    callback = BackstayCallback(every_steps=1)
    trainer = trainer_of(tmp_path, 2, [callback], **config)
    found = callback.train(trainer)
    assert raw(trainer.model) == raw(expected.model)
    assert history(trainer) == history(expected)
    assert (found.global_step, found.training_loss) == (result.global_step, result.training_loss)


def test_a_trainer_that_is_done_is_done_and_goes_on_with_more_epochs(tmp_path):
    # At its end a Trainer evaluates once more, which takes random numbers.
    constant = {"lr_scheduler_type": "constant", "eval_strategy": "no"}
    for epochs in (1, 1, 2):
        callback = BackstayCallback()
        trainer = trainer_of(tmp_path, epochs, [callback], **constant)
        assert callback.train(trainer).global_step == epochs * 5
    assert raw(trainer.model) == raw(whole(tmp_path, **constant)[0].model)


def test_early_stopping_counts_on(tmp_path):
    def early():
        return transformers.EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=10.0)

    best = {"metric_for_best_model": "loss", "eval_steps": 2}
    expected = trainer_of(tmp_path / "whole", 4, [early()], **best)
    expected.train()
    assert 0 < expected.state.global_step < 20
    callback = BackstayCallback(every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        callback.train(trainer_of(tmp_path, 4, [callback, early(), Stop(6)], **best))
    callback = BackstayCallback(every_steps=1)
    trainer = trainer_of(tmp_path, 4, [callback, early()], **best)
    callback.train(trainer)
    assert trainer.state.global_step == expected.state.global_step
    assert trainer.state.best_metric == expected.state.best_metric


def test_a_trainer_leaves_when_it_is_asked_to(tmp_path):
    class Asks(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    callback = BackstayCallback(leave_on_sigterm=True, interval=0.001)
    trainer = trainer_of(tmp_path, 2, [callback, Asks()])
    callback.train(trainer)
    assert callback.should_leave and trainer.state.global_step < 10
    callback = BackstayCallback()
    trainer = trainer_of(tmp_path, 2, [callback])
    callback.train(trainer)
    assert raw(trainer.model) == raw(whole(tmp_path)[0].model)


def test_what_cannot_be_exact_is_refused(tmp_path):
    callback = BackstayCallback()
    with pytest.raises(backstay.InvalidArgument, match="callback.train"):
        trainer_of(tmp_path, 1, [callback]).train()
    with pytest.raises(backstay.InvalidArgument, match="ignore_data_skip"):
        callback.train(trainer_of(tmp_path, 1, [callback], ignore_data_skip=True))
    with pytest.raises(backstay.InvalidArgument, match="every_steps"):
        BackstayCallback(every_steps=0)


# ---- Accelerate

def test_an_accelerator_goes_on_in_the_middle_of_an_epoch():
    def run(ends, **settings):
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.3), torch.nn.Linear(5, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(22, 3))
        net, optimizer, loader, scheduler = accelerator.prepare(
            net, optimizer, torch.utils.data.DataLoader(data, 4, shuffle=True),
            torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        with for_accelerator(accelerator, **settings) as checkpointer:
            checkpointer.restore()
            while checkpointer.epoch < 3:
                for (rows,) in checkpointer.batches():
                    with accelerator.accumulate(net):
                        accelerator.backward(net(rows).square().mean())
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    if not accelerator.sync_gradients:
                        continue
                    checkpointer.step()
                    if checkpointer.steps == ends:
                        checkpointer.checkpoint()
                        return None
        return raw(net)

    expected = run(None, job="whole")
    for ends in (1, 2, 3, 5, 7):
        assert run(ends, job="parts") is None
    assert run(None, job="parts") == expected


FSDP = """
import sys, types, warnings
warnings.simplefilter("ignore")
import accelerate, torch, torch.distributed as dist
from accelerate.utils import fsdp_utils
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType
import backstay.torch
accelerate.PartialState(cpu=True)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
plugin = types.SimpleNamespace(
    fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT, state_dict_config=None)
accelerator = types.SimpleNamespace(process_index=rank, num_processes=size, wait_for_everyone=dist.barrier,
                                    is_fsdp2=True, is_main_process=rank == 0)
def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(seed):
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    return model, optimizer
def parts(model, optimizer):
    found = [one.to_local() for one in model.parameters()]
    return found + [optimizer.state[one]["exp_avg"].to_local() for one in model.parameters()]
backstay.torch.install()
saved, loaded = made(2), made(3)
fsdp_utils.save_fsdp_model(plugin, accelerator, saved[0], folder + "/out")
fsdp_utils.save_fsdp_optimizer(plugin, accelerator, saved[1], saved[0], folder + "/out")
fsdp_utils.load_fsdp_model(plugin, accelerator, loaded[0], folder + "/out")
fsdp_utils.load_fsdp_optimizer(plugin, accelerator, loaded[1], loaded[0], folder + "/out")
assert all(torch.equal(one, other) for one, other in zip(parts(*saved), parts(*loaded)))
backstay.torch.uninstall()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [1, 2])
def test_what_accelerate_saves_of_fsdp2_goes_to_backstay(tmp_path, size):
    processes = [
        warm.Popen(["-c", FSDP, rank, size, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(size)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, outputs
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


# ---- Kills

def told(lines):
    """What was printed of the learning: the loss of each epoch or some steps, and the end."""
    return dict(line.strip().split(": ", 1) for line in lines if line.startswith(("epoch ", "step ", "end: ")))


@pytest.mark.parametrize(("example", "epochs"), [("trainer_text", 12), ("accelerate_digits", 12)])
def test_an_example_that_is_killed_ends_with_the_same_loss(tmp_path, example, epochs):
    """Killed at a random moment, until it ends by itself; all it tells is the same whoever reached it."""
    if example.startswith("accelerate"):
        pytest.importorskip("sklearn")
    folder = [str(tmp_path / "folder")] if example == "trainer_text" else []
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{example}.py"), *folder, str(epochs)]

    def environment(store):
        (tmp_path / store).mkdir(exist_ok=True)
        return {**os.environ, "OMP_NUM_THREADS": "1", "BACKSTAY_STORE_PATH": str(tmp_path / store)}

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment("whole"))
    assert done.returncode == 0, done.stderr
    expected = told(done.stdout.splitlines())
    first = next(iter(expected))
    assert "end" in expected

    killed, begun_later = 0, False
    for turn in range(20):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment("killed"))
        lines = [process.stdout.readline()]
        begun_later |= bool(lines[0]) and first not in told(lines)
        if turn < 3:
            time.sleep(random.uniform(0, 0.3))
            process.kill()
        output, errors = process.communicate()
        found = told(lines + output.splitlines())
        assert found.items() <= expected.items()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        killed += 1
    assert killed and begun_later and process.returncode == 0
    assert found["end"] == expected["end"]
