// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay and writes one file of all its ranks by MPI-IO, and goes on from the newest.
 *
 *     mpiio STEPS BLOCKS PAUSE_US
 *
 * Ranks have blocks of 512 numbers in turns (a view); rank 0 writes a head of its own. All is written collectively to
 * out/field.STEP; the file before the last is removed. Prints "pid PID" of each rank, and of rank 0 "found STEP" (0: nothing),
 * then "begun STEP" and "done STEP" around each; "bad ..." where a file is not whole or not of one step. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 512, HEAD_BYTES = 4096 };
static int rank, ranks;
static long blocks;

static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    printf("bad %s: %s\n", what, text);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static double word(long step, long block, long at)
{
    return (double)(((uint64_t)step * 1000003u + (uint64_t)(block * BLOCK + at)) * 2654435761u % 1000000007u);
}

/* A view of this rank's blocks behind the head. */
static void look_at_blocks(MPI_File file)
{
    MPI_Datatype mine, spaced;
    MPI_Type_contiguous(BLOCK, MPI_DOUBLE, &mine);
    MPI_Type_create_resized(mine, 0, (MPI_Aint)ranks * BLOCK * (MPI_Aint)sizeof(double), &spaced);
    MPI_Type_commit(&spaced);
    MPI_Offset start = HEAD_BYTES + (MPI_Offset)rank * BLOCK * (MPI_Offset)sizeof(double);
    check(MPI_File_set_view(file, start, MPI_DOUBLE, spaced, "native", MPI_INFO_NULL), "a view");
    MPI_Type_free(&spaced);
    MPI_Type_free(&mine);
}

static void write_step(long step, double *values)
{
    char name[64];
    MPI_File file;
    snprintf(name, sizeof name, "out/field.%ld", step);
    check(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "creating");
    check(MPI_File_set_size(file, 0), "a size");
    look_at_blocks(file);
    for (long block = 0; block < blocks; block++)
        for (long at = 0; at < BLOCK; at++)
            values[block * BLOCK + at] = word(step, block * ranks + rank, at);
    check(MPI_File_write_all(file, values, (int)(blocks * BLOCK), MPI_DOUBLE, MPI_STATUS_IGNORE), "writing");
    check(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "the plain view");
    long head[2] = {step, ranks};
    if (rank == 0)
        check(MPI_File_write_at(file, 0, head, sizeof head, MPI_BYTE, MPI_STATUS_IGNORE), "the head");
    check(MPI_File_sync(file), "a sync");
    check(MPI_File_close(&file), "closing");
    snprintf(name, sizeof name, "out/field.%ld", step - 2);
    if (rank == 0 && access(name, F_OK) == 0)
        check(MPI_File_delete(name, MPI_INFO_NULL), "deleting");
}

/* Whether the file of a step is there; if so it has to be whole. */
static int read_step(long step, double *values)
{
    char name[64];
    MPI_File file;
    MPI_Offset size;
    snprintf(name, sizeof name, "out/field.%ld", step);
    if (MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS)
        return 0;
    long head[2] = {0, 0};
    check(MPI_File_read_at_all(file, 0, head, sizeof head, MPI_BYTE, MPI_STATUS_IGNORE), "reading the head");
    check(MPI_File_get_size(file, &size), "the size");
    MPI_Offset whole = HEAD_BYTES + (MPI_Offset)blocks * ranks * BLOCK * (MPI_Offset)sizeof(double);
    if (head[0] != step || head[1] != ranks || size != whole) {
        printf("bad step %ld: its file is of step %ld and %ld ranks, %lld bytes\n", step, head[0], head[1], (long long)size);
        fflush(stdout);
    }
    look_at_blocks(file);
    check(MPI_File_read_all(file, values, (int)(blocks * BLOCK), MPI_DOUBLE, MPI_STATUS_IGNORE), "reading");
    for (long block = 0; block < blocks; block++)
        for (long at = 0; at < BLOCK; at++)
            if (values[block * BLOCK + at] != word(step, block * ranks + rank, at)) {
                printf("bad step %ld: rank %d, block %ld, number %ld\n", step, rank, block, at);
                fflush(stdout);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
    check(MPI_File_close(&file), "closing what was read");
    return 1;
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    long steps = atol(arguments[1]);
    useconds_t pause = (useconds_t)atol(arguments[3]);
    blocks = atol(arguments[2]);
    double *values = malloc((size_t)blocks * BLOCK * sizeof *values);
    if (values == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    long step = steps;
    while (step > 0 && !read_step(step, values))
        step--;
    if (rank == 0)
        printf("found %ld\n", step);
    fflush(stdout);
    for (step++; step <= steps; step++) {
        if (rank == 0)
            printf("begun %ld\n", step);
        fflush(stdout);
        write_step(step, values);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("done %ld\n", step);
        fflush(stdout);
        usleep(pause);
    }
    free(values);
    MPI_Finalize();
    return 0;
}
