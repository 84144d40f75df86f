/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Backstay; its settings come from the environment. level=1, 2 or 3 is what `settle` waits for. */
#include "peer.h"
#include <backstay/backstay_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static backstay_session *session;

static int failed(int32_t status, const char *call)
{
    if (status != BACKSTAY_OK)
        fprintf(stderr, "%s: %s\n", call, backstay_message(session));
    return status != BACKSTAY_OK;
}

static int begin(MPI_Comm *comm)
{
    return failed(backstay_mpi_open(*comm, NULL, &session), "backstay_mpi_open");
}

static int protect(const struct region *regions, int count)
{
    for (int index = 0; index < count; index++) {
        const struct region *one = &regions[index];
        if (failed(backstay_protect(session, one->name, BACKSTAY_F64, one->address, one->bytes / 8),
                   "backstay_protect"))
            return 1;
    }
    return 0;
}

static int restart(long *number)
{
    backstay_restored restored = backstay_restored_default();
    int32_t status = backstay_restore(session, &restored);

    *number = 0;
    if (status == BACKSTAY_NO_CHECKPOINT)
        return 0;
    *number = (long)restored.checkpoint.number;
    return failed(status, "backstay_restore");
}

static int level;
static double until_durable = -1;

/* Only one wait is to be had for each checkpoint: where it is for the archive, the report says what
 * backstay_checkpoint alone would have blocked: for the capture, and from then until durable on all nodes. */
static int until_archived(void)
{
    backstay_report report = backstay_report_default();
    backstay_handle *handle = NULL;

    if (failed(backstay_checkpoint_start(session, &handle), "backstay_checkpoint_start") ||
        failed(backstay_wait(session, handle, BACKSTAY_LEVEL_ARCHIVE, &report), "backstay_wait"))
        return 1;
    until_durable = report.blocking_seconds + report.commit_seconds;
    return 0;
}

static int checkpoint(long number)
{
    (void)number;
    level = atoi(option("level", "1"));
    if (level == BACKSTAY_LEVEL_ARCHIVE)
        return until_archived();
    return failed(backstay_checkpoint(session, NULL), "backstay_checkpoint");
}

static double blocked(void) { return until_durable; }

static int protected_by_now(long number)
{
    backstay_protection status = backstay_protection_default();

    do {
        if (failed(backstay_protection_status(session, &status), "backstay_protection_status"))
            return 1;
        if (status.at_protected.number < (uint64_t)number)
            nanosleep(&(struct timespec){0, 500000}, NULL);
    } while (status.at_protected.number < (uint64_t)number);
    return 0;
}

static int settle(long number)
{
    return level == BACKSTAY_LEVEL_PROTECTED ? protected_by_now(number) : 0;
}

const struct peer peer = {"backstay", begin, protect, restart, checkpoint, settle, blocked};
