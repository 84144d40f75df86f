# SPDX-License-Identifier: Apache-2.0 OR MIT
"""torch_checkpointing: files of a CheckpointManager in Backstay's store.

    config = CheckpointManager.Config.with_sync_save()
    config.storage_config = BackstayStorageConfig(root="checkpoints")
    manager = CheckpointManager(config)
    manager.save("checkpoints/step 20", {"model": model.state_dict()})

Folders are folders below `root`, and there each file is a marker: a small file that says where the content is. So any
process of the node reads it, and names are what the file system makes of them: a rename is atomic. The content is kept
as long as its marker has a name. Small files are as they are.

Every name of a file ("model_0.pt") has a job of its own in the store, so that what is written are the blocks that
differ from the last file of that name. A marker has a second name in the folder ``.backstay`` of `root`, the only one
that is left when the program deletes, replaces or removes it, by whatever means: then the content is given up.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import threading
import uuid
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import _reading
from .._block import Block
from .._errors import InvalidArgument, StoreBusy
from ._shelf import MARKER_BYTES_MAX, MARKER_MAGIC, Marker, Shelf, read_into, replace_file, sync_folder, write_durably

if TYPE_CHECKING:
    class Storage: ...
    class StorageConfig: ...
    class ReadArgs:
        pre_read_full_file: bool
else:
    try:
        from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig
    except ImportError as error:
        raise ImportError("backstay.torch.storage needs the package torch_checkpointing") from error

PLAIN_BYTES_MAX = 1 << 15
"""Files up to here are as they are: a tree of its own each would cost more than it holds."""

_OWN = ".backstay"
_TRASH = "trash"
_JOB_BYTES_MAX = 128
_JOBS_MAX = 1024


@dataclass
class BackstayStorageConfig(StorageConfig):
    """Where a storage has its names and contents.

    `root` is the folder that all paths are in; a relative path is looked for below it. `job` is what the names of its
    jobs begin with, `settings` are those of `backstay.open`.
    """

    root: str | os.PathLike[str]
    job: str = "torch_checkpointing"
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)

    def create_storage(self) -> BackstayStorage:
        """A storage; its sessions are opened by what is written first."""
        return BackstayStorage(self)


class BackstayStorage(Block, Storage):
    """Files whose contents are in Backstay's store; any thread may use it.

    A file is there, whole and durable, when `write` or the stream's `close` returns; a stream that is left by an
    exception leaves what was there. Beside OSError it raises what Backstay does: StoreFull where there is no room, or
    more contents under one name of a file than a store keeps (57), Corrupt and NotRetained where a content is lost.
    """

    def __init__(self, config: BackstayStorageConfig) -> None:
        self._config = config
        self._root = os.path.abspath(config.root)
        self._own = os.path.join(self._root, _OWN)
        self._lock = threading.Lock()
        self._shelves: dict[str, _OwnShelf] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._shelves)

    # ---- Contents

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.RawIOBase:
        """A file's content as a stream that reads what it is asked for, every block verified."""
        place = self._place(path)
        with open(place, "rb") as file:
            head = file.read(MARKER_BYTES_MAX)
        marker = Marker.parse(head, place)
        length = os.path.getsize(place) if marker is None else marker.length
        known = getattr(read_args, "known_size_bytes", None)
        if known not in (None, length):
            raise OSError(f"{place} has {length} bytes, and {known} are expected")
        if marker is None:
            return open(place, "rb", buffering=0)
        stream = _Reader(marker.stored(), length)
        if read_args is None or read_args.pre_read_full_file:
            stream.read_ahead()
        return stream

    def stream_write(self, path: Path) -> io.IOBase:
        """A stream for a file's content, which is there once it is closed."""
        return _Writer(self, self._writable(path))

    def write(self, path: Path, data: Any) -> None:
        """Writes a whole file."""
        with memoryview(data) as view:
            whole = view if view.contiguous else view.tobytes()
            self._commit(self._writable(path), bytearray().join([whole]))

    def _writable(self, path: Path) -> str:
        place = self._place(path)
        if not os.path.isdir(os.path.dirname(place)):
            raise FileNotFoundError(f"there is no folder {os.path.dirname(place)}: make it first")
        if os.path.isdir(place):
            raise IsADirectoryError(f"{place} is a folder")
        return place

    def _commit(self, place: str, data: bytearray) -> None:
        """Has a file have this content."""
        former = _marker_at(place)
        if len(data) <= PLAIN_BYTES_MAX and not data.startswith(MARKER_MAGIC):
            replace_file(place, data, os.path.join(self._made(), f"{uuid.uuid4().hex}.new"))
        else:
            self._shelf(os.path.basename(place)).store(data, place)
        if former is not None:
            self._give_up([former])

    # ---- Names

    def delete(self, path: Path) -> None:
        """Deletes a file."""
        place = self._place(path)
        marker = _marker_at(place)
        os.unlink(place)
        if marker is not None:
            self._give_up([marker])

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Makes a folder; with `recursive` those above it as well, and it may be there."""
        place = self._place(path)
        if recursive:
            os.makedirs(place, exist_ok=True)
        else:
            os.mkdir(place)

    def rmdir(self, path: Path) -> None:
        """Removes a folder with all that is in it; it is gone at once."""
        place = self._place(path, is_below=True)
        if not os.path.isdir(place) or os.path.islink(place):
            raise NotADirectoryError(f"{place} is no folder") if os.path.lexists(place) else FileNotFoundError(place)
        trash = os.path.join(self._made(_TRASH), uuid.uuid4().hex)
        os.rename(place, trash)
        self._give_up(_emptied(trash))

    def rename(
        self,
        src_path: Path,
        dst_path: Path,
        is_directory: bool = False,
        background_cleanup: bool = False,
    ) -> None:
        """Gives a file or folder another name, atomically; contents stay where they are."""
        source, target = self._place(src_path, is_below=True), self._place(dst_path, is_below=True)
        if os.path.isdir(source):
            os.rename(source, target)
            former = None
        else:
            former = _marker_at(target)
            os.replace(source, target)
        for folder in {os.path.dirname(source), os.path.dirname(target)}:
            sync_folder(folder)
        if former is not None and source != target:
            self._give_up([former])

    def ls(self, path: Path) -> list[str]:
        """Names in a folder."""
        place = self._place(path)
        return [name for name in os.listdir(place) if not (place == self._root and name == _OWN)]

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""
        return os.path.exists(self._place(path))

    def getsize(self, path: Path) -> int:
        """Bytes of a file's content."""
        place = self._place(path)
        marker = _marker_at(place)
        return os.path.getsize(place) if marker is None else marker.length

    def isdir(self, path: Path) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(self._place(path))

    def remap_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    def _place(self, path: str | os.PathLike[str], *, is_below: bool = False) -> str:
        """Where a path is."""
        place = os.path.normpath(os.path.join(self._root, path))
        if place != self._root and not place.startswith(self._root.rstrip(os.sep) + os.sep):
            raise InvalidArgument(f"{place} is not in {self._root}, the root of this storage")
        if is_below and place == self._root or place == self._own or place.startswith(self._own + os.sep):
            raise PermissionError(f"{place} is this storage's own")
        return place

    # ---- Shelves

    def _made(self, *names: str) -> str:
        """A folder of the storage's own."""
        folder = os.path.join(self._own, *names)
        os.makedirs(folder, exist_ok=True)
        return folder

    def _shelf(self, name: str) -> _OwnShelf:
        with self._lock:
            if name not in self._shelves:
                if not self._shelves:
                    for left in os.listdir(self._made(_TRASH)):
                        _emptied(os.path.join(self._own, _TRASH, left))
                self._shelves[name] = _OwnShelf(self._open(name), self._made())
            return self._shelves[name]

    def _open(self, name: str) -> Shelf:
        """The first shelf for a name that no other process has."""
        for count in range(_JOBS_MAX):
            job = _job_name(f"{self._config.job}.{name}", f"-{count}" if count else "")
            with contextlib.suppress(StoreBusy):
                return Shelf(None, job=job, pickled=False, **self._config.settings)
        raise StoreBusy(f"{_JOBS_MAX} processes write files named {name}", "reconfigure")

    def _give_up(self, markers: list[Marker]) -> None:
        """Lets go what has no name any more, if this storage has its shelf; else its owner will at its next write."""
        with self._lock:
            shelves = list(self._shelves.values())
        for job in {marker.job for marker in markers}:
            for shelf in shelves:
                if shelf.job == job:
                    shelf.collect()

    def close(self) -> None:
        """Ends its sessions, as the end of the process does; what is written later opens them again."""
        with self._lock:
            _close_all(self._shelves)


def _close_all(shelves: dict[str, _OwnShelf]) -> None:
    while shelves:
        shelves.popitem()[1].close()


def _job_name(name: str, suffix: str) -> str:
    whole = name.encode()
    if len(whole) + len(suffix) > _JOB_BYTES_MAX:
        digest = "~" + hashlib.sha256(whole).hexdigest()[:16]
        name = whole[:_JOB_BYTES_MAX - len(suffix) - len(digest)].decode(errors="ignore") + digest
    return name + suffix


def _marker_at(place: str) -> Marker | None:
    """The marker that a name is of; None for other files, folders, and where nothing is."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        return Marker.read(place)
    return None


def _emptied(folder: str) -> list[Marker]:
    """Deletes a folder of what was removed; the markers that were in it."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            marker = _marker_at(os.path.join(parent, name))
            if marker is not None:
                found.append(marker)
    shutil.rmtree(folder, ignore_errors=True)
    return found


class _OwnShelf:
    """A shelf of this process, and the second names of the markers of what is on it."""

    def __init__(self, shelf: Shelf, own: str) -> None:
        self._shelf, self.job, self._lock = shelf, shelf.job, threading.Lock()
        self._root_id = _root_id(own)
        self._folder = os.path.join(own, "names", shelf.job)
        os.makedirs(self._folder, exist_ok=True)
        self.collect()

    def store(self, data: bytearray, place: str) -> None:
        """Keeps a content, and has a marker of it be at `place`."""
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        id = uuid.uuid4().hex
        key = f"{self._root_id}/{id}"
        with self._lock:
            self._collect()
            report = self._shelf.put(key, tensor)
            second = os.path.join(self._folder, id)
            write_durably(second, Marker.of(self._shelf, key, report, len(data)).data())
            os.link(second, second + ".new")
            sync_folder(self._folder)
            os.replace(second + ".new", place)
        sync_folder(os.path.dirname(place))

    def collect(self) -> None:
        """Gives up what has no name but the second one."""
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        for key in self._shelf.keys():
            root_id, _, id = key.partition("/")
            if root_id == self._root_id and not self._is_named(os.path.join(self._folder, id)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, id))
                self._shelf.remove(key)

    @staticmethod
    def _is_named(second: str) -> bool:
        # Under this lock, a third name is what a kill left.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(second + ".new")
        try:
            return os.stat(second).st_nlink > 1
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._shelf.close()


def _root_id(own: str) -> str:
    """What tells this root from others whose contents are in the same store."""
    place = os.path.join(own, "id")
    if not os.path.exists(place):
        beside = os.path.join(own, f"{uuid.uuid4().hex}.new")
        write_durably(beside, uuid.uuid4().hex.encode())
        with contextlib.suppress(FileExistsError):
            os.link(beside, place)
        os.unlink(beside)
        sync_folder(own)
    return Path(place).read_text()


class _Reader(io.RawIOBase):
    """A content as a stream."""

    def __init__(self, stored: _reading.StoredCheckpoint, length: int) -> None:
        self._array, self._length, self._at = stored["value"], length, 0
        self._whole: memoryview | None = None
        if self._array.shape != (length,):
            raise OSError(f"a marker tells of {length} bytes, and {list(self._array.shape)} are stored")

    def read_ahead(self) -> None:
        """Reads all of it at once."""
        whole = bytearray(self._length)
        read_into(self._array, [0], [self._length], whole)
        self._whole = memoryview(whole)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._checked()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError(f"a place before the beginning: {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        self._checked()
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._checked()
        with memoryview(buffer) as view, view.cast("B") as target:
            count = max(0, min(len(target), self._length - self._at))
            if count and self._whole is not None:
                target[:count] = self._whole[self._at:self._at + count]
            elif count:
                read_into(self._array, [self._at], [count], target[:count])
        self._at += count
        return count

    def readall(self) -> bytes:
        data = bytearray(max(0, self._length - self._at))
        self.readinto(data)
        return bytes(data)

    def _checked(self) -> None:
        if self.closed:
            raise ValueError("the stream is closed")


class _Writer(Block, io.RawIOBase):
    """A stream whose content becomes a file's when it is closed."""

    def __init__(self, storage: BackstayStorage, place: str) -> None:
        self._storage, self._place, self._data = storage, place, bytearray()
        self._done = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._done:
            raise ValueError("the stream is closed")
        with memoryview(data) as view:
            self._data += view if view.contiguous else view.tobytes()
            return view.nbytes

    def tell(self) -> int:
        return len(self._data)

    def close(self) -> None:
        """Has the file have what was written; it is durable then."""
        if not self._done:
            self._done, data = True, self._data
            self._data = bytearray()
            try:
                self._storage._commit(self._place, data)
            finally:
                io.RawIOBase.close(self)

    def abort(self) -> None:
        """Ends it; the file is as it was."""
        self._done = True
        self._data = bytearray()
        io.RawIOBase.close(self)

    abandon = abort

    def __del__(self) -> None:
        # What nobody closed is not whole.
        self.abort()
