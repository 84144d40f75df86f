# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The short way: a training program's whole state, saved and resumed."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import _session
from .._block import Block
from .._errors import Error, InvalidArgument, NoCheckpoint, VariableMismatch
from .._reports import CheckpointId, Finished, Report, Restored
from . import _state, _trees
from ._marks import Known, Rows, checked_rows, rows_here
from ._slabs import Slab, slab_of, split
from ._tensors import Filling, Held, Seen, Staging, checked, give_all, is_same_memory, local, stage_all

_TREE = "backstay.torch"
"""The variable with all that is no tensor; docs/format/torch.md."""

_TRIES = 8
"""Looks at what is stored before a restore gives up: each fails only where a checkpoint just turned out damaged."""


class Checkpointer(Block):
    """Saves and resumes training: weights, optimizers, schedulers, random generators, the place in the data.

        with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader, job="digits") as checkpointer:
            checkpointer.restore()
            while checkpointer.epoch < 10:
                for images, labels in checkpointer.batches():
                    ...
                    checkpointer.step()

    Tensors are protected where they are: `step` captures what changed of them when a checkpoint is due, and returns;
    training may go on at once, nothing of it gets into the checkpoint. Tensors of a device go through buffers of the
    host that are reused.

    `model`, `optimizer` and `scheduler` are one object each, or lists or dicts of some. `extra` is a dict of further
    things: modules, tensors, objects with ``state_dict`` and ``load_state_dict``. `loader` is what `batches` iterates
    over; a loader that has ``state_dict`` (StatefulDataLoader) is resumed by it, another is counted, and skipped to
    where it was. With `pickled` values that are neither plain nor tensors are stored as pickles, which run code when
    they are read.

    With torch.distributed all processes of `process_group` (all there are, unless it is given) make one, together.
    What a DistributedDataParallel model has on all of them is written by one each; of a DTensor each writes its part.
    Another number of processes can go on with it. `job` and `settings` are those of `backstay.open`.

    Calls that say "collective" are made by all processes in the same order. Left by an exception it is abandoned, as
    a session is.
    """

    def __init__(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        extra: Mapping[str, Any] | None = None,
        loader: Iterable[Any] | None = None,
        process_group: Any = None,
        job: str | None = None,
        pickled: bool = False,
        **settings: str | int | float | bool | os.PathLike[str],
    ) -> None:
        self._modules: dict[str, nn.Module] = _state.named("model", model, (nn.Module,))
        self._wrappers = dict(self._modules)
        self._stateful: dict[str, Any] = {}
        self._loose: dict[str, Tensor] = {}
        self._take_extra(extra or {})
        self._optimizers = [
            _state.OptimizerState(key, one, self._modules)
            for key, one in _state.named("optimizer", optimizer, (Optimizer,)).items()]
        self._stateful |= _state.named("scheduler", scheduler)
        for key, one in self._stateful.items():
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise InvalidArgument(
                    f"{key} is {type(one).__qualname__}, which has no state_dict and load_state_dict")
        self._loader, self._staging = loader, Staging()
        self.epoch = 0
        """Epochs that are done."""
        self.steps = 0
        """Steps that are done, in all epochs."""
        self._batch = 0
        self._epoch_random: dict[str, Any] | None = None
        self._reading: Any = None
        self._resumes: dict[str, Any] | None = None
        self._held: dict[str, Held] = {}
        self._protected: dict[str, Slab] = {}
        self._seen: dict[str, Seen] = {}
        self._fetched: dict[int, Tensor] = {}
        self._names: set[str] = set()
        self._marked: set[str] = set()
        self._known: Known | None = None
        is_distributed = dist.is_available() and dist.is_initialized()
        group = process_group if process_group is not None or not is_distributed else dist.group.WORLD
        self.session = _session.open(job=job, comm=group, **settings)
        codec = _session._Codec("a tree", lambda tree: bytes(_trees.pack(tree, pickled=pickled)),
                                lambda data: _trees.unpack(data, pickled=pickled))
        self._codec = codec
        self._stored: dict[str, Any] | None = None
        self._object = _session._Object(self._tree, self._hand_over, codec)
        self.session._native.protect(_TREE, self._object.payload)
        self.session._objects[_TREE] = self._object

    def _take_extra(self, extra: Mapping[str, Any]) -> None:
        for key, one in extra.items():
            if isinstance(one, nn.Module):
                self._modules[f"extra.{key}"] = one
            elif isinstance(one, Tensor):
                self._loose[f"extra/{key}"] = one
            else:
                self._stateful[f"extra.{key}"] = one

    # ---- What there is

    def _found(self) -> Iterator[_state.Found]:
        for key, module in self._modules.items():
            yield from _state.module_tensors(key, module)
        for optimizer in self._optimizers:
            yield from optimizer.tensors()
        for name in self._loose:
            yield _state.Found(name, _state._entry(self._loose, name, name), "buffer")

    def _kept(self) -> Iterator[tuple[_state.Found, Tensor]]:
        """All tensors that are stored, each once however many names it has, and this process's part."""
        places: dict[int, list[Tensor]] = {}
        for found in self._found():
            tensor = local(checked(found.name, found.get()))
            others = places.setdefault(tensor.data_ptr(), [])
            if others and tensor.numel() and any(is_same_memory(tensor, other) for other in others):
                continue
            others.append(tensor)
            yield found, tensor

    def _is_replicated(self, found: _state.Found) -> bool:
        """Whether all processes have the same, so that one needs to write it."""
        if self.session.size == 1:
            return True
        key = found.name.partition("/")[0]
        if found.kind == "state":
            return any(isinstance(one, nn.parallel.DistributedDataParallel) for one in self._wrappers.values())
        wrapper = self._wrappers.get(key)
        if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
            return False
        return found.kind == "parameter" or wrapper.broadcast_buffers

    def _tree(self) -> dict[str, Any]:
        """All that is no tensor of its own."""
        return {
            "version": 1,
            "ranks": self.session.size,
            "steps": self.steps,
            "epoch": self.epoch,
            "batch": self._batch,
            "epoch_random": self._epoch_random,
            "loader": self._reading.state_dict() if self._reading is not None else None,
            "random": _state.random_states(),
            "optimizers": {one.key: one.tree(self._fetched) for one in self._optimizers},
            "stateful": {key: one.state_dict() for key, one in self._stateful.items()},
            "extra_states": _state.extra_states(self._modules),
            "orders": {name: list(held.known_order) for name, held in self._held.items()},
        }

    # ---- Saving

    def step(self) -> _session.Checkpoint | None:
        """Says that a step of training is done; starts a checkpoint if one is due. Collective.

        To be called when the optimizer has made its step, within the loop over `batches`. An earlier checkpoint that
        failed is told here.
        """
        self.steps += 1
        if self.session.due() is None:
            return None
        return self.checkpoint_start()

    @property
    def should_leave(self) -> bool:
        """Whether the scheduler or `backstay run` asked for the end; known after `step`, the same on all processes."""
        return self.session.should_leave

    def checkpoint_start(self) -> _session.Checkpoint:
        """Captures a checkpoint and returns; it becomes durable in the background. Collective.

        What is on devices is copied to the host when this returns, and captured from there in the background; the next
        call of the session waits for that.
        """
        with self._protected_for_writing() as stays:
            return self.session._start(stays=stays, settle=self._staging.settle)

    def checkpoint(self) -> Report:
        """Takes a checkpoint; it is durable in the store of every node when this returns. Collective."""
        with self._protected_for_writing():
            self._staging.settle()
            return self.session.checkpoint()

    def mark_dirty(self, tensor: str | Tensor, rows: Rows = None) -> None:
        """Says that rows of a tensor changed: elements of its first dimension, or all of it. Local.

        `tensor` is one that is saved, or its name; a parameter stands for what optimizers keep of it as well. `rows` are
        a number, a slice, anything with numbers in it, or a sparse gradient, which has the rows that it changes:

            checkpointer.mark_dirty(model.embed.weight, model.embed.weight.grad)

        From its first mark on, which may be of no rows (``()``), a tensor is tracked by marks: the next two checkpoints
        look at all of it, and if marks had named all that changed, later ones only at what was marked since the one
        before. A part of the rest is looked at each time; what it finds changed unmarked is warned of, and from then
        on all is looked at. Every process marks what changes of its copy: with DistributedDataParallel that is what
        any process changes. Rows of a DTensor are counted in the whole.
        """
        if self._known is None:
            kept = [found for found, _ in self._kept()]
            self._known = Known(kept, self._found(), self._optimizers)
        own, *others = self._known.named(tensor)
        shape = own.get().shape
        numbers = checked_rows(own.name, rows, shape)
        self._mark(own.name, numbers)
        for other in others:
            # What an optimizer keeps in another shape may change anywhere.
            is_alike = other.get().shape[:1] == shape[:1]
            self._mark(other.name, numbers if is_alike else checked_rows(other.name, None, other.get().shape))

    def _mark(self, name: str, rows: range | Tensor) -> None:
        if name not in self._marked:
            self._marked.add(name)
            # Protected anew, it is looked at whole.
            self._protected.pop(name, None)
        slab = self._protected.get(name)
        if slab is None:
            return
        here = rows_here(rows, slab, self._held[name].order)
        if isinstance(here, tuple):
            self.session._native.mark_dirty(name, None, here)
        else:
            self.session._native.mark_dirty(name, here)

    @contextlib.contextmanager
    def _protected_for_writing(self) -> Iterator[bool]:
        """While all that this process writes is protected, and its buffers are brought up to date; whether it stays.

        Buffers are up to date when the staging was settled. A device copies while the rest is looked at.
        """
        try:
            self.session._native.captured()
            # Before the copies are begun, behind which a device would have it wait.
            self._fetched = self._staging.fetched(value for one in self._optimizers for value in one.singles())
            wanted, filled = self._look_at_all()
            others = [self._held[name] for name, slab in wanted.items() if slab is not None and name not in filled]
            staged = (not others and bool(filled)) or stage_all([
                self._held[name] for name, slab in wanted.items() if slab is not None])
            self._protect(wanted)
            for name in self._marked & self._names:
                if all(self._protected[name].local):
                    # Marks are believed once a checkpoint with some had all that changed: one row more is always marked.
                    self.session._native.mark_dirty(name, None, (0, 1))
            for held in others:
                held.fill()
            known = self._names | {_TREE}
            yield staged and all(name in known for name, _ in self.session._native.variables())
        finally:
            self._fetched = {}
            for held in self._held.values():
                held.end()

    def _look_at_all(self) -> tuple[dict[str, Slab | None], set[str]]:
        """What this process writes of each tensor, and the names of those whose buffers are being filled already.

        A tensor that is where it was when it was last looked at, and goes through a buffer, is not looked at closer.
        """
        wanted: dict[str, Slab | None] = {}
        filling = Filling(self._staging)
        places: dict[int, list[Tensor]] = {}
        for found in self._found():
            name, raw, at = found.name, found.get(), len(wanted)
            seen = self._seen.get(name)
            if seen is not None and seen.is_of(raw, at) and seen.address not in places:
                held = self._held.get(name)
                buffer = held.buffer_of_all() if held is seen.held and self._protected.get(name) is seen.slab else None
                if held is not None and buffer is not None:
                    held.get = found.get
                    filling.add(name, raw, buffer)
                    wanted[name], places[seen.address] = seen.slab, [raw]
                    continue
            tensor = local(checked(name, raw))
            others = places.setdefault(tensor.data_ptr(), [])
            if others and tensor.numel() and any(is_same_memory(tensor, other) for other in others):
                continue
            others.append(tensor)
            wanted[name] = self._look_closer(found, raw, tensor, at)
        filling.flush()
        return wanted, filling.names

    def _look_closer(self, found: _state.Found, raw: Tensor, tensor: Tensor, at: int) -> Slab | None:
        """What this process writes of the tensor with number `at`."""
        name = found.name
        held = self._hold(found, None)
        held.begin(tensor)
        slab = slab_of(name, raw, held.order)
        written = slab if slab.is_written else None
        if self._is_replicated(found):
            written = split(slab, self.session.rank, self.session.size, at)
        known = self._protected.get(name)
        if known is not None and known == written:
            written = known
        if written is not None and tensor is not raw and not hasattr(raw, "to_local"):
            self._seen[name] = Seen(raw, at, held, written)
        return written

    def _hold(self, found: _state.Found, order: Sequence[int] | None) -> Held:
        """The tensor as it is protected, in the order that is given, or in its own."""
        held = self._held.get(found.name)
        if held is None or held.wanted != order:
            held = Held(found.name, found.get, self._staging, order=order)
            self._held[found.name] = held
            self._protected.pop(found.name, None)
        held.get = found.get
        return held

    def _protect(self, wanted: Mapping[str, Slab | None]) -> None:
        """Has exactly these protected, each as the slab says; None is what another process writes."""
        self._known = None
        for name in [name for name in self._held if name not in wanted]:
            del self._held[name]
            self._seen.pop(name, None)
        for name in [name for name in self._names if wanted.get(name) is None]:
            self.session.unprotect(name)
            self._names.remove(name)
            self._protected.pop(name, None)
        for name, slab in wanted.items():
            known = self._protected.get(name)
            if slab is None or known is slab or known == slab:
                continue
            held = self._held[name]
            held.rows = slab.rows
            self.session.protect(name, held, global_shape=slab.shape, start=slab.start,
                                 tracking="marked" if name in self._marked else None)
            self._protected[name] = slab
            self._names.add(name)

    # ---- Resuming

    def restore(self, number: int | None = None) -> Restored | None:
        """Resumes from the newest checkpoint, or from one by number; None where there is none yet. Collective.

        With a number later ones are given up. Raises VariableMismatch where the program has other tensors than the
        checkpoint.
        """
        try:
            return self._restore(number)
        except BaseException:
            for optimizer in self._optimizers:
                optimizer.undo()
            raise

    def _restore(self, number: int | None) -> Restored | None:
        if number is not None:
            # What is looked at is the newest, which this one is once it was restored.
            self._protect({})
            self.session.restore(number)
        for _ in range(_TRIES):
            looked = self._newest()
            self._protect_for_restoring(self._look())
            try:
                restored = self.session.restore()
            except NoCheckpoint:
                for optimizer in self._optimizers:
                    optimizer.undo()
                return None
            except VariableMismatch:
                # What was looked at may have turned out damaged: all processes see the same list.
                if looked == self._newest():
                    raise
                continue
            if CheckpointId(restored.number, restored.incarnation) == looked:
                self._resume(restored)
                return restored
        raise VariableMismatch("what is stored changes while it is restored", "reconfigure")

    def _newest(self) -> CheckpointId | None:
        stored = self.session.checkpoints
        return stored[-1] if stored else None

    def _look(self) -> dict[str, Any] | None:
        """The tree of the newest checkpoint."""
        for rank in (self.session.rank, 0):
            try:
                data = self.session._native.read_bytes(_TREE, rank)
            except Error:  # What is wrong is told by the restore that follows, on all processes.
                continue
            tree: dict[str, Any] = self._codec.load(data)
            return tree
        return None

    def _protect_for_restoring(self, tree: Mapping[str, Any] | None) -> None:
        """All that this process needs, in the order in which it is stored."""
        stored: Mapping[str, Any] = tree or {"orders": {}, "optimizers": {}}
        for optimizer in self._optimizers:
            if optimizer.key in stored["optimizers"]:
                optimizer.make(stored["optimizers"][optimizer.key])
        wanted: dict[str, Slab | None] = {}
        for found, tensor in self._kept():
            name = found.name
            order = stored["orders"].get(name)
            held = self._hold(found, None if order is None else tuple(order))
            held.begin(tensor)
            held.look_again()
            wanted[name] = slab_of(name, found.get(), held.order)
        self._protect(wanted)
        for held in self._held.values():
            held.end()

    def _hand_over(self, tree: dict[str, Any]) -> None:
        self._stored = tree

    def _resume(self, restored: Restored) -> None:
        tree = self._stored
        assert tree is not None
        give_all(self._held.values(), self._staging)
        with torch.no_grad():
            for optimizer in self._optimizers:
                if optimizer.key in tree["optimizers"]:
                    optimizer.fill(tree["optimizers"][optimizer.key])
        for key, one in self._stateful.items():
            if key not in tree["stateful"]:
                raise VariableMismatch(f"{key} is not in checkpoint {restored.number}", "reconfigure")
            one.load_state_dict(tree["stateful"][key])
        _state.set_extra_states(self._modules, tree["extra_states"])
        _state.set_random_states(tree["random"])
        self.steps, self.epoch, self._batch = tree["steps"], tree["epoch"], tree["batch"]
        self._epoch_random, self._reading = tree["epoch_random"], None
        self._resumes = tree if self._epoch_random is not None else None
        if self._batch and tree["ranks"] != self.session.size:
            self._batch = self._batch * tree["ranks"] // self.session.size
            warnings.warn(
                f"the checkpoint is of {tree['ranks']} processes, these are {self.session.size}: the epoch goes on after "
                f"{self._batch} batches of each, which may be other samples", stacklevel=4)

    # ---- The data

    def batches(self, loader: Iterable[Any] | None = None) -> Iterator[Any]:
        """What is left of this epoch's batches; when they are all taken, `epoch` is one more.

        A loader whose sampler has ``set_epoch`` is told the epoch. To resume in the middle of an epoch, a loader that
        has no ``state_dict`` begins it again, with the random numbers of then, and batches that were used are skipped.
        """
        loader = loader if loader is not None else self._loader
        if loader is None:
            raise InvalidArgument("there is no loader: give one to the Checkpointer, or to batches")
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        is_stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        tree, self._resumes = self._resumes, None
        if tree is None:
            self._batch, self._epoch_random = 0, _state.random_states()
            iterator = iter(loader)
        elif is_stateful and tree["loader"] is not None:
            loader.load_state_dict(tree["loader"])  # type: ignore[attr-defined]
            iterator = iter(loader)
            _state.set_random_states(tree["random"])
        else:
            iterator = self._skipped(loader, tree)
        self._reading = loader if is_stateful else None
        for batch in iterator:
            self._batch += 1
            yield batch
        self.epoch += 1
        self._batch, self._epoch_random, self._reading = 0, None, None

    def _skipped(self, loader: Iterable[Any], tree: Mapping[str, Any]) -> Iterator[Any]:
        _state.set_random_states(tree["epoch_random"])
        iterator = iter(loader)
        for done in range(self._batch):
            try:
                next(iterator)
            except StopIteration:
                if tree["ranks"] != self.session.size:
                    # Batches of another number of processes do not come out even.
                    self._batch = done
                    break
                raise VariableMismatch(
                    f"the loader has {done} batches, and {self._batch} of this epoch were used", "reconfigure") from None
        _state.set_random_states(tree["random"])
        return iterator

    # ---- The end

    def close(self) -> None:
        """Ends it: waits for a checkpoint under way. Collective; again it does nothing."""
        self.session.close()

    def finish(self) -> Finished:
        """Says that the training is done: takes a last checkpoint, and ends it. Collective.

        The next start begins anew; the setting `restore_checkpoint` still takes this one.
        """
        with self._protected_for_writing():
            self._staging.settle()
            return self.session.finish()

    def abandon(self) -> None:
        """Ends it on this process alone, as if it had been killed. Local."""
        self.session.abandon()

    def __repr__(self) -> str:
        return f"<backstay.torch.Checkpointer epoch {self.epoch}, step {self.steps}, {self.session!r}>"
