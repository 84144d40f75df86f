// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: all ranks write one file by parallel HDF5, and go on from the newest that is there, on
 * as many ranks or on others.
 *
 *     hdf5 STEPS ROWS PAUSE_US
 *
 * out/field.STEP has a dataset that is written collectively, in rows that ranks have in turn, and one that each rank writes by itself,
 * in blocks; between them groups and attributes are made, the file is flushed, rows are overwritten by other ranks than wrote them,
 * the file grows, and each rank reads, while it is open, what others wrote. Then it is closed and all of it is read. The file before the last is
 * removed. What it prints: steps.h. */
#define _GNU_SOURCE
#include "steps.h"
#include <hdf5.h>
#include <stdlib.h>

enum { COLUMNS = 37, GROUPS = 7 };
static hsize_t rows;

static int64_t good(int64_t outcome, const char *what, long step)
{
    if (outcome < 0)
        fail(what, step);
    return outcome;
}

static hid_t by_mpi(void)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    good(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "choosing MPI-IO", 0);
    return access;
}

static hid_t together(int is_collective)
{
    hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    good(H5Pset_dxpl_mpio(transfer, is_collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT), "choosing how", 0);
    return transfer;
}

/* Rows of a rank that is `by` behind this one, in turn; how many. */
static hsize_t choose_turns(hid_t space, int by)
{
    hsize_t whose = (hsize_t)((rank + by) % size);
    hsize_t begin[2] = {whose, 0}, stride[2] = {(hsize_t)size, 1}, count[2] = {0, COLUMNS};
    count[0] = rows / (hsize_t)size + (whose < rows % (hsize_t)size);
    if (count[0] == 0)
        H5Sselect_none(space);
    else
        H5Sselect_hyperslab(space, H5S_SELECT_SET, begin, stride, count, NULL);
    return count[0];
}

/* Writes or reads the rows in turn of a rank that is `by` behind this one, with the values of `as`. */
static void turns(hid_t set, long step, int by, long as, int is_collective, int writes)
{
    hid_t space = H5Dget_space(set), transfer = together(is_collective);
    hsize_t count = choose_turns(space, by), whose = (hsize_t)((rank + by) % size);
    hsize_t length = count * COLUMNS;
    hid_t memory = H5Screate_simple(1, &length, NULL);
    uint64_t *values = calloc(length + 1, sizeof *values);
    if (count == 0)
        H5Sselect_none(memory);
    for (hsize_t at = 0; writes && at < length; at++)
        values[at] = word((uint64_t)as, whose + at / COLUMNS * (hsize_t)size, at % COLUMNS);
    if (writes)
        good(H5Dwrite(set, H5T_NATIVE_UINT64, memory, space, transfer, values), "writing rows", step);
    else
        good(H5Dread(set, H5T_NATIVE_UINT64, memory, space, transfer, values), "reading rows", step);
    for (hsize_t at = 0; at < length; at++)
        if (values[at] != word((uint64_t)as, whose + at / COLUMNS * (hsize_t)size, at % COLUMNS))
            fail("a row is another", step);
    free(values);
    H5Sclose(memory);
    H5Sclose(space);
    H5Pclose(transfer);
}

static hid_t new_set(hid_t place, const char *name, int grows, long step)
{
    hsize_t lengths[2] = {rows, COLUMNS}, most[2] = {H5S_UNLIMITED, COLUMNS}, chunk[2] = {5, COLUMNS};
    hid_t space = H5Screate_simple(2, lengths, grows ? most : NULL), how = H5Pcreate(H5P_DATASET_CREATE);
    if (grows)
        H5Pset_chunk(how, 2, chunk);
    hid_t set = good(H5Dcreate2(place, name, H5T_STD_U64LE, space, H5P_DEFAULT, how, H5P_DEFAULT), "a new dataset", step);
    H5Pclose(how);
    H5Sclose(space);
    return set;
}

static void say(hid_t of, const char *name, int64_t value, long step)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = good(H5Acreate2(of, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), "a new attribute", step);
    good(H5Awrite(attribute, H5T_NATIVE_INT64, &value), "writing an attribute", step);
    H5Aclose(attribute);
    H5Sclose(space);
}

static int64_t said(hid_t of, const char *name, long step)
{
    int64_t value = -1;
    hid_t attribute = good(H5Aopen(of, name, H5P_DEFAULT), "opening an attribute", step);
    good(H5Aread(attribute, H5T_NATIVE_INT64, &value), "reading an attribute", step);
    H5Aclose(attribute);
    return value;
}

/* Each rank has a block of rows of its own. */
static void block(hid_t set, long step, int by, int writes)
{
    hsize_t whose = (hsize_t)((rank + by) % size);
    hsize_t begin[2] = {rows * whose / (hsize_t)size, 0}, count[2] = {rows * (whose + 1) / (hsize_t)size, COLUMNS};
    count[0] -= begin[0];
    if (count[0] == 0)
        return;
    hsize_t length = count[0] * COLUMNS;
    hid_t space = H5Dget_space(set), memory = H5Screate_simple(1, &length, NULL), transfer = together(0);
    uint64_t *values = calloc(length, sizeof *values);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, begin, NULL, count, NULL);
    for (hsize_t at = 0; writes && at < length; at++)
        values[at] = word((uint64_t)step + 1, begin[0] + at / COLUMNS, at % COLUMNS);
    if (writes)
        good(H5Dwrite(set, H5T_NATIVE_UINT64, memory, space, transfer, values), "writing a block", step);
    else
        good(H5Dread(set, H5T_NATIVE_UINT64, memory, space, transfer, values), "reading a block", step);
    for (hsize_t at = 0; at < length; at++)
        if (values[at] != word((uint64_t)step + 1, begin[0] + at / COLUMNS, at % COLUMNS))
            fail("a block is another", step);
    free(values);
    H5Sclose(memory);
    H5Sclose(space);
    H5Pclose(transfer);
}

static void write_step(long step)
{
    char name[64];
    hid_t access = by_mpi();
    hid_t file = good(H5Fcreate(name_of_step(step), H5F_ACC_TRUNC, H5P_DEFAULT, access), "creating", step);
    hid_t turned = new_set(file, "turned", 1, step);
    turns(turned, step, 0, step + 100, 1, 1);
    say(file, "step", step, step);
    hid_t blocks = new_set(file, "blocks", 0, step);
    for (int group = 0; group < GROUPS; group++) {
        snprintf(name, sizeof name, "group.%d", group);
        hid_t made = good(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "a new group", step);
        say(made, "number", group, step);
        H5Gclose(made);
    }
    block(blocks, step, 0, 1);
    good(H5Fflush(file, H5F_SCOPE_GLOBAL), "flushing", step);
    MPI_Barrier(MPI_COMM_WORLD);
    /* While it is open: what others wrote. */
    turns(turned, step, 1, step + 100, 0, 0);
    block(blocks, step, size / 2, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Others write those rows now, and they are read by others again. */
    turns(turned, step, 1, step, step % 2 == 0, 1);
    say(blocks, "between", step * 3, step);
    good(H5Fflush(file, H5F_SCOPE_GLOBAL), "flushing again", step);
    MPI_Barrier(MPI_COMM_WORLD);
    turns(turned, step, 2, step, 1, 0);
    hsize_t longer[2] = {rows + 3, COLUMNS};
    good(H5Dset_extent(turned, longer), "making it longer", step);
    hid_t group = good(H5Gopen2(file, "group.3", H5P_DEFAULT), "opening a group", step);
    hid_t inner = new_set(group, "inner", 0, step);
    turns(inner, step, 0, step + 7, 1, 1);
    if (said(group, "number", step) != 3)
        fail("an attribute is another", step);
    good(H5Adelete(file, "step"), "taking an attribute away", step);
    say(file, "step", step * 2, step);
    H5Dclose(inner);
    H5Gclose(group);
    H5Dclose(turned);
    H5Dclose(blocks);
    good(H5Fclose(file), "closing", step);
    H5Pclose(access);
}

/* Whether the file of a step is there; if so it has to be whole. */
static int judge(long step)
{
    char name[64];
    if (!is_there(step))
        return 0;
    hid_t access = by_mpi();
    hid_t file = good(H5Fopen(name_of_step(step), H5F_ACC_RDONLY, access), "opening to read", step);
    hid_t turned = good(H5Dopen2(file, "turned", H5P_DEFAULT), "opening a dataset", step);
    hid_t blocks = good(H5Dopen2(file, "blocks", H5P_DEFAULT), "opening a dataset", step);
    hid_t inner = good(H5Dopen2(file, "group.3/inner", H5P_DEFAULT), "opening a dataset", step);
    for (int by = 0; by < size; by++) {
        turns(turned, step, by, step, by % 2, 0);
        turns(inner, step, by, step + 7, by % 2, 0);
        block(blocks, step, by, 0);
    }
    if (said(file, "step", step) != step * 2 || said(blocks, "between", step) != step * 3)
        fail("an attribute is another", step);
    for (int group = 0; group < GROUPS; group++) {
        snprintf(name, sizeof name, "group.%d", group);
        hid_t made = good(H5Gopen2(file, name, H5P_DEFAULT), "opening a group", step);
        if (said(made, "number", step) != group)
            fail("an attribute is another", step);
        H5Gclose(made);
    }
    H5Dclose(inner);
    H5Dclose(turned);
    H5Dclose(blocks);
    good(H5Fclose(file), "closing what was read", step);
    H5Pclose(access);
    return 1;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc < 4)
        return 2;
    rows = (hsize_t)atol(argv[2]);
    go_on(atol(argv[1]), atol(argv[3]), judge, write_step);
    MPI_Finalize();
    return 0;
}
