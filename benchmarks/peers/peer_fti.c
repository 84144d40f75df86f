/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* FTI: config=FILE, level=1 to 4, 8 for a differential checkpoint of level 4, 12 for 2 and 1 in turn. */
#include "peer.h"
#include <fti.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int level, unreadable;
static long *step;

static int begin(MPI_Comm *comm)
{
    int status = FTI_Init(option("config", "config.fti"), *comm);

    level = atoi(option("level", "1"));
    *comm = FTI_COMM_WORLD;
    unreadable = status == FTI_NREC;
    return status != FTI_SCES && status != FTI_NREC;
}

static int protect(const struct region *regions, int count)
{
    step = regions[count - 1].address;
    for (int index = 0; index < count; index++)
        if (FTI_Protect(index, regions[index].address, (int64_t)(regions[index].bytes / 8), FTI_DBLE) != FTI_SCES)
            return 1;
    return 0;
}

static int restart(long *number)
{
    *number = 0;
    if (unreadable)
        return 1;
    if (FTI_Status() == 0)
        return 0;
    if (FTI_Recover() != FTI_SCES)
        return 1;
    *number = *step; /* FTI does not say which one it was */
    return 0;
}

static int checkpoint(long number)
{
    int now = level == 12 ? (number % 2 ? 2 : 1) : level;

    return FTI_Checkpoint((int)number, now) != FTI_DONE;
}

/* FTI has no call that waits for a head: the file is looked for where the head puts it at the end, watch=FOLDER. */
static int settle(long number)
{
    char pattern[4096];
    const char *folder = option("watch", NULL);

    if (!folder)
        return 0;
    snprintf(pattern, sizeof pattern, "%s/Ckpt%ld-Rank*.fti", folder, number);
    for (int tries = 0; tries < 60000; tries++) {
        glob_t found;
        int there = glob(pattern, 0, NULL, &found) == 0;
        if (there)
            globfree(&found);
        if (there)
            return 0;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return 1;
}

const struct peer peer = {"fti", begin, protect, restart, checkpoint, settle, NULL};
