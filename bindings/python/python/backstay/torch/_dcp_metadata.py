# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a save of torch.distributed.checkpoint stores beside its tensors: JSON, never a pickle.

Each rank stores what it wrote (`ITEMS`), so that nothing is gathered for it; rank 0 also which save it is (`HEAD`).
A checkpoint without a head is no save: the program's own, or one that only takes others back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from .._errors import Error, InvalidArgument, NotRetained, VariableMismatch
from .._reading import StoredCheckpoint, Stores
from .._reports import CheckpointId

HEAD = "backstay.torch.dcp"
ITEMS = "backstay.torch.dcp.items"
FORMAT = 1
NAME_BYTES = 255
"""Of a variable's name, at most."""


@dataclass(frozen=True)
class Item:
    """A part of a state dict, and the variable that has it."""

    fqn: str
    variable: str | None
    """None where there are no elements."""
    dtype: str | None = None
    """Of the elements as they are stored; None is bytes."""
    planned: str | None = None
    """The type that the planner names, where it is another."""
    size: tuple[int, ...] = ()
    """Of the whole tensor."""
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    requires_grad: bool = False
    order: tuple[int, ...] | None = None
    """Its dimensions from the slowest to the fastest as they are stored; None is its own order."""
    path: tuple[str | int, ...] | None = None
    """Where it is in the nested state dict."""

    def word(self) -> dict[str, Any]:
        """What JSON says: only what is not as usual."""
        usual = Item(self.fqn, self.fqn)
        named = {"variable": self.variable} if self.variable != self.fqn else {}
        others = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("fqn", "variable")}
        return {"fqn": self.fqn, **named, **{
            name: value for name, value in others.items() if value != getattr(usual, name)}}

    @classmethod
    def of_word(cls, word: Mapping[str, Any]) -> Item:
        """The item that JSON says."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in word.items()}
        return cls(**{"variable": word["fqn"], **given})


def type_name(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def type_named(name: str) -> torch.dtype:
    """The type of that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise VariableMismatch(f"this torch has no type {name!r}, which a tensor is stored as", "reconfigure")
    return found


def unique_name(fqn: str, taken: Collection[str]) -> str:
    """The variable's name: the tensor's, if it is not too long, or taken by another shard of it."""
    text = fqn.encode(errors="backslashreplace").decode()
    if not text or "\0" in text or len(text.encode()) > NAME_BYTES or text in (HEAD, ITEMS):
        start = text.replace("\0", "").encode()[:180].decode(errors="ignore")
        text = f"{start}#{hashlib.sha256(fqn.encode(errors='backslashreplace')).hexdigest()[:32]}"
    name, further = text, 0
    while name in taken:
        further += 1
        name = f"{text.encode()[:NAME_BYTES - 12].decode(errors='ignore')}#{further}"
    return name


def path_of(item: WriteItem, plan: SavePlan) -> tuple[str | int, ...] | None:
    """Where an item is in the nested state dict, as planners say that flatten it."""
    paths = plan.planner_data
    path = paths.get(item.index.fqn) if isinstance(paths, Mapping) else None
    if path is None:
        return None
    if not isinstance(path, tuple) or not all(isinstance(step, (str, int)) for step in path):
        raise InvalidArgument(
            f"the planner says that {item.index.fqn!r} is at {path!r}, which are not text and numbers")
    return path


def item_of_bytes(item: WriteItem, plan: SavePlan, variable: str) -> Item:
    """An object that the planner wrote as bytes."""
    return Item(item.index.fqn, variable, path=path_of(item, plan))


def item_of_tensor(
    item: WriteItem,
    plan: SavePlan,
    variable: str | None,
    dtype: torch.dtype,
    order: tuple[int, ...],
) -> Item:
    """A tensor, or a shard of one."""
    data = item.tensor_data
    assert data is not None
    stored, planned = type_name(dtype), type_name(data.properties.dtype)
    return Item(
        item.index.fqn, variable, stored, planned if planned != stored else None, tuple(data.size),
        tuple(data.chunk.offsets), tuple(data.chunk.sizes), getattr(data.properties, "strides", None),
        data.properties.requires_grad,
        order if order != tuple(range(len(order))) else None, path_of(item, plan))


def dump_items(items: list[Item], plan: SavePlan) -> bytearray:
    """The bytes of `ITEMS`."""
    is_flattened = isinstance(plan.planner_data, Mapping)
    return _dump({"format": FORMAT, "flattened": is_flattened, "items": [item.word() for item in items]})


def dump_head(checkpoint_id: str | None, ranks: int, planner_data: Any = None) -> bytearray:
    """The bytes of `HEAD` of a save."""
    return _dump({"format": FORMAT, "checkpoint_id": checkpoint_id, "ranks": ranks, "planner_data": planner_data})


def dump_withdrawal(checkpoint_ids: list[str], checkpoints: list[CheckpointId]) -> bytearray:
    """The bytes of `HEAD` of a checkpoint that takes earlier ones back: all saved under an id, or some themselves."""
    return _dump({"format": FORMAT, "withdrawn": checkpoint_ids, "withdrawn_checkpoints": checkpoints})


def _dump(tree: Any) -> bytearray:
    try:
        return bytearray(json.dumps(tree, separators=(",", ":")).encode())
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the planner's data cannot be written as JSON: {error}") from error


def load_json(checkpoint: StoredCheckpoint, name: str, rank: int) -> dict[str, Any]:
    """What a rank stored under `name`."""
    data = bytearray(checkpoint.part(name, rank).nbytes)
    checkpoint._native.read_box(checkpoint._index, name, rank, [0], [len(data)], data)
    try:
        found = json.loads(data)
        version = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise VariableMismatch(f"{name!r} of checkpoint {checkpoint.id} is not as it is written: {error}",
                               "reconfigure") from error
    if version != FORMAT:
        raise VariableMismatch(f"checkpoint {checkpoint.id} was saved as format {version} of {HEAD}; this Backstay "
                               f"reads {FORMAT}", "reconfigure")
    assert isinstance(found, dict)
    return found


# ---- Which saves there are

@dataclass(frozen=True)
class Save:
    """A checkpoint that torch.distributed.checkpoint saved."""

    checkpoint_id: str | None
    checkpoint: StoredCheckpoint


def saves(stores: Stores, job: str | None = None) -> Iterator[Save]:
    """The saves that can be read, newest first; of several under one id only the newest."""
    jobs = {one.job for one in stores.checkpoints}
    if job is None and len(jobs) > 1:
        raise InvalidArgument(f"there are checkpoints of several jobs, {', '.join(sorted(jobs))}: say which (job=)")
    usable = [one for one in stores.checkpoints if not one.abandoned and job in (None, one.job)]
    ordered = sorted(usable, key=lambda one: (one.id, one.complete, not one.archived), reverse=True)
    seen: set[Any] = set()
    gone: set[str] = set()
    for one in ordered:
        if one.id in seen:
            continue
        seen.add(one.id)
        if HEAD not in one or 0 not in one._parts_of(HEAD):
            continue
        head = load_json(one, HEAD, 0)
        if "withdrawn" in head:
            gone.update(head["withdrawn"])
            seen.update(CheckpointId(*found) for found in head["withdrawn_checkpoints"])
            continue
        name = head["checkpoint_id"]
        if name is None or name not in gone:
            yield Save(name, one)
        if name is not None:
            gone.add(name)


# ---- What a save holds

@dataclass(frozen=True)
class Place:
    """Where an item is."""

    rank: int
    item: Item


@dataclass
class Contents:
    """What a save holds, of all ranks."""

    metadata: Metadata
    places: dict[tuple[str, tuple[int, ...] | None], Place] = field(default_factory=dict)


def contents(save: Save) -> Contents:
    """What a save holds; raises NotRetained where ranks' parts are not in these stores."""
    checkpoint = save.checkpoint
    head = load_json(checkpoint, HEAD, 0)
    there = checkpoint._all_parts().get(ITEMS, {})
    missing = [rank for rank in range(head["ranks"]) if rank not in there]
    if missing or not checkpoint.complete:
        told = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        raise NotRetained(
            f"checkpoint {checkpoint.id} ({save.checkpoint_id!r}): the parts of ranks {told or 'of other nodes'} are "
            "not in these stores: give those of all nodes, or the archive", "reconfigure")
    found = Contents(Metadata({}))
    paths: dict[str, tuple[str | int, ...]] = {}
    is_flattened = False
    for rank in range(head["ranks"]):
        words = load_json(checkpoint, ITEMS, rank)
        is_flattened |= words["flattened"]
        for item in map(Item.of_word, words["items"]):
            _add(found, rank, item)
            if item.path is not None:
                paths[item.fqn] = item.path
    found.metadata.planner_data = paths if is_flattened else head["planner_data"]
    found.metadata.storage_meta = StorageMeta(checkpoint_id=save.checkpoint_id)
    return found


def _add(found: Contents, rank: int, item: Item) -> None:
    entries = found.metadata.state_dict_metadata
    if item.dtype is None:
        entries[item.fqn] = BytesStorageMetadata()
        found.places[item.fqn, None] = Place(rank, item)
        return
    entry = entries.get(item.fqn)
    if entry is None:
        properties = TensorProperties(type_named(item.planned or item.dtype), requires_grad=item.requires_grad)
        if hasattr(properties, "strides"):  # Not in older torch.
            properties.strides = item.strides
        entry = entries[item.fqn] = TensorStorageMetadata(properties, torch.Size(item.size), [])
    assert isinstance(entry, TensorStorageMetadata)
    entry.chunks.append(ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes)))
    found.places[item.fqn, item.offsets] = Place(rank, item)


def no_save(checkpoint_id: str | None, known: list[str], paths: list[str], stores: Stores) -> Error:
    """There is no such save."""
    where = ", ".join(paths)
    partial = [str(one.number) for one in stores.checkpoints if not one.complete and not one.abandoned]
    more = ""
    if partial:
        more = f"; of checkpoints {', '.join(partial)} other nodes have parts: give the stores of all, or the archive"
    if checkpoint_id is None:
        return NotRetained(f"nothing that torch.distributed.checkpoint saved is in {where}{more}", "reconfigure")
    there = ", ".join(map(repr, known[:16])) or "none"
    return NotRetained(f"no checkpoint_id {checkpoint_id!r} is in {where}; there are {there}{more}", "reconfigure")


def is_bytes(item: WriteItem) -> bool:
    """Whether the planner wrote it, as bytes."""
    return item.type == WriteItemType.BYTE_IO
