// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: ranks of several hosts write one file by MPI-IO's shared file pointer, in the order of
 * ranks and in any, and read it when it is closed.
 *
 *     pointers
 *
 * Rank 0 prints "ordered"; any rank "bad ..." before it ends with 3. */
#include "steps.h"
#include <string.h>

enum { BLOCK_BYTES = 101, RANKS_MAX = 16 };
static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 100] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    snprintf(text, sizeof text, "%s: ", what);
    MPI_Error_string(code, text + strlen(text), &length);
    fail(text, 1);
}

/* Who wrote a block: all of its bytes say the same. */
static int writer_of(const char *block)
{
    for (int at = 1; at < BLOCK_BYTES; at++)
        if (block[at] != block[0])
            fail("a block is of two ranks", 1);
    return block[0] - 'a';
}

int main(int argc, char **argv)
{
    MPI_File file;
    char block[BLOCK_BYTES], all[2 * RANKS_MAX * BLOCK_BYTES];
    int seen[RANKS_MAX] = {0};
    begin(&argc, &argv);
    if (size > RANKS_MAX)
        return 2;
    memset(block, 'a' + rank, sizeof block);
    check(MPI_File_open(MPI_COMM_WORLD, name_of_step(1), MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file), "creating");
    check(MPI_File_write_ordered(file, block, BLOCK_BYTES, MPI_BYTE, MPI_STATUS_IGNORE), "writing in order");
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_write_shared(file, block, BLOCK_BYTES, MPI_BYTE, MPI_STATUS_IGNORE), "writing");
    check(MPI_File_close(&file), "closing");
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_open(MPI_COMM_WORLD, name_of_step(1), MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "opening to read");
    check(MPI_File_read_at_all(file, 0, all, 2 * size * BLOCK_BYTES, MPI_BYTE, MPI_STATUS_IGNORE), "reading");
    check(MPI_File_close(&file), "closing what was read");
    for (int at = 0; at < size; at++) {
        int writer = writer_of(all + (size + at) * BLOCK_BYTES);
        if (writer_of(all + at * BLOCK_BYTES) != at)
            fail("blocks are not in the order of ranks", 1);
        if (writer < 0 || writer >= size || seen[writer]++)
            fail("a rank's block is missing", 1);
    }
    if (rank == 0)
        printf("ordered\n"), fflush(stdout);
    MPI_Finalize();
    return 0;
}
