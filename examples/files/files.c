/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program that writes files of its own to restart from, as with SCR, and keeps a log. Run it, kill it, run it again. */
#define _POSIX_C_SOURCE 199309L
#include <backstay/backstay_mpi.h>
#include <time.h>

#define CELLS 500000

static double cell[CELLS];
static int rank;

/* Stands for the work of a step. */
static void compute(void)
{
    const struct timespec pause = {0, 100000000};

    for (int i = 0; i < CELLS; i += 7)
        cell[i] += 1.0;
    nanosleep(&pause, NULL);
}

static int failed(backstay_session *session)
{
    fprintf(stderr, "files: rank %d: %s\n", rank, backstay_message(session));
    return MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Writes the state of a step; whether all of it could be written. */
static int write_state(backstay_session *session, int step)
{
    char name[64], routed[4096];
    FILE *file;
    int written;

    snprintf(name, sizeof name, "ckpt.%d/rank_%d.dat", step, rank);
    if (backstay_route_file(session, name, routed, sizeof routed) != BACKSTAY_OK)
        return 0;
    file = fopen(routed, "wb");
    if (file == NULL)
        return 0;
    written = fwrite(&step, sizeof step, 1, file) == 1 && fwrite(cell, sizeof *cell, CELLS, file) == CELLS;
    /* Closed before the set is complete: what is in the buffer of stdio is not in the file. */
    return fclose(file) == 0 && written;
}

/* Reads the state of the step that the set is of; whether all of it was there. */
static int read_state(backstay_session *session, int *step)
{
    char name[4096], routed[4096];
    size_t count = 0;
    FILE *file;
    int read;

    /* The names of the set say the step; the log, if there is one, is named "log". */
    if (backstay_stored_files(session, (uint32_t)rank, name, sizeof name, &count, NULL) != BACKSTAY_OK || count == 0 ||
        backstay_route_file(session, name, routed, sizeof routed) != BACKSTAY_OK)
        return 0;
    file = fopen(routed, "rb");
    if (file == NULL)
        return 0;
    read = fread(step, sizeof *step, 1, file) == 1 && fread(cell, sizeof *cell, CELLS, file) == CELLS;
    fclose(file);
    return read;
}

/* From the newest set that all ranks can read; from the beginning where there is none. */
static int restart(backstay_session *session, int *step)
{
    for (;;) {
        const int32_t status = backstay_restart_start(session, NULL);

        if (status == BACKSTAY_NO_CHECKPOINT)
            return 0;
        if (status != BACKSTAY_OK)
            return failed(session);
        if (backstay_restart_complete(session, read_state(session, step)) == BACKSTAY_OK)
            return 0;
        *step = 0;
    }
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : 100;
    const char *path = argc > 2 ? argv[2] : "files.log";
    backstay_session *session = NULL;
    FILE *record = NULL;
    int step = 0, i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK)
        return failed(NULL);
    /* One rank has the log: a restart puts it back as it was, without the lines of steps that are done again. */
    if (rank == 0 && backstay_protect_file(session, "log", path) != BACKSTAY_OK)
        return failed(session);
    restart(session, &step);
    if (rank == 0) {
        record = fopen(path, step > 0 ? "a" : "w");
        if (record == NULL)
            return MPI_Abort(MPI_COMM_WORLD, 1);
        printf("begins with step %d\n", step);
        fflush(stdout);
    }
    while (step < steps) {
        compute();
        step++;
        if (rank == 0)
            fprintf(record, "step %d\n", step);
        if (step % 10 != 0)
            continue;
        if (rank == 0)
            fflush(record);
        if (backstay_output_start(session) != BACKSTAY_OK)
            return failed(session);
        if (backstay_output_complete(session, write_state(session, step), NULL) != BACKSTAY_OK && rank == 0)
            fprintf(stderr, "files: %s\n", backstay_message(session));
    }
    for (i = 0; i < CELLS; i++)
        if (cell[i] != (i % 7 == 0 ? (double)steps : 0.0))
            return MPI_Abort(MPI_COMM_WORLD, 2);
    if (rank == 0)
        fclose(record);
    if (backstay_finish(session) != BACKSTAY_OK)
        return failed(NULL);
    if (rank == 0)
        printf("step %d: every cell is right\n", step);
    MPI_Finalize();
    return 0;
}
