/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Passes a number around all ranks, STEPS times with PAUSE_MS between; prints who is where first. It ends
 * when the file is there that BACKSTAY_LEAVE_FILE names. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, ranks, sum = 0, leave = 0;
    const char *leave_file = getenv("BACKSTAY_LEAVE_FILE");
    long steps = argc > 1 ? atol(argv[1]) : 1, pause_ms = argc > 2 ? atol(argv[2]) : 0;
    struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};
    char host[64] = "";

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    gethostname(host, sizeof host - 1);
    printf("rank %d of %d on %s\n", rank, ranks, host);
    fflush(stdout);
    for (long step = 0; step < steps; step++) {
        int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, got = -1;
        MPI_Sendrecv(&rank, 1, MPI_INT, to, 0, &got, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Allreduce(&got, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (got != from || sum != ranks * (ranks - 1) / 2)
            MPI_Abort(MPI_COMM_WORLD, 2);
        leave = leave_file != NULL && access(leave_file, F_OK) == 0;
        MPI_Allreduce(MPI_IN_PLACE, &leave, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (leave)
            break;
        nanosleep(&pause, NULL);
    }
    if (rank == 0)
        printf("done %d\n", sum);
    MPI_Finalize();
    return 0;
}
