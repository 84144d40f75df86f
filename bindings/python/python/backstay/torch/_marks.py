# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which tensor and which rows of it a program says it changed, as rows of the part that this process stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .._errors import InvalidArgument
from ._slabs import Slab
from ._state import Found, OptimizerState
from ._tensors import is_same_memory, local

Rows = int | slice | Iterable[int] | Tensor | None
"""Elements of the first dimension, as a program says them."""


class Known:
    """What is saved, by name, by object and by place in memory."""

    def __init__(self, kept: Iterable[Found], found: Iterable[Found], optimizers: Iterable[OptimizerState]) -> None:
        self._kept = {one.name: one for one in kept}
        self._names = {one.name: one for one in found}
        self._optimizers = list(optimizers)
        # The tensors are kept here, so that the id of none becomes another's.
        self._objects: dict[int, tuple[Tensor, Found]] = {}
        self._places: dict[int, list[Found]] = {}
        for one in self._kept.values():
            tensor = one.get()
            self._objects[id(tensor)] = (tensor, one)
            self._places.setdefault(local(tensor).data_ptr(), []).append(one)

    def named(self, tensor: str | Tensor) -> list[Found]:
        """What is stored of a tensor, and then of what optimizers keep of it."""
        if isinstance(tensor, str):
            if tensor not in self._names:
                raise InvalidArgument(f"no tensor {tensor!r} is saved; there are {list(self._kept)[:8]}")
            tensor = self._names[tensor].get()
        _, own = self._objects.get(id(tensor), (None, None))
        if own is None:
            place = local(tensor)
            alike = (one for one in self._places.get(place.data_ptr(), ()) if is_same_memory(local(one.get()), place))
            own = next(alike, None)
        if own is None:
            raise InvalidArgument(
                f"a tensor of {list(tensor.shape)} is not one that is saved; there are {list(self._kept)[:8]}")
        names = [name for optimizer in self._optimizers for name in optimizer.tensors_of(own.get())]
        return [own, *(self._kept[name] for name in names if name in self._kept)]


def checked_rows(name: str, rows: Rows, shape: Sequence[int]) -> range | Tensor:
    """Rows of a tensor of this shape, counted from its first."""
    count = shape[0] if shape else 1
    if rows is None:
        return range(count)
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise InvalidArgument(f"rows of {name!r} are a slice with a step of {rows.step}")
        first, end, _ = rows.indices(count)
        return range(first, max(first, end))
    numbers = _numbers(name, rows)
    if numbers.numel() == 0:
        return range(0)
    numbers = torch.where(numbers < 0, numbers + count, numbers)
    least, most = (int(one) for one in torch.aminmax(numbers))
    if least < 0 or most >= count:
        raise InvalidArgument(f"row {most if most >= count else least - count} of {name!r}, which has {count}")
    return numbers


def _numbers(name: str, rows: int | Iterable[int] | Tensor) -> Tensor:
    if isinstance(rows, Tensor) and rows.layout == torch.sparse_coo:  # A sparse gradient: where it is not zero.
        rows = rows._indices()[0]
    if not isinstance(rows, (int, Tensor)) and not hasattr(rows, "__array_interface__"):  # That of numpy.
        rows = list(rows)
    numbers = torch.as_tensor(rows, device="cpu")
    if numbers.dtype == torch.bool:
        raise InvalidArgument(f"rows of {name!r} are numbers, not a mask: mask.nonzero() has them")
    if numbers.numel() and (numbers.is_floating_point() or numbers.is_complex()):
        raise InvalidArgument(f"rows of {name!r} are {numbers.dtype}, not whole numbers")
    return numbers.reshape(-1).to(torch.int64)


def rows_here(rows: range | Tensor, slab: Slab, order: Sequence[int]) -> tuple[int, int] | list[int] | None:
    """The same as rows of a part, first and end or one by one; None is all of it.

    In another order than the tensor's own its first dimension is none in memory: then all of it counts as changed.
    """
    if not order or order[0] != 0:
        return None if len(rows) else []
    first, count = slab.start[0], slab.local[0]
    if isinstance(rows, range):
        begin, end = max(rows.start - first, 0), min(rows.stop - first, count)
        return (begin, max(begin, end))
    # Also of a tensor that has grown since: then it is protected anew, and looked at whole.
    found: list[int] = (rows[(rows >= first) & (rows < first + count)] - first).tolist()
    return found
