/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The adapter's allgather in many pieces, the last one short, as it goes above 2 GiB. */
#define BACKSTAY_MPI_PIECE_BYTES 100
#include <backstay/backstay_mpi.h>

#define BYTES 1009

int main(int argc, char **argv)
{
    backstay_mpi_context context;
    int64_t most[2] = {0, 0};
    char mine[BYTES], *all = NULL;
    int rank = 0, wrong = 0, i = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &context.size);
    MPI_Comm_dup(MPI_COMM_WORLD, &context.comm);
    all = (char *)malloc((size_t)context.size * BYTES);
    for (i = 0; i < BYTES; i++)
        mine[i] = (char)(rank * 31 + i);
    wrong = backstay_mpi_allgather(&context, mine, BYTES, all) != BACKSTAY_OK;
    for (i = 0; i < context.size * BYTES; i++)
        wrong += all[i] != (char)(i / BYTES * 31 + i % BYTES);
    most[1] = rank;
    wrong += backstay_mpi_allreduce_max(&context, most, 2) != BACKSTAY_OK;
    wrong += most[1] != context.size - 1 || backstay_mpi_barrier(&context) != BACKSTAY_OK;
    free(all);
    MPI_Comm_free(&context.comm);
    MPI_Finalize();
    return wrong != 0;
}
