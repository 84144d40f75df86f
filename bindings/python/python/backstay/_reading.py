# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What stores and archives hold, read without a job."""

from __future__ import annotations

import html
import operator
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import InvalidArgument, NotRetained
from ._reports import CheckpointId, size

if TYPE_CHECKING:
    import numpy
    import numpy.typing

_Part = tuple[str, list[int], "list[int] | None", "list[int] | None"]

_DTYPES = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64", "complex64": "complex64",
    "complex128": "complex128", "bytes": "uint8",
}


class StoredArray:
    """A variable of a checkpoint, put together from all ranks, or one rank's part of it.

    It reads when it is indexed, only the blocks that the box lies in, each verified: ``array[...]`` is all of it,
    ``array[3:5, :, 0]`` a part; `numpy.asarray` takes it as it is. bfloat16 needs the package ml_dtypes, and is uint16
    without it.
    """

    def __init__(self, checkpoint: StoredCheckpoint, name: str, rank: int | None, part: _Part) -> None:
        self._checkpoint, self.name, self.rank = checkpoint, name, rank
        self.element: str = part[0]
        self.shape: tuple[int, ...] = tuple(part[1] if rank is not None or part[3] is None else part[3])

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """Type of the elements."""
        import numpy

        if self.element == "bf16":
            try:
                import ml_dtypes
            except ImportError:
                return numpy.dtype("uint16")
            found: numpy.dtype[Any] = numpy.dtype(ml_dtypes.bfloat16)
            return found
        return numpy.dtype(_DTYPES[self.element])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single value has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> numpy.typing.NDArray[Any]:
        import numpy

        start, shape, within = _box(key, self.shape)
        array = numpy.empty(shape, self.dtype)
        flat = array.reshape(-1).view(numpy.uint8)
        self._checkpoint._native.read_box(self._checkpoint._index, self.name, self.rank, start, shape, flat)
        # What is left of the key picks out of the box.
        picked: numpy.typing.NDArray[Any] = array[within]
        return picked

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.typing.NDArray[Any]:
        if copy is False:
            raise ValueError("what is stored cannot be had without a copy")
        array = self[...]
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        part = "" if self.rank is None else f", rank {self.rank}"
        return f"<backstay.StoredArray {self.name!r}: {self.element} {list(self.shape)}{part}>"


def _box(key: Any, shape: tuple[int, ...]) -> tuple[list[int], list[int], tuple[Any, ...]]:
    """The smallest box that `key` picks from, and what picks it out of that box."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if sum(1 for one in keys if one is Ellipsis) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if not any(one is Ellipsis for one in keys):
        keys.append(Ellipsis)
    at = next(position for position, one in enumerate(keys) if one is Ellipsis)
    missing = len(shape) - (len(keys) - 1)
    if missing < 0:
        raise IndexError(f"{len(keys) - 1} indices for {len(shape)} dimensions")
    keys[at:at + 1] = [slice(None)] * missing
    start: list[int] = []
    box: list[int] = []
    within: list[int | slice] = []
    for dimension, (one, extent) in enumerate(zip(keys, shape)):
        if isinstance(one, slice):
            picked = range(*one.indices(extent))
            low = min(picked[0], picked[-1]) if picked else 0
            count = abs(picked[-1] - picked[0]) + 1 if picked else 0
            start.append(low)
            box.append(count)
            within.append(slice(None, None, picked.step) if picked else slice(0, 0))
        else:
            index = operator.index(one)
            if not -extent <= index < extent:
                raise IndexError(f"index {index} is out of bounds for dimension {dimension} of {extent}")
            start.append(index % extent)
            box.append(1)
            within.append(0)
    return start, box, tuple(within)


class StoredCheckpoint(Mapping[str, StoredArray]):
    """A checkpoint in stores or an archive: a mapping from names to arrays.

    ``checkpoint["plate"]`` is the array put together from all ranks, of a variable that is declared as parts of a
    global array, or that one rank has; ``checkpoint.part("plate", rank)`` is what one rank stored.
    """

    def __init__(self, native: _native.Stores, index: int, fields: dict[str, Any]) -> None:
        self._native, self._index = native, index
        self._parts: dict[str, dict[int, _Part]] | None = None
        self.id = CheckpointId(fields["number"], fields["incarnation"])
        self.job: str = fields["job"]
        self.ranks: int = fields["ranks"]
        self.bytes_total: int = fields["bytes_total"]
        self.bytes_changed: int = fields["bytes_changed"]
        self.pinned: bool = fields["pinned"]
        self.archived: bool = fields["archived"]
        self.complete: bool = fields["complete"]
        self.abandoned: bool = fields["abandoned"]
        self.committed = datetime.fromtimestamp(fields["committed_unix_ns"] / 1e9, timezone.utc)

    @property
    def number(self) -> int:
        """Its number."""
        return self.id.number

    def _all_parts(self) -> dict[str, dict[int, _Part]]:
        if self._parts is None:
            self._parts = self._native.variables(self._index)
        return self._parts

    def _parts_of(self, name: str) -> dict[int, _Part]:
        parts = self._all_parts().get(name)
        if parts is None:
            raise KeyError(f"{name!r}; there are {', '.join(map(repr, self._all_parts()))}")
        return parts

    def __getitem__(self, name: str) -> StoredArray:
        parts = self._parts_of(name)
        rank, part = next(iter(parts.items()))
        if part[3] is not None:
            return StoredArray(self, name, None, part)
        if len(parts) == 1:
            return StoredArray(self, name, rank, part)
        raise InvalidArgument(
            f"{name!r} is not declared as parts of one array, and {len(parts)} ranks have their own: "
            f"take part({name!r}, rank)")

    def part(self, name: str, rank: int) -> StoredArray:
        """What `rank` stored under `name`."""
        parts = self._parts_of(name)
        if rank not in parts:
            raise KeyError(f"rank {rank} has no {name!r}; ranks {', '.join(map(str, parts))} have")
        return StoredArray(self, name, rank, parts[rank])

    def __contains__(self, name: object) -> bool:
        return name in self._all_parts()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_parts())

    def __len__(self) -> int:
        return len(self._all_parts())

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("variable", "type", "shape", "ranks")]
        for name, parts in self._all_parts().items():
            element, shape, _, whole = next(iter(parts.values()))
            same = all(part[1] == shape for part in parts.values())
            told = whole if whole is not None else shape if same else ["differs"]
            rows.append((name, element, " x ".join(map(str, told)) or "one value", str(len(parts))))
        return rows

    def __repr__(self) -> str:
        where = "archive" if self.archived else "stores"
        head = (f"checkpoint {self.id} of {self.job}, {self.ranks} ranks, {size(self.bytes_total)}, "
                f"{self.committed:%Y-%m-%d %H:%M:%S} UTC, in {where}")
        return head + "\n" + _table(self._rows())

    def _repr_html_(self) -> str:
        return f"<p>checkpoint {self.id} of {html.escape(self.job)}</p>{_html(self._rows())}"


class Stores(Mapping[int, StoredCheckpoint]):
    """Checkpoints in stores and archives, by number; see `read`."""

    def __init__(self, paths: list[str]) -> None:
        self._native = _native.Stores(paths)
        self.unreadable: list[tuple[str, str]] = [
            (os.fspath(path), why) for path, why in self._native.unreadable()]
        """What could not be opened: path, and why."""
        self.checkpoints = [
            StoredCheckpoint(self._native, index, fields) for index, fields in enumerate(self._native.checkpoints())]
        """All of them: by job, then oldest first; of one that stores and an archive have, the archive's first."""
        if not self.checkpoints and self.unreadable:
            path, why = self.unreadable[0]
            raise NotRetained(f"{path}: {why}", "reconfigure")

    def _usable(self) -> list[StoredCheckpoint]:
        return [found for found in self.checkpoints if found.complete and not found.abandoned]

    @property
    def newest(self) -> StoredCheckpoint:
        """The newest that is complete."""
        usable = self._usable()
        if not usable:
            raise NotRetained("no checkpoint in these stores is complete; give those of the other nodes as well",
                              "reconfigure")
        return max(usable, key=lambda found: (found.id, not found.archived))

    def __getitem__(self, number: int) -> StoredCheckpoint:
        found = [one for one in self.checkpoints if one.number == number]
        if not found:
            raise KeyError(f"{number}; there are {', '.join(map(str, self))}")
        return max(found, key=lambda one: (one.complete, not one.abandoned, one.id.incarnation, not one.archived))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({one.number for one in self.checkpoints}))

    def __len__(self) -> int:
        return len(set(self))

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("job", "checkpoint", "start", "ranks", "bytes", "changed", "committed (UTC)", "where", "state")]
        for one in self.checkpoints:
            state = "abandoned" if one.abandoned else "complete" if one.complete else "incomplete"
            share = one.bytes_changed / one.bytes_total if one.bytes_total else 0.0
            rows.append((one.job, str(one.number), str(one.id.incarnation), str(one.ranks), size(one.bytes_total),
                         f"{share:.0%}", f"{one.committed:%Y-%m-%d %H:%M:%S}",
                         "archive" if one.archived else "stores", state + (", pinned" if one.pinned else "")))
        return rows

    def __repr__(self) -> str:
        return _table(self._rows()) if self.checkpoints else "no checkpoints"

    def _repr_html_(self) -> str:
        return _html(self._rows()) if self.checkpoints else "<p>no checkpoints</p>"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _html(rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def read(*paths: str | os.PathLike[str]) -> Stores:
    """The checkpoints in stores and archives at or below `paths`, without a job; nothing is locked or written.

    A checkpoint of several nodes needs the stores of all of them, or its archive. A job may go on meanwhile; what it
    gives up while it is read raises NotRetained, and `read` again shows what there is then.
    """
    if not paths:
        raise InvalidArgument("give the path of a store, of an archive, or of a folder with some")
    return Stores([os.fspath(path) for path in paths])
