/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counts to the step given, checkpoints, and tells where it began. Also compiled as C++. */
#include <backstay/backstay.h>
#include <backstay/backstay_mpi.h>
#include <backstay/backstay.h>

#define CELLS 5000

static double cell[CELLS];

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

int main(int argc, char **argv)
{
    backstay_session *session = NULL;
    backstay_options *options = backstay_options_new();
    backstay_report report = backstay_report_default();
    int64_t step = 0, first = 0;
    int until = argc > 1 ? atoi(argv[1]) : 10;
    int rank = 0, i = 0;
    int32_t status = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    backstay_option_set(options, "reserve_bytes", "64MiB");
    if (backstay_mpi_open(MPI_COMM_WORLD, options, &session) != BACKSTAY_OK)
        return fail("open", backstay_message(NULL));
    backstay_options_free(options);
    if (backstay_protect(session, "cell", BACKSTAY_F64, cell, CELLS) != BACKSTAY_OK ||
        backstay_protect(session, "step", BACKSTAY_I64, &step, 1) != BACKSTAY_OK)
        return fail("protect", backstay_message(session));
    status = backstay_restore(session, NULL);
    if (status != BACKSTAY_OK && status != BACKSTAY_NO_CHECKPOINT)
        return fail("restore", backstay_message(session));
    first = step;
    while (step < until) {
        step++;
        for (i = 0; i < CELLS; i++)
            cell[i] += rank + 1;
        if (step % 10 == 0 && backstay_checkpoint(session, &report) != BACKSTAY_OK)
            return fail("checkpoint", backstay_message(session));
    }
    for (i = 0; i < CELLS; i++)
        if (cell[i] != (double)(until * (rank + 1)))
            return fail("cell", "holds another number than it should");
    if (backstay_close(session) != BACKSTAY_OK)
        return fail("close", backstay_message(NULL));
    if (rank == 0)
        printf("from step %d to step %d, %d bytes protected\n", (int)first, (int)step,
               (int)report.bytes_total);
    MPI_Finalize();
    return 0;
}
