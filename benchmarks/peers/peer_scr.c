/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SCR: the program writes one file for each rank where SCR says. Its settings come from the environment. */
#define _GNU_SOURCE
#include "peer.h"
#include <errno.h>
#include <fcntl.h>
#include <scr.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REGIONS = 64 };

static struct region kept[REGIONS];
static int kept_count, rank;

static int begin(MPI_Comm *comm)
{
    MPI_Comm_rank(*comm, &rank);
    return SCR_Init() != SCR_SUCCESS;
}

static int protect(const struct region *regions, int count)
{
    for (kept_count = 0; kept_count < count && kept_count < REGIONS; kept_count++)
        kept[kept_count] = regions[kept_count];
    return kept_count != count;
}

static int moved(int file, char *at, size_t left, int writes)
{
    while (left) {
        ssize_t done = writes ? write(file, at, left) : read(file, at, left);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return 0;
        at += done;
        left -= (size_t)done;
    }
    return 1;
}

static int all_moved(const char *path, int writes)
{
    int file = writes ? open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600) : open(path, O_RDONLY);
    int valid = file >= 0;

    for (int index = 0; valid && index < kept_count; index++)
        valid = moved(file, kept[index].address, kept[index].bytes, writes);
    if (valid && writes)
        valid = fsync(file) == 0;
    if (file >= 0 && close(file))
        valid = 0;
    return valid;
}

static void name_of(long number, char *name, char *file)
{
    snprintf(name, 64, "checkpoint.%ld", number);
    snprintf(file, 4096, "%s/%s/rank.%d", option("prefix", "."), name, rank);
}

static int restart(long *number)
{
    char dataset[SCR_MAX_FILENAME], file[4096], routed[SCR_MAX_FILENAME], name[64];

    *number = 0;
    for (;;) {
        int there = 0, valid;
        if (SCR_Have_restart(&there, dataset) != SCR_SUCCESS)
            return 1;
        if (!there)
            return 0;
        if (SCR_Start_restart(dataset) != SCR_SUCCESS || sscanf(dataset, "checkpoint.%ld", number) != 1)
            return 1;
        name_of(*number, name, file);
        valid = SCR_Route_file(file, routed) == SCR_SUCCESS && all_moved(routed, 0);
        if (SCR_Complete_restart(valid) == SCR_SUCCESS)
            return 0;
        *number = 0;
    }
}

static int checkpoint(long number)
{
    char file[4096], routed[SCR_MAX_FILENAME], name[64];
    int valid;

    name_of(number, name, file);
    if (SCR_Start_output(name, SCR_FLAG_CHECKPOINT) != SCR_SUCCESS)
        return 1;
    valid = SCR_Route_file(file, routed) == SCR_SUCCESS && all_moved(routed, 1);
    return SCR_Complete_output(valid) != SCR_SUCCESS || !valid;
}

/* SCR has no call that waits for a flush: its file is looked for where it is flushed to. */
static int settle(long number)
{
    char file[4096], name[64];
    struct stat there;
    off_t bytes = 0;

    if (!atoi(option("flush", "0")))
        return 0;
    name_of(number, name, file);
    for (int index = 0; index < kept_count; index++)
        bytes += (off_t)kept[index].bytes;
    for (int tries = 0; tries < 60000; tries++) {
        if (stat(file, &there) == 0 && there.st_size == bytes)
            return 0;
        usleep(1000);
    }
    return 1;
}

const struct peer peer = {"scr", begin, protect, restart, checkpoint, settle, NULL};
