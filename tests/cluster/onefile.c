// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: all ranks write one file by MPI-IO, in turns of 37 numbers and a few bytes, so that
 * no part begins or ends with a page, and go on from the newest that is there, on as many ranks or on others.
 *
 *     onefile STEPS BLOCKS PAUSE_US [plain|turns]
 *
 * out/field.STEP has a head (step, blocks), which rank 0 writes, and BLOCKS blocks, written collectively and by themselves in
 * turn by steps; `plain`: without MPI-IO, by pwrite. The file before the last is removed; `turns`: two names are written in turn,
 * each time cut off first. What it prints: steps.h. */
#define _GNU_SOURCE
#include "steps.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK = 37, BLOCK_BYTES = BLOCK * 8, HEAD_BYTES = 19 };
static int plain, turns;
static long blocks;

static void check(int code, const char *what, long step)
{
    char text[MPI_MAX_ERROR_STRING + 100] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    snprintf(text, sizeof text, "%s: ", what);
    MPI_Error_string(code, text + strlen(text), &length);
    fail(text, step);
}

static char *name_of(long step)
{
    return name_of_step(turns ? step % 2 : step);
}

/* How many blocks a rank has: in turns. */
static long own_blocks(void)
{
    return blocks / size + (rank < blocks % size);
}

static void look_at_blocks(MPI_File file, long step)
{
    MPI_Datatype mine, spaced;
    MPI_Type_contiguous(BLOCK_BYTES, MPI_BYTE, &mine);
    MPI_Type_create_resized(mine, 0, (MPI_Aint)size * BLOCK_BYTES, &spaced);
    MPI_Type_commit(&spaced);
    check(MPI_File_set_view(file, HEAD_BYTES + (MPI_Offset)rank * BLOCK_BYTES, MPI_BYTE, spaced, "native", MPI_INFO_NULL),
          "a view", step);
    MPI_Type_free(&spaced);
    MPI_Type_free(&mine);
}

static void head_of(long step, char *head)
{
    memset(head, 'h', HEAD_BYTES);
    memcpy(head, &step, sizeof step);
    memcpy(head + sizeof step, &blocks, sizeof blocks);
}

static void write_plain(long step, const uint64_t *values)
{
    char head[HEAD_BYTES];
    int file = -1;
    if (rank == 0) {
        head_of(step, head);
        file = open(name_of(step), O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (file < 0 || write(file, head, sizeof head) != HEAD_BYTES)
            fail("the head cannot be written", step);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0)
        file = open(name_of(step), O_RDWR);
    if (file < 0)
        fail("it cannot be opened", step);
    for (long block = 0; block < own_blocks(); block++)
        if (pwrite(file, values + block * BLOCK, BLOCK_BYTES, HEAD_BYTES + (block * size + rank) * BLOCK_BYTES)
            != BLOCK_BYTES)
            fail("a block cannot be written", step);
    MPI_Barrier(MPI_COMM_WORLD);
    struct stat about;
    if (fstat(file, &about) != 0 || about.st_size != HEAD_BYTES + blocks * BLOCK_BYTES)
        fail("it has another size for who has it open", step);
    if (close(file) != 0)
        fail("it cannot be closed", step);
}

static void write_step(long step, uint64_t *values)
{
    MPI_File file;
    char head[HEAD_BYTES];
    MPI_Offset length;
    for (long block = 0; block < own_blocks(); block++)
        for (long at = 0; at < BLOCK; at++)
            values[block * BLOCK + at] = word((uint64_t)step, (uint64_t)(block * size + rank), (uint64_t)at);
    if (plain) {
        write_plain(step, values);
        return;
    }
    check(MPI_File_open(MPI_COMM_WORLD, name_of(step), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "creating", step);
    check(MPI_File_set_size(file, 0), "a size", step);
    look_at_blocks(file, step);
    if (step % 2 == 0)
        check(MPI_File_write_all(file, values, (int)(own_blocks() * BLOCK_BYTES), MPI_BYTE, MPI_STATUS_IGNORE), "writing", step);
    else
        check(MPI_File_write(file, values, (int)(own_blocks() * BLOCK_BYTES), MPI_BYTE, MPI_STATUS_IGNORE), "writing alone",
              step);
    check(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "the plain view", step);
    if (rank == 0) {
        head_of(step, head);
        check(MPI_File_write_at(file, 0, head, sizeof head, MPI_BYTE, MPI_STATUS_IGNORE), "the head", step);
    }
    check(MPI_File_sync(file), "a sync", step);
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_get_size(file, &length), "its size", step);
    if (length != HEAD_BYTES + blocks * BLOCK_BYTES)
        fail("it has another size for who has it open", step);
    check(MPI_File_close(&file), "closing", step);
}

/* Whether the file of a step is there; if so it has to be whole. */
static int judge(long step)
{
    char head[HEAD_BYTES], wanted[HEAD_BYTES];
    uint64_t values[BLOCK];
    struct stat about;
    int file = open(name_of(step), O_RDONLY);
    if (file < 0)
        return 0;
    head_of(step, wanted);
    if (read(file, head, sizeof head) != HEAD_BYTES)
        fail("it has no head", step);
    if (turns && memcmp(head, wanted, sizeof step) != 0) {
        close(file);
        return 0;
    }
    if (memcmp(head, wanted, HEAD_BYTES) != 0)
        fail("its head is another", step);
    if (stat(name_of(step), &about) != 0 || about.st_size != HEAD_BYTES + blocks * BLOCK_BYTES)
        fail("it has another size", step);
    /* All blocks, whoever wrote them. */
    for (long block = 0; block < blocks; block++) {
        if (read(file, values, BLOCK_BYTES) != BLOCK_BYTES)
            fail("it is too short", step);
        for (long at = 0; at < BLOCK; at++)
            if (values[at] != word((uint64_t)step, (uint64_t)block, (uint64_t)at))
                fail("it is not whole", step);
    }
    if (read(file, values, 1) != 0)
        fail("it is too long", step);
    close(file);
    return 1;
}

static void judge_by_view(long step, uint64_t *values)
{
    MPI_File file;
    MPI_Offset length;
    check(MPI_File_open(MPI_COMM_WORLD, name_of(step), MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "opening to read", step);
    check(MPI_File_get_size(file, &length), "the size", step);
    if (length != HEAD_BYTES + blocks * BLOCK_BYTES)
        fail("MPI-IO says another size", step);
    look_at_blocks(file, step);
    check(MPI_File_read_all(file, values, (int)(own_blocks() * BLOCK_BYTES), MPI_BYTE, MPI_STATUS_IGNORE), "reading", step);
    for (long block = 0; block < own_blocks(); block++)
        for (long at = 0; at < BLOCK; at++)
            if (values[block * BLOCK + at] != word((uint64_t)step, (uint64_t)(block * size + rank), (uint64_t)at))
                fail("MPI-IO reads something else", step);
    check(MPI_File_close(&file), "closing what was read", step);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc < 4)
        return 2;
    long steps = atol(argv[1]), pause_us = atol(argv[3]);
    blocks = atol(argv[2]);
    plain = argc > 4 && strcmp(argv[4], "plain") == 0;
    turns = argc > 4 && strcmp(argv[4], "turns") == 0;
    uint64_t *values = malloc((size_t)(own_blocks() + 1) * BLOCK_BYTES);
    if (values == NULL)
        return 2;
    long found = 0;
    for (long step = 1; step <= steps && step < 1000; step++)
        if (judge(step))
            found = step;
    long both[2] = {found, -found};
    MPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (both[0] != -both[1])
        fail("is seen by some ranks only", both[0]);
    if (found > 0 && !plain)
        judge_by_view(found, values);
    say_step("found", found);
    for (long step = found + 1; step <= steps; step++) {
        say_step("begun", step);
        write_step(step, values);
        MPI_Barrier(MPI_COMM_WORLD);
        if (!judge(step))
            fail("it is not there", step);
        MPI_Barrier(MPI_COMM_WORLD);
        if (turns) {
            say_step("done", step);
            usleep((useconds_t)pause_us);
            continue;
        }
        if (rank == 0 && step > 2 && access(name_of(step - 2), F_OK) == 0 && unlink(name_of(step - 2)) != 0)
            fail("the one before the last cannot be removed", step);
        MPI_Barrier(MPI_COMM_WORLD);
        if (step > 2 && access(name_of(step - 2), F_OK) == 0)
            fail("the one before the last is there still", step);
        say_step("done", step);
        usleep((useconds_t)pause_us);
    }
    free(values);
    MPI_Finalize();
    return 0;
}
