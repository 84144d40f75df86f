# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which part of a tensor of all processes this one has, and which it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .._errors import InvalidArgument

SPLIT_BYTES = 1 << 20
"""A tensor that all processes have is written in parts from so many bytes on, else whole by one of them."""


@dataclass(frozen=True)
class Slab:
    """A part of a tensor, its dimensions in memory's order."""

    shape: tuple[int, ...]
    """Of the whole."""
    start: tuple[int, ...]
    local: tuple[int, ...]
    """Of the part."""
    rows: tuple[int, int] | None = None
    """Of the memory that this process has: first, and how many; None is all."""
    element_bytes: int = 1
    is_written: bool = True
    """Whether it is this process that writes it; others that have it as well only restore it."""

    def taking(self, first: int, count: int) -> Slab:
        """Some rows of it."""
        start = (self.start[0] + first, *self.start[1:])
        return replace(self, start=start, local=(count, *self.local[1:]), rows=(first, count))


def slab_of(name: str, tensor: Tensor, order: Sequence[int]) -> Slab:
    """Which part of the whole this process has."""
    if not hasattr(tensor, "device_mesh"):
        shape = tuple(tensor.shape[at] for at in order)
        return Slab(shape, (0,) * len(shape), shape, element_bytes=tensor.element_size())
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(one.is_partial() for one in placements):
        raise InvalidArgument(f"tensor {name!r} has partial sums as {placements}: redistribute it first")
    local, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    coordinate = mesh.get_coordinate()
    others = [at for at, one in enumerate(placements) if one.is_replicate()]
    is_written = coordinate is not None and all(coordinate[at] == 0 for at in others)

    def arranged(extents: Sequence[int]) -> tuple[int, ...]:
        return tuple(extents[at] for at in order)

    return Slab(arranged(tensor.shape), arranged(start), arranged(local), element_bytes=tensor.element_size(),
                is_written=is_written)


def split(slab: Slab, rank: int, size: int, at: int) -> Slab | None:
    """What `rank` of `size` writes of the tensor with number `at` that all of them have; None is nothing."""
    if size == 1:
        return slab
    count = slab.element_bytes
    for extent in slab.local:
        count *= extent
    rows = slab.local[0] if slab.local else 0
    if count < SPLIT_BYTES or rows < size:
        return slab if rank == at % size else None
    first, end = rows * rank // size, rows * (rank + 1) // size
    return slab.taking(first, end - first)
