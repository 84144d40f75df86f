/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The work that all systems do: a state of doubles of which a share changes before each checkpoint.
 * Each word says which rank, place and step it is from, so that what comes back proves itself.
 *
 *     work key=value ...   mib=64 shares=0,3,10,100 rounds=5 plain=FOLDER   measures
 *                          mib=16 shares=10 steps=6                         for kills and damage
 *
 * Rank 0 writes what happens to standard output, and at the end waits to be killed: no system is
 * told that the program is done. Started again, it says what came back. */
#define _GNU_SOURCE
#include "peer.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { GRANULE = 16 << 10, WORDS = GRANULE / 8, VARIABLES = 8, SHARES_MAX = 16, WARM = 3 };

static struct {
    int rank, size;
    MPI_Comm comm;
    uint64_t *words;
    uint64_t *copy;
    size_t granules;
    long *changed_at; /* of each granule: the step that changed it last */
    long step;        /* protected, too */
    double shares[SHARES_MAX];
    int shares_count;
    char **arguments;
} job;

const char *option(const char *key, const char *otherwise)
{
    size_t length = strlen(key);

    for (char **word = job.arguments; *word; word++)
        if (!strncmp(*word, key, length) && (*word)[length] == '=')
            return *word + length + 1;
    return otherwise;
}

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The word of a place as `step` left it: a double from 1 to 2. */
static uint64_t word_of(size_t place, long step)
{
    uint64_t seed = mixed((uint64_t)step * 1024 + (uint64_t)job.rank);

    return 0x3ff0000000000000u | (mixed(seed ^ place) >> 12);
}

static double share_of(long step)
{
    return step <= WARM ? 100.0 : job.shares[(step - WARM - 1) % job.shares_count];
}

/* Says which granules a step changes, in changed_at: distinct ones anywhere. */
static size_t plan(long step)
{
    size_t wanted = (size_t)((double)job.granules * share_of(step) / 100 + 0.5);
    uint64_t seed = mixed((uint64_t)step * 4099 + (uint64_t)job.rank);
    size_t done = 0;

    if (wanted >= job.granules) {
        for (size_t granule = 0; granule < job.granules; granule++)
            job.changed_at[granule] = step;
        return job.granules;
    }
    while (done < wanted) {
        size_t granule = (size_t)(seed = mixed(seed)) % job.granules;
        if (job.changed_at[granule] != step) {
            job.changed_at[granule] = step;
            done++;
        }
    }
    return done;
}

static void change(long step)
{
    plan(step);
    for (size_t granule = 0; granule < job.granules; granule++)
        if (job.changed_at[granule] == step)
            for (size_t at = granule * WORDS; at < (granule + 1) * WORDS; at++)
                job.words[at] = word_of(at, step);
    job.step = step;
}

static long sum(long value)
{
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_LONG, MPI_SUM, job.comm);
    return value;
}

/* Words that are not what the steps up to `step` made of them. */
static long wrong_words(long step)
{
    long wrong = job.step != step;

    memset(job.changed_at, 0, job.granules * sizeof *job.changed_at);
    for (long past = 1; past <= step; past++)
        plan(past);
    for (size_t at = 0; at < job.granules * WORDS; at++)
        wrong += job.words[at] != word_of(at, job.changed_at[at / WORDS]);
    return sum(wrong);
}

static double now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static double processor(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

struct cost {
    double wall, cpu;
    int failed;
};

static int call_checkpoint(long step) { return peer.checkpoint(step); }
static int call_settle(long step) { return peer.settle ? peer.settle(step) : 0; }

static int call_copy(long step)
{
    (void)step;
    memcpy(job.copy, job.words, job.granules * GRANULE);
    return 0;
}

/* The same bytes to a new file beside the system's own. */
static int call_plain(long step)
{
    char path[4096];
    const char *from = (const char *)job.words;
    size_t left = job.granules * GRANULE;
    int file;

    (void)step;
    snprintf(path, sizeof path, "%s/plain.%d", option("plain", "."), job.rank);
    unlink(path);
    file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0)
        return 1;
    while (left) {
        ssize_t wrote = write(file, from, left);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return 1;
        from += wrote;
        left -= (size_t)wrote;
    }
    return fdatasync(file) | close(file);
}

/* All ranks at once: the wall time of the slowest, the processor time of all. */
static struct cost measured(int (*call)(long), long step)
{
    struct cost cost;
    double wall, cpu;

    MPI_Barrier(job.comm);
    cpu = processor();
    wall = now();
    cost.failed = call(step) != 0;
    cost.wall = now() - wall;
    cost.cpu = processor() - cpu;
    MPI_Allreduce(MPI_IN_PLACE, &cost.wall, 1, MPI_DOUBLE, MPI_MAX, job.comm);
    MPI_Allreduce(MPI_IN_PLACE, &cost.cpu, 1, MPI_DOUBLE, MPI_SUM, job.comm);
    MPI_Allreduce(MPI_IN_PLACE, &cost.failed, 1, MPI_INT, MPI_MAX, job.comm);
    return cost;
}

static void say(const char *what, long step, struct cost cost)
{
    if (job.rank == 0) {
        printf("%s %ld %g %.9f %.9f\n", what, step, share_of(step), cost.wall, cost.cpu);
        fflush(stdout);
    }
}

static pid_t *pids;

static void kill_all(int signal)
{
    (void)signal;
    for (int rank = job.size - 1; rank >= 0; rank--)
        kill(pids[rank], SIGKILL);
}

/* All ranks are killed by rank 0 in `seconds`; they are on one node. */
static void arm(double seconds)
{
    int pid = getpid();
    struct itimerval timer = {0};

    pids = malloc((size_t)job.size * sizeof *pids);
    MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, job.comm);
    signal(SIGALRM, kill_all);
    if (seconds < 1e-6)
        seconds = 1e-6;
    timer.it_value.tv_sec = (time_t)seconds;
    timer.it_value.tv_usec = (suseconds_t)((seconds - (double)timer.it_value.tv_sec) * 1e6);
    if (job.rank == 0)
        setitimer(ITIMER_REAL, &timer, NULL);
}

/* Leaves in `cost` what the checkpoint alone blocked; returns the rest. */
static double alone(struct cost *cost)
{
    double blocked = peer.blocked ? peer.blocked() : -1, whole = cost->wall;

    MPI_Allreduce(MPI_IN_PLACE, &blocked, 1, MPI_DOUBLE, MPI_MAX, job.comm);
    if (blocked >= 0)
        cost->wall = blocked;
    return whole - cost->wall;
}

static void run(long first, long last, int measures)
{
    long kill_at = atol(option("kill_at", "0")), hold_at = atol(option("hold_at", "0"));
    double kill_share = atof(option("kill_share", "0")), former = 0;

    for (long step = first; step <= last; step++) {
        struct cost cost = {0};
        double behind;

        change(step);
        if (step == hold_at) { /* the driver takes the space away meanwhile */
            say("hold", step, cost);
            if (job.rank == 0 && getchar() == EOF)
                exit(1);
            MPI_Barrier(job.comm);
        }
        if (measures) {
            say("memcpy", step, measured(call_copy, step));
            say("plain", step, measured(call_plain, step));
        }
        say("begin", step, cost);
        if (step == kill_at)
            arm(former * kill_share);
        cost = measured(call_checkpoint, step);
        former = cost.wall;
        behind = alone(&cost);
        say(cost.failed ? "failed" : "done", step, cost);
        cost = measured(call_settle, step);
        cost.wall += behind;
        say(cost.failed ? "unsettled" : "settled", step, cost);
    }
}

static void state(size_t mib, struct region *regions)
{
    size_t bytes = mib << 20;

    job.granules = bytes / GRANULE;
    job.changed_at = calloc(job.granules, sizeof *job.changed_at);
    if (posix_memalign((void **)&job.words, 4096, bytes) || posix_memalign((void **)&job.copy, 4096, bytes) ||
        !job.changed_at)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(job.words, 0, bytes);
    memset(job.copy, 1, bytes);
    for (int index = 0; index < VARIABLES; index++) {
        snprintf(regions[index].name, sizeof regions[index].name, "field%d", index);
        regions[index].address = (char *)job.words + bytes / VARIABLES * (size_t)index;
        regions[index].bytes = bytes / VARIABLES;
    }
    snprintf(regions[VARIABLES].name, sizeof regions[VARIABLES].name, "step");
    regions[VARIABLES].address = &job.step;
    regions[VARIABLES].bytes = sizeof job.step;
}

/* 1 where the program has to begin anew. */
static int come_back(long *number)
{
    double begun = now();
    int refused = peer.restart(number) != 0;
    double took = now() - begun;
    long wrong = 0;

    MPI_Allreduce(MPI_IN_PLACE, &refused, 1, MPI_INT, MPI_MAX, job.comm);
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, job.comm);
    if (!refused && *number > 0)
        wrong = wrong_words(*number);
    if (job.rank == 0) {
        if (refused)
            printf("refused\n");
        else if (*number == 0)
            printf("nothing\n");
        else
            printf("restored %ld %ld %.9f\n", *number, wrong, took);
        fflush(stdout);
    }
    return refused || *number == 0;
}

int main(int count, char **arguments)
{
    struct region regions[VARIABLES + 1];
    char shares[256], *rest = shares, *word;
    long steps, number = 0;
    int provided, measures;

    job.arguments = arguments;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    job.comm = MPI_COMM_WORLD;
    snprintf(shares, sizeof shares, "%s", option("shares", "10"));
    while ((word = strsep(&rest, ",")) && job.shares_count < SHARES_MAX)
        job.shares[job.shares_count++] = atof(word);
    measures = atoi(option("rounds", "0"));
    steps = measures ? WARM + (long)measures * job.shares_count : atol(option("steps", "6"));
    MPI_Comm_rank(job.comm, &job.rank);
    if (peer.open(&job.comm)) {
        if (job.rank == 0)
            printf("refused\n");
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    MPI_Comm_rank(job.comm, &job.rank);
    MPI_Comm_size(job.comm, &job.size);
    state((size_t)atol(option("mib", "16")), regions);
    if (peer.protect(regions, VARIABLES + 1))
        MPI_Abort(MPI_COMM_WORLD, 3);
    if (come_back(&number)) {
        memset(job.words, 0, job.granules * GRANULE);
        number = 0;
    }
    if (!atoi(option("only_restart", "0")))
        run(number + 1, steps, measures);
    if (job.rank == 0) {
        printf("end\n");
        fflush(stdout);
    }
    for (;;)
        pause();
}
