# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lightning with models in shards: each process saves its own, to Backstay.

    strategy = BackstayModelParallelStrategy(data_parallel_size=2, job="digits")
    trainer = Trainer(strategy=strategy, ...)
    trainer.fit(model, ckpt_path="last")

A strategy of Lightning's that saves in shards asks no CheckpointIO: it calls torch.distributed.checkpoint with the path of
a folder. This one saves with a `Writer`, the path as checkpoint_id. The folder has Lightning's file ``meta.pt``, by which
it knows a checkpoint in shards; what that says is stored with the shards, and written anew before a load: a kill never
leaves one of one save beside shards of another.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ._dcp import Writer
from ._dcp_reader import Reader
from ._install import install, uninstall
from ._shelf import replace_file, sync_folder
from .lightning import _REMOVING, _delete, _key

if TYPE_CHECKING:
    ModelParallelStrategy = Any
else:
    try:
        from lightning.pytorch.strategies import ModelParallelStrategy
    except ImportError:
        try:
            from pytorch_lightning.strategies import ModelParallelStrategy
        except ImportError as error:
            raise ImportError(
                "backstay.torch.lightning_sharded needs the package lightning, or pytorch-lightning") from error

_META = "meta.pt"
"""Lightning's name for what is no tensor of a model or an optimizer."""

_REST = "backstay.lightning"
"""The same in the state that is saved."""


class BackstayModelParallelStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """ModelParallelStrategy, whose checkpoints are in stores of Backstay's on the nodes.

    `job` and what begins with ``backstay_`` are settings of `backstay.open`: ``backstay_archive="/parallel/archive"``. The
    rest is Lightning's. All processes have one session, from the first load or save to the end of `fit`; what Lightning
    removes is given up. A node loads what its own store has.
    """

    def __init__(self, *args: Any, job: str | None = None, **kwargs: Any) -> None:
        prefix = "backstay_"
        self._settings = {key.removeprefix(prefix): kwargs.pop(key) for key in list(kwargs) if key.startswith(prefix)}
        self._job = job
        self._open: Writer | None = None
        super().__init__(*args, **kwargs)

    def _writer(self) -> Writer:
        """Opened by all processes together."""
        if self._open is None:
            self._open = Writer(job=self._job, **self._settings)
            for key in self._open.checkpoint_ids():
                if self._is_there(key + _REMOVING):
                    # A kill came between.
                    self._give_up(key)
        return self._open

    def _is_there(self, path: str) -> bool:
        """Whether process 0 finds a path."""
        found: bool = self.broadcast(os.path.lexists(path))
        return found

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None,
    ) -> None:
        """Stores a checkpoint; when this returns, it is durable. Collective."""
        if not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        if storage_options is not None:
            raise TypeError("storage_options are for remote file systems; give settings to the strategy")
        path = _key(self.broadcast(filepath))
        meta, state = io.BytesIO(), {"state_dict": checkpoint["state_dict"]}
        states = checkpoint.get("optimizer_states", [])
        state |= {f"optimizer_{at}": one for at, one in enumerate(states)}
        torch.save({key: one for key, one in checkpoint.items() if key not in ("state_dict", "optimizer_states")}, meta)
        # Of what is no tensor torch.distributed.checkpoint takes that of process 0.
        state[_REST] = meta.getvalue()
        writer = self._writer()
        save(state, checkpoint_id=path, storage_writer=writer)
        if self.global_rank == 0:
            if os.path.isfile(path) or os.path.islink(path):
                os.unlink(path)
            os.makedirs(path, exist_ok=True)
            replace_file(os.path.join(path, _META), meta.getvalue())
        dist.barrier()

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads a checkpoint, also one that Lightning saved as files. Collective."""
        writer = self._writer()
        path = self.broadcast(self._saved_as(_key(checkpoint_path)))
        if path in writer.checkpoint_ids():
            rest: dict[str, Any] = {_REST: b""}
            load(rest, checkpoint_id=path, storage_reader=Reader(writer))
            if self.global_rank == 0:
                os.makedirs(path, exist_ok=True)
                replace_file(os.path.join(path, _META), rest[_REST])
            dist.barrier()
        install(writer)
        try:
            loaded: dict[str, Any] = super().load_checkpoint(path, weights_only)
        finally:
            uninstall()
        return loaded

    def _saved_as(self, path: str) -> str:
        """The name of a checkpoint that may be asked for by a link, as ``last.ckpt`` is one."""
        found, keys = os.path.realpath(path), self._writer().checkpoint_ids()
        return path if path in keys else next((key for key in keys if os.path.realpath(key) == found), path)

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Gives a checkpoint up, and deletes its folder. Collective, as ModelCheckpoint calls it."""
        key = _key(filepath)
        if key not in self._writer().checkpoint_ids():
            super().remove_checkpoint(filepath)
            return
        if self.global_rank == 0 and os.path.isdir(key):
            os.replace(key, key + _REMOVING)
            sync_folder(os.path.dirname(key))
        self._give_up(key)

    def _give_up(self, key: str) -> None:
        assert self._open is not None
        self._open.delete(key)
        if self.global_rank == 0:
            _delete(key + _REMOVING)
        dist.barrier()

    def on_exception(self, exception: BaseException) -> None:
        """Ends the session on this process alone: others may not come to an end with it."""
        if self._open is not None:
            self._open.abandon()
            self._open = None
        super().on_exception(exception)

    def teardown(self) -> None:
        """Ends the session. Collective."""
        if self._open is not None:
            self._open.close()
            self._open = None
        super().teardown()
