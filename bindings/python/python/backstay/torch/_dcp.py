# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`Writer` and `Stager`: what torch.distributed.checkpoint saves, as checkpoints of a session.

A save is a checkpoint that is pinned: it stays until it is deleted. In a synchronous save `write_data` protects what
the plan names and takes the checkpoint, all ranks together. In an asynchronous one `stage` does, on the thread of the
training; what DCP then does in the background is given a placeholder, for which `write_data` waits until that
checkpoint is durable here, and makes no call that is collective.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import _session
from .._block import Block
from .._errors import Error, InvalidArgument, StoreFull, StoreIO
from .._reading import read
from .._reports import CheckpointId, Report
from ._dcp_kept import Kept
from ._dcp_metadata import HEAD, ITEMS, dump_head
from ._dcp_plans import Planning
from ._dcp_reader import id_text
from ._dcp_staging import Staged, Stager, async_save_call
from ._dcp_variables import Variables

__all__ = ["Stager", "Writer"]

_MARK = "backstay.torch.staged"
"""In the placeholder's name."""

_POLL_SECONDS = (0.001, 0.05)
"""Between two looks whether a checkpoint is durable: the first, and at most."""

_PROCESSES = (
    "a Writer belongs to the process that opened it, and cannot be sent to another: use "
    "async_checkpointer_type=AsyncCheckpointerType.THREAD, which is the default; what is written in the background is "
    "written without the interpreter's lock")


class _Local(threading.local):
    """What a thread was told of the save that it makes."""

    told: str | None = None
    saving: str | None = None
    staged: Staged | None = None


class Writer(Block, StorageWriter):
    """Saves with torch.distributed.checkpoint, to Backstay.

        with backstay.torch.Writer(job="digits") as writer:
            dcp.save(state, checkpoint_id="step-100", storage_writer=writer)
            saving = dcp.async_save(state, checkpoint_id="step-200", storage_writer=writer)

    Every checkpoint_id stays until `delete`, whatever `retained` is; a save without one is retained as other
    checkpoints are. Saving under one that exists replaces it, once the new one is durable. When no more can be kept the
    save fails with StoreFull, and those before stay.

    Tensors are variables named as in the state dict, each shard a part of the whole; only blocks that changed since the
    save before are written. The memory of the last save's state is kept alive until the next.

    All processes make one together: of `process_group`, by default of all. Give an open session, or settings for one of
    its own, as `backstay.open` takes them. Calls that say "collective" are made by all processes in the same order, on
    the thread that trains. Left by an exception, its own session is abandoned.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        session: _session.Session | None = None,
        *,
        job: str | None = None,
        process_group: Any = None,
        **settings: str | int | float | bool | os.PathLike[str],
    ) -> None:
        if session is not None and (job is not None or settings):
            raise InvalidArgument("a session is given, and settings for one as well")
        is_distributed = dist.is_available() and dist.is_initialized()
        group = dist.group.WORLD if is_distributed and process_group is None else process_group
        self._owns = session is None
        self.session = session if session is not None else _session.open(job=job, comm=group, **settings)
        self._planning = Planning(self.session, group)
        self._variables = Variables(self.session)
        self._lock = threading.RLock()
        self._local = _Local()
        self._at: str | None = None
        self._pending: Staged | None = None
        self._staged: dict[int, Staged] = {}
        self._tickets = 0
        self._kept = Kept(self.session, self._variables)
        self._kept.take(self._planning.from_first(self._kept.look))

    # ---- What was saved

    def checkpoint_ids(self) -> list[str]:
        """What was saved and not deleted, oldest first. Local."""
        names, pending = self._kept.names(), self._pending
        if pending is None or pending.checkpoint_id is None or not pending.checkpoint.done():
            return names
        if not self._is_durable(pending.checkpoint.id):
            return names
        return [name for name in names if name != pending.checkpoint_id] + [pending.checkpoint_id]

    def delete(self, checkpoint_id: str | os.PathLike[str]) -> None:
        """Lets a save go. Collective. An archive keeps its copy until it is pruned."""
        with self._lock:
            self._settle()
            self._kept.delete(id_text(checkpoint_id))

    def settle(self) -> None:
        """Waits for an asynchronous save, and raises what it failed with. Collective."""
        with self._lock:
            error = self._settle()
        if error is not None:
            raise error

    # ---- A save

    def at(self, checkpoint_id: str | os.PathLike[str]) -> Writer:
        """Says under which checkpoint_id the next `stage` saves; the writer itself. Local.

        `async_save` needs no such call: `stage` finds the one that it was given.
        """
        self._at = id_text(checkpoint_id)
        return self

    def _capture(
        self, plan: SavePlan, planner: SavePlanner, checkpoint_id: str | None, metadata: Metadata | None, starts: bool,
    ) -> Any:
        """A checkpoint of what the plan names, or the start of one. Collective; what is wrong on one rank is on all."""
        session = self.session
        self._variables.stays = False
        wrong: tuple[str, BaseException] | None = None
        try:
            self._variables.put(plan, planner)
            if session.rank == 0:
                others = None if isinstance(plan.planner_data, Mapping) else getattr(metadata, "planner_data", None)
                self._variables.put_bytes(HEAD, dump_head(checkpoint_id, session.size, others))
        except Exception as error:
            self._variables.put_bytes(ITEMS, bytearray())
            wrong = (ITEMS, error)
        wrong = session._take_objects() or wrong
        try:
            if starts:
                # DCP's background half follows on all ranks, or on none.
                self._planning.agree(wrong[1] if wrong is not None else None)
                stays = self._variables.stays and self._owns
                started = session._native.checkpoint_start(stays=stays, settle=self._variables.settle)
                return _session.Checkpoint(session, started)
            self._variables.settle()
            return Report(**session._native.checkpoint(wrong))
        finally:
            # Other checkpoints of the session are no saves. What stays is captured still, and there are no others.
            if not (starts and self._owns and self._variables.stays):
                self._variables.drop(HEAD)

    def _save(self, plan: SavePlan, planner: SavePlanner, checkpoint_id: str | None) -> None:
        with self._lock:
            self._settle()
            self._kept.check_room(checkpoint_id)
            report = self._capture(plan, planner, checkpoint_id, getattr(planner, "metadata", None), False)
            self._kept.keep(checkpoint_id, CheckpointId(report.number, report.incarnation))

    # ---- An asynchronous save

    @property
    def should_synchronize_after_execute(self) -> bool:
        """What was staged is captured when `stage` returns."""
        return False

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Captures a state; when this returns it may be written again. Collective, on the thread that trains."""
        return self._stage(state_dict, None)

    def _stage(self, state_dict: dict[str, Any], usual_id: str | None) -> dict[str, Any]:
        call = async_save_call()
        self._check_call(call)
        asked, self._at = self._at, None
        given = call.get("checkpoint_id")
        checkpoint_id = id_text(given) if given is not None else asked if asked is not None else usual_id
        with self._lock:
            plan, planner, metadata = self._planning.plan(state_dict, call.get("planner"), checkpoint_id)
            self._settle()
            self._kept.check_room(checkpoint_id)
            started = self._capture(plan, planner, checkpoint_id, metadata, True)
            self._pending = Staged(started, checkpoint_id, metadata)
            self._tickets += 1
            self._staged[self._tickets] = self._pending
            return {f"{_MARK}/{self.session.rank}/{self._tickets}": 0}

    def _check_call(self, call: Mapping[str, Any]) -> None:
        if getattr(call.get("async_checkpointer_type"), "name", None) == "PROCESS":
            raise InvalidArgument(_PROCESSES)
        if self.session.size > 1 and (call.get("no_dist") or not call.get("use_collectives", True)):
            raise InvalidArgument(
                f"the Writer is one of {self.session.size} processes, which save together: leave no_dist and "
                "use_collectives as they are")
        group = call.get("process_group")
        if group is not None and dist.get_world_size(group) != self.session.size:
            raise InvalidArgument(f"the Writer is of {self.session.size} processes, the process_group of "
                                  f"{dist.get_world_size(group)}")

    def _settle(self) -> Exception | None:
        """Ends the asynchronous save before: it is durable on all ranks, and pinned. Collective."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        try:
            pending.outcome = pending.checkpoint.wait()
            self._kept.keep(pending.checkpoint_id, pending.checkpoint.id)
        except StoreFull as error:
            if isinstance(pending.outcome, Report):
                # It may have been told as saved.
                raise
            pending.outcome = error
        except Error as error:
            pending.outcome = error
        return pending.outcome if isinstance(pending.outcome, Exception) else None

    def _await(self, staged: Staged) -> None:
        """Waits, in the background, until a captured save is durable on this node. Local."""
        told = self._local.saving
        if told is not None and told != staged.checkpoint_id:
            raise InvalidArgument(
                f"what was captured as {staged.checkpoint_id!r} is now saved as {told!r}: say it before, with "
                "writer.at(checkpoint_id)")
        pause, most = _POLL_SECONDS
        while staged.outcome is None and not staged.checkpoint.done():
            time.sleep(pause)
            pause = min(pause * 2, most)
        if staged.outcome is None and not self._is_durable(staged.checkpoint.id) and staged.outcome is None:
            raise StoreIO(f"checkpoint {staged.checkpoint.id} did not become durable on this node; writer.settle() "
                          "says why", "degrade")
        if isinstance(staged.outcome, Exception):
            raise staged.outcome

    def _is_durable(self, identity: CheckpointId) -> bool:
        stores = read(self.session.directory)
        return any(one.id == identity and not one.abandoned for one in stores.checkpoints)

    # ---- What DCP calls

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new save begins, under `checkpoint_id`. Local."""
        self._local.told = None if checkpoint_id is None else id_text(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        """Under which checkpoint_id it is."""
        # The first that a save calls: what is told after it is for the next.
        self._local.saving, self._local.told, self._local.staged = self._local.told, None, None
        return StorageMeta(checkpoint_id=self._local.saving)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Looks whether the same processes save as have the session."""
        rank = kwargs.get("rank", self.session.rank)
        if rank != self.session.rank or not kwargs.get("use_collectives", True) and self.session.size > 1:
            raise InvalidArgument(
                f"rank {self.session.rank} of the Writer's {self.session.size} processes saves as rank {rank}: they "
                "save together, with the Writer's process_group, without no_dist, and with use_collectives")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As they are."""
        if len(plans) != self.session.size:
            raise InvalidArgument(f"{len(plans)} processes save, and the Writer is of {self.session.size}")
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Takes the checkpoint, or waits for the one that was captured. The former is collective."""
        staged = self._staged_of(plan)
        if staged is None:
            self._save(plan, planner, self._local.saving)
        else:
            self._local.staged = staged
            self._await(staged)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def _staged_of(self, plan: SavePlan) -> Staged | None:
        for item in plan.items:
            if _MARK in item.index.fqn:
                return self._staged.pop(int(item.index.fqn.rpartition("/")[2]))
        return None

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Everything is stored already; what was captured is told as it is."""
        staged = self._local.staged
        if staged is not None and staged.metadata is not None:
            metadata.state_dict_metadata = staged.metadata.state_dict_metadata
            metadata.planner_data = staged.metadata.planner_data
        checkpoint_id = self._local.saving if staged is None else staged.checkpoint_id
        metadata.storage_meta = StorageMeta(checkpoint_id=checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any text that is not empty names a checkpoint."""
        return bool(isinstance(checkpoint_id, (str, os.PathLike)) and os.fspath(checkpoint_id))

    # ---- The end

    def close(self) -> None:
        """Waits for an asynchronous save, and closes the session if it is the writer's own. Collective.

        Again it does nothing. Raises what the save failed with, when all is closed.
        """
        if self.session.closed:
            return
        with self._lock:
            error: Exception | None = None
            try:
                error = self._settle()
            except StoreFull as full:
                error = full
            self._variables.drop_all()
            if self._owns:
                self.session.close()
            self._planning.free()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Ends it on this process alone, as if it had been killed; a session that was given stays open. Local."""
        if self._owns:
            self.session.abandon()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(_PROCESSES)

    def __repr__(self) -> str:
        return f"<backstay.torch.Writer of {self.session!r}>"
