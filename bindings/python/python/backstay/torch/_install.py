# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`install`: code that names FileSystemWriter and FileSystemReader itself saves to Backstay, and loads from it."""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from .._errors import InvalidArgument
from ._dcp import Writer
from ._dcp_reader import Reader


class _Installed:
    """The writer that stands behind the paths, made when the first is named."""

    def __init__(self, writer: Writer | None, settings: dict[str, Any]) -> None:
        self._writer, self._settings, self._owns = writer, settings, writer is None

    def writer(self) -> Writer:
        """All processes make it together: each names the path."""
        if self._writer is None:
            self._writer = Writer(**self._settings)
        return self._writer

    def close(self) -> None:
        """Closes it, if it was made here."""
        if self._owns and self._writer is not None:
            self._writer.close()


_installed: _Installed | None = None


class PathWriter(StorageWriter):
    """A Writer's save under a path, in place of the FileSystemWriter of that path."""

    _synchronize_after_execute = False

    def __init__(self, writer: Writer, path: str) -> None:
        self._writer, self.path = writer, path

    @property
    def should_synchronize_after_execute(self) -> bool:
        """What was staged is captured when `stage` returns."""
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """As the Writer does, under the path where no other checkpoint_id is given."""
        return self._writer._stage(state_dict, self.path)

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """The writer behind it stays open."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new save begins."""
        if checkpoint_id is not None:
            self.path = _path_id(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        """Under which checkpoint_id it is."""
        self._writer.reset(self.path)
        return self._writer.storage_meta()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """As the Writer does."""
        self._writer.set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As the Writer does."""
        return self._writer.prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As the Writer does."""
        return self._writer.prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """As the Writer does."""
        return self._writer.write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """As the Writer does."""
        self._writer.finish(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """As the Writer does."""
        return Writer.validate_checkpoint_id(checkpoint_id)


class PathReader(Reader):
    """A Reader of what was saved under a path, in place of the FileSystemReader of that path."""

    def __init__(self, writer: Writer, path: str) -> None:
        super().__init__(writer, path)
        self.path = path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new load begins."""
        super().reset(None if checkpoint_id is None else _path_id(checkpoint_id))


def _path_id(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.fspath(path))


def _new_writer(cls: type[Any], path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> StorageWriter:
    if cls is not FileSystemWriter or _installed is None:
        made: StorageWriter = super(FileSystemWriter, cls).__new__(cls)
        return made
    return PathWriter(_installed.writer(), _path_id(path))


def _new_reader(cls: type[Any], path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> StorageReader:
    is_ours = cls is FileSystemReader and _installed is not None
    if is_ours and _installed is not None:
        writer, name = _installed.writer(), _path_id(path)
        # What was saved as files before is still read.
        if name in writer.checkpoint_ids() or not os.path.exists(os.path.join(name, ".metadata")):
            return PathReader(writer, name)
    made: StorageReader = super(FileSystemReader, cls).__new__(cls)
    return made


def install(writer: Writer | None = None, **settings: Any) -> None:
    """Has `FileSystemWriter` and `FileSystemReader` save to Backstay and load from it, until `uninstall`. Local.

    For code that names them itself, or has torch.distributed.checkpoint do so by giving it a path. The path, made
    absolute, is the checkpoint_id. `writer` is an open Writer; else one is opened with `settings` when the first path
    is named, by all processes together. Classes that were derived from them stay as they are, and so does a path
    that has files of an earlier save.
    """
    global _installed
    if _installed is not None:
        raise InvalidArgument("it is installed already: uninstall() first")
    if writer is not None and settings:
        raise InvalidArgument("a Writer is given, and settings for one as well")
    _installed = _Installed(writer, settings)
    setattr(FileSystemWriter, "__new__", staticmethod(_new_writer))  # noqa: B010
    setattr(FileSystemReader, "__new__", staticmethod(_new_reader))  # noqa: B010


def uninstall() -> None:
    """Undoes `install`, and closes the Writer that it opened: then it is collective."""
    global _installed
    installed, _installed = _installed, None
    if installed is None:
        return
    # What was set as __new__ stays, and makes plain objects: a class whose own is deleted takes no arguments any more.
    installed.close()
