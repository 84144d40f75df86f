# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hugging Face: a Trainer of transformers, and programs with accelerate, saved and resumed.

    callback = BackstayCallback(job="text")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    callback.train(trainer)

A Trainer decides where in the data it begins before it asks its callbacks, so it is the callback that starts it.
With accelerate `for_accelerator` makes a Checkpointer of what was prepared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .. import _session
from .._errors import InvalidArgument, NoCheckpoint, VariableMismatch
from . import _state, _trees
from ._checkpointer import _TREE, Checkpointer

if TYPE_CHECKING:
    TrainerCallback = Any
    ExportableState: Any = None
else:
    try:
        from transformers import TrainerCallback
        from transformers.trainer_callback import ExportableState
    except ImportError:  # A program with accelerate alone needs none.
        TrainerCallback = ExportableState = object

_KEY = "extra.trainer"

_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""What a Trainer adds up between two logs; without them the first log after a restart tells of fewer steps."""


class _TrainerState:
    """What a Trainer has beside its model, optimizer and scheduler."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.epoch_random: dict[str, Any] | None = None
        self.random: dict[str, Any] | None = None
        """The generators to go on with at the first step; None once they were given back."""
        self.is_at_end = False

    def _callbacks(self) -> list[Any]:
        return [one for one in self.trainer.callback_handler.callbacks if isinstance(one, ExportableState)]

    def state_dict(self) -> dict[str, Any]:
        sums = {name: getattr(self.trainer, name) for name in _SUMS if hasattr(self.trainer, name)}
        return {
            "state": json.dumps(dataclasses.asdict(self.trainer.state)),
            "sums": {name: one.item() if isinstance(one, torch.Tensor) else one for name, one in sums.items()},
            "callbacks": json.dumps([[type(one).__name__, one.state()["attributes"]] for one in self._callbacks()]),
            "epoch_random": self.epoch_random,
            "random": None if self.is_at_end else _state.random_states(),
        }

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        steps, now = json.loads(stored["state"])["global_step"], self.trainer.state.global_step
        if steps != now:
            raise VariableMismatch(
                f"the Trainer begins after {now} steps, the checkpoint is of {steps}: start it again", "reconfigure")
        for name, value in stored["sums"].items():
            former = getattr(self.trainer, name, None)
            if isinstance(former, torch.Tensor):
                former.fill_(value)
            elif former is not None:
                setattr(self.trainer, name, value)
        self._give_callbacks(json.loads(stored["callbacks"]))
        self.epoch_random, self.random = stored["epoch_random"], stored["random"]

    def _give_callbacks(self, stored: list[Any]) -> None:
        for one in self._callbacks():
            at = next((at for at, (name, _) in enumerate(stored) if name == type(one).__name__), None)
            if at is not None:
                for name, value in stored.pop(at)[1].items():
                    setattr(one, name, value)


class BackstayCallback(TrainerCallback):  # type: ignore[misc]
    """Has a Trainer resume, and save to Backstay; to be started with `train`.

    A checkpoint is taken when one is due, or after each `every_steps` steps of the optimizer, and at the end of the
    training. The Trainer's own saving goes on as its arguments say; ``save_strategy="no"`` turns it off. `job`,
    `pickled` and `settings` are those of `Checkpointer`. A dataset that draws random numbers as it is read gets other
    ones for the batches that were read ahead of the checkpoint.
    """

    def __init__(
        self, *, job: str | None = None, every_steps: int | None = None, pickled: bool = False, **settings: Any,
    ) -> None:
        if TrainerCallback is object:
            raise ImportError("BackstayCallback needs the package transformers")
        if every_steps is not None and every_steps < 1:
            raise InvalidArgument(f"every_steps is {every_steps}, not 1 or more")
        self._job, self._every, self._pickled, self._settings = job, every_steps, pickled, settings
        self._trainer: _TrainerState | None = None
        self._done = 0
        self.checkpointer: Checkpointer | None = None
        """While it trains."""
        self.should_leave = False
        """Whether the training ended because the scheduler or `backstay run` asked for it."""

    def train(self, trainer: Any, **arguments: Any) -> Any:
        """What ``trainer.train(**arguments)`` does, beginning where the newest checkpoint is. Collective."""
        if not any(one is self for one in trainer.callback_handler.callbacks):
            trainer.add_callback(self)
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise InvalidArgument(
                "a Trainer with FSDP or DeepSpeed saves by itself: call backstay.torch.install() for FSDP")
        if trainer.args.ignore_data_skip:
            raise InvalidArgument("with ignore_data_skip the data begin again: that is not going on")
        self._trainer, self.should_leave = _TrainerState(trainer), False
        try:
            state = self._stored_state()
            if state is None:
                return trainer.train(**arguments)
            return _train_from(trainer, state, arguments)
        except BaseException:
            if self.checkpointer is not None:
                self.checkpointer.abandon()
            raise
        finally:
            self._trainer = self.checkpointer = None

    def _stored_state(self) -> str | None:
        """The TrainerState of the newest checkpoint, as JSON."""
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        with _session.open(job=self._job, comm=group, **self._settings) as session:
            if not session.checkpoints:
                return None
            data = session._native.read_bytes(_TREE, session.rank)
        tree = _trees.unpack(data, pickled=self._pickled)
        state: str = tree["stateful"][_KEY]["state"]
        return state

    # ---- What the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Resumes."""
        if self._trainer is None:
            raise InvalidArgument("start the training with callback.train(trainer), not with trainer.train()")
        optimizer = kwargs["optimizer"]
        self.checkpointer = Checkpointer(
            model=self._trainer.trainer.model_wrapped, optimizer=getattr(optimizer, "optimizer", optimizer),
            scheduler=kwargs["lr_scheduler"], extra=self._extra(), job=self._job, pickled=self._pickled,
            **self._settings)
        if self.checkpointer.restore() is None and state.global_step:
            raise NoCheckpoint("the checkpoint from which the Trainer begins is gone: start it again", "restart")
        self._done = state.global_step

    def _extra(self) -> dict[str, Any]:
        assert self._trainer is not None
        scaler = self._trainer.trainer.accelerator.scaler
        return {"trainer": self._trainer} | ({} if scaler is None else {"scaler": scaler})

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The order of an epoch depends on the generators at its begin."""
        trainer = self._trainer
        assert trainer is not None
        if trainer.random is not None and trainer.epoch_random is not None:
            _state.set_random_states(trainer.epoch_random)
        else:
            trainer.epoch_random = _state.random_states()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves: here the step before has been logged and evaluated, and no gradients are left of it."""
        assert self._trainer is not None and self.checkpointer is not None
        if self._trainer.random is not None:
            _state.set_random_states(self._trainer.random)
            self._trainer.random = None
        if state.global_step == self._done:
            return
        self._done = state.global_step
        started = self.checkpointer.step()
        if started is None and self._every is not None and state.global_step % self._every == 0:
            self.checkpointer.checkpoint_start()
        if self.checkpointer.should_leave:
            if started is None:
                self.checkpointer.checkpoint_start()
            # The Trainer makes this one step more, which is no part of the checkpoint.
            self.should_leave = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the end, and closes."""
        assert self._trainer is not None and self.checkpointer is not None
        if not self.should_leave:
            # With more epochs it can go on from here, at the begin of one.
            self._trainer.is_at_end = state.epoch % 1 == 0
            self.checkpointer.steps += state.global_step - self._done
            self.checkpointer.checkpoint()
        self.checkpointer.close()


def _train_from(trainer: Any, state: str, arguments: dict[str, Any]) -> Any:
    """Has the Trainer begin at a TrainerState; of a checkpoint's folder it gets this file alone."""
    if arguments.get("resume_from_checkpoint"):
        raise InvalidArgument("resume_from_checkpoint is given, and there is a checkpoint of Backstay's to resume from")
    former = vars(trainer).get("_load_from_checkpoint")
    with tempfile.TemporaryDirectory(prefix="backstay-") as folder:
        with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
            file.write(state)
        # The weights come from Backstay, in on_train_begin; a Trainer refuses a folder that has none.
        trainer._load_from_checkpoint = _load_nothing
        try:
            return trainer.train(**{**arguments, "resume_from_checkpoint": folder})
        finally:
            del trainer._load_from_checkpoint
            if former is not None:
                trainer._load_from_checkpoint = former


def _load_nothing(*args: Any, **kwargs: Any) -> None:
    pass


# ---- Accelerate


class _Loader:
    """A prepared DataLoader that is counted: those that are not stateful have a state_dict as well, which fails."""

    def __init__(self, prepared: Any) -> None:
        self.prepared, self.sampler = prepared, self

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.prepared, "set_epoch"):
            self.prepared.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.prepared)

    def __len__(self) -> int:
        return len(self.prepared)


class _Steps:
    """The count by which an Accelerator knows when gradients are accumulated."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        return {"step": self._accelerator.step}

    def load_state_dict(self, stored: dict[str, int]) -> None:
        self._accelerator.step = stored["step"]


def for_accelerator(accelerator: Any, *, loader: Iterable[Any] | None = None, **settings: Any) -> Checkpointer:
    """A Checkpointer of all that the Accelerator would save itself: what it prepared, and what was registered.

    To be called after `prepare` and `register_for_checkpointing`. `loader` is the prepared DataLoader that is trained
    on, the first one unless it is given; iterate over it with `batches`. `settings` are those of `Checkpointer`.
    """
    optimizers = [getattr(one, "optimizer", one) for one in accelerator._optimizers]
    extra: dict[str, Any] = {f"registered.{at}": one for at, one in enumerate(accelerator._custom_objects)}
    extra["accelerator"] = _Steps(accelerator)
    if accelerator.scaler is not None:
        extra["scaler"] = accelerator.scaler
    if loader is None and accelerator._dataloaders:
        loader = accelerator._dataloaders[0]
    if loader is not None and not getattr(loader, "use_stateful_dataloader", False):
        loader = _Loader(loader)
    return Checkpointer(
        model=list(accelerator._models), optimizer=optimizers, scheduler=list(accelerator._schedulers), extra=extra,
        loader=loader, **settings)
