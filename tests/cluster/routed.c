// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: each rank writes its state of each step to a file, reads that of the next
 * rank, and goes on from the newest step that all ranks have.
 *
 *     routed STEPS WORDS PAUSE_US
 *
 * Files: out/restart.STEP.RANK, and out/latest, which rank 0 renames from out/latest.new when all have written. Files of the
 * step before the last are removed by the rank before that which wrote them. Rank 0 prints "found STEP", "begun STEP" and
 * "done STEP"; any rank "rank R on HOST", and "bad ..." before it ends with 3 where a file is not whole or not there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size;
static long words;

static uint64_t word(uint64_t step, uint64_t of, uint64_t at)
{
    uint64_t x = step * 0x9e3779b97f4a7c15u + of * 0xc2b2ae3d27d4eb4fu + at;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

static long length_of(long step, int of)
{
    return 1 + (long)(word((uint64_t)step, (uint64_t)of, 99) % (uint64_t)words);
}

static void fail(const char *what, const char *name)
{
    printf("bad rank %d: %s %s\n", rank, name, what);
    fflush(stdout);
    _exit(3);
}

static char *name_of(long step, int of)
{
    static char names[2][64];
    static int turn;
    turn = !turn;
    snprintf(names[turn], sizeof names[turn], "out/restart.%ld.%d", step, of);
    return names[turn];
}

static void write_step(long step)
{
    const char *name = name_of(step, rank);
    FILE *file = fopen(name, "wb");
    if (file == NULL)
        fail("cannot be opened for writing", name);
    for (long at = 0; at < length_of(step, rank); at++) {
        uint64_t value = word((uint64_t)step, (uint64_t)rank, (uint64_t)at);
        if (fwrite(&value, sizeof value, 1, file) != 1)
            fail("cannot be written", name);
    }
    if (fclose(file) != 0)
        fail("cannot be closed", name);
}

static void judge(long step, int of)
{
    const char *name = name_of(step, of);
    struct stat about;
    uint64_t value;
    FILE *file;
    if (stat(name, &about) != 0)
        fail("is not there", name);
    if (about.st_size != length_of(step, of) * 8)
        fail("has another size", name);
    file = fopen(name, "rb");
    if (file == NULL)
        fail("cannot be opened", name);
    for (long at = 0; at < length_of(step, of); at++)
        if (fread(&value, sizeof value, 1, file) != 1 || value != word((uint64_t)step, (uint64_t)of, (uint64_t)at))
            fail("is not whole", name);
    if (fread(&value, 1, 1, file) != 0)
        fail("is too long", name);
    fclose(file);
}

static void write_latest(long step)
{
    FILE *file = fopen("out/latest.new", "w");
    if (file == NULL || fprintf(file, "%ld\n", step) < 0 || fclose(file) != 0)
        fail("cannot be written", "out/latest.new");
    if (rename("out/latest.new", "out/latest") != 0)
        fail("cannot be renamed", "out/latest.new");
}

/* The newest step by the names of the folder, of which all ranks have a file; and by out/latest, which is not newer. */
static long find(void)
{
    long steps[64], newest = 0, step, latest = 0;
    int counts[64], known = 0, of, at;
    DIR *folder = opendir("out");
    struct dirent *entry;
    FILE *file;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (sscanf(entry->d_name, "restart.%ld.%d", &step, &of) != 2)
            continue;
        for (at = 0; at < known && steps[at] != step; at++)
            ;
        if (at == known) {
            if (known == 64)
                fail("has too many steps", "out");
            steps[known] = step;
            counts[known++] = 0;
        }
        counts[at]++;
    }
    if (folder != NULL)
        closedir(folder);
    for (at = 0; at < known; at++)
        newest = steps[at] > newest ? steps[at] : newest;
    for (at = 0; at < known; at++)
        if (steps[at] == newest && counts[at] != size) {
            char what[64];
            snprintf(what, sizeof what, "is of a step of which %d files are there", counts[at]);
            fail(what, name_of(newest, 0));
        }
    file = fopen("out/latest", "r");
    if (file != NULL) {
        if (fscanf(file, "%ld", &latest) != 1)
            fail("is empty", "out/latest");
        fclose(file);
    }
    if (latest > newest)
        fail("names a step that is not there", "out/latest");
    return newest;
}

int main(int argc, char **argv)
{
    long steps, pause_us, newest = 0;
    char host[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4)
        return 2;
    steps = atol(argv[1]);
    words = atol(argv[2]);
    pause_us = atol(argv[3]);
    gethostname(host, sizeof host);
    printf("rank %d on %s, process %d\n", rank, host, (int)getpid());
    fflush(stdout);
    newest = find();
    /* All see the same. */
    long both[2] = {newest, -newest};
    MPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (both[0] != -both[1])
        fail("is seen by some ranks only", name_of(both[0], rank));
    if (newest > 0) {
        judge(newest, rank);
        judge(newest, (rank + 1) % size);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("found %ld\n", newest), fflush(stdout);
    for (long step = newest + 1; step <= steps; step++) {
        if (rank == 0)
            printf("begun %ld\n", step), fflush(stdout);
        write_step(step);
        MPI_Barrier(MPI_COMM_WORLD);
        /* What another rank closed is there for all. */
        judge(step, (rank + 1) % size);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            write_latest(step);
        if (step > 2 && access(name_of(step - 2, (rank + 1) % size), F_OK) == 0
            && unlink(name_of(step - 2, (rank + 1) % size)) != 0)
            fail("cannot be removed", name_of(step - 2, (rank + 1) % size));
        MPI_Barrier(MPI_COMM_WORLD);
        if (step > 2 && access(name_of(step - 2, rank), F_OK) == 0)
            fail("is there still", name_of(step - 2, rank));
        if (rank == 0)
            printf("done %ld\n", step), fflush(stdout);
        usleep((useconds_t)pause_us);
    }
    MPI_Finalize();
    return 0;
}
