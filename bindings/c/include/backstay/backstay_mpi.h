/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Backstay over MPI: backstay_mpi_open. Header-only and compiled by your mpicc, so that one libbackstay
 * serves every MPI. MPI calls are made on the thread that calls Backstay and on no other:
 * MPI_THREAD_FUNNELED is enough if that is the main thread.
 */
#ifndef BACKSTAY_MPI_H
#define BACKSTAY_MPI_H

#include "backstay.h"

/* The C interface is all we use; without these, C++ programs need the MPI C++ library. */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most bytes one call of MPI brings: its counts are int, and so is arithmetic on them in places. */
#ifndef BACKSTAY_MPI_PIECE_BYTES
#define BACKSTAY_MPI_PIECE_BYTES (1 << 30)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Private: what a backstay_comm made here stands on. */
typedef struct backstay_mpi_context {
    MPI_Comm comm;
    int rank;
    int size;
    /* What the last gather brought; NULL to begin with. */
    void *gathered;
} backstay_mpi_context;

/* Private: the messages of a gather; nobody else sends on the duplicated communicator. */
#define BACKSTAY_MPI_TAG 1

/* Private: the status of MPI's call as Backstay's, with the text MPI has for it. */
static inline int32_t backstay_mpi_status(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 64] = "";
    char reason[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return BACKSTAY_OK;
    if (MPI_Error_string(code, reason, &length) != MPI_SUCCESS)
        reason[0] = '\0';
    snprintf(text, sizeof text, "%.32s returned %d: %s", call, code, reason);
    return backstay_refuse(BACKSTAY_COMMUNICATOR, text);
}

/* Private: whether MPI can still be called: after MPI_Finalize it would end the program. */
static inline int32_t backstay_mpi_is_there(void)
{
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (!finalized)
        return BACKSTAY_OK;
    return backstay_refuse(BACKSTAY_COMMUNICATOR, "MPI_Finalize was called before backstay_close");
}

/* Private: allgather in pieces, each of which a derived type puts where it belongs in `all`. */
static inline int32_t backstay_mpi_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    backstay_mpi_context *mpi = (backstay_mpi_context *)context;
    size_t most = (size_t)BACKSTAY_MPI_PIECE_BYTES / (size_t)mpi->size;
    size_t done = 0;
    int code = MPI_SUCCESS;

    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    if (most == 0)
        most = 1;
    while (done < bytes && code == MPI_SUCCESS) {
        int piece = (int)(bytes - done < most ? bytes - done : most);
        void *from = (char *)(size_t)mine + done;
        MPI_Datatype part = MPI_DATATYPE_NULL;
        MPI_Datatype spaced = MPI_DATATYPE_NULL;

        code = MPI_Type_contiguous(piece, MPI_BYTE, &part);
        if (code == MPI_SUCCESS)
            code = MPI_Type_create_resized(part, 0, (MPI_Aint)bytes, &spaced);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&spaced);
        if (code == MPI_SUCCESS)
            code = MPI_Allgather(from, piece, MPI_BYTE, (char *)all + done, 1, spaced, mpi->comm);
        if (spaced != MPI_DATATYPE_NULL)
            MPI_Type_free(&spaced);
        if (part != MPI_DATATYPE_NULL)
            MPI_Type_free(&part);
        done += (size_t)piece;
    }
    return backstay_mpi_status(code, "MPI_Allgather");
}

/* Private. */
static inline int32_t backstay_mpi_allreduce_max(void *context, int64_t *values, size_t count)
{
    backstay_mpi_context *mpi = (backstay_mpi_context *)context;
    size_t done = 0;
    int code = MPI_SUCCESS;

    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    while (done < count && code == MPI_SUCCESS) {
        int piece = count - done < INT_MAX ? (int)(count - done) : INT_MAX;
        code = MPI_Allreduce(MPI_IN_PLACE, values + done, piece, MPI_INT64_T, MPI_MAX, mpi->comm);
        done += (size_t)piece;
    }
    return backstay_mpi_status(code, "MPI_Allreduce");
}

/* Private. */
static inline int32_t backstay_mpi_barrier(void *context)
{
    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    return backstay_mpi_status(MPI_Barrier(((backstay_mpi_context *)context)->comm), "MPI_Barrier");
}

/* Private: `bytes` bytes at `at` to rank `other` where this one `sends`, else from it, in pieces. */
static inline int backstay_mpi_move(backstay_mpi_context *mpi, char *at, size_t bytes, int other, int sends)
{
    size_t most = BACKSTAY_MPI_PIECE_BYTES;
    size_t done = 0;
    int code = MPI_SUCCESS;

    while (done < bytes && code == MPI_SUCCESS) {
        int piece = (int)(bytes - done < most ? bytes - done : most);

        if (sends)
            code = MPI_Send(at + done, piece, MPI_BYTE, other, BACKSTAY_MPI_TAG, mpi->comm);
        else
            code = MPI_Recv(at + done, piece, MPI_BYTE, other, BACKSTAY_MPI_TAG, mpi->comm,
                            MPI_STATUS_IGNORE);
        done += (size_t)piece;
    }
    return code;
}

/* Private: at the root, room for what all ranks bring, whose lengths are in `counts`; NULL where there is none. */
static inline char *backstay_mpi_room(backstay_mpi_context *mpi, const uint64_t *counts, size_t *lengths)
{
    size_t total = 0;
    int rank = 0;

    free(mpi->gathered);
    mpi->gathered = NULL;
    for (rank = 0; rank < mpi->size; rank++) {
        if (counts[rank] > (uint64_t)((size_t)-1 / 2 - total))
            return NULL;
        lengths[rank] = (size_t)counts[rank];
        total += lengths[rank];
    }
    mpi->gathered = malloc(total > 0 ? total : 1);
    return (char *)mpi->gathered;
}

/*
 * Private. The lengths go by MPI_Gather, which is a tree; the bytes in messages of their own, since
 * MPI_Gatherv has counts of int, and in the MPIs there are is a loop over ranks, too. Who brings nothing
 * sends nothing.
 */
static inline int32_t backstay_mpi_gather(void *context, const void *mine, size_t bytes, uint32_t root,
                                          size_t *lengths, const void **all)
{
    backstay_mpi_context *mpi = (backstay_mpi_context *)context;
    int is_root = mpi->rank == (int)root;
    uint64_t count = (uint64_t)bytes;
    uint64_t *counts = NULL;
    char *to = NULL;
    int rank = 0;
    int code = MPI_SUCCESS;

    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    if (is_root) {
        counts = (uint64_t *)malloc((size_t)mpi->size * sizeof *counts);
        if (counts == NULL)
            return backstay_refuse(BACKSTAY_COMMUNICATOR, "gather: no memory for the lengths");
    }
    code = MPI_Gather(&count, 1, MPI_UINT64_T, counts, 1, MPI_UINT64_T, (int)root, mpi->comm);
    if (code == MPI_SUCCESS && !is_root)
        code = backstay_mpi_move(mpi, (char *)(size_t)mine, bytes, (int)root, 1);
    if (code == MPI_SUCCESS && is_root) {
        to = backstay_mpi_room(mpi, counts, lengths);
        if (to == NULL) {
            free(counts);
            return backstay_refuse(BACKSTAY_COMMUNICATOR, "gather: no memory for what all ranks bring");
        }
        *all = to;
        for (rank = 0; rank < mpi->size && code == MPI_SUCCESS; rank++) {
            if (rank != mpi->rank)
                code = backstay_mpi_move(mpi, to, lengths[rank], rank, 0);
            else if (bytes > 0)
                memcpy(to, mine, bytes);
            to += lengths[rank];
        }
    }
    free(counts);
    return backstay_mpi_status(code, "MPI_Gather, _Send or _Recv");
}

/* Private. */
static inline int32_t backstay_mpi_broadcast(void *context, void *bytes, size_t count, uint32_t root)
{
    backstay_mpi_context *mpi = (backstay_mpi_context *)context;
    size_t most = BACKSTAY_MPI_PIECE_BYTES;
    size_t done = 0;
    int code = MPI_SUCCESS;

    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    while (done < count && code == MPI_SUCCESS) {
        int piece = (int)(count - done < most ? count - done : most);

        code = MPI_Bcast((char *)bytes + done, piece, MPI_BYTE, (int)root, mpi->comm);
        done += (size_t)piece;
    }
    return backstay_mpi_status(code, "MPI_Bcast");
}

/* Private. After MPI_Finalize there is nothing left to free. */
static inline void backstay_mpi_release(void *context)
{
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Comm_free(&((backstay_mpi_context *)context)->comm);
    free(((backstay_mpi_context *)context)->gathered);
    free(context);
}

/*
 * Opens a session on the processes of `comm`, all together. The communicator is duplicated, so that
 * your messages and Backstay's never meet, and the duplicate returns its errors instead of aborting.
 * `options` may be NULL. End the session with backstay_close, before MPI_Finalize.
 */
static inline int32_t backstay_mpi_open(MPI_Comm comm, const backstay_options *options,
                                        backstay_session **session)
{
    backstay_comm table = backstay_comm_default();
    backstay_mpi_context *mpi = NULL;
    int initialized = 0;
    int code = MPI_SUCCESS;

    if (session == NULL)
        return backstay_refuse(BACKSTAY_INVALID_ARGUMENT, "backstay_mpi_open: session is NULL");
    *session = NULL;
    MPI_Initialized(&initialized);
    if (!initialized)
        return backstay_refuse(BACKSTAY_COMMUNICATOR, "backstay_mpi_open: call MPI_Init first");
    if (backstay_mpi_is_there() != BACKSTAY_OK)
        return BACKSTAY_COMMUNICATOR;
    mpi = (backstay_mpi_context *)malloc(sizeof *mpi);
    if (mpi == NULL)
        return backstay_refuse(BACKSTAY_COMMUNICATOR, "backstay_mpi_open: no memory");
    mpi->gathered = NULL;
    code = MPI_Comm_dup(comm, &mpi->comm);
    if (code != MPI_SUCCESS) {
        free(mpi);
        return backstay_mpi_status(code, "MPI_Comm_dup");
    }
    code = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(mpi->comm, &mpi->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi->comm, &mpi->size);
    if (code != MPI_SUCCESS) {
        backstay_mpi_release(mpi);
        return backstay_mpi_status(code, "MPI_Comm_set_errhandler, _rank or _size");
    }
    table.context = mpi;
    table.rank = (uint32_t)mpi->rank;
    table.size = (uint32_t)mpi->size;
    table.allgather = backstay_mpi_allgather;
    table.allreduce_max = backstay_mpi_allreduce_max;
    table.barrier = backstay_mpi_barrier;
    table.release = backstay_mpi_release;
    table.gather = backstay_mpi_gather;
    table.broadcast = backstay_mpi_broadcast;
    return backstay_open(&table, options, session);
}

#ifdef __cplusplus
}
#endif

#endif /* BACKSTAY_MPI_H */
