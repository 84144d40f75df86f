# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A checkpoint's tensors as a file of safetensors, so that they can be shared.

The file is the length of a header (8 bytes, little-endian), the header, which is JSON, and the elements in the order of
the header, without gaps. Elements are copied in pieces, as they are stored; each block is verified on the way.
"""

from __future__ import annotations

import json
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import torch
from torch import Tensor

from .. import _reading
from .._errors import InvalidArgument
from . import _shelf

_TYPES = {
    "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64", "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64",
    "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64", "complex64": "C64", "bytes": "U8"}
_TORCH_TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}

_PIECE_BYTES = 16 << 20
_HEADER_ALIGNMENT = 8

_OF_BACKSTAY = "backstay."
"""Variables with names that begin like this are Backstay's own, and no tensors."""


class _Entry(ABC):
    """A tensor to be written."""

    def __init__(self, name: str, type: str | None, shape: Sequence[int]) -> None:
        self.name, self.type, self.shape = name, type, list(shape)

    @abstractmethod
    def pieces(self) -> Iterator[Any]:
        """Its elements, row-major."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Bytes of all elements."""


class _Value(_Entry):
    """A single value that a shelf has in its tree."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        super().__init__(name, _TORCH_TYPES.get(_name_of(tensor.dtype)), tensor.shape)
        self._raw = tensor.contiguous().reshape(-1).view(torch.uint8)

    @property
    def length(self) -> int:
        return self._raw.numel()

    def pieces(self) -> Iterator[Any]:
        yield self._raw.numpy().data


class _Variable(_Entry):
    """A variable, whose dimensions in memory are `order` of the tensor's own."""

    def __init__(
        self,
        name: str,
        array: _reading.StoredArray,
        order: Sequence[int] | None,
        dtype: str | None,
    ) -> None:
        dimensions = list(range(len(array.shape)))
        self._order = dimensions if order is None else list(order)
        if sorted(self._order) != dimensions:
            raise InvalidArgument(
                f"{name!r} has {len(dimensions)} dimensions, and its order is said to be {self._order}")
        shape = [0] * len(dimensions)
        for at, dimension in enumerate(self._order):
            shape[dimension] = array.shape[at]
        super().__init__(name, _TYPES.get(array.element) if dtype is None else _TORCH_TYPES.get(dtype), shape)
        self._array, self._width = array, _shelf.width_of(array)

    @property
    def length(self) -> int:
        return math.prod(self.shape) * self._width

    def pieces(self) -> Iterator[Any]:
        for start, box in _boxes(self.shape, max(1, _PIECE_BYTES // self._width)):
            raw = torch.empty(math.prod(box) * self._width, dtype=torch.uint8)
            stored_box = [box[dimension] for dimension in self._order]
            _shelf.read_into(self._array, [start[dimension] for dimension in self._order], stored_box, raw.numpy())
            if self._order != sorted(self._order):
                inverse = [self._order.index(dimension) for dimension in range(len(box))]
                elements = raw.reshape([*stored_box, self._width]).permute([*inverse, len(box)])
                raw = elements.contiguous().reshape(-1)
            yield raw.numpy().data


def _boxes(shape: Sequence[int], most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Boxes of at most so many elements, or of one, that follow each other in row-major order: start and shape."""
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= most:
        yield [0] * len(shape), list(shape)
        return
    within = math.prod(shape[1:])
    if within > most:
        for first in range(shape[0]):
            for start, box in _boxes(shape[1:], most):
                yield [first, *start], [1, *box]
        return
    rows = most // within
    for first in range(0, shape[0], rows):
        yield [first, *[0] * (len(shape) - 1)], [min(rows, shape[0] - first), *shape[1:]]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def export(
    source: str | os.PathLike[str] | _reading.Stores | _reading.StoredCheckpoint,
    out: str | os.PathLike[str],
    checkpoint: int | None = None,
    *,
    names: Iterable[str] | Mapping[str, str] | None = None,
    orders: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[str]:
    """Writes the tensors of a checkpoint to `out`, a file of safetensors; the names of those that are in it.

    `source` is the path of a store, an archive or a folder with some, what `backstay.read` returned, or a checkpoint;
    of several the newest is taken, or the one with the number `checkpoint`. `names` are those to write, all by
    default, or a mapping from them to the names in the file. The elements are those that are stored, to the last byte.

    `orders` has, by name, a tensor's dimensions in memory's order where that is not its own; `dtypes` the types of
    those that are stored as another, as torch calls them (bool is stored as u8). Checkpoints of a Shelf say both
    themselves.

    The file appears when it is whole; one that was there stays until then.
    """
    stored = _checkpoint(source, checkpoint)
    entries = _entries(stored, names, orders or {}, dtypes or {})
    header: dict[str, Any] = {}
    at = 0
    if metadata:
        header["__metadata__"] = {str(key): str(value) for key, value in metadata.items()}
    for entry in entries:
        header[entry.name] = {"dtype": entry.type, "shape": entry.shape, "data_offsets": [at, at + entry.length]}
        at += entry.length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    _write(out, text, entries)
    return [entry.name for entry in entries]


def names(source: str | os.PathLike[str] | _reading.Stores | _reading.StoredCheckpoint) -> list[str]:
    """Names of the tensors that `export` finds."""
    stored = _checkpoint(source, None)
    return [*_variables(stored), *_values(stored)]


def _checkpoint(
    source: str | os.PathLike[str] | _reading.Stores | _reading.StoredCheckpoint,
    number: int | None,
) -> _reading.StoredCheckpoint:
    if isinstance(source, _reading.StoredCheckpoint):
        if number not in (None, source.number):
            raise InvalidArgument(f"checkpoint {source.number} was given, and {number} is asked for")
        return source
    stores = source if isinstance(source, _reading.Stores) else _reading.read(source)
    jobs = sorted({one.job for one in stores.checkpoints})
    if len(jobs) > 1:
        raise InvalidArgument(f"there are checkpoints of {len(jobs)} jobs, give one of them: {', '.join(jobs)}")
    try:
        return stores.newest if number is None else stores[number]
    except KeyError as error:
        raise InvalidArgument(f"there is no checkpoint {error.args[0]}") from None


def _variables(stored: _reading.StoredCheckpoint) -> list[str]:
    return [name for name in stored if not name.startswith(_OF_BACKSTAY)]


def _told(stored: _reading.StoredCheckpoint) -> list[dict[str, Any]]:
    """What a shelf says of its tensors."""
    return _shelf.tensors_of(stored) if _shelf.TENSORS in stored else []


def _values(stored: _reading.StoredCheckpoint) -> dict[str, Tensor]:
    """Tensors that are no variables."""
    return {one["name"]: one["value"] for one in _told(stored) if "value" in one}


def _entries(
    stored: _reading.StoredCheckpoint,
    asked: Iterable[str] | Mapping[str, str] | None,
    orders: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
) -> list[_Entry]:
    told = {one["name"]: one for one in _told(stored) if "dtype" in one}
    orders = {**{name: one["order"] for name, one in told.items()}, **orders}
    dtypes = {**{name: one["dtype"] for name, one in told.items()}, **dtypes}
    values, variables = _values(stored), _variables(stored)
    if asked is None:
        asked = [*variables, *values]
    renamed = asked if isinstance(asked, Mapping) else {name: name for name in asked}
    if len(set(renamed.values())) != len(renamed):
        raise InvalidArgument("two tensors would have the same name")
    entries: list[_Entry] = []
    for name, new in renamed.items():
        if name in values:
            entries.append(_Value(new, values[name]))
        elif name in variables:
            entries.append(_Variable(new, stored[name], orders.get(name), dtypes.get(name)))
        else:
            raise InvalidArgument(f"checkpoint {stored.id} has no tensor {name!r}")
        if entries[-1].type is None:
            what = dtypes.get(name) or (stored[name].element if name in stored else _name_of(values[name].dtype))
            raise InvalidArgument(f"{name!r} is {what}, which safetensors has no type for: leave it out with names=")
    return sorted(entries, key=lambda entry: entry.name)


def _write(out: str | os.PathLike[str], header: bytes, entries: Iterable[_Entry]) -> None:
    beside = f"{os.fspath(out)}.{os.getpid()}-{threading.get_ident()}.new"
    try:
        with open(beside, "xb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            _stream(file, entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, out)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    _shelf.sync_folder(os.path.dirname(os.fspath(out)))


def _stream(file: IO[bytes], entries: Iterable[_Entry]) -> None:
    for entry in entries:
        for piece in entry.pieces():
            file.write(piece)
