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

/* Most bytes one MPI_Allgather brings: its counts are int, and so is arithmetic on them in places. */
#ifndef BACKSTAY_MPI_PIECE_BYTES
#define BACKSTAY_MPI_PIECE_BYTES (1 << 30)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Private: what a backstay_comm made here stands on. */
typedef struct backstay_mpi_context {
    MPI_Comm comm;
    int size;
} backstay_mpi_context;

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

/* Private. After MPI_Finalize there is nothing left to free. */
static inline void backstay_mpi_release(void *context)
{
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Comm_free(&((backstay_mpi_context *)context)->comm);
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
    int rank = 0;
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
    code = MPI_Comm_dup(comm, &mpi->comm);
    if (code != MPI_SUCCESS) {
        free(mpi);
        return backstay_mpi_status(code, "MPI_Comm_dup");
    }
    code = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(mpi->comm, &rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi->comm, &mpi->size);
    if (code != MPI_SUCCESS) {
        backstay_mpi_release(mpi);
        return backstay_mpi_status(code, "MPI_Comm_set_errhandler, _rank or _size");
    }
    table.context = mpi;
    table.rank = (uint32_t)rank;
    table.size = (uint32_t)mpi->size;
    table.allgather = backstay_mpi_allgather;
    table.allreduce_max = backstay_mpi_allreduce_max;
    table.barrier = backstay_mpi_barrier;
    table.release = backstay_mpi_release;
    return backstay_open(&table, options, session);
}

#ifdef __cplusplus
}
#endif

#endif /* BACKSTAY_MPI_H */
