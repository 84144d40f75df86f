# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`Reader`: what torch.distributed.checkpoint loads, from stores and archives."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .._errors import InvalidArgument, VariableMismatch
from .._reading import StoredCheckpoint, read
from .._session import Session
from ._dcp_metadata import Contents, Place, contents, no_save, saves, type_named

if TYPE_CHECKING:
    from ._dcp import Writer

Path = str | os.PathLike[str]


def id_text(checkpoint_id: str | os.PathLike[str]) -> str:
    """A checkpoint_id as it is stored."""
    return os.fspath(checkpoint_id)


class Reader(StorageReader):
    """Loads with torch.distributed.checkpoint what a `Writer` saved.

        dcp.load(state, checkpoint_id="step-100", storage_reader=backstay.torch.Reader(writer))

    `source` is a `Writer`, a session, the path of a store or an archive, or several paths. Without a checkpoint_id it
    is the newest save. Only what the load asks for is read, each block verified, and straight into the memory of
    tensors of the CPU that are in the order in which they are stored. No call of it is collective; another number of
    processes than saved can load.

    A session's own store has the parts of its node: what lies on other nodes as well needs their stores, or the
    archive. `job` says which, where the paths have several.
    """

    def __init__(
        self,
        source: Writer | Session | Path | Sequence[Path],
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        job: str | None = None,
    ) -> None:
        self._paths = _paths(source)
        self.checkpoint_id = None if checkpoint_id is None else id_text(checkpoint_id)
        self._job = job
        self._checkpoint: StoredCheckpoint | None = None
        self._contents: Contents | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new load begins: of `checkpoint_id`, or of the one that was asked for before. Local."""
        if checkpoint_id is not None:
            self.checkpoint_id = id_text(checkpoint_id)
        self._checkpoint = self._contents = None

    def read_metadata(self) -> Metadata:
        """What the save holds. Local."""
        known: list[str] = []
        stores = read(*self._paths)
        for save in saves(stores, self._job):
            if self.checkpoint_id in (None, save.checkpoint_id):
                self._checkpoint, self._contents = save.checkpoint, contents(save)
                return self._contents.metadata
            if save.checkpoint_id is not None:
                known.append(save.checkpoint_id)
        raise no_save(self.checkpoint_id, known, self._paths, stores)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Nothing is to be set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Says which checkpoint this process found."""
        found = self._found()[0]
        return replace(plan, storage_data=(found.job, *found.id))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """All processes load the same checkpoint: one may have been saved while they looked."""
        found = {plan.storage_data for plan in plans}
        if len(found) > 1:
            raise VariableMismatch(
                f"the processes found different checkpoints, {sorted(found)}: a save ended while they looked; name one "
                "(checkpoint_id), or load again", "retry")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan names."""
        with torch.no_grad():
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(self._bytes(item.storage_index)))
                else:
                    self._read_tensor(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any text that is not empty names a checkpoint."""
        return bool(isinstance(checkpoint_id, (str, os.PathLike)) and os.fspath(checkpoint_id))

    # ---- Reading

    def _found(self) -> tuple[StoredCheckpoint, Contents]:
        if self._checkpoint is None or self._contents is None:
            raise InvalidArgument("read_metadata has to be called before anything is read")
        return self._checkpoint, self._contents

    def _place(self, index: MetadataIndex, offset: tuple[int, ...] | None) -> Place:
        checkpoint, found = self._found()
        place = found.places.get((index.fqn, offset))
        if place is None:
            raise VariableMismatch(
                f"checkpoint {checkpoint.id} has no part of {index.fqn!r} at {offset}", "reconfigure")
        return place

    def _box(self, place: Place, start: Sequence[int], shape: Sequence[int], into: Any) -> None:
        checkpoint, name = self._found()[0], place.item.variable
        assert name is not None
        part = checkpoint._parts_of(name)[place.rank]
        # Elements of a type that Backstay has no word for are bytes, their number a dimension more.
        further = part[1][len(start):]
        native = checkpoint._native
        native.read_box(checkpoint._index, name, place.rank, [*start, *(0 for _ in further)], [*shape, *further], into)

    def _bytes(self, index: MetadataIndex) -> bytearray:
        place = self._place(index, None)
        checkpoint, name = self._found()[0], place.item.variable
        assert name is not None
        data = bytearray(checkpoint._parts_of(name)[place.rank][1][0])
        self._box(place, [0], [len(data)], data)
        return data

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        offset = item.storage_index.offset
        place = self._place(item.storage_index, None if offset is None else tuple(offset))
        target: Tensor = planner.resolve_tensor(item).detach()
        if target.shape != item.lengths:
            raise VariableMismatch(
                f"tensor {item.dest_index.fqn!r}: {list(item.lengths)} are to be read into {list(target.shape)}",
                "reconfigure")
        if target.numel():
            self._fill(target, place, item.storage_offsets)
        planner.commit_tensor(item, target)

    def _fill(self, target: Tensor, place: Place, offsets: Sequence[int]) -> None:
        stored = place.item
        assert stored.dtype is not None
        order = stored.order or tuple(range(target.dim()))
        ordered = target.permute(order)
        dtype = type_named(stored.dtype)
        is_plain = target.device.type == "cpu" and not target.is_conj() and not target.is_neg()
        is_direct = is_plain and target.dtype == dtype and ordered.is_contiguous()
        memory = ordered if is_direct else torch.empty(ordered.shape, dtype=dtype)
        raw = memory.view(-1).view(torch.uint8).numpy()
        self._box(place, [offsets[at] for at in order], list(memory.shape), raw)
        if not is_direct:
            ordered.copy_(memory)


def _paths(source: Any) -> list[str]:
    session = getattr(source, "session", source)
    if isinstance(session, Session):
        return [session.directory]
    given = [source] if isinstance(source, (str, os.PathLike)) else source
    is_paths = isinstance(given, (list, tuple)) and all(isinstance(one, (str, os.PathLike)) for one in given)
    if not is_paths or not given:
        raise InvalidArgument(
            f"the source of a Reader is {type(source).__qualname__}, not a Writer, a session or paths")
    return [os.fspath(one) for one in given]
