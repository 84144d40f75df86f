# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What calls tell: reports that print well."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Level = Literal["node", "protected", "archive"]


def size(count: float) -> str:
    """`count` bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """`seconds` for people: ``1.5 ms``."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.1f} s"


class CheckpointId(NamedTuple):
    """Which checkpoint: its number, and which start of the job took it, both from 1."""

    number: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.number} of start {self.incarnation}"


class StoredFile(NamedTuple):
    """A file of a checkpoint."""

    name: str
    """What `Session.restore_file` takes: the name that it is protected by, or its own in its set."""
    routed: bool
    """It is of a set."""
    length: int
    """In bytes, holes included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a checkpoint did on this rank. Sizes in bytes, times in seconds."""

    number: int
    incarnation: int
    blocks_total: int
    blocks_changed: int
    bytes_total: int
    bytes_changed: int
    bytes_manifest: int
    """Written beside the blocks: tree pages, tables."""
    blocking_seconds: float
    """The program was blocked."""
    capture_seconds: float
    """To find, copy and hash changed blocks."""
    commit_seconds: float
    """From the capture to the outcome of all ranks."""
    protect_seconds: float
    """Waited until it was protected across nodes."""
    archive_seconds: float
    """Waited until it was in the archive."""

    @property
    def changed_share(self) -> float:
        """Bytes written anew over bytes of all variables of this rank."""
        return self.bytes_changed / self.bytes_total if self.bytes_total else 0.0

    def __str__(self) -> str:
        return (f"checkpoint {self.number}: {size(self.bytes_changed)} of {size(self.bytes_total)} changed "
                f"({self.changed_share:.1%}), blocked {duration(self.blocking_seconds)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program finished: its last checkpoint, and how safe that is."""

    report: Report
    level: Level
    """What it is safe at; where that is less than the job is set to, rank 0 said why."""

    def __str__(self) -> str:
        return f"finished with checkpoint {self.report.number}, level {self.level}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did on this rank. Sizes in bytes, times in seconds."""

    number: int
    incarnation: int
    bytes_read: int
    seconds: float
    ranks_then: int
    """Ranks of the job that took the checkpoint."""
    fell_back: int
    """Newer checkpoints that were skipped because they were damaged."""
    unclaimed: int
    """Stored variables of this rank that the program does not protect."""
    level: str
    """What it took: ``node``, ``protected`` or ``archive``; the highest of all ranks."""

    def __str__(self) -> str:
        passed = f", {self.fell_back} newer skipped" if self.fell_back else ""
        return (f"restored checkpoint {self.number} of start {self.incarnation}: {size(self.bytes_read)} in "
                f"{duration(self.seconds)}{passed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What is safe how far, as far as this node knows."""

    asked: int
    """Lost nodes of a group that were asked to be survived."""
    covered: int
    """Lost nodes that every group survives."""
    node: CheckpointId | None
    """The newest checkpoint that is durable on its nodes."""
    protected: CheckpointId | None
    """The newest that survives the loss of `covered` nodes of each group."""
    encoding: CheckpointId | None
    """The one that is being encoded."""
    shortfall: str | None
    """Why protection is less than was asked for, if it is."""
