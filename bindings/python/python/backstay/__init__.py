# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checkpoints of long parallel runs: what changed, safe at every instant.

    with backstay.open(job="heat", comm=MPI.COMM_WORLD) as session:
        session.protect("plate", plate)
        try:
            session.restore()
        except backstay.NoCheckpoint:
            pass
        ...
        if session.due():
            session.checkpoint()

`backstay.read(path)` shows what stores and archives hold, without a job. The guide is docs/guide/python.md.
"""

from ._communicators import Communicator
from ._errors import (
    CommunicatorError,
    ConfigurationError,
    Corrupt,
    EarlierFailed,
    Error,
    Internal,
    InvalidArgument,
    NoCheckpoint,
    NotRetained,
    PeerFailed,
    PeerUnreachable,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreIO,
    Timeout,
    Unreadable,
    Unsupported,
    VariableMismatch,
)
from ._native import version as __version__
from ._reading import StoredArray, StoredCheckpoint, Stores, read
from ._reports import CheckpointId, Finished, Level, Protection, Report, Restored, StoredFile
from ._session import Checkpoint, Output, Session, Tracking, open

__all__ = [
    "Checkpoint", "CheckpointId", "Communicator", "CommunicatorError", "ConfigurationError", "Corrupt",
    "EarlierFailed", "Error", "Finished", "Internal", "InvalidArgument", "Level", "NoCheckpoint", "NotRetained", "Output", "PeerFailed", "PeerUnreachable",
    "Protection", "Report", "Restored", "Session", "StoreBusy", "StoreFailed", "StoreFull", "StoreIO", "StoredArray",
    "StoredCheckpoint", "StoredFile", "Stores", "Timeout", "Tracking", "Unreadable", "Unsupported", "VariableMismatch",
    "__version__", "open", "read",
]
