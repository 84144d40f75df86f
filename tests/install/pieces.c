/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The adapter's allgather, gather and broadcast in many pieces, the last one short, as they go above 2 GiB. */
#define BACKSTAY_MPI_PIECE_BYTES 100
#include <backstay/backstay_mpi.h>

#define BYTES 1009

/* Rank r brings r times 450 bytes to the last one: the first none, the others several pieces. */
static int gathers(backstay_mpi_context *context, const char *mine)
{
    uint32_t root = (uint32_t)context->size - 1;
    int is_root = context->rank == (int)root, rank = 0, i = 0, wrong = 0;
    size_t *lengths = is_root ? (size_t *)malloc((size_t)context->size * sizeof *lengths) : NULL;
    const void *all = NULL;
    const char *at = NULL;

    wrong = backstay_mpi_gather(context, mine, (size_t)context->rank * 450, root, lengths,
                                is_root ? &all : NULL) != BACKSTAY_OK;
    at = (const char *)all;
    for (rank = 0; is_root && !wrong && rank < context->size; rank++) {
        wrong += lengths[rank] != (size_t)rank * 450;
        for (i = 0; i < rank * 450; i++)
            wrong += *at++ != (char)(rank * 31 + i);
    }
    free(lengths);
    return wrong;
}

static int broadcasts(backstay_mpi_context *context, const char *mine)
{
    char bytes[BYTES];
    int i = 0, wrong = 0;

    memcpy(bytes, mine, BYTES);
    wrong = backstay_mpi_broadcast(context, bytes, BYTES, 1) != BACKSTAY_OK;
    for (i = 0; i < BYTES; i++)
        wrong += bytes[i] != (char)(31 + i);
    return wrong;
}

int main(int argc, char **argv)
{
    backstay_mpi_context context;
    int64_t most[2] = {0, 0};
    char mine[BYTES], *all = NULL;
    int rank = 0, wrong = 0, i = 0;

    context.gathered = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    context.rank = rank;
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
    /* Twice: the second gather has the memory of the first. */
    wrong += gathers(&context, mine) + broadcasts(&context, mine) + gathers(&context, mine);
    free(all);
    free(context.gathered);
    MPI_Comm_free(&context.comm);
    MPI_Finalize();
    return wrong != 0;
}
