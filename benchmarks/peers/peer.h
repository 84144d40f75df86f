/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a system does for the program that all of them are measured with: one of these for each. */
#ifndef PEER_H
#define PEER_H

#include <mpi.h>
#include <stddef.h>

struct region {
    char name[16];
    void *address;
    size_t bytes;
};

struct peer {
    const char *name;
    /* Before anything else; it may replace *comm by the communicator of the ranks that compute. */
    int (*open)(MPI_Comm *comm);
    int (*protect)(const struct region *regions, int count);
    /* Brings back the newest checkpoint: 0 with its number, or 0 for none; else it was refused. */
    int (*restart)(long *number);
    /* Returns 0 when the program may go on, with all that the system's call of that kind promises. */
    int (*checkpoint)(long number);
    /* Waits until what goes on behind checkpoint `number` is done. NULL where there is nothing. */
    int (*settle)(long number);
    /* Seconds that the last call of `checkpoint` blocked for the checkpoint alone, where it also waited
     * for what goes on behind it; less than 0 where it did not. NULL where it never does. */
    double (*blocked)(void);
};

extern const struct peer peer;

/* The value of an argument key=value, or `otherwise`. */
const char *option(const char *key, const char *otherwise);

#endif
