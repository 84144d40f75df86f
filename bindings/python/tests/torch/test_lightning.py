# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lightning: what a Trainer saves, keeps, gives up and resumes, and both examples under kill -9."""

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
    pl = pytest.importorskip("lightning.pytorch")
pytest.importorskip("safetensors")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from backstay.torch.lightning import BackstayCheckpointIO  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples" / "python"


@pytest.fixture
def io():
    made = BackstayCheckpointIO()
    yield made
    made.teardown()


class Model(pl.LightningModule):
    """A few layers, among them some whose memory is in another order, and buffers."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"width": 8, "names": ["a", "b"]})
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Dropout(0.1),
            torch.nn.Linear(8 * 36, 10)).to(memory_format=torch.channels_last)

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(64, 1, 8, 8, generator=generator), torch.randint(0, 10, (64,), generator=generator)
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=16)

    def training_step(self, batch):
        torch.manual_seed(self.global_step)
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def trainer_of(folder, epochs, **checkpoints):
    chosen = {"monitor": "loss", "save_top_k": 2, "save_last": True, **checkpoints}
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[BackstayCheckpointIO()], callbacks=[ModelCheckpoint(folder, **chosen)])


def fitted(folder, epochs, ckpt_path=None, **checkpoints):
    torch.manual_seed(0)
    model, trainer = Model(), trainer_of(folder, epochs, **checkpoints)
    trainer.fit(model, ckpt_path=ckpt_path)
    return model, trainer


def raw(model):
    return {name: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for name, tensor in model.state_dict().items()}


def pinned(store):
    return sum(one.pinned for one in backstay.read(store).checkpoints)


# ---- The plugin by itself


def test_what_is_saved_is_loaded_to_the_last_bit(io, tmp_path):
    path = tmp_path / "new" / "folder" / "epoch=1-step=20.ckpt"
    tree = {"state_dict": {"weight": torch.randn(30, 40)}, "epoch": 1, "loops": {"a": {1: (2, None)}}}
    io.save_checkpoint(tree, path)
    assert path.stat().st_size < 1000
    for loaded in (io.load_checkpoint(path), BackstayCheckpointIO().load_checkpoint(str(path), weights_only=True)):
        assert torch.equal(loaded["state_dict"]["weight"], tree["state_dict"]["weight"])
        assert loaded["epoch"] == 1 and loaded["loops"] == tree["loops"]
    assert io.load_checkpoint(path, map_location="meta")["state_dict"]["weight"].is_meta


def test_a_path_is_saved_again_and_removed(io, tmp_path, store):
    path = tmp_path / "last.ckpt"
    for value in range(4):
        io.save_checkpoint({"value": value}, path)
    assert io.load_checkpoint(path) == {"value": 3} and pinned(store) == 1
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)
    assert os.listdir(tmp_path) == ["stores"] and pinned(store) == 0
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)


def test_a_marker_is_moved_and_linked(io, tmp_path):
    io.save_checkpoint({"value": 1}, tmp_path / "a.ckpt")
    os.symlink("a.ckpt", tmp_path / "last.ckpt")
    assert io.load_checkpoint(tmp_path / "last.ckpt") == {"value": 1}
    io.remove_checkpoint(tmp_path / "last.ckpt")
    assert io.load_checkpoint(tmp_path / "a.ckpt") == {"value": 1}
    os.rename(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert io.load_checkpoint(tmp_path / "b.ckpt") == {"value": 1}
    # Its place is taken by another, which it is never taken for.
    for value in range(2, 6):
        io.save_checkpoint({"value": value}, tmp_path / "a.ckpt")
    with pytest.raises(backstay.NotRetained):
        io.load_checkpoint(tmp_path / "b.ckpt")


def test_a_file_of_torch_is_loaded_as_such(io, tmp_path):
    torch.save({"value": torch.ones(3)}, tmp_path / "old.ckpt")
    assert io.load_checkpoint(tmp_path / "old.ckpt")["value"].sum() == 3
    io.remove_checkpoint(tmp_path / "old.ckpt")
    assert not (tmp_path / "old.ckpt").exists()


def test_what_was_deleted_by_hand_is_collected(io, tmp_path, store):
    for name in "abc":
        io.save_checkpoint({"value": name}, tmp_path / f"{name}.ckpt")
    os.unlink(tmp_path / "b.ckpt")
    assert pinned(store) == 3
    assert io.collect() == [str(tmp_path / "b.ckpt")]
    assert pinned(store) == 2
    assert io.load_checkpoint(tmp_path / "c.ckpt") == {"value": "c"}


def test_what_is_no_plain_value_is_named_and_pickled_only_where_that_is_allowed(io, tmp_path):
    tree = {"hyper_parameters": {"where": pathlib.Path("/x")}}
    with pytest.raises(backstay.InvalidArgument, match="where"):
        io.save_checkpoint(tree, tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()
    io.teardown()
    pickling = BackstayCheckpointIO(pickled=True)
    pickling.save_checkpoint(tree, tmp_path / "a.ckpt")
    assert pickling.load_checkpoint(tmp_path / "a.ckpt") == tree
    with pytest.raises(backstay.InvalidArgument, match="pickle"):
        pickling.load_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    pickling.teardown()


def test_remote_paths_and_options_are_refused(io, tmp_path):
    with pytest.raises(backstay.InvalidArgument, match="s3://"):
        io.save_checkpoint({}, "s3://bucket/a.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint({}, tmp_path / "a.ckpt", storage_options={})


def test_a_store_that_is_not_there_is_told(io, tmp_path):
    io.save_checkpoint({}, tmp_path / "a.ckpt")
    path = tmp_path / "a.ckpt"
    path.write_bytes(path.read_bytes().replace(b"/stores/", b"/another/"))
    with pytest.raises(backstay.NotRetained, match="another"):
        io.load_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(backstay.Corrupt):
        io.load_checkpoint(path)


# ---- With a Trainer


def test_a_trainer_goes_on_as_if_it_had_not_ended(tmp_path):
    whole, _ = fitted(tmp_path / "whole", 5)
    fitted(tmp_path / "parts", 2)
    model, trainer = fitted(tmp_path / "parts", 5, "last")
    assert trainer.global_step == 20
    assert raw(model) == raw(whole)
    again, _ = fitted(tmp_path / "parts", 5, tmp_path / "parts" / "last.ckpt")
    assert raw(again) == raw(whole)


@pytest.mark.parametrize(("chosen", "files"), [
    ({"save_top_k": 1, "save_last": False}, 1), ({"save_top_k": -1, "save_last": False}, 4),
    ({"save_top_k": 2, "save_last": True}, 3), ({"save_top_k": 2, "save_last": "link"}, 3),
    ({"save_top_k": 1, "monitor": None, "save_last": False}, 1), ({"save_top_k": 0, "save_last": True}, 1)])
def test_a_callback_keeps_what_it_was_told_to_keep(tmp_path, store, chosen, files):
    _, trainer = fitted(tmp_path / "folder", 4, **chosen)
    found = sorted((tmp_path / "folder").iterdir())
    assert len(found) == files
    assert pinned(store) == sum(not path.is_symlink() for path in found)
    for path in found:
        assert trainer.strategy.checkpoint_io.load_checkpoint(path)["global_step"] > 0
    best = trainer.checkpoint_callback.best_model_path
    if best:
        assert pathlib.Path(best) in found


def test_the_best_is_loaded_for_a_test(tmp_path):
    class Tested(Model):
        def test_step(self, batch):
            self.log("sum", sum(parameter.double().sum() for parameter in self.parameters()))

        def test_dataloader(self):
            return self.train_dataloader()

    torch.manual_seed(0)
    model, trainer = Tested(), trainer_of(tmp_path / "folder", 3)
    trainer.fit(model)
    stored = trainer.strategy.checkpoint_io.load_checkpoint(trainer.checkpoint_callback.best_model_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = trainer.test(model, ckpt_path="best", verbose=False)[0]["sum"]
    model.load_state_dict(stored["state_dict"])
    assert found == pytest.approx(sum(parameter.double().sum().item() for parameter in model.parameters()), abs=1e-3)
    assert found != 0


def test_weights_are_exported(tmp_path):
    model, trainer = fitted(tmp_path / "folder", 2)
    trainer.strategy.checkpoint_io.export(tmp_path / "folder" / "last.ckpt", tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert found.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


OTHER_PACKAGE = """
import sys
if sys.argv[1] == "before":
    from backstay.torch.lightning import BackstayCheckpointIO
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
from backstay.torch.lightning import BackstayCheckpointIO
io = BackstayCheckpointIO()
trainer = pl.Trainer(
    max_epochs=1, limit_train_batches=2, accelerator="cpu", logger=False, enable_progress_bar=False, plugins=[io],
    default_root_dir=sys.argv[2])
trainer.fit(BoringModel())
print(io.load_checkpoint(trainer.checkpoint_callback.best_model_path)["global_step"])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_package_pytorch_lightning_takes_it_as_well(tmp_path, when):
    pytest.importorskip("pytorch_lightning")
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PACKAGE, when, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1:] == ["2"], ended.stderr


# ---- Kills

KILLED = """
import os, signal, sys
from backstay.torch import lightning
io, (where, path) = lightning.BackstayCheckpointIO(), sys.argv[1:]
io.save_checkpoint({"value": 1}, path)
def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "before the marker":
    lightning.replace_file = kill
    io.save_checkpoint({"value": 2}, path)
if where == "in a removal":
    lightning.Shelf.remove = kill
    io.remove_checkpoint(path)
if where == "after a removal":
    os.unlink = kill
    io.remove_checkpoint(path)
"""


@pytest.mark.parametrize(("where", "value"), [
    ("before the marker", 2), ("in a removal", None), ("after a removal", None)])
def test_a_kill_between_two_steps_is_made_up_for(io, tmp_path, store, where, value):
    path = tmp_path / "folder" / "last.ckpt"
    ended = warm.run(["-c", KILLED, where, path])
    assert ended.returncode == -signal.SIGKILL
    if value is None:
        assert not path.exists()
    else:
        assert io.load_checkpoint(path) == {"value": value}
    io.save_checkpoint({"value": 3}, tmp_path / "folder" / "other.ckpt")
    assert pinned(store) == 1 + (value is not None)
    assert sorted(os.listdir(path.parent)) == (["last.ckpt"] if value is not None else []) + ["other.ckpt"]
    io.save_checkpoint({"value": 4}, path)
    assert io.load_checkpoint(path) == {"value": 4}


def losses_of(lines):
    """The loss of each epoch, as it was printed."""
    return {line.split(":")[0]: line.split()[-1] for line in lines if line.startswith("epoch ")}


@pytest.mark.parametrize("example", ["lightning_digits", "torch_checkpointing_digits"])
def test_an_example_that_is_killed_ends_with_the_same_loss(tmp_path, example):
    """Killed at a random moment, until it ends by itself; each epoch's loss is the same whoever reached it."""
    pytest.importorskip("sklearn")
    if example.startswith("torch_checkpointing"):
        pytest.importorskip("torch_checkpointing")
    epochs, last = 12, "epoch 11"

    def command(folder):
        return [EXAMPLES / f"{example}.py", tmp_path / folder, epochs]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = warm.run(command("whole"), capture_output=True, text=True, env=environment)
    assert whole.returncode == 0, whole.stderr
    expected = losses_of(whole.stdout.splitlines())
    assert len(expected) == epochs

    killed, begun_later = 0, False
    for turn in range(20):
        process = warm.Popen(
            command("killed"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        lines = [process.stdout.readline()]
        begun_later |= bool(lines[0]) and not lines[0].startswith("epoch 0:")
        if turn < 3:
            time.sleep(random.uniform(0, 0.3))
            process.kill()
        output, errors = process.communicate()
        found = losses_of(lines + output.splitlines())
        assert found.items() <= expected.items()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        killed += 1
    assert killed and begun_later
    assert found.get(last, expected[last]) == expected[last] and process.returncode == 0
