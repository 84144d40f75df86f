# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lightning: checkpoints of a Trainer in Backstay's store.

    trainer = Trainer(plugins=[BackstayCheckpointIO(job="digits")], ...)
    trainer.fit(model, ckpt_path="last")

Where Lightning expects a file there is a marker, a small file that says where the checkpoint is. ModelCheckpoint looks
at such files alone, so `save_top_k`, `save_last`, links and `ckpt_path="last"` are as ever. A marker is written when
its checkpoint is durable and pinned, and may be moved; whoever deletes it by hand calls `collect`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .._errors import InvalidArgument
from . import _export
from ._shelf import MapLocation, Marker, Shelf, replace_file, sync_folder, tree_of

if TYPE_CHECKING:
    CheckpointIO = Any
else:
    try:
        from lightning.fabric.plugins import CheckpointIO
    except ImportError:
        try:
            from lightning_fabric.plugins import CheckpointIO
        except ImportError as error:
            raise ImportError("backstay.torch.lightning needs the package lightning, or pytorch-lightning") from error

_REMOVING = ".removing"
"""A marker whose checkpoint is being given up has this at the end of its name."""


class BackstayCheckpointIO(CheckpointIO):  # type: ignore[misc]
    """Saves a Trainer's checkpoints in a store of Backstay's, and loads them from there.

    Lightning saves on rank 0: that process alone has a session, from its first save to the end of `fit`; the others
    load through the marker, on the node that has the store. `job` and `settings` are those of `backstay.open`. With
    `pickled` values that are no plain ones are stored as pickles, which run code when they are loaded; without it
    such a value is an error that names it.
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        pickled: bool = False,
        **settings: str | int | float | bool | os.PathLike[str],
    ) -> None:
        self._job, self._pickled, self._settings = job, pickled, settings
        self._shelf: Shelf | None = None
        # Where both packages are, the program's Trainer may be of the one whose class this is none of.
        for name in ("lightning.fabric.plugins", "lightning_fabric.plugins"):
            if name in sys.modules:
                sys.modules[name].CheckpointIO.register(BackstayCheckpointIO)

    def _opened(self, folder: str | None = None) -> Shelf:
        if self._shelf is None:
            self._shelf = Shelf(None, job=self._job, pickled=self._pickled, **self._settings)
            folders = {os.path.dirname(key) for key in self._shelf.keys()}
            for one in folders | ({folder} if folder is not None else set()):
                self._finish_removing(self._shelf, one)
        return self._shelf

    @staticmethod
    def _finish_removing(shelf: Shelf, folder: str) -> None:
        """Ends the removals in a folder that a kill came between."""
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in names:
            place = os.path.join(folder, name)
            key = place.removesuffix(_REMOVING)
            if key == place or (marker := Marker.read(place)) is None:
                continue
            if marker.key in shelf and shelf.is_at(marker.store):
                shelf.remove(marker.key)
            os.unlink(place)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None,
    ) -> None:
        """Stores a checkpoint; when its marker is at `path`, it is durable."""
        if storage_options is not None:
            raise TypeError("storage_options are for remote file systems; give settings to BackstayCheckpointIO")
        key = _key(path)
        os.makedirs(os.path.dirname(key), exist_ok=True)
        shelf = self._opened(os.path.dirname(key))
        report = shelf.put(key, checkpoint)
        replace_file(key, Marker.of(shelf, key, report).data())

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: MapLocation = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads the checkpoint whose marker is at `path`; any process of the node may.

        A file that `torch.save` wrote is loaded as such, so that a program can change over. With `weights_only` a
        stored pickle is an error, whatever `pickled` is.
        """
        key = _key(path)
        if not os.path.exists(key):
            raise FileNotFoundError(f"there is no checkpoint at {key}")
        marker = Marker.read(key)
        if marker is None:
            import torch

            loaded: dict[str, Any] = torch.load(key, map_location, weights_only=weights_only)
            return loaded
        tree: dict[str, Any] = tree_of(marker.stored(key), map_location, pickled=self._pickled and not weights_only)
        return tree

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Gives a checkpoint up, and deletes its marker."""
        key = _key(path)
        if not os.path.lexists(key):
            return
        marker = None if os.path.islink(key) or not os.path.isfile(key) else Marker.read(key)
        shelf = self._opened(os.path.dirname(key))
        if marker is None or marker.key != key or key not in shelf or not shelf.is_at(marker.store):
            _delete(key)
            return
        os.replace(key, key + _REMOVING)
        sync_folder(os.path.dirname(key))
        shelf.remove(key)
        os.unlink(key + _REMOVING)

    def collect(self) -> list[str]:
        """Gives up the checkpoints whose markers were deleted by hand; their paths.

        A marker that was moved since it was written counts as deleted.
        """
        shelf = self._opened()
        gone = [key for key in shelf.keys() if not os.path.lexists(key)]
        for key in gone:
            shelf.remove(key)
        return gone

    def export(self, path: str | os.PathLike[str], out: str | os.PathLike[str], *, prefix: str = "state_dict/") -> None:
        """Writes the weights of the checkpoint at `path` as safetensors; their names are what follows `prefix`."""
        marker = Marker.read(path)
        if marker is None:
            raise InvalidArgument(f"{os.fspath(path)} is no marker of a checkpoint of Backstay")
        stored = marker.stored(path)
        names = {name: name.removeprefix(prefix) for name in _export.names(stored) if name.startswith(prefix)}
        _export.export(stored, out, names=names)

    def teardown(self) -> None:
        """Closes the session; the next save opens it again."""
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None


def _key(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if "://" in text:
        raise InvalidArgument(
            f"{text} is not of this machine: checkpoints are in the node's store, markers in its files")
    return os.path.abspath(text)


def _delete(path: str) -> None:
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
