/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Around lines of C of a page that open a session: two processes, each a node of its own. A file that includes this has block. */
#define _POSIX_C_SOURCE 200112L
#include <backstay/backstay_mpi.h>

enum { cells = 10000 };

static double cell[cells];
static backstay_session *session;

static int failed(void)
{
    fprintf(stderr, "it says: %s\n", backstay_message(session));
    return MPI_Abort(MPI_COMM_WORLD, 1);
}

static void compute_something(void)
{
    for (int i = 0; i < cells; i++)
        cell[i] += 1.0;
}

static int block(void);

int main(int argc, char **argv)
{
    char node[32];
    int rank, bad;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    sprintf(node, "node%d", rank);
    setenv("BACKSTAY_NODE", node, 1);
    bad = block();
    bad = backstay_close(session) != BACKSTAY_OK || bad;
    MPI_Finalize();
    return bad;
}
