// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What calls on names cost: of names that are not routed, and, below out/, of names that are. Nanoseconds each, of the
 * fastest of many rounds. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void measure(const char *what, const char *name, int flags, int count)
{
    struct stat about;
    double best_open = 1e18, best_stat = 1e18;
    for (int round = 0; round < 400; round++) {
        double begin = now();
        for (int at = 0; at < count; at++)
            close(open(name, flags, 0644));
        double opened = now();
        for (int at = 0; at < count; at++)
            stat(name, &about);
        double looked = now();
        best_open = opened - begin < best_open ? opened - begin : best_open;
        best_stat = looked - opened < best_stat ? looked - opened : best_stat;
    }
    printf("%-28s open and close %8.0f ns, stat %8.0f ns\n", what, best_open / count, best_stat / count);
}

int main(void)
{
    close(open("plain", O_CREAT | O_WRONLY, 0644));
    close(open("out/restart.1", O_CREAT | O_WRONLY, 0644));
    measure("not routed", "plain", O_RDONLY, 500);
    measure("routed, read", "out/restart.1", O_RDONLY, 200);
    measure("routed, written", "out/restart.1", O_WRONLY, 20);
    return 0;
}
