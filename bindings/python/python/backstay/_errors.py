# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a call may raise: a class for every kind of error, by its number (docs/reference/errors.md)."""


class Error(Exception):
    """What Backstay raises. The classes below it say which kind.

    `advice` is what a program can do about it: ``start_fresh``, ``retry``, ``fall_back``, ``degrade`` (go on without
    this checkpoint), ``reconfigure``, ``fatal`` (close the session) or ``bug``.
    """

    code: int = 0
    """Number of the kind; the status of the same error in C."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class NoCheckpoint(Error):
    """There is nothing to restore: this is the first start of the job. The memory was not touched."""

    code = 1


class InvalidArgument(Error, ValueError):
    """An argument is wrong, memory is not to be had, or the session is closed."""

    code = 10


class VariableMismatch(Error):
    """A variable is not stored under this name, type or shape; the message shows both sides."""

    code = 11


class ConfigurationError(Error, ValueError):
    """A setting is wrong, or differs between ranks."""

    code = 12


class StoreFull(Error):
    """The store has too little space. The last checkpoint stays."""

    code = 20


class StoreBusy(Error):
    """The store is in use by another job."""

    code = 21


class StoreIO(Error):
    """The file system refused an operation. The last checkpoint stays, the next one tries again."""

    code = 22


class StoreFailed(Error):
    """A sync failed: this session can write no more checkpoints. The last checkpoint stays."""

    code = 23


class Unreadable(Error):
    """What is stored could not be read, so nothing is known of it, and nothing was given up."""

    code = 24


class EarlierFailed(Error):
    """A checkpoint that was started before has failed; this call did nothing: make it again."""

    code = 25


class Corrupt(Error):
    """Bytes are not what their checksum says."""

    code = 30


class NotRetained(Error):
    """The checkpoint asked for is not retained, or not complete."""

    code = 31


class Timeout(Error, TimeoutError):
    """A wait of Backstay's reached `timeout_ms`."""

    code = 40


class CommunicatorError(Error):
    """The communicator failed; what it raised is the cause. The session can only be closed."""

    code = 41


class PeerFailed(Error):
    """Another process of the job is gone. Start the job again from its last checkpoint."""

    code = 42


class PeerUnreachable(Error):
    """Another node cannot be reached. What is on this node stays."""

    code = 43


class Unsupported(Error):
    """This platform or build cannot do it."""

    code = 50


class Internal(Error):
    """A defect of Backstay: report the message. What was committed stays."""

    code = 60


by_code: dict[int, type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}
