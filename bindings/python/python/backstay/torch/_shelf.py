# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trees of tensors and plain values that are kept by name until they are removed, whatever `retained` is.

A key is a pinned checkpoint. Its tensors are variables that are named by their path; `backstay.tensors` says which
there are, and has the single values, `backstay.values` is the tree without them, `backstay.shelf` the key. A checkpoint
without a key is newer than one that was given up, so that the next start does not take that for one that it did not come
to pin.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _reading, _session
from .._block import Block
from .._errors import Corrupt, Error, InvalidArgument, NotRetained, VariableMismatch
from .._reports import CheckpointId, Report
from . import _trees
from ._tensors import Held, Staging, checked, fill_all, is_same_memory, memory_order

META = "backstay.shelf"
TENSORS = "backstay.tensors"
VALUES = "backstay.values"
_HERE = "\0tensor"
"""The only key of the dict that stands for a tensor in a tree."""

KEY_BYTES_MAX = 4096
MARKER_MAGIC = b"backstay marker 1\n"
MARKER_BYTES_MAX = 1 << 16
_NAME_BYTES_MAX = 255

_ELEMENTS = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
"""Types of elements that a checkpoint has; others of one byte are stored as their bytes."""

MapLocation = Any
"""Where tensors are put: as `torch.load` takes it; None is the host."""


class Shelf(Block):
    """Trees by name, in a session of this process alone.

        with backstay.torch.Shelf(job="weights") as shelf:
            shelf.put("epoch 3", {"model": model.state_dict(), "loss": 0.25})
            tree = shelf.get("epoch 3")

    A tree is dicts, lists and tuples of tensors and plain values; with `pickled` values of other types are stored as
    pickles, which run code when they are read. `put` writes the blocks that differ from the put before. It is local:
    in a job of several processes one of them has a shelf, or each has its own under a `job` of its own.

    `session` is one that is used for nothing else, and stays open when the shelf is closed; otherwise one is opened,
    with `job` and `settings` as in `backstay.open`. Other processes read with `Shelf.read(path)`.
    """

    def __init__(
        self,
        session: _session.Session | None = None,
        *,
        job: str | None = None,
        pickled: bool = False,
        **settings: str | int | float | bool | os.PathLike[str],
    ) -> None:
        if session is not None and (job is not None or settings):
            raise InvalidArgument("a session that is given has its settings already")
        if session is not None and session.size != 1:
            raise InvalidArgument(f"a shelf is one process's, and the session is of {session.size}")
        self._owned = session is None
        self.session = session or _session.open(job=job, **settings)
        self._pickled, self._staging, self._lock = pickled, Staging(), threading.RLock()
        self._names: set[str] = set()
        self._found: dict[str, CheckpointId] = {}
        try:
            self._take_stock()
        except BaseException:
            if self._owned:
                self.session.abandon()
            raise

    @staticmethod
    def read(*paths: str | os.PathLike[str], job: str | None = None, pickled: bool = False) -> ShelfReader:
        """What the shelf of a job keeps at or below `paths`, read without a session; the job may go on meanwhile."""
        return ShelfReader(_reading.read(*paths), job=job, pickled=pickled)

    def _reader(self) -> ShelfReader:
        return Shelf.read(self.session.directory, pickled=self._pickled)

    def _take_stock(self) -> None:
        """Finds what earlier starts put, and ends what they did not come to."""
        if not self.session.all_checkpoints:
            return
        reader = self._reader()
        known = set(self.session.all_checkpoints)
        kept = [(one, key) for one, key in reader.keyed() if one.id in known]
        for one, key in kept:
            if not one.pinned:
                self.session.pin(one.number)
            former = self._found.get(key)
            self._found[key] = one.id
            if former is not None:
                self.session.unpin(former.number)

    # ---- Trees

    def put(self, key: str, tree: Any) -> Report:
        """Keeps a tree under a key, in the place of another; it is durable when this returns. Local.

        What was there before stays until then. Raises StoreFull where the store has no room, or as many trees as
        it can keep: then nothing was given up, and something has to be removed.
        """
        _check_key(key)
        with self._lock:
            packed = _Packed(tree)
            values = _trees.pack(packed.value, pickled=self._pickled)
            held = [Held(name, _giver(tensor), self._staging) for name, tensor in packed.stored]
            try:
                for one in held:
                    self._protect(one.name, one)
                self._protect(TENSORS, _trees.pack(packed.tensors))
                self._protect(VALUES, values)
                fill_all(held, self._staging)
                report = self._checkpoint(key)
            finally:
                self._release()
            self._keep(key, report)
            return report

    def _keep(self, key: str, report: Report) -> None:
        try:
            self.session.pin(report.number)
        except Error:
            self._checkpoint(None)
            raise
        former = self._found.get(key)
        self._found[key] = CheckpointId(report.number, report.incarnation)
        if former is not None:
            self.session.unpin(former.number)

    def _protect(self, name: str, memory: Any) -> None:
        self.session.protect(name, memory)
        self._names.add(name)

    def _release(self) -> None:
        """Lets the memory of the caller's tensors go; what changes next time is still known."""
        while self._names:
            self.session.unprotect(self._names.pop())

    def _checkpoint(self, key: str | None) -> Report:
        try:
            self._protect(META, bytearray(json.dumps({"version": 1, "key": key}).encode()))
            return self.session.checkpoint()
        finally:
            self._release()

    def get(self, key: str, map_location: MapLocation = None) -> Any:
        """The tree of a key, in new memory, every block verified. Raises KeyError where there is none."""
        with self._lock:
            id = self._at(key)
            return self._reader().get(key, map_location, checkpoint=id)

    def remove(self, key: str) -> None:
        """Gives a tree up. Raises KeyError where there is none."""
        with self._lock:
            id = self._at(key)
            if self.session.all_checkpoints[-1:] == [id]:
                self._checkpoint(None)
            self.session.unpin(id.number)
            del self._found[key]

    def _at(self, key: str) -> CheckpointId:
        if key not in self._found:
            raise KeyError(key)
        return self._found[key]

    def keys(self) -> list[str]:
        """The keys, in the order in which they were put."""
        with self._lock:
            return sorted(self._found, key=lambda key: self._found[key])

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    # ---- The shelf itself

    @property
    def job(self) -> str:
        """The name of its job."""
        return os.path.basename(os.path.dirname(os.path.abspath(self.session.directory)))

    def is_at(self, store: str) -> bool:
        """Whether this is the folder of its store."""
        return os.path.isdir(store) and os.path.samefile(store, self.session.directory)

    def close(self) -> None:
        """Ends it; what was put is durable and stays, also where an exception leaves the block. Again it does nothing."""
        if self._owned:
            self.session.close()

    def __repr__(self) -> str:
        return f"<backstay.torch.Shelf of {len(self)}, {self.session!r}>"


class ShelfReader:
    """What a shelf keeps, as it was when it was read."""

    def __init__(self, stores: _reading.Stores, *, job: str | None = None, pickled: bool = False) -> None:
        self._pickled = pickled
        all_of_them = [one for one in stores.checkpoints if one.complete and not one.abandoned]
        of_shelves = [one for one in all_of_them if META in one and one.ranks == 1]
        jobs = sorted({one.job for one in of_shelves})
        if job is None and len(jobs) > 1:
            raise InvalidArgument(f"there are shelves of {len(jobs)} jobs, say which: {', '.join(jobs)}")
        self._checkpoints = [one for one in of_shelves if job in (None, one.job)]
        self._found: dict[str, _reading.StoredCheckpoint] = {key: one for one, key in self.keyed()}

    def keyed(self) -> Iterator[tuple[_reading.StoredCheckpoint, str]]:
        """The checkpoints that are kept, oldest first, each with its key.

        They are pinned. The newest may not be yet: then its process ended before it came to that.
        """
        ordered = sorted(self._checkpoints, key=lambda one: (one.id, not one.archived))
        for at, one in enumerate(ordered):
            if one.pinned or at == len(ordered) - 1:
                key = _meta(one)
                if key is not None:
                    yield one, key

    def keys(self) -> list[str]:
        """The keys, in the order in which they were put."""
        return sorted(self._found, key=lambda key: self._found[key].id)

    def stored(self, key: str) -> _reading.StoredCheckpoint:
        """The checkpoint that has a key, for `export`."""
        if key not in self._found:
            raise KeyError(key)
        return self._found[key]

    def get(self, key: str, map_location: MapLocation = None, *, checkpoint: CheckpointId | None = None) -> Any:
        """The tree of a key, in new memory, every block verified. Raises KeyError where there is none.

        With `checkpoint` that one of it, and NotRetained where it is no longer there.
        """
        if checkpoint is None:
            return tree_of(self.stored(key), map_location, pickled=self._pickled)
        found = self.at(checkpoint, key)
        if found is None:
            raise NotRetained(f"checkpoint {checkpoint} with {key!r} is not there any more", "reconfigure")
        return tree_of(found, map_location, pickled=self._pickled)

    def at(self, id: CheckpointId, key: str) -> _reading.StoredCheckpoint | None:
        """A checkpoint, if it is still there with this key."""
        return next((one for one in self._checkpoints if one.id == id and _meta(one) == key), None)

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)


def _meta(checkpoint: _reading.StoredCheckpoint) -> str | None:
    found = json.loads(raw_bytes(checkpoint, META).numpy().tobytes())
    if found.get("version") != 1:
        raise VariableMismatch(f"{META} is of version {found.get('version')}, this reads 1", "reconfigure")
    key: str | None = found["key"]
    return key


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a key is text of 1 to {KEY_BYTES_MAX} bytes")


def _giver(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


# ---- Trees as variables


class _Packed:
    """A tree taken apart: its tensors, each memory once, and the rest with a number where each of them was."""

    def __init__(self, tree: Any) -> None:
        self.stored: list[tuple[str, Tensor]] = []
        """Those that are variables."""
        self.tensors: list[dict[str, Any]] = []
        self._names = {META, TENSORS, VALUES}
        self._same: dict[int, list[tuple[Tensor, int]]] = {}
        self.value = self._walk(tree, ())

    def _walk(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {_HERE: self._number(value, "/".join(path) or "value")}
        if type(value) in (list, tuple):
            return type(value)(self._walk(one, (*path, str(at))) for at, one in enumerate(value))
        if type(value) in (dict, OrderedDict):
            if _HERE in value:
                raise InvalidArgument(f"{'/'.join(path) or 'the value'} has the key {_HERE!r}, which is taken")
            return type(value)((key, self._walk(one, (*path, str(key)))) for key, one in value.items())
        return value

    def _number(self, tensor: Tensor, where: str) -> int:
        """The number of a tensor, which is that of another with the same memory."""
        if hasattr(tensor, "to_local"):
            raise InvalidArgument(f"{where} is a part of a tensor of all processes: put full_tensor()")
        tensor = checked(where, tensor.detach())
        others = self._same.setdefault(tensor.data_ptr(), [])
        for other, at in others:
            if tensor.numel() and is_same_memory(tensor, other):
                return at
        self.tensors.append(self._described(tensor, self._name(where)))
        others.append((tensor, len(self.tensors) - 1))
        return len(self.tensors) - 1

    def _described(self, tensor: Tensor, name: str) -> dict[str, Any]:
        is_bytes = tensor.dtype not in _ELEMENTS and tensor.element_size() == 1
        if tensor.numel() <= 1 or not (is_bytes or tensor.dtype in _ELEMENTS):
            return {"name": name, "value": tensor}
        order = memory_order(tensor) or tuple(range(tensor.dim()))
        self.stored.append((name, tensor.view(torch.uint8) if is_bytes else tensor))
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"name": name, "dtype": dtype, "shape": list(tensor.shape), "order": list(order)}

    def _name(self, where: str) -> str:
        """A name for a variable that no other has."""
        name, count = where, 1
        while name in self._names or len(name.encode()) > _NAME_BYTES_MAX:
            count += 1
            digest = hashlib.sha256(f"{where}\0{count}".encode()).hexdigest()[:16]
            name = where.encode()[:_NAME_BYTES_MAX - 17].decode(errors="ignore") + "~" + digest
        self._names.add(name)
        return name


def _read_tree(checkpoint: _reading.StoredCheckpoint, name: str, *, pickled: bool = False) -> Any:
    return _trees.unpack(raw_bytes(checkpoint, name).numpy().tobytes(), pickled=pickled)


def tensors_of(checkpoint: _reading.StoredCheckpoint) -> list[dict[str, Any]]:
    """What tensors a shelf's checkpoint has: name, type, shape and order in memory, or name and value."""
    found: list[dict[str, Any]] = _read_tree(checkpoint, TENSORS)
    return found


def tree_of(
    checkpoint: _reading.StoredCheckpoint,
    map_location: MapLocation = None,
    *,
    pickled: bool = False,
) -> Any:
    """The tree of a shelf's checkpoint."""
    value = _read_tree(checkpoint, VALUES, pickled=pickled)
    tensors = []
    for one in tensors_of(checkpoint):
        made = one["value"] if "value" in one else _tensor(checkpoint, **one)
        tensors.append(_place(made, map_location))
    return _filled(value, tensors, map_location)


def _filled(value: Any, tensors: Sequence[Tensor], map_location: MapLocation) -> Any:
    if isinstance(value, Tensor):
        return _place(value, map_location)
    if type(value) in (list, tuple):
        return type(value)(_filled(one, tensors, map_location) for one in value)
    if type(value) in (dict, OrderedDict):
        if len(value) == 1 and _HERE in value:
            return tensors[value[_HERE]]
        return type(value)((key, _filled(one, tensors, map_location)) for key, one in value.items())
    return value


def _tensor(
    checkpoint: _reading.StoredCheckpoint,
    name: str,
    dtype: str,
    shape: Sequence[int],
    order: Sequence[int],
) -> Tensor:
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or sorted(order) != list(range(len(shape))):
        raise VariableMismatch(f"{name!r} is told to be {dtype} of {shape} in order {order}", "reconfigure")
    raw = raw_bytes(checkpoint, name)
    ordered = [shape[at] for at in order]
    if raw.numel() != math.prod(shape) * found.itemsize:
        raise Corrupt(f"{name!r} has {raw.numel()} bytes, and is told to be {dtype} of {shape}", "fall_back")
    inverse = [list(order).index(at) for at in range(len(order))]
    return raw.view(found).reshape(ordered).permute(inverse)


def _place(tensor: Tensor, map_location: MapLocation) -> Tensor:
    if map_location is None:
        return tensor
    if isinstance(map_location, dict):
        return tensor.to(map_location.get("cpu", "cpu"))
    if callable(map_location):
        moved = map_location(tensor.untyped_storage(), "cpu")
        return tensor if moved is None else tensor.to(moved.device)
    return tensor.to(map_location)


# ---- Bytes of variables

_WIDTHS = {"i8": 1, "u8": 1, "bytes": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4,
           "i64": 8, "u64": 8, "f64": 8, "complex64": 8, "complex128": 16}


def width_of(array: _reading.StoredArray) -> int:
    """Bytes of an element."""
    return _WIDTHS[array.element]


def read_into(array: _reading.StoredArray, start: Sequence[int], shape: Sequence[int], into: Any) -> None:
    """Fills memory with a box of a variable, every block verified."""
    checkpoint = array._checkpoint
    checkpoint._native.read_box(checkpoint._index, array.name, array.rank, list(start), list(shape), into)


def raw_bytes(checkpoint: _reading.StoredCheckpoint, name: str) -> Tensor:
    """All bytes of a variable, in new memory."""
    if name not in checkpoint:
        raise VariableMismatch(f"checkpoint {checkpoint.id} of {checkpoint.job} has no {name!r}", "reconfigure")
    array = checkpoint[name]
    raw = torch.empty(math.prod(array.shape) * width_of(array), dtype=torch.uint8)
    if raw.numel():
        read_into(array, [0] * len(array.shape), array.shape, raw.numpy())
    return raw



# ---- Files that stand for what is kept


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A small file at the place where a program looks for a checkpoint: which tree it is, and where."""

    store: str
    job: str
    key: str
    number: int
    incarnation: int
    length: int = 0
    """Bytes of the file that it stands for, if it is one."""

    @classmethod
    def of(cls, shelf: Shelf, key: str, report: Report, length: int = 0) -> Marker:
        """That of a tree that was put."""
        return cls(store=os.path.abspath(shelf.session.directory), job=shelf.job, key=key, number=report.number,
                   incarnation=report.incarnation, length=length)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Marker | None:
        """The marker at a path; None for another file."""
        with open(path, "rb") as file:
            data = file.read(MARKER_BYTES_MAX)
        return cls.parse(data, os.fspath(path))

    @classmethod
    def parse(cls, data: bytes, path: str = "") -> Marker | None:
        """The marker of these bytes; None for those of another file."""
        if not data.startswith(MARKER_MAGIC):
            return None
        try:
            return cls(**json.loads(data[len(MARKER_MAGIC):]))
        except (ValueError, TypeError) as error:
            raise Corrupt(f"{path} is no whole marker of a checkpoint: {error}", "fall_back") from error

    def data(self) -> bytes:
        """The bytes of the file."""
        return MARKER_MAGIC + json.dumps(asdict(self)).encode() + b"\n"

    def reader(self, *, pickled: bool = False) -> ShelfReader:
        """What the shelf keeps that this tree is on."""
        if not os.path.isdir(self.store):
            raise NotRetained(f"{self.key!r} is in {self.store}, which is not here: it is on the node that wrote it, "
                              "or was removed", "reconfigure")
        return Shelf.read(self.store, job=self.job, pickled=pickled)

    def stored(self, path: str | os.PathLike[str] | None = None) -> _reading.StoredCheckpoint:
        """The checkpoint that has the tree.

        Where the marker is at `path`, and its key is that path, it is the one that replaced it, if one did: a kill came
        before its marker. A marker that was moved is of the one that it names.
        """
        reader = self.reader()
        if path is not None and os.path.realpath(path) == os.path.realpath(self.key) and self.key in reader:
            return reader.stored(self.key)
        exact = reader.at(CheckpointId(self.number, self.incarnation), self.key)
        if exact is None:
            raise NotRetained(f"{self.key!r} is not in {self.store} any more", "reconfigure")
        return exact


def write_durably(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Writes a new file; its name is durable once its folder is."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(
    path: str | os.PathLike[str], data: bytes | bytearray | memoryview, beside: str | None = None,
) -> None:
    """Has a file be there whole, durably, or as it was before; `beside` is a name of none for the time being."""
    beside = beside or f"{os.fspath(path)}.{os.getpid()}-{threading.get_ident()}.new"
    try:
        write_durably(beside, data)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Makes names durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
