# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trees of plain values and tensors as bytes, exactly, without a pickle.

The bytes are a header and the elements that it names: `MAGIC`, the length of the header in bytes (8 bytes, little-endian),
the header, which is JSON, then all elements one after another; docs/format/torch.md has the whole. What JSON has no
word for is an object with one key that begins with ``$``. A value of another type is an error that says where it is.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._errors import InvalidArgument, VariableMismatch

MAGIC = b"BSTREE01"
_PREFIX = len(MAGIC) + 8
_PLAIN = frozenset((type(None), bool, int, str))
"""Types whose values JSON has as they are."""

_Path = tuple[Any, ...]
"""Where a value is: the path of what it is in, and its place there as it is said in an error."""


def pack(tree: Any, *, pickled: bool = False) -> bytearray:
    """The bytes of a tree; with `pickled`, what is of another type is a pickle."""
    packer = _Packer(pickled)
    header = json.dumps({"tree": packer.word(tree, ()), "blobs": packer.lengths}, separators=(",", ":")).encode()
    return bytearray(MAGIC + len(header).to_bytes(8, "little") + header + b"".join(packer.blobs))


def unpack(data: bytes | bytearray, *, pickled: bool = False) -> Any:
    """The tree of these bytes; a pickle in it is read only with `pickled`."""
    view = memoryview(data)
    length = int.from_bytes(view[len(MAGIC):_PREFIX], "little")
    if bytes(view[:len(MAGIC)]) != MAGIC or length > len(view) - _PREFIX:
        raise VariableMismatch("these bytes are no tree that backstay.torch wrote", "reconfigure")
    try:
        header = json.loads(bytes(view[_PREFIX:_PREFIX + length]))
        blobs, at = [], _PREFIX + length
        for count in header["blobs"]:
            if not 0 <= count <= len(view) - at:
                raise ValueError(f"{count} bytes at {at} of {len(view)}")
            blobs.append(view[at:at + count])
            at += count
        return _Unpacker(blobs, pickled).value(header["tree"])
    except InvalidArgument:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        raise VariableMismatch(f"a tree of backstay.torch is not as it is written: {error}", "reconfigure") from error


_NUMPY = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}
"""What numpy has the same bytes of, without a detour."""


class Words(dict[str, Any]):
    """A value as JSON says it already."""


def dtype_words(dtype: torch.dtype) -> dict[str, str]:
    """What JSON says for a dtype."""
    return {"$dtype": _name(dtype)}


class _Packer:
    def __init__(self, pickled: bool) -> None:
        self._pickled = pickled
        self.blobs: list[bytes] = []
        self.lengths: list[int] = []

    def _blob(self, data: bytes) -> int:
        self.blobs.append(data)
        self.lengths.append(len(data))
        return len(self.blobs) - 1

    def word(self, value: Any, path: _Path) -> Any:
        """What JSON says for a value."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is dict:
            return self._mapping(value, path)
        if kind is Words:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value, path)}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": self._blob(bytes(value))}
        if kind is list:
            return self._words(value, path)
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if kind is tuple:
            return {"$tuple": self._words(value, path)}
        if isinstance(value, torch.dtype):
            return dtype_words(value)
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        return self._other(value, path)

    def _words(self, values: Sequence[Any], path: _Path) -> list[Any]:
        return [one if type(one) in _PLAIN else self.word(one, (path, "[{}]", at)) for at, one in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: _Path) -> Any:
        is_plain = type(value) is dict and all(type(key) is str and key[:1] != "$" for key in value)
        if is_plain:
            return {key: one if type(one) in _PLAIN else self.word(one, (path, ".{}", key)) for key, one in value.items()}
        pairs = [[self.word(key, path), self.word(one, (path, "[{!r}]", key))] for key, one in value.items()]
        return {"$ordered" if isinstance(value, OrderedDict) else "$map": pairs}

    def _tensor(self, value: torch.Tensor, path: _Path) -> list[Any]:
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            raise InvalidArgument(f"{_said(path) or 'the value'} is a tensor of {value.layout} on {value.device}, which "
                                  "has no plain elements")
        if value.device.type == "cpu" and value.dtype in _NUMPY and value.is_contiguous() and not value.is_neg():
            return [self._blob(value.detach().numpy().tobytes()), _name(value.dtype), list(value.shape)]
        plain = value.detach()
        if plain.device.type != "cpu" or plain.is_conj() or plain.is_neg() or not plain.is_contiguous():
            plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
        raw = plain.view(-1).view(torch.uint8).numpy().tobytes()
        return [self._blob(raw), _name(value.dtype), list(value.shape)]

    def _other(self, value: Any, path: _Path) -> Any:
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            if value.dtype.hasobject:
                raise InvalidArgument(f"{_said(path) or 'the value'} is an array of objects")
            kind = "$array" if type(value).__name__ == "ndarray" else "$scalar"
            return {kind: [self._blob(value.tobytes()), value.dtype.str, list(value.shape)]}
        if self._pickled:
            return {"$pickle": self._blob(pickle.dumps(value, protocol=5))}
        raise InvalidArgument(
            f"{_said(path) or 'the value'} is {type(value).__qualname__}, which is no plain value; give it as numbers, "
            "text, lists, dicts and tensors, or allow a pickle (pickled=True), which runs code when it is read")


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _said(path: _Path) -> str:
    """A path as an error says it."""
    words: list[str] = []
    while path:
        path, form, key = path
        words.append(form.format(key))
    return "".join(reversed(words)).removeprefix(".")


class _Unpacker:
    def __init__(self, blobs: list[memoryview], pickled: bool) -> None:
        self._blobs, self._pickled = blobs, pickled

    def value(self, word: Any) -> Any:
        """The value that JSON says."""
        if isinstance(word, list):
            return [self.value(one) for one in word]
        if not isinstance(word, dict):
            return word
        kind = next(iter(word), "")
        if len(word) == 1 and kind.startswith("$"):
            return self._typed(kind, word[kind])
        return {key: self.value(one) for key, one in word.items()}

    def _typed(self, kind: str, given: Any) -> Any:
        if kind == "$tensor":
            return self._tensor(*given)
        if kind in ("$array", "$scalar"):
            return self._array(kind, *given)
        if kind in ("$map", "$ordered"):
            pairs = [(self.value(key), self.value(one)) for key, one in given]
            return OrderedDict(pairs) if kind == "$ordered" else dict(pairs)
        if kind == "$tuple":
            return tuple(self.value(one) for one in given)
        if kind == "$pickle":
            if not self._pickled:
                raise InvalidArgument("a pickle is stored, which runs code when it is read: allow it with pickled=True")
            return pickle.loads(self._blobs[given])
        simple: dict[str, Callable[[Any], Any]] = {"$float": float, "$bytes": lambda at: bytes(self._blobs[at]), "$size": torch.Size,
                  "$dtype": lambda name: getattr(torch, name), "$device": torch.device}
        return simple[kind](given)

    def _tensor(self, at: int, dtype: str, shape: list[int]) -> torch.Tensor:
        found = getattr(torch, dtype)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{dtype} is no type of tensors")
        raw = bytearray(self._blobs[at])
        if not raw:
            return torch.empty(shape, dtype=found)
        return torch.frombuffer(raw, dtype=torch.uint8).view(found).reshape(shape)

    def _array(self, kind: str, at: int, dtype: str, shape: list[int]) -> Any:
        import numpy

        array = numpy.frombuffer(bytearray(self._blobs[at]), numpy.dtype(dtype)).reshape(shape)
        return array if kind == "$array" else array[()]
