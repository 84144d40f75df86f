/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The five calls that make a program restartable. Run it, kill it, run it again. */
#include <backstay/backstay_mpi.h>

#define CELLS 1000000
#define STEPS 100

static double cell[CELLS];

int main(int argc, char **argv)
{
    backstay_session *session = NULL;
    int64_t step = 0;

    MPI_Init(&argc, &argv);
    if (backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK)
        return fprintf(stderr, "%s\n", backstay_message(NULL)), 1;
    backstay_protect(session, "cell", BACKSTAY_F64, cell, CELLS);
    backstay_protect(session, "step", BACKSTAY_I64, &step, 1);
    if (backstay_restore(session, NULL) > BACKSTAY_NO_CHECKPOINT)
        return fprintf(stderr, "%s\n", backstay_message(session)), 1;
    while (step < STEPS) {
        for (int i = 0; i < CELLS; i++)
            cell[i] += 1.0;
        step++;
        if (step % 10 == 0 && backstay_checkpoint(session, NULL) != BACKSTAY_OK)
            fprintf(stderr, "%s\n", backstay_message(session));
    }
    backstay_close(session);
    printf("step %d: every cell is %.0f\n", (int)step, cell[0]);
    MPI_Finalize();
    return 0;
}
