/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the demo's times are compared with: baseline FOLDER BYTES TIMES.
 * Every process copies BYTES in memory, and writes them to a fresh file in FOLDER and syncs it. Prints
 * the median over TIMES until the last process is done, in seconds, as a line of JSON.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMES_MAX 101

static int rank;
static size_t bytes;
static char *from, *to, path[4096];

/* Puts other bytes into the caches, as a program between two checkpoints does. */
static void go_elsewhere(void)
{
    static char *elsewhere;
    const size_t size = (size_t)64 << 20;

    if (elsewhere == NULL && (elsewhere = calloc(1, size)) == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(elsewhere, elsewhere[0] + 1, size);
}

static int copy(void)
{
    memcpy(to, from, bytes);
    return to[bytes / 2] != from[bytes / 2];
}

static int write_and_sync(void)
{
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600), failed = file < 0;

    for (size_t done = 0; !failed && done < bytes;) {
        ssize_t wrote = pwrite(file, from + done, bytes - done, (off_t)done);
        failed = wrote <= 0;
        done += failed ? 0 : (size_t)wrote;
    }
    failed = failed || fdatasync(file) != 0;
    return close(file) != 0 || failed;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(int (*work)(void), int times)
{
    double took[TIMES_MAX];

    for (int i = 0; i < times; i++) {
        double mine = 0;

        unlink(path);
        go_elsewhere();
        MPI_Barrier(MPI_COMM_WORLD);
        mine = -MPI_Wtime();
        if (work())
            fprintf(stderr, "baseline: rank %d: %s\n", rank, path), MPI_Abort(MPI_COMM_WORLD, 2);
        MPI_Barrier(MPI_COMM_WORLD);
        mine += MPI_Wtime();
        MPI_Allreduce(&mine, &took[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    unlink(path);
    qsort(took, (size_t)times, sizeof *took, ascending);
    return took[times / 2];
}

int main(int argc, char **argv)
{
    int times = 0;
    double copied = 0, written = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc == 4) {
        bytes = (size_t)strtoull(argv[2], NULL, 10);
        times = atoi(argv[3]);
        snprintf(path, sizeof path, "%.4000s/baseline.%d", argv[1], rank);
    }
    if (bytes == 0 || times < 1 || times > TIMES_MAX)
        fprintf(stderr, "baseline FOLDER BYTES TIMES\n"), MPI_Abort(MPI_COMM_WORLD, 2);
    from = malloc(bytes);
    to = malloc(bytes);
    if (from == NULL || to == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    copied = median_seconds(copy, times);
    written = median_seconds(write_and_sync, times);
    if (rank == 0)
        printf("{\"memcpy_seconds\": %.9f, \"write_seconds\": %.9f}\n", copied, written);
    MPI_Finalize();
    return 0;
}
