// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: writes its state to files, as programs do, and goes on from the newest.
 *
 *     writer HOW STEPS WORDS PAUSE_US RANKS
 *
 * HOW: rename (out/restart.STEP.tmp, then its name; the one before the last is removed), numbered (out/restart.STEP),
 * alternate (out/restart.a and .b in turn), in-place (out/restart, of several ranks out/restart.RANK), mapped (in place,
 * by a mapping), update (in place, without truncating), ranks (out/restart.STEP.RANK). Prints "found STEP" (0: nothing),
 * then "begun STEP" and "done STEP" around each; "bad ..." and exit 3 where a file is not whole or not of one step. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how;
static long words, ranks;

static uint64_t word(uint64_t step, uint64_t rank, uint64_t at)
{
    uint64_t x = step * 0x9e3779b97f4a7c15u + rank * 0xc2b2ae3d27d4eb4fu + at;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

/* So long is the file of a step: not always the same. */
static long length_of(long step)
{
    return 3 + (long)(word((uint64_t)step, 99, 0) % (uint64_t)words);
}

static void fail(const char *what, const char *name)
{
    printf("bad %s %s\n", what, name);
    fflush(stdout);
    _exit(3);
}

/* The step of a whole file; its first words are the step and the rank. */
static long judge(const char *name, long rank)
{
    FILE *file = fopen(name, "rb");
    uint64_t head[2], value;
    struct stat about;
    if (file == NULL)
        fail("cannot be opened", name);
    if (fread(head, sizeof head, 1, file) != 1)
        fail("has no head", name);
    if (head[1] != (uint64_t)rank)
        fail("is of another rank", name);
    for (long at = 2; at < length_of((long)head[0]); at++)
        if (fread(&value, sizeof value, 1, file) != 1 || value != word(head[0], (uint64_t)rank, (uint64_t)at))
            fail("is not whole", name);
    if (fread(&value, 1, 1, file) != 0)
        fail("is too long", name);
    fclose(file);
    if (stat(name, &about) != 0 || about.st_size != length_of((long)head[0]) * 8)
        fail("has another size", name);
    return (long)head[0];
}

static int is(const char *name) { return strcmp(how, name) == 0; }

static void name_of(char *name, long step, long rank)
{
    if (is("rename") || is("numbered"))
        sprintf(name, "out/restart.%ld", step);
    else if (is("alternate"))
        sprintf(name, "out/restart.%c", step % 2 ? 'a' : 'b');
    else if (is("ranks"))
        sprintf(name, "out/restart.%ld.%ld", step, rank);
    else if (ranks > 1)
        sprintf(name, "out/restart.%ld", rank);
    else
        strcpy(name, "out/restart");
}

/* The newest step; of several ranks, what all of them have. */
static long find(void)
{
    long newest = 0, count = 0, of_newest = 0;
    DIR *folder = opendir("out");
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char name[600];
        long rank = 0, step, in_name = 0;
        if (strncmp(entry->d_name, "restart", 7) != 0)
            continue;
        sprintf(name, "out/%s", entry->d_name);
        if (is("ranks") && sscanf(entry->d_name, "restart.%ld.%ld", &in_name, &rank) != 2)
            fail("has a strange name", name);
        if (is("in-place") && ranks > 1)
            sscanf(entry->d_name, "restart.%ld", &rank);
        step = judge(name, rank);
        if (is("ranks") && step != in_name)
            fail("is of another step", name);
        if (is("in-place") && ranks > 1 && count > 0 && step != newest)
            fail("is of another step than the others", name);
        of_newest = step > newest ? 1 : of_newest + (step == newest);
        newest = step > newest ? step : newest;
        count++;
    }
    if (folder != NULL)
        closedir(folder);
    if (ranks > 1 && count > 0 && of_newest != ranks)
        fail("some ranks have no file of the newest step", how);
    return newest;
}

static void put(FILE *file, uint64_t value)
{
    if (fwrite(&value, sizeof value, 1, file) != 1)
        fail("cannot be written", how);
}

static void write_mapped(const char *name, long step, long rank)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    size_t length = (size_t)length_of(step) * 8;
    uint64_t *to;
    if (fd < 0 || ftruncate(fd, (off_t)length) != 0)
        fail("cannot be opened", name);
    to = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (to == MAP_FAILED)
        fail("cannot be mapped", name);
    close(fd);
    for (long at = 2; at < length_of(step); at++)
        to[at] = word((uint64_t)step, (uint64_t)rank, (uint64_t)at);
    to[0] = (uint64_t)step;
    to[1] = (uint64_t)rank;
    munmap(to, length);
}

static void write_step(long step, long rank)
{
    char name[100], beside[120];
    FILE *file;
    name_of(name, step, rank);
    if (is("mapped")) {
        write_mapped(name, step, rank);
        return;
    }
    sprintf(beside, is("rename") ? "%s.tmp" : "%s", name);
    file = is("update") && access(name, F_OK) == 0 ? fopen(beside, "r+b") : fopen(beside, "wb");
    if (file == NULL)
        fail("cannot be opened", beside);
    put(file, (uint64_t)step);
    put(file, (uint64_t)rank);
    for (long at = 2; at < length_of(step); at++)
        put(file, word((uint64_t)step, (uint64_t)rank, (uint64_t)at));
    if (is("update") && (fflush(file) != 0 || ftruncate(fileno(file), length_of(step) * 8) != 0))
        fail("cannot be cut", beside);
    if (fclose(file) != 0)
        fail("cannot be closed", beside);
    if (is("rename")) {
        if (rename(beside, name) != 0)
            fail("cannot be renamed", beside);
        sprintf(name, "out/restart.%ld", step - 2);
        unlink(name);
    }
    if (is("ranks")) {
        name_of(name, step - 2, rank);
        unlink(name);
    }
}

static void run(long from, long steps, long pause_us, long rank, pthread_barrier_t *barrier)
{
    for (long step = from + 1; step <= steps; step++) {
        if (rank == 0)
            printf("begun %ld\n", step), fflush(stdout);
        write_step(step, rank);
        if (barrier != NULL)
            pthread_barrier_wait(barrier);
        if (rank == 0)
            printf("done %ld\n", step), fflush(stdout);
        usleep((useconds_t)pause_us);
    }
}

int main(int argc, char **argv)
{
    long steps, pause_us, newest;
    pthread_barrier_t *barrier;
    pthread_barrierattr_t shared;
    int status, failed = 0;
    if (argc != 6)
        return 2;
    how = argv[1];
    steps = atol(argv[2]);
    words = atol(argv[3]);
    pause_us = atol(argv[4]);
    ranks = atol(argv[5]);
    printf("pid %d\n", (int)getpid());
    newest = find();
    printf("found %ld\n", newest);
    fflush(stdout);
    if (ranks == 1) {
        run(newest, steps, pause_us, 0, NULL);
        return 0;
    }
    barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier, &shared, (unsigned)ranks);
    for (long rank = 0; rank < ranks; rank++)
        if (fork() == 0) {
            if (rank > 0)
                printf("pid %d\n", (int)getpid()), fflush(stdout);
            run(newest, steps, pause_us, rank, barrier);
            return 0;
        }
    /* One that dies takes the others with it, as a launcher does. */
    for (long rank = 0; rank < ranks; rank++)
        if (wait(&status) > 0 && status != 0 && !failed) {
            failed = 1;
            signal(SIGTERM, SIG_IGN);
            kill(0, SIGTERM);
        }
    return failed;
}
