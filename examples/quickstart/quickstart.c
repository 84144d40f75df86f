/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The five calls that make a program restartable. Run it, kill it, run it again: when it has finished, it begins anew. */
#define _POSIX_C_SOURCE 199309L
#include <backstay/backstay_mpi.h>
#include <time.h>

#define CELLS 1000000

static double cell[CELLS];

/* Stands for the work of a step. */
static void compute(void)
{
    const struct timespec pause = {0, 200000000};

    for (int i = 0; i < CELLS; i++)
        cell[i] += 1.0;
    nanosleep(&pause, NULL);
}

/* What only this rank was told: it says so, and ends the others, too. */
static int failed_here(backstay_session *session)
{
    fprintf(stderr, "quickstart: %s\n", backstay_message(session));
    return MPI_Abort(MPI_COMM_WORLD, 1);
}

/* What all ranks were told alike, the first one says. */
static int failed(backstay_session *session, int rank)
{
    if (rank == 0)
        fprintf(stderr, "quickstart: %s\n", backstay_message(session));
    MPI_Finalize();
    return 1;
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : 100;
    backstay_session *session = NULL;
    int64_t step = 0;
    int rank = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK)
        return failed(session, rank);
    if (backstay_protect(session, "cell", BACKSTAY_F64, cell, CELLS) != BACKSTAY_OK ||
        backstay_protect(session, "step", BACKSTAY_I64, &step, 1) != BACKSTAY_OK)
        return failed_here(session);
    if (backstay_restore(session, NULL) > BACKSTAY_NO_CHECKPOINT)
        return failed(session, rank);
    while (step < steps) {
        compute();
        step++;
        if (step % 10 == 0 && backstay_checkpoint(session, NULL) != BACKSTAY_OK && rank == 0)
            fprintf(stderr, "quickstart: %s\n", backstay_message(session));
    }
    if (backstay_finish(session) != BACKSTAY_OK)
        return failed(NULL, rank);
    if (rank == 0)
        printf("step %d: every cell is %.0f\n", (int)step, cell[0]);
    MPI_Finalize();
    return 0;
}
