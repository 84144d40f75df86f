# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a plan of torch.distributed.checkpoint names, as variables of a session."""

from __future__ import annotations

import io
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from .._errors import InvalidArgument
from .._session import Session
from ._dcp_metadata import HEAD, ITEMS, Item, dump_items, is_bytes, item_of_bytes, item_of_tensor, unique_name
from ._tensors import Held, Staging, checked, is_same_memory, local, stage_all

_Slab = tuple[tuple[int, ...], tuple[int, ...]] | None


class Variables:
    """What a writer has protected for its last save."""

    def __init__(self, session: Session) -> None:
        self._session, self._staging = session, Staging()
        self._held: dict[str, tuple[Held, _Slab]] = {}
        self._bytes: dict[str, bytearray] = {}
        self._filled: set[str] = set()
        self.stays = False
        """All that is protected stays as it is until the next `put`."""

    def put(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Has exactly what the plan names protected, as it is when `settle` returns. Local."""
        self._filled.clear()
        taking = _Taking(self, plan, planner)
        for item in plan.items:
            taking.take(item)
        for name in [*self._held, *self._bytes]:
            if name not in taking.taken and name not in (HEAD, ITEMS):
                self.drop(name)
        self.put_bytes(ITEMS, dump_items(taking.items, plan))
        held = [self._held[name][0] for name in taking.taken if name in self._held]
        self.stays = stage_all(held) and not self.foreign()
        for name, (one, _) in self._held.items():
            if name in taking.taken and name not in self._filled:
                one.fill()
        self._filled.clear()

    def settle(self) -> None:
        """Waits until all that `put` copies is copied. Local."""
        self._staging.settle()

    def foreign(self) -> set[str]:
        """Names of what the program has protected itself."""
        return {name for name, _ in self._session._native.variables()} - set(self._held) - set(self._bytes)

    def put_bytes(self, name: str, data: bytearray) -> None:
        """Has bytes protected. Local."""
        if self._bytes.get(name) == data:
            return
        if name in self._held:
            self.drop(name)
        self._session.protect(name, data)
        self._bytes[name] = data

    def put_tensor(self, name: str, tensor: Tensor, global_shape: Any, offsets: Any) -> tuple[int, ...]:
        """Has a tensor protected, as a part of a whole where one is given; its order in memory. Local."""
        def get() -> Tensor:
            return tensor

        known = self._held.get(name)
        held = known[0] if known is not None else Held(name, get, self._staging)
        held.get = get
        order = held.order
        slab: _Slab = None
        if global_shape is not None:
            slab = (tuple(global_shape[at] for at in order), tuple(offsets[at] for at in order))
        if known is None or known[1] != slab:
            if name in self._bytes:
                self.drop(name)
            whole, start = slab if slab is not None else (None, None)
            self._session.protect(name, held, global_shape=whole, start=start)
            self._held[name] = (held, slab)
        elif held.is_staged:
            # A device copies while the rest is looked at.
            held.fill()
            self._filled.add(name)
        return order

    def drop(self, name: str) -> None:
        """Lets a variable go, if it is protected. Local."""
        is_known = self._held.pop(name, None) is not None
        is_known |= self._bytes.pop(name, None) is not None
        if is_known and not self._session.closed:
            self._session.unprotect(name)

    def drop_all(self) -> None:
        """Lets all go. Local."""
        for name in [*self._held, *self._bytes]:
            self.drop(name)


class _Taking:
    """The items of one plan."""

    def __init__(self, variables: Variables, plan: SavePlan, planner: SavePlanner) -> None:
        self._variables, self._plan, self._planner = variables, plan, planner
        self._used = variables.foreign()
        self._places: dict[int, list[tuple[Tensor, str]]] = {}
        self.taken: set[str] = set()
        self.items: list[Item] = []

    def take(self, item: WriteItem) -> None:
        """Protects what it names."""
        resolved = self._planner.resolve_data(item)
        if is_bytes(item):
            if not isinstance(resolved, io.BytesIO):
                raise InvalidArgument(
                    f"the planner gave {type(resolved).__qualname__} for {item.index.fqn!r}, not bytes")
            name = self._name(item)
            self._variables.put_bytes(name, bytearray(resolved.getbuffer()))
            self.items.append(item_of_bytes(item, self._plan, name))
        elif isinstance(resolved, Tensor):
            self._take_tensor(item, local(checked(item.index.fqn, resolved)))
        else:
            raise InvalidArgument(f"the planner gave {type(resolved).__qualname__} for tensor {item.index.fqn!r}")

    def _name(self, item: WriteItem) -> str:
        name = unique_name(item.index.fqn, self._used)
        self._used.add(name)
        self.taken.add(name)
        return name

    def _take_tensor(self, item: WriteItem, tensor: Tensor) -> None:
        data = item.tensor_data
        assert data is not None
        if tensor.shape != data.chunk.sizes:
            raise InvalidArgument(
                f"tensor {item.index.fqn!r} is {list(tensor.shape)}, and its plan says {list(data.chunk.sizes)}")
        name: str | None = None
        order = tuple(range(tensor.dim()))
        if tensor.numel():
            tied = next((name for other, name in self._places.get(tensor.data_ptr(), ())
                         if is_same_memory(tensor, other)), None)
            if tied is not None:
                name, order = tied, self._variables._held[tied][0].order
            else:
                name = self._name(item)
                is_part = item.type == WriteItemType.SHARD
                order = self._variables.put_tensor(
                    name, tensor, data.size if is_part else None, data.chunk.offsets if is_part else None)
                self._places.setdefault(tensor.data_ptr(), []).append((tensor, name))
        self.items.append(item_of_tensor(item, self._plan, name, tensor.dtype, order))
