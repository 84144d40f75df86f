/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* VeloC, in its mode for memory: config=FILE. */
#include "peer.h"
#include <stdlib.h>
#include <veloc.h>

static const char *const NAME = "work";

static int begin(MPI_Comm *comm)
{
    return VELOC_Init(*comm, option("config", "veloc.cfg")) != VELOC_SUCCESS;
}

static int protect(const struct region *regions, int count)
{
    for (int index = 0; index < count; index++)
        VELOC_Mem_protect(index, regions[index].address, regions[index].bytes / 8, 8);
    return 0;
}

/* Its documentation says to go to the version before one that cannot be had. */
static int restart(long *number)
{
    int version = VELOC_Restart_test(NAME, 0), any = version > 0;

    *number = 0;
    while (version > 0) {
        int restored = VELOC_Restart(NAME, version) == VELOC_SUCCESS, all;
        MPI_Allreduce(&restored, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (all) {
            *number = version;
            return 0;
        }
        version = version > 1 ? VELOC_Restart_test(NAME, version - 1) : 0;
    }
    return any;
}

static int checkpoint(long number)
{
    return VELOC_Checkpoint(NAME, (int)number) != VELOC_SUCCESS;
}

static int settle(long number)
{
    (void)number;
    return VELOC_Checkpoint_wait() != VELOC_SUCCESS;
}

const struct peer peer = {"veloc", begin, protect, restart, checkpoint, settle, NULL};
