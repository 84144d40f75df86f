# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Communicators that a program brings, as the calls that a session makes.

None, a communicator of mpi4py, a process group of torch.distributed, or any object with what `Communicator` names.
Each is used through a duplicate of its own where it can be duplicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ._errors import CommunicatorError, InvalidArgument


# Most bytes that one call of MPI brings here, and the messages of a gather.
PIECE_BYTES = 1 << 30
TAG = 1


@runtime_checkable
class Communicator(Protocol):
    """How the processes of a job reach each other.

    All processes make the same calls in the same order, one at a time. What a call raises ends up as the cause of a
    `CommunicatorError`, after which the session can only be closed.

    A restart of many processes costs each of them less where the object has two calls more, on all ranks or on none:
    `gather(mine: bytes, root: int) -> list[bytes] | None`, the bytes of every rank, each of its own length, on rank
    `root`, and None on the others; `broadcast(data: bytes, root: int) -> bytes`, those of rank `root`, which are as
    many on every rank.
    """

    @property
    def rank(self) -> int:
        """This process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def allgather(self, mine: bytes, /) -> Sequence[bytes]:
        """The bytes of every rank, in rank order; they are equally many."""

    def allreduce_max(self, values: list[int], /) -> list[int]:
        """The maximum of each value, signed and of 64 bits, over all ranks."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""


class Mpi:
    """A duplicate of a communicator of mpi4py."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        if not MPI.Is_initialized() or MPI.Is_finalized():
            raise InvalidArgument("MPI is not initialized, or finalized already")
        if comm.Is_inter():
            raise InvalidArgument("an intercommunicator has two groups; give the one of all processes (Merge)")
        self._mpi = MPI
        self._comm = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def _check(self) -> None:
        if self._mpi.Is_finalized():
            raise CommunicatorError("MPI was finalized before the session was closed")

    def allgather(self, mine: bytes) -> list[bytes]:
        self._check()
        length, mpi = len(mine), self._mpi
        together = bytearray(length * self.size)
        self._comm.Allgather([mine, length, mpi.BYTE], [together, length, mpi.BYTE])
        return [bytes(together[at * length:(at + 1) * length]) for at in range(self.size)]

    def allreduce_max(self, values: list[int]) -> list[int]:
        from array import array

        self._check()
        mine, greatest = array("q", values), array("q", values)
        self._comm.Allreduce([mine, self._mpi.INT64_T], [greatest, self._mpi.INT64_T], self._mpi.MAX)
        return greatest.tolist()

    def barrier(self) -> None:
        self._check()
        self._comm.Barrier()

    def gather(self, mine: bytes, root: int) -> list[bytes] | None:
        # As backstay_mpi.h does it, for the same reasons: the counts of MPI are int.
        from array import array

        self._check()
        mpi, comm = self._mpi, self._comm
        is_root = self.rank == root
        lengths = array("Q", bytes(8 * self.size)) if is_root else None
        comm.Gather([array("Q", [len(mine)]), mpi.UINT64_T], [lengths, mpi.UINT64_T] if is_root else None, root)
        if lengths is None:
            for at in range(0, len(mine), PIECE_BYTES):
                comm.Send([mine[at:at + PIECE_BYTES], mpi.BYTE], root, TAG)
            return None
        parts = []
        for rank, length in enumerate(lengths):
            part = bytearray(length)
            if rank == root:
                part[:] = mine
            else:
                for at in range(0, length, PIECE_BYTES):
                    comm.Recv([memoryview(part)[at:at + PIECE_BYTES], mpi.BYTE], rank, TAG)
            parts.append(bytes(part))
        return parts

    def broadcast(self, data: bytes, root: int) -> bytes:
        self._check()
        everything = bytearray(data)
        for at in range(0, len(data), PIECE_BYTES):
            self._comm.Bcast([memoryview(everything)[at:at + PIECE_BYTES], self._mpi.BYTE], root)
        return bytes(everything)

    def free(self) -> None:
        """All processes together."""
        if not self._mpi.Is_finalized():
            self._comm.Free()


class Torch:
    """A process group of torch.distributed; where it does not work on the CPU, a gloo group of the same ranks."""

    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        ranks = dist.get_process_group_ranks(group)
        self._group: Any = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self.rank: int = dist.get_rank(self._group)
        self.size: int = dist.get_world_size(self._group)

    def allgather(self, mine: bytes) -> list[bytes]:
        tensor = self._torch.frombuffer(bytearray(mine), dtype=self._torch.uint8)
        parts = [self._torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(parts, tensor, group=self._group)
        return [part.numpy().tobytes() for part in parts]

    def allreduce_max(self, values: list[int]) -> list[int]:
        tensor = self._torch.tensor(values, dtype=self._torch.int64)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group)
        greatest: list[int] = tensor.tolist()
        return greatest

    def barrier(self) -> None:
        self._dist.barrier(group=self._group)

    def free(self) -> None:
        """All processes together."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group(self._group)


def adapt(comm: Any) -> Communicator | None:
    """`comm` as a session uses it; None for a program of one process."""
    if comm is None:
        return None
    package = type(comm).__module__.partition(".")[0]
    if package == "mpi4py":
        return Mpi(comm)
    if package == "torch":
        return Torch(comm)
    if isinstance(comm, Communicator):
        return comm
    raise InvalidArgument(
        f"comm is {type(comm).__qualname__}: give a communicator of mpi4py, a process group of torch.distributed, or "
        "an object with rank, size, allgather, allreduce_max and barrier (backstay.Communicator)")
