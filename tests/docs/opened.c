/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What stands around lines of C of a page: two processes, each a node of its own, with a session that has a variable. */
#define _POSIX_C_SOURCE 200112L
#include <backstay/backstay_mpi.h>

enum { rows = 300, cols = 64 };

static double cell[rows * cols];
static backstay_session *session;

static void compute_something(void)
{
    for (int i = 0; i < rows * cols; i++)
        cell[i] += 1.0;
}

static int block(uint64_t rank, uint64_t size)
{
    const uint64_t all_rows = size * rows, all_cols = cols, first_row = rank * rows, first_col = 0;

    (void)all_rows, (void)all_cols, (void)first_row, (void)first_col;
    {
BLOCK
    }
    return backstay_message(session)[0] == '\0' ? 0 : 1;
}

int main(int argc, char **argv)
{
    char node[32];
    int rank, size, failed;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sprintf(node, "node%d", rank);
    setenv("BACKSTAY_NODE", node, 1);
    failed = backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK ||
             backstay_protect(session, "cell", BACKSTAY_F64, cell, rows * cols) != BACKSTAY_OK;
    compute_something();
    failed = failed || block((uint64_t)rank, (uint64_t)size) || backstay_checkpoint(session, NULL) != BACKSTAY_OK;
    if (failed)
        fprintf(stderr, "it says: %s\n", backstay_message(session));
    failed = backstay_close(session) != BACKSTAY_OK || failed;
    MPI_Finalize();
    return failed;
}
