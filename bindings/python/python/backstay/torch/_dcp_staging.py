# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The half of an asynchronous save that is made on the thread that trains: who asks for it, and what it captured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.metadata import Metadata

from .._reports import Report
from .._session import Checkpoint

if TYPE_CHECKING:
    from ._dcp import Writer


class Staged:
    """An asynchronous save that was captured."""

    def __init__(self, checkpoint: Checkpoint, checkpoint_id: str | None, metadata: Metadata | None) -> None:
        self.checkpoint, self.checkpoint_id, self.metadata = checkpoint, checkpoint_id, metadata
        self.outcome: Report | Exception | None = None
        """Of all ranks, once they settled it."""


class Stager:
    """What `async_save` stages with: ``dcp.async_save(state, storage_writer=writer, async_stager=Stager(writer))``.

    The writer does so by itself where no stager is named; it is for code that names one.
    """

    _synchronize_after_execute = False

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    @property
    def should_synchronize_after_execute(self) -> bool:
        """What was staged is captured when `stage` returns."""
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Captures a state; when this returns it may be written again. Collective, on the thread that trains."""
        return self.writer.stage(state_dict)

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """The writer stays open."""


def async_save_call() -> Mapping[str, Any]:
    """The arguments of the `async_save` that calls `stage`, which is handed the state alone.

    The checkpoint has to know its checkpoint_id when it is captured: what is told later would not be durable with it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        is_it = frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict_saver"
        if is_it and frame.f_code.co_name == "async_save":
            return frame.f_locals
        if frame.f_back is None:
            break
        frame = frame.f_back
    return {}
