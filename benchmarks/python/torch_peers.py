# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How others save and load: torch.save, torch.distributed.checkpoint and Orbax, each at its best settings."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from figures import Span, span
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch_states import State

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

Done = Callable[[], bool]


class Peer(ABC):
    """One that saves asynchronously."""

    name = ""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder / self.name, state
        self._count = 0

    def new_path(self) -> Path:
        """A folder for one more; those before are removed."""
        self._count += 1
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self.folder / str(self._count)

    def prepare(self) -> None:
        """What is not measured: the state as it is handed over."""

    @abstractmethod
    def start(self, path: Path) -> None:
        """Starts a save; when it returns the state may be written."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it is durable."""

    @abstractmethod
    def wait(self) -> None:
        """Waits until it is durable."""

    def close(self) -> None:
        """Removes what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def writer(path: Path) -> dcp.FileSystemWriter:
    """A file for each of two threads."""
    return dcp.FileSystemWriter(path, single_file_per_rank=True, thread_count=2, sync_files=True)


class DcpDefault(Peer):
    """async_save as it is by default."""

    name = "dcp-default"
    _future: Any = None

    def _take(self, started: Any) -> None:
        staged = getattr(started, "staging_completion", None)
        if staged is not None:
            staged.result()
        self._future = getattr(started, "upload_completion", started)

    def start(self, path: Path) -> None:
        # Not with a writer: FileSystemWriter stages by itself, and slower.
        self._take(dcp.async_save(dict(self.state), checkpoint_id=path))

    def done(self) -> bool:
        return bool(self._future.done())

    def wait(self) -> None:
        self._future.result()


class DcpReused(DcpDefault):
    """async_save with a stager that is kept, so that its memory is."""

    name = "dcp-reused"
    of_device = False
    """Whether its memory is pinned, as copies from a device are fastest to."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        self._stager = DefaultStager(StagingOptions(
            use_pinned_memory=self.of_device, use_shared_memory=False, use_async_staging=False,
            use_non_blocking_copy=self.of_device))
        # torch 2.11 closes the inner one after each save, which cannot be used again then.
        for one in (self._stager, self._stager._state_dict_stager):
            one.close = lambda: None  # type: ignore[method-assign]

    def start(self, path: Path) -> None:
        self._take(dcp.async_save(dict(self.state), storage_writer=writer(path), async_stager=self._stager))


class Orbax(Peer):
    """AsyncCheckpointer with arrays of JAX."""

    name = "orbax"

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        import orbax.checkpoint as ocp

        logging.disable(logging.WARNING)
        self._args = ocp.args
        self._checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=False))
        self._tree: dict[str, Any] = {}

    def prepare(self) -> None:
        import jax
        import ml_dtypes
        import numpy as np

        def array(one: torch.Tensor) -> Any:
            if one.dtype == torch.bfloat16:
                return one.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
            return one.numpy()

        self._tree = {name: jax.device_put(np.array(array(one))) for name, one in self.state.items()}
        jax.block_until_ready(self._tree)

    def start(self, path: Path) -> None:
        self._checkpointer.save(path.absolute(), args=self._args.PyTreeSave(self._tree))

    def done(self) -> bool:
        return not self._checkpointer._async_manager._thread.is_alive()

    def wait(self) -> None:
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        self._checkpointer.close()
        super().close()


def peers(folder: Path, state: State) -> list[Peer]:
    """All that can be had here."""
    kinds: list[type[Peer]] = [DcpReused, DcpDefault, Orbax]
    found = []
    for kind in kinds:
        try:
            found.append(kind(folder, state))
        except ImportError as error:
            print(f"{kind.name} is not measured: {error}")
    return found


def torch_save(path: Path, state: State) -> Span:
    """torch.save, durably."""
    path.unlink(missing_ok=True)
    with span() as found, open(path, "wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    return found


def torch_load(path: Path, state: State) -> Span:
    """torch.load of a mapped file, and the copy to where the state is."""
    with span() as found:
        loaded = torch.load(path, mmap=True)
        with torch.no_grad():
            for name, one in state.items():
                one.copy_(loaded[name])
    return found


def dcp_save(path: Path, state: State) -> Span:
    """A synchronous save."""
    shutil.rmtree(path, ignore_errors=True)
    with span() as found:
        dcp.save(dict(state), storage_writer=writer(path))
    return found


def dcp_load(path: Path, state: State) -> Span:
    """A load into the state's memory."""
    with span() as found:
        dcp.load(dict(state), storage_reader=dcp.FileSystemReader(path))
    return found
