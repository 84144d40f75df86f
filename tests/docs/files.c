/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What stands around lines of C of a page that are about files: two processes, each a node of its own, that have written a
 * set of files already. */
#define _POSIX_C_SOURCE 200112L
#include <backstay/backstay_mpi.h>

static double state[1000];
static backstay_session *session;

static int dump(int step, int rank)
{
    char name[64], routed[4096];
    FILE *file;
    int valid;

    backstay_output_start(session);
    sprintf(name, "ckpt.%d/rank_%d.dat", step, rank);
    backstay_route_file(session, name, routed, sizeof routed);
    file = fopen(routed, "wb");
    valid = file != NULL && fwrite(state, sizeof state, 1, file) == 1;
    valid = file != NULL && fclose(file) == 0 && valid;
    return backstay_output_complete(session, valid, NULL) == BACKSTAY_OK;
}

static int block(int rank)
{
    const uint32_t old_rank = (uint32_t)rank;
    const int step = 8;
    char name[64], names[4096], routed[4096];
    int status = BACKSTAY_OK, valid = 1;
    size_t count = 1;
    FILE *file;

    (void)old_rank, (void)step, (void)name, (void)names, (void)routed, (void)file;
    {
BLOCK
    }
    return status == BACKSTAY_OK && valid && count == 1 && backstay_message(session)[0] == '\0';
}

int main(int argc, char **argv)
{
    char node[32];
    int rank, good;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    sprintf(node, "node%d", rank);
    setenv("BACKSTAY_NODE", node, 1);
    good = backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) == BACKSTAY_OK && dump(7, rank) && block(rank);
    if (!good)
        fprintf(stderr, "it says: %s\n", backstay_message(session));
    good = backstay_close(session) == BACKSTAY_OK && good;
    MPI_Finalize();
    return !good;
}
