# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A job of mpi4py that the tests kill: every word of its arrays says which step wrote it, and where it is.

It prints one line for each restore, and what is wrong; a restored array is compared word by word.
"""

import argparse
import sys

import numpy
from mpi4py import MPI

import backstay

ROWS, COLUMNS, NOBODY = 600, 64, 99


def word(rank, rows, step):
    """Rows as they are after `step`: a row changes in one step of seven, or in the first."""
    row = rows.astype(numpy.int64)[:, None]
    changed = step - (row * 7919 + rank + step) % 7
    changed = numpy.where((changed < 1) & (step >= 1), 1, changed)
    return changed * 10**9 + rank * 10**7 + row * 1000 + numpy.arange(COLUMNS) if step else numpy.zeros(
        (len(rows), COLUMNS), numpy.int64)


def own_rows(step):
    """How many rows a rank's own array has: it grows and shrinks."""
    return 50 + step % 5 * 40


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--background", action="store_true")
    settings = parser.parse_args()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    first, end = (ROWS * at // size for at in (rank, rank + 1))
    field = numpy.zeros((end - first, COLUMNS), numpy.int64)
    own = numpy.zeros((own_rows(0), COLUMNS), numpy.int64)
    step = numpy.array(0)
    notes = {}

    def tell(text):
        sys.stdout.write(f"{rank} {text}\n")
        sys.stdout.flush()

    def check(now):
        wrong = int((field != word(NOBODY, numpy.arange(first, end), now)).sum())
        wrong += int((own != word(rank, numpy.arange(own_rows(now)), now)).sum())
        if wrong or notes.get("step", now) != now:
            tell(f"WRONG {wrong} words of step {now}, notes {notes}")
            sys.stdout.flush()
            comm.Abort(5)

    with backstay.open(comm=comm) as session:
        session.protect("field", field, global_shape=(ROWS, COLUMNS), start=(first, 0))
        session.protect("step", step)
        session.protect_object("notes", lambda: {"step": int(step), "pad": "x" * (int(step) % 50)}, notes.update)
        if session.checkpoints:
            own.resize(session.stored_shape("own"), refcheck=False)
        session.protect("own", own)
        try:
            restored = session.restore()
        except backstay.NoCheckpoint:
            tell("fresh")
        else:
            check(int(step))
            notes.clear()
            tell(f"restored {restored.number} step {int(step)}")
        started = None
        while int(step) < settings.steps:
            now = int(step) + 1
            field[:] = word(NOBODY, numpy.arange(first, end), now)
            own.resize((own_rows(now), COLUMNS), refcheck=False)
            own[:] = word(rank, numpy.arange(own_rows(now)), now)
            step[...] = now
            if settings.background:
                if started is not None:
                    started.wait()
                started = session.checkpoint_start()
            else:
                session.checkpoint()
            if now == 3 and rank == 0:
                tell("under way")
        if started is not None:
            started.wait()
        check(int(step))
    tell(f"closed {int(step)}")


main()
