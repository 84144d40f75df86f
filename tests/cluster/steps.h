// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What programs over nodes share that write one file a step: what they print, and how they go on from the newest step that is there.
 *
 * Rank 0 prints "found STEP", "begun STEP" and "done STEP"; any rank "rank R on HOST, process P", and "bad ..." before it ends with 3. */
#ifndef STEPS_H
#define STEPS_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static int rank, size;

static void fail(const char *what, long step)
{
    printf("bad rank %d, step %ld: %s\n", rank, step, what);
    fflush(stdout);
    _exit(3);
}

__attribute__((unused)) static uint64_t word(uint64_t step, uint64_t row, uint64_t column)
{
    uint64_t x = step * 0x9e3779b97f4a7c15u + row * 0xc2b2ae3d27d4eb4fu + column;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

/* `number`: of the step, or of the name where two are written in turn. */
static char *name_of_step(long number)
{
    static char name[64];
    snprintf(name, sizeof name, "out/field.%ld", number);
    return name;
}

static void begin(int *argc, char ***argv)
{
    char host[64];
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gethostname(host, sizeof host);
    printf("rank %d on %s, process %d\n", rank, host, (int)getpid());
    fflush(stdout);
}

static void say_step(const char *word_of, long step)
{
    if (rank == 0)
        printf("%s %ld\n", word_of, step), fflush(stdout);
}

/* Whether all ranks see the file of a step; an error where only some do. */
__attribute__((unused)) static int is_there(long step)
{
    int here = access(name_of_step(step), F_OK) == 0, all;
    MPI_Allreduce(&here, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (all != 0 && all != size)
        fail("is seen by some ranks only", step);
    return all != 0;
}

/* Goes on from the newest step that is there, which `judge` says and looks through, and removes the file before the last. */
__attribute__((unused)) static void go_on(long steps, long pause_us, int (*judge)(long), void (*write_step)(long))
{
    long found = 0;
    for (long step = 1; step <= steps; step++)
        if (judge(step))
            found = step;
    say_step("found", found);
    for (long step = found + 1; step <= steps; step++) {
        say_step("begun", step);
        write_step(step);
        if (!judge(step))
            fail("it is not there", step);
        if (rank == 0 && step > 2 && access(name_of_step(step - 2), F_OK) == 0 && unlink(name_of_step(step - 2)) != 0)
            fail("the one before the last cannot be removed", step);
        MPI_Barrier(MPI_COMM_WORLD);
        say_step("done", step);
        usleep((useconds_t)pause_us);
    }
}

#endif
