# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Waves on a square membrane, on any number of MPI processes, restartable with Backstay.

    mpirun -n 4 python examples/python/waves.py 2000 waves.png

Each process has some rows of the membrane, and exchanges one row with each neighbour in a step. The result does not
depend on how many processes there are. What makes it restartable is in `main`, between `open` and the end of `with`.
"""

import sys

import numpy
from mpi4py import MPI

import backstay

SIDE = 480
COURANT = 0.5

comm = MPI.COMM_WORLD


def exchange(height):
    """Fills the halo: the row above the first and the one below the last."""
    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(height[1], above, recvbuf=height[-1], source=below)
    comm.Sendrecv(height[-2], below, recvbuf=height[0], source=above)


def advance(height, before):
    """The membrane a step later, in the memory of `before`; its edge is fixed."""
    exchange(height)
    middle = height[1:-1, 1:-1]
    around = height[:-2, 1:-1] + height[2:, 1:-1] + height[1:-1, :-2] + height[1:-1, 2:]
    before[1:-1, 1:-1] = 2 * middle - before[1:-1, 1:-1] + COURANT**2 * (around - 4 * middle)


def begin(height, first):
    """A drop in the middle of the upper left quarter."""
    rows = numpy.arange(first - 1, first - 1 + len(height))[:, None] / SIDE
    columns = numpy.arange(SIDE) / SIDE
    height[:] = numpy.exp(-800 * ((rows - 0.25) ** 2 + (columns - 0.25) ** 2))
    height[:, [0, -1]] = 0


def picture(height, step, path):
    """The whole membrane as a picture, drawn by rank 0."""
    rows = comm.gather(height[1:-1])
    if comm.rank == 0:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot

        pyplot.rcParams.update({"font.size": 15, "axes.titlesize": 16, "axes.titlelocation": "left"})
        figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
        membrane = axes.imshow(numpy.concatenate(rows), cmap="RdBu", vmin=-0.2, vmax=0.2)
        figure.colorbar(membrane, extend="both", label="height (the bump at first: 1)")
        processes = "1 process" if comm.size == 1 else f"{comm.size} processes"
        axes.set(title=f"A membrane after {step} steps, {processes}", xlabel="column", ylabel="row")
        figure.savefig(path, dpi=120)
        print(f"picture in {path}")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    steps = int(sys.argv[1])
    first, end = (SIDE * at // comm.size for at in (comm.rank, comm.rank + 1))
    # Rows of this process, and one of each neighbour around them.
    height, before = (numpy.zeros((end - first + 2, SIDE)) for _ in range(2))
    step = numpy.array(0)
    with backstay.open(comm=comm) as session:
        whole = {"global_shape": (SIDE, SIDE), "start": (first, 0)}
        session.protect("height", height[1:-1], **whole)
        session.protect("before", before[1:-1], **whole)
        session.protect("step", step, global_shape=(), start=())
        try:
            restored = session.restore()
            if comm.rank == 0:
                print(f"{restored}; going on from step {step}")
        except backstay.NoCheckpoint:
            begin(height, first)
            before[:] = height
        while step < steps:
            advance(height, before)
            height[:], before[:] = before.copy(), height
            step += 1
            if session.due():
                report = session.checkpoint()
                if comm.rank == 0:
                    print(f"step {step}: {report}")
            if session.should_leave:
                break
        session.checkpoint()
    total = comm.allreduce(float((height[1:-1] ** 2).sum()))
    if comm.rank == 0:
        print(f"step {step}: sum of squares {total:.12e}")
    if len(sys.argv) == 3:
        picture(height, int(step), sys.argv[2])


main()
