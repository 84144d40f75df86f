/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* MPI_Finalize first: what comes after is refused with a status, and ends no program. */
#include <backstay/backstay_mpi.h>

static double cell[1000];

int main(int argc, char **argv)
{
    backstay_session *session = NULL, *second = NULL;
    int wrong = 0;

    MPI_Init(&argc, &argv);
    if (backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK)
        return fprintf(stderr, "%s\n", backstay_message(NULL)), 1;
    wrong += backstay_protect(session, "cell", BACKSTAY_F64, cell, 1000) != BACKSTAY_OK;
    wrong += backstay_checkpoint(session, NULL) != BACKSTAY_OK;
    MPI_Finalize();
    wrong += backstay_checkpoint(session, NULL) != BACKSTAY_COMMUNICATOR;
    wrong += strstr(backstay_message(session), "MPI_Finalize") == NULL;
    wrong += backstay_close(session) != BACKSTAY_COMMUNICATOR;
    wrong += backstay_mpi_open(MPI_COMM_WORLD, NULL, &second) != BACKSTAY_COMMUNICATOR;
    return wrong;
}
