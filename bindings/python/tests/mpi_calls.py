# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The calls of the adapter for mpi4py, in many pieces; ends with 0 where all brought what they should."""

import sys

from mpi4py import MPI

from backstay import _communicators


def part(rank):
    """The first rank brings nothing, the others several pieces."""
    return bytes((rank * 31 + at) % 256 for at in range(rank * 450))


def main():
    _communicators.PIECE_BYTES = 100
    comm = _communicators.adapt(MPI.COMM_WORLD)
    assert isinstance(comm, _communicators.Mpi)
    for root in range(comm.size):
        gathered = comm.gather(part(comm.rank), root)
        wanted = [part(rank) for rank in range(comm.size)] if comm.rank == root else None
        assert gathered == wanted, (comm.rank, root)
        for length in (0, 1, 100, 1009):
            data = bytes((comm.rank + at) % 256 for at in range(length))
            wanted = bytes((root + at) % 256 for at in range(length))
            assert comm.broadcast(data, root) == wanted, (comm.rank, root, length)
    assert comm.allgather(bytes([comm.rank])) == [bytes([rank]) for rank in range(comm.size)]
    comm.free()


if __name__ == "__main__":
    sys.exit(main())
