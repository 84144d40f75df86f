// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that makes its calls itself, as a language without the C library does, in many threads, while signals come:
 *
 *     threads THREADS FILES
 *
 * Under mpirun the threads of rank R are numbered from 100 R. Each thread writes out/r.THREAD.FILE.tmp, renames it to out/r.THREAD.FILE, looks at it, reads it, and removes the one
 * before the last. "bad ..." and exit 3 where something is not as on a file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int files, over;
static long signals;

static void fail(const char *what, const char *name)
{
    printf("bad %s %s: %s\n", what, name, strerror(errno));
    fflush(stdout);
    _exit(3);
}

static void heard(int number)
{
    (void)number;
    __atomic_fetch_add(&signals, 1, __ATOMIC_RELAXED);
}

static void *work(void *argument)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    int thread = (int)(long)argument + 100 * (rank == NULL ? 0 : atoi(rank));
    char name[100], beside[120], old[100], text[100], found[100];
    struct stat about;
    for (int file = 0; file < files; file++) {
        long fd, length = sprintf(text, "%d of %d", file, thread);
        sprintf(name, "out/r.%d.%d", thread, file);
        sprintf(beside, "%s.tmp", name);
        fd = syscall(SYS_openat, AT_FDCWD, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
        if (fd < 0)
            fail("cannot be made", beside);
        if (fcntl((int)fd, F_GETFD) != FD_CLOEXEC)
            fail("is not closed by exec", beside);
        if (syscall(SYS_write, fd, text, length) != length || syscall(SYS_close, fd) != 0)
            fail("cannot be written", beside);
        if (syscall(SYS_renameat2, AT_FDCWD, beside, AT_FDCWD, name, 0) != 0)
            fail("cannot be renamed", beside);
        if (syscall(SYS_faccessat, AT_FDCWD, beside, F_OK) == 0 || errno != ENOENT)
            fail("is still there", beside);
        if (fstatat(AT_FDCWD, name, &about, 0) != 0 || about.st_size != length || (about.st_mode & 0777) != 0640)
            fail("looks otherwise", name);
        fd = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY, 0);
        if (fd < 0 || syscall(SYS_read, fd, found, sizeof found) != length || memcmp(found, text, (size_t)length) != 0)
            fail("has something else", name);
        syscall(SYS_close, fd);
        sprintf(old, "out/r.%d.%d", thread, file - 2);
        if (file > 1 && syscall(SYS_unlinkat, AT_FDCWD, old, 0) != 0)
            fail("cannot be removed", old);
    }
    return NULL;
}

/* Signals for the others: who sends them takes none. */
static void *disturb(void *argument)
{
    sigset_t urgent;
    (void)argument;
    sigemptyset(&urgent);
    sigaddset(&urgent, SIGURG);
    pthread_sigmask(SIG_BLOCK, &urgent, NULL);
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        kill(getpid(), SIGURG);
        usleep(200);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[1]) : 4;
    pthread_t threads[64], disturber;
    struct sigaction action = {.sa_handler = heard, .sa_flags = SA_RESTART};
    files = argc > 2 ? atoi(argv[2]) : 20;
    sigset_t urgent;
    sigemptyset(&urgent);
    sigaddset(&urgent, SIGURG);
    umask(0);
    sigaction(SIGURG, &action, NULL);
    for (int at = 0; at < count && at < 64; at++)
        pthread_create(&threads[at], NULL, work, (void *)(long)at);
    pthread_sigmask(SIG_BLOCK, &urgent, NULL);
    pthread_create(&disturber, NULL, disturb, NULL);
    for (int at = 0; at < count && at < 64; at++)
        pthread_join(threads[at], NULL);
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    pthread_join(disturber, NULL);
    printf("good, with %ld signals\n", signals);
    return 0;
}
