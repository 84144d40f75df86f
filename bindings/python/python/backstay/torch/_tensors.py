# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tensors as memory that a session protects.

A tensor of the CPU whose elements fill one piece of memory, in whatever order, is protected where it is. Anything else
(a device's, one with gaps or overlaps, a lazy conjugate) goes through a buffer of the host, which is reused: filled
before each capture, and read back after a restore. All copies are made by a `Staging`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgument


class Staging:
    """Copies between tensors and buffers of the host: one seam, so that what a device needs is in one place."""

    def __init__(self) -> None:
        self._devices: set[torch.device] = set()

    def is_needed(self, part: Tensor) -> bool:
        """Whether a tensor's elements are not where they can be protected: one row-major piece of the host's memory."""
        is_plain = part.device.type == "cpu" and not part.is_conj() and not part.is_neg()
        return not (is_plain and part.is_contiguous())

    def buffer(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Memory of the host for a copy of `like`; pinned where its device copies faster to that."""
        pinned = like.device.type == "cuda"
        return torch.empty(tuple(shape), dtype=like.dtype, device="cpu", pin_memory=pinned)

    def to_host(self, tensor: Tensor, buffer: Tensor) -> None:
        """Begins to copy; the buffer is not to be read before `settle`."""
        buffer.copy_(tensor, non_blocking=True)
        self._note(tensor.device)

    def all_to_host(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """The same for many, each of the shape of its buffer."""
        with torch.no_grad():
            torch._foreach_copy_(list(buffers), list(tensors), non_blocking=True)
        for device in {tensor.device for tensor in tensors}:
            self._note(device)

    def is_far(self, single: Tensor) -> bool:
        """Whether a device has to be asked for a single value."""
        return single.device.type not in ("cpu", "meta")

    def fetched(self, singles: Iterable[Tensor]) -> dict[int, Tensor]:
        """Single values of devices on the host, by the tensor's identity: each device is waited for once."""
        found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for one in singles:
            if self.is_far(one):
                found.setdefault((one.device, one.dtype), []).append(one)
        here: dict[int, Tensor] = {}
        for several in found.values():
            copied = torch.stack([one.detach().reshape(()) for one in several]).cpu()
            for one, value in zip(several, copied.unbind(), strict=True):
                here[id(one)] = value.reshape(one.shape)
        return here

    def from_host(self, buffer: Tensor, tensor: Tensor) -> None:
        """Begins to copy; the buffer is not to be written before `settle`."""
        tensor.copy_(buffer, non_blocking=True)
        self._note(tensor.device)

    def settle(self) -> None:
        """Waits for all copies."""
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()

    def _note(self, device: torch.device) -> None:
        if device.type != "cpu":
            self._devices.add(device)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, without gradients."""
    to_local = getattr(tensor, "to_local", None)  # DTensor
    if to_local is not None:
        tensor = to_local()
    return tensor.detach()


def _address(tensor: Tensor) -> int:
    """Where its first element is."""
    return (local(tensor) if hasattr(tensor, "to_local") else tensor).data_ptr()


def memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """The dimensions from the slowest to the fastest in memory; None where elements have gaps or overlap.

    A tensor without elements, or with one, is in its own order.
    """
    dimensions = range(tensor.dim())
    if tensor.numel() <= 1:
        return tuple(dimensions)
    strides, shape = tensor.stride(), tensor.shape
    # Of equal strides at most one is of a dimension of more than one element.
    order = tuple(sorted(dimensions, key=lambda at: (-strides[at], shape[at] > 1)))
    width = 1
    for at in reversed(order):
        if shape[at] != 1 and strides[at] != width:
            return None
        width *= shape[at]
    # Dimensions of one element have strides of no meaning: they stay where they are, if the rest is in order.
    wide = [at for at in order if shape[at] != 1]
    return tuple(dimensions) if wide == sorted(wide) else order


def checked(name: str, tensor: Tensor) -> Tensor:
    """The tensor, if its elements are numbers in memory."""
    if tensor.is_meta:
        raise InvalidArgument(f"tensor {name!r} is on the meta device and has no elements: materialize it first")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"tensor {name!r} is {tensor.layout}: protect its indices and values as tensors")
    if tensor.is_quantized:
        raise InvalidArgument(f"tensor {name!r} is quantized: protect int_repr(), scale and zero point")
    return tensor


class Held:
    """A tensor as a session protects it: found anew by `get` each time, so that it may move.

    In memory's order, its dimensions are `order` of the tensor's own. `order` may be given, as that in which a
    checkpoint has it; then a tensor of another order goes through a buffer.

    What was found may be told to it for the time of a call (`begin`, `end`): then it does not look again, unless the
    tensor is another or elsewhere.
    """

    def __init__(
        self,
        name: str,
        get: Callable[[], Tensor],
        staging: Staging,
        *,
        order: Sequence[int] | None = None,
    ) -> None:
        self.name, self.get, self._staging = name, get, staging
        self.wanted = tuple(order) if order is not None else None
        self.is_staged = False
        """Goes through a buffer wherever it is."""
        self._backstay_still = False
        """Its buffer is what was handed out last: the session need not look again."""
        self._rows: tuple[int, int] | None = None
        self._buffer: Tensor | None = None
        self._form: tuple[torch.Size, tuple[int, ...]] | None = None
        self._order: tuple[int, ...] = ()
        self._is_permuted = False
        self._found: Tensor | None = None
        self._ready: tuple[Tensor, int, Tensor] | None = None

    @property
    def rows(self) -> tuple[int, int] | None:
        """Of the first dimension in memory: only these, first and how many."""
        return self._rows

    @rows.setter
    def rows(self, rows: tuple[int, int] | None) -> None:
        self._rows, self._ready, self._backstay_still = rows, None, False

    @property
    def known_order(self) -> tuple[int, ...]:
        """The order as it was when it was last looked at."""
        return self._order

    def buffer_of_all(self) -> Tensor | None:
        """The buffer, if the session has it and it is of the whole tensor in its own order."""
        is_whole = self._backstay_still and self._rows is None and not self._is_permuted
        return self._buffer if is_whole else None

    def look_again(self) -> None:
        """Has the session look where it is, as no `fill` comes first."""
        self._backstay_still = False

    def begin(self, found: Tensor) -> None:
        """Says what its tensor is, as `tensor` would find it, until `end`."""
        self._found, self._ready = found, None

    def end(self) -> None:
        """What was found is kept alive no longer."""
        self._found = self._ready = None

    def tensor(self) -> Tensor:
        """The tensor, as it is now."""
        return self._found if self._found is not None else local(checked(self.name, self.get()))

    @property
    def order(self) -> tuple[int, ...]:
        """Its dimensions in memory's order."""
        return self._order_of(self.tensor())

    def _order_of(self, found: Tensor) -> tuple[int, ...]:
        form = (found.shape, found.stride())
        if form != self._form:
            own = tuple(range(found.dim()))
            is_given = self.wanted is not None and len(self.wanted) == found.dim()
            order = self.wanted if is_given else memory_order(found)
            self._form, self._order = form, own if order is None else order
            self._is_permuted = self._order != own
        return self._order

    def _part(self) -> Tensor:
        """What is stored of the tensor, in memory's order."""
        found = self.tensor()
        order = self._order_of(found)
        ordered = found.permute(order) if self._is_permuted else found
        return ordered if self._rows is None else ordered.narrow(0, *self._rows)

    def _place(self) -> Tensor:
        """Row-major memory of the host that has it, or will."""
        raw = self.get()
        if self._ready is not None and self._ready[0] is raw and self._ready[1] == _address(raw):
            return self._ready[2]
        if self._found is not None and self._ready is not None:
            # It is another one since, or elsewhere.
            self._found = None
        part = self._part()
        buffer = self._buffer
        if not (self.is_staged or self._staging.is_needed(part)):
            self._buffer, place, self._backstay_still = None, part, False
        elif buffer is None or (buffer.shape, buffer.dtype) != (part.shape, part.dtype):
            self._buffer = place = self._staging.buffer(part.shape, part)
            self._backstay_still = False
        else:
            place = buffer
        if self._found is not None:
            self._ready = (raw, _address(raw), place)
        return place

    def fill(self) -> None:
        """Brings the buffer up to date, if there is one; to be followed by the staging's `settle`."""
        place = self._place()
        if place is self._buffer:
            self._staging.to_host(self._part(), place)

    def give(self) -> None:
        """Has the tensor be what the buffer has, if there is one; to be followed by the staging's `settle`."""
        if self._buffer is not None:
            self._staging.from_host(self._buffer, self._part())

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **how: Any) -> Any:
        place = self._place()
        self._backstay_still = place is self._buffer
        if place.dtype == torch.bool:
            place = place.view(torch.uint8)
        return torch.to_dlpack(place)  # type: ignore[attr-defined]


class Seen:
    """A tensor as it was when it was last looked at closely: one that is the same needs no closer look."""

    def __init__(self, raw: Tensor, at: int, held: Held, slab: Any) -> None:
        self._raw = weakref.ref(raw)
        self._at, self.held, self.slab = at, held, slab
        self.address = raw.data_ptr()
        self._shape, self._strides, self._dtype = raw.shape, raw.stride(), raw.dtype

    def is_of(self, raw: Tensor, at: int) -> bool:
        """Whether `raw`, as number `at` of all, is it, unchanged but for its elements."""
        return (
            self._raw() is raw and self._at == at and raw.data_ptr() == self.address and raw.shape == self._shape
            and raw.stride() == self._strides and raw.dtype == self._dtype)


_TOGETHER = 32
"""Copies that are begun by one call: a device has the first ones before all are found."""


class Filling:
    """Copies of tensors to their buffers, begun as they are found."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._tensors: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self.names: set[str] = set()

    def add(self, name: str, tensor: Tensor, buffer: Tensor) -> None:
        """Has one copied; the buffer is not to be read before the staging is settled."""
        self._tensors.append(tensor)
        self._buffers.append(buffer)
        self.names.add(name)
        if len(self._tensors) == _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Begins what was added."""
        if self._tensors:
            self._staging.all_to_host(self._tensors, self._buffers)
            self._tensors.clear()
            self._buffers.clear()


_HOST_SHARE = 8
"""Where what is on devices is so many times what is on the host, the latter is copied as well."""


def stage_all(held: Sequence[Held]) -> bool:
    """Has all go through buffers where most does, which is of devices; whether all does.

    Buffers stay as they are until they are filled again: a checkpoint of nothing else is captured while the training
    goes on.
    """
    bytes_there = bytes_here = 0
    for one in held:
        tensor = one.tensor()
        if tensor.device.type == "cpu":
            bytes_here += tensor.nbytes
        else:
            bytes_there += tensor.nbytes
    staged = 0 < bytes_there >= _HOST_SHARE * bytes_here
    for one in held:
        if one.is_staged != staged:
            one.is_staged = staged
            one.look_again()
    return staged


def fill_all(held: Iterable[Held], staging: Staging) -> None:
    """Brings all buffers up to date."""
    for one in held:
        one.fill()
    staging.settle()


def give_all(held: Iterable[Held], staging: Staging) -> None:
    """Has all tensors be what their buffers have."""
    with torch.no_grad():
        for one in held:
            one.give()
    staging.settle()


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same elements at the same place: tied weights."""
    return (one.device, one.dtype, one.shape, one.stride(), one.data_ptr()) == (
        other.device, other.dtype, other.shape, other.stride(), other.data_ptr())
