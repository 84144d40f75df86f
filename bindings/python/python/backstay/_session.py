# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A session: what a program protects, checkpoints and restores."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from . import _fork, _native
from ._block import Block
from ._communicators import Communicator, adapt
from ._errors import CommunicatorError, Error, InvalidArgument, VariableMismatch
from ._reports import CheckpointId, Finished, Level, Protection, Report, Restored, StoredFile

"""How far a checkpoint has to be safe: in the store of every node, across nodes, in the archive."""

Tracking = Literal["full", "hash", "pages", "marked"]
"""How changed blocks are found; see `tracking` in docs/reference/config.md."""


class Checkpoint:
    """A checkpoint that was started, and goes on in the background."""

    def __init__(self, session: Session, handle: _native.Handle) -> None:
        self._session, self._handle = session, handle

    @property
    def id(self) -> CheckpointId:
        """Which checkpoint it will be."""
        return CheckpointId(*self._handle.checkpoint)

    def done(self, level: Level = "node") -> bool:
        """Whether it is over on this node, well or not. Local."""
        return self._session._native.test(self._handle, level)

    def wait(self, level: Level = "node") -> Report:
        """Waits until it is safe at `level` on every node; the outcome is that of all ranks. Collective."""
        return Report(**self._session._native.wait(self._handle, level))

    def __repr__(self) -> str:
        return f"<backstay.Checkpoint {self.id}>"


class Output:
    """A set of files that is being written; see `Session.output`."""

    report: Report | None = None
    """What its checkpoint did, once it is taken."""


class Session(Block):
    """This process's part in the checkpoints of a job; made by `backstay.open`.

    Calls that say "collective" are made by every rank in the same order. Left as a context manager it is closed,
    which is collective; left by an exception, deleted or still open when the interpreter ends, it is abandoned on
    this rank alone, as if the process had been killed: the last checkpoint stays, and no other rank waits for it.
    """

    def __init__(self, native: _native.Session, comm: Communicator | None) -> None:
        self._native = native
        self._comm = comm
        self._objects: dict[str, _Object] = {}
        self._process = os.getpid()
        self._taking = False
        _fork.watch(self)

    # ---- What is protected

    def protect(
        self,
        name: str,
        array: Any,
        *,
        global_shape: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        tracking: Tracking | None = None,
        block_bytes: int | None = None,
    ) -> None:
        """Has checkpoints contain `array`, and restoring fill it. Local.

        `array` is anything with the buffer protocol (numpy arrays, bytearray, memoryview) or a tensor on the CPU
        that DLPack reaches (torch), writable and contiguous. It is kept alive. Where its memory is, and how large,
        is looked at again at each checkpoint: an array that was resized, or a parameter that was given other
        memory, is saved from where it is then.

        With `global_shape` and `start` it is the part that begins at `start` of an array that all ranks share;
        another number of ranks can then restore it. Shapes are in elements, in C's order.

        `tracking` and `block_bytes` (a power of two) say how its changes are found; by default as the settings do.
        Protecting a name again replaces what was protected under it.

        Raises InvalidArgument for memory that is read-only, not contiguous or not the CPU's, and for elements that
        are references.
        """
        if (global_shape is None) != (start is None):
            raise InvalidArgument(f"variable {name!r} has one of global_shape and start without the other")
        slab = None
        if global_shape is not None and start is not None:
            slab = ([int(extent) for extent in global_shape], [int(first) for first in start])
        self._native.protect(name, array, slab, tracking, block_bytes)
        self._objects.pop(name, None)

    def protect_object(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], None],
        *,
        pickled: bool = False,
    ) -> None:
        """Has checkpoints contain what `get` returns, and restoring hand it to `set`. Local.

        For small things: it is stored as JSON, whole where it changed. Each rank has its own; a rank that the job
        did not have then is handed rank 0's.

        With `pickled` it is stored as a pickle. Unpickling runs what the bytes say: whoever can write to the store
        can then run code in the program. Use it only where the store is as trusted as the program.

        The calls are made without anything else of the session being under way, and must not use it.
        """
        codec = _PICKLE if pickled else _JSON
        made = _Object(get, set, codec)
        self._native.protect(name, made.take(name))
        self._objects[name] = made

    def protect_file(self, name: str, path: str | os.PathLike[str]) -> None:
        """Has checkpoints contain the file at `path`, and restoring put it back, beside the variables. Local.

        It has to be there, flushed and not being written during a checkpoint; what changed in it is stored, and its
        holes, permissions and time of modification are kept. Symbolic links are refused. Of a path that several ranks
        protect each stores its own copy, and one restores it.
        """
        self._native.protect_file(name, path)

    def unprotect(self, name: str) -> None:
        """Takes a variable or a file out of the checkpoints to come, and lets its memory go. Local."""
        self._native.unprotect(name)
        self._objects.pop(name, None)

    def mark_dirty(self, name: str, rows: int | slice | Iterable[int] | None = None) -> None:
        """Says that rows of a variable changed: elements of its first dimension, or all of it. Local.

        Under ``tracking="marked"`` only what was marked is looked at, once marks have named all that changed;
        under the others it is a hint.
        """
        if rows is None:
            self._native.mark_dirty(name)
        elif isinstance(rows, slice):
            if rows.step not in (None, 1):
                raise InvalidArgument(f"rows of {name!r} are a slice with a step of {rows.step}")
            first, end, _ = rows.indices(self._native.rows(name))
            self._native.mark_dirty(name, None, (first, max(first, end)))
        else:
            self._native.mark_dirty(name, self._row_numbers(name, rows))

    def _row_numbers(self, name: str, rows: int | Iterable[int]) -> list[int]:
        listed: list[int]
        if isinstance(rows, Iterable):
            tolist = getattr(rows, "tolist", None)  # numpy, torch
            listed = list(rows) if tolist is None else tolist()
        else:
            listed = [rows]
        if any(isinstance(row, bool) for row in listed):
            raise InvalidArgument(f"rows of {name!r} are numbers, not a mask: mask.nonzero() has them")
        if any(row < 0 for row in listed):
            count = self._native.rows(name)
            listed = [row if row >= 0 else row + count for row in listed]
        if any(row < 0 for row in listed):
            raise InvalidArgument(f"row {min(listed)} of variable {name!r} is before the first")
        return listed

    # ---- Checkpoints

    def due(self) -> Level | None:
        """Whether it is time for a checkpoint, and to which level; to be asked once a step, say.

        Follows the setting `interval`: by default what the planner finds best from measured costs and failures.
        Collective, but most calls ask nobody.
        """
        return self._native.due()

    @property
    def should_leave(self) -> bool:
        """Whether the scheduler or `backstay run` asked the program to take a last checkpoint, close and end.

        Known after `due` and after each checkpoint, the same on all ranks. Local.
        """
        return self._native.should_leave()

    def checkpoint(self) -> Report:
        """Takes a checkpoint; when it returns, it is durable in the store of every node. Collective.

        No other thread may write what is protected meanwhile. After an error the checkpoints before stay.
        """
        return Report(**self._native.checkpoint(self._take_objects()))

    def checkpoint_start(self) -> Checkpoint:
        """Captures a checkpoint and returns; it becomes durable in the background. Collective.

        What is protected may be written again as soon as it returns. The outcome is told by `Checkpoint.wait`, the
        next checkpoint, or `close`.
        """
        return self._start(stays=False)

    def _start(self, *, stays: bool, settle: Callable[[], None] | None = None) -> Checkpoint:
        """The same; what `stays` as it is until the next call of the session is captured in the background.

        `settle` is called before the capture, when all else is done: it ends what was begun before.
        """
        return Checkpoint(self, self._native.checkpoint_start(self._take_objects(), stays, settle))

    @contextlib.contextmanager
    def output(self) -> Iterator[Output]:
        """A set of files that becomes a checkpoint, with all that is protected, when the block ends. Collective.

        Inside, `route_file` says where to write. Close the files first. Where the block raises on any rank, or a file
        was routed and not written, or is still open, there is no checkpoint, and the one before stays::

            with session.output():
                with open(session.route_file(f"ckpt.{step}/rank_{session.rank}.dat"), "wb") as file:
                    file.write(state)
        """
        self._native.output_start()
        output = Output()
        try:
            yield output
        except Exception:
            # The others are told, who would wait; what was raised here says more than that.
            with contextlib.suppress(Error):
                self._native.output_complete(False)
            raise
        output.report = Report(**self._native.output_complete(True, self._take_objects()))

    def route_file(self, name: str | os.PathLike[str]) -> str:
        """Where to write the file `name` inside of `output`, or to read it inside of `restart`. Local.

        A path in the memory of this node; elsewhere `name` as it is. `..` is refused.
        """
        return os.fspath(self._native.route_file(name))

    def _take_objects(self) -> tuple[str, BaseException] | None:
        """Brings the bytes of all objects up to date; the one that could not be written, and why.

        The checkpoint then fails with it, on all ranks: none may be left waiting.
        """
        if self._taking:
            raise InvalidArgument("a checkpoint was asked for by the get of an object, which is part of another")
        self._taking = True
        try:
            for name, made in self._objects.items():
                try:
                    self._native.protect(name, made.take(name))
                except Exception as error:
                    return name, error
        finally:
            self._taking = False
        return None

    # ---- The way back

    @property
    def checkpoints(self) -> list[CheckpointId]:
        """The checkpoints that can be restored, oldest first. Local."""
        return [CheckpointId(*found) for found in self._native.stored_checkpoints()]

    @property
    def earlier_checkpoints(self) -> list[CheckpointId]:
        """Those of starts that finished, or that a later one left behind when it restored nothing and took a checkpoint:
        they are restored by number, and pinned ones stay. Oldest first. Local."""
        return [CheckpointId(*found) for found in self._native.earlier_checkpoints()]

    @property
    def all_checkpoints(self) -> list[CheckpointId]:
        """The earlier ones, and those that can be restored without their number. Oldest first. Local."""
        return sorted(self.earlier_checkpoints + self.checkpoints)

    def restore(self, number: int | None = None) -> Restored:
        """Fills all that is protected from the newest checkpoint that every rank can have whole. Collective.

        With `number` from that one; later ones are given up. Raises NoCheckpoint at the first start of a job.
        """
        return self._restore(lambda: self._native.restore(number))

    @contextlib.contextmanager
    def restart(self) -> Iterator[Restored]:
        """Restores as `restore` does, and the files of the checkpoint's set with it. Collective.

        Inside, `route_file` says where to read them. Where the block raises on any rank, all give the checkpoint up,
        and the next `restart` takes an older one.
        """
        restored = self._restore(self._native.restart_start)
        try:
            yield restored
        except Exception:
            with contextlib.suppress(Error):
                self._native.restart_complete(False)
            raise
        self._native.restart_complete(True)

    def stored_files(self, rank: int | None = None) -> list[StoredFile]:
        """The files of the checkpoint that `restore` would take, by name. Local. `rank` is this one unless given."""
        found = self._native.stored_files(self.rank if rank is None else rank)
        return [StoredFile(os.fspath(name), routed, length) for name, routed, length in found]

    def restore_file(self, name: str | os.PathLike[str], rank: int, path: str | os.PathLike[str]) -> int:
        """Writes a file of the checkpoint that `restore` would take, as `rank` stored it, to `path`. Local.

        For jobs of another number of ranks. Returns its bytes.
        """
        return self._native.restore_file(name, rank, path)

    def _restore(self, take: Callable[[], dict[str, Any]]) -> Restored:
        for made_name in self._objects:
            self._size_object(made_name)
        try:
            restored = Restored(**take())
        except VariableMismatch:
            if not self._objects:
                raise
            # Objects of an older checkpoint have other sizes: they are read once it is known which one it is.
            restored = self._restore_without_objects(take)
        for name, made in self._objects.items():
            made.hand_over(name)
        return restored

    def _size_object(self, name: str) -> None:
        """Memory for an object as the newest checkpoint has it."""
        for rank in (self.rank, 0):
            try:
                shape = self._native.stored_shape(name, rank)
            except Exception:  # What is wrong is told by the restore that follows, on all ranks.
                continue
            made = self._objects[name]
            made.payload = bytearray(shape[0] if shape else 0)
            self._native.protect(name, made.payload)
            return

    def _restore_without_objects(self, take: Callable[[], dict[str, Any]]) -> Restored:
        for name in self._objects:
            self._native.unprotect(name)
        try:
            restored = Restored(**take())
            for name, made in self._objects.items():
                rank = self.rank if self.rank < restored.ranks_then else 0
                made.payload = bytearray(self._native.read_bytes(name, rank))
        finally:
            for name, made in self._objects.items():
                self._native.protect(name, made.payload)
        return restored

    def stored_shape(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a variable as the checkpoint that `restore` would take has it. Local.

        For memory that has to be allocated first. `rank` is this one unless it is given.
        """
        return tuple(self._native.stored_shape(name, self.rank if rank is None else rank))

    def pin(self, number: int) -> None:
        """Keeps a checkpoint until it is unpinned. Collective."""
        self._native.pin(number)

    def unpin(self, number: int) -> None:
        """Lets a checkpoint go as others do. Collective."""
        self._native.unpin(number)

    @property
    def pins_left(self) -> int:
        """How many more checkpoints can be pinned; the same on all ranks. Local."""
        return self._native.pins_left()

    # ---- The session itself

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return self._native.size

    @property
    def directory(self) -> str:
        """Where the node's store is."""
        return os.fspath(self._native.directory)

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned."""
        return self._native.closed

    @property
    def protection(self) -> Protection:
        """What is safe how far. Local."""
        status = self._native.protection()
        for key in ("node", "protected", "encoding"):
            status[key] = CheckpointId(*status[key]) if status[key] else None
        return Protection(**status)

    def close(self) -> None:
        """Ends the session: waits for a checkpoint under way. Collective; again it does nothing."""
        if self.closed:
            return
        self._native.close()
        _fork.forget(self)
        _free(self._comm)

    def finish(self) -> Finished:
        """Says that the program is done: takes a last checkpoint, and ends the session. Collective.

        The checkpoint is waited for until it is as safe as the job is set to. The next start begins anew; `restore(number)`
        and the setting `restore_checkpoint` still take the checkpoints of this one. After an error the session is closed
        and the job is not known to be finished: its next start resumes from the newest checkpoint.
        """
        try:
            report, level = self._native.finish(self._take_objects())
        finally:
            if self.closed:
                _fork.forget(self)
                _free(self._comm)
        return Finished(report=Report(**report), level=level)

    def abandon(self) -> None:
        """Ends the session on this rank alone, as if the process had been killed. Local."""
        self._native.abandon()
        _fork.forget(self)

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        if native is None or native.closed or self._process != os.getpid():
            return
        warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
        native.abandon()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"rank {self.rank} of {self.size}"
        return f"<backstay.Session {state}>"


class _Codec:
    def __init__(self, name: str, dump: Callable[[Any], bytes], load: Callable[[bytes], Any]) -> None:
        self.name, self.dump, self.load = name, dump, load


_JSON = _Codec("JSON", lambda value: json.dumps(value, separators=(",", ":")).encode(), lambda data: json.loads(data))
_PICKLE = _Codec("a pickle", lambda value: pickle.dumps(value, protocol=5), lambda data: pickle.loads(data))


class _Object:
    """A Python object that is stored as bytes."""

    def __init__(self, get: Callable[[], Any], set: Callable[[Any], None], codec: _Codec) -> None:
        self.get, self.set, self.codec = get, set, codec
        self.payload = bytearray()

    def take(self, name: str) -> bytearray:
        """Its bytes now."""
        try:
            self.payload = bytearray(self.codec.dump(self.get()))
        except Exception as error:
            raise InvalidArgument(f"object {name!r} cannot be written as {self.codec.name}: {error}") from error
        return self.payload

    def hand_over(self, name: str) -> None:
        """Gives the program what its bytes say."""
        try:
            value = self.codec.load(bytes(self.payload))
        except Exception as error:
            raise VariableMismatch(
                f"object {name!r} is not stored as {self.codec.name}: {error}", "reconfigure") from error
        self.set(value)


def open(  # noqa: A001
    *,
    job: str | None = None,
    comm: Any = None,
    **settings: str | int | float | bool | os.PathLike[str],
) -> Session:
    """Opens a session: all processes of `comm` together. Collective.

    `comm` is None for a program of one process, a communicator of mpi4py, a process group of torch.distributed, or an
    object as `Communicator` describes it. `settings` are those of docs/reference/config.md, over those of the
    environment and of the file that BACKSTAY_CONFIG names: ``backstay.open(redundancy="xor", interval=600)``.

    Nothing of the program's memory is touched; what an earlier start of the job stored is found.
    """
    given: dict[str, Any] = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in settings.items()}
    if job is not None:
        given["job"] = job
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a setting is no text, number or flag: {error}") from error
    adapted = adapt(comm)
    try:
        native = _native.Session(adapted, text)
    except CommunicatorError:
        raise
    except Error:
        # All ranks have it.
        _free(adapted)
        raise
    return Session(native, adapted)


def _free(comm: Communicator | None) -> None:
    free = getattr(comm, "free", None)
    if free is not None:
        free()
