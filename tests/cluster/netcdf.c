// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A program that knows nothing of Backstay: all ranks write one file by parallel netCDF (netCDF-4, over parallel HDF5), and go on from
 * the newest that is there.
 *
 *     netcdf STEPS ROWS PAUSE_US
 *
 * out/field.STEP has a variable with a record for each of RECORDS times, which ranks write collectively and by themselves in turn, in rows of
 * their own; while it is open each rank reads the rows of the next one. What it prints: steps.h. */
#define _GNU_SOURCE
#include "steps.h"
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdlib.h>

enum { COLUMNS = 37, RECORDS = 3 };
static size_t rows;

static void check(int outcome, const char *what, long step)
{
    if (outcome != NC_NOERR) {
        printf("%s: %s\n", what, nc_strerror(outcome));
        fail(what, step);
    }
}

static double value(long step, size_t record, size_t row, size_t column)
{
    return (double)step * 1e6 + (double)record * 1e5 + (double)(row * COLUMNS + column);
}

/* Writes or reads the rows of the rank that is `by` behind this one. */
static void some(int file, int variable, long step, size_t record, int by, int writes)
{
    size_t whose = (size_t)((rank + by) % size), first = rows * whose / (size_t)size;
    size_t begin[3] = {record, first, 0}, count[3] = {1, rows * (whose + 1) / (size_t)size - first, COLUMNS};
    double *values = calloc(count[1] * COLUMNS + 1, sizeof *values);
    for (size_t at = 0; writes && at < count[1] * COLUMNS; at++)
        values[at] = value(step, record, first + at / COLUMNS, at % COLUMNS);
    check(nc_var_par_access(file, variable, record % 2 ? NC_COLLECTIVE : NC_INDEPENDENT), "choosing how", step);
    if (writes)
        check(nc_put_vara_double(file, variable, begin, count, values), "writing", step);
    else
        check(nc_get_vara_double(file, variable, begin, count, values), "reading", step);
    for (size_t at = 0; at < count[1] * COLUMNS; at++)
        if (values[at] != value(step, record, first + at / COLUMNS, at % COLUMNS))
            fail("a value is another", step);
    free(values);
}

static void write_step(long step)
{
    int file, dimensions[3], variable;
    check(nc_create_par(name_of_step(step), NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file), "creating", step);
    check(nc_def_dim(file, "time", RECORDS, &dimensions[0]), "a dimension", step);
    check(nc_def_dim(file, "row", rows, &dimensions[1]), "a dimension", step);
    check(nc_def_dim(file, "column", COLUMNS, &dimensions[2]), "a dimension", step);
    check(nc_def_var(file, "field", NC_DOUBLE, 3, dimensions, &variable), "a variable", step);
    check(nc_put_att_long(file, variable, "step", NC_INT64, 1, &step), "an attribute", step);
    check(nc_enddef(file), "the end of definitions", step);
    for (size_t record = 0; record < RECORDS; record++) {
        some(file, variable, step, record, 0, 1);
        check(nc_sync(file), "a sync", step);
        MPI_Barrier(MPI_COMM_WORLD);
        some(file, variable, step, record, 1, 0);
    }
    check(nc_close(file), "closing", step);
}

/* Whether the file of a step is there; if so it has to be whole. */
static int judge(long step)
{
    int file, variable;
    long said = 0;
    if (!is_there(step))
        return 0;
    check(nc_open_par(name_of_step(step), NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file), "opening to read", step);
    check(nc_inq_varid(file, "field", &variable), "the variable", step);
    check(nc_get_att_long(file, variable, "step", &said), "the attribute", step);
    if (said != step)
        fail("an attribute is another", step);
    for (size_t record = 0; record < RECORDS; record++)
        for (int by = 0; by < size; by++)
            some(file, variable, step, record, by, 0);
    check(nc_close(file), "closing what was read", step);
    return 1;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc < 4)
        return 2;
    rows = (size_t)atol(argv[2]);
    go_on(atol(argv[1]), atol(argv[3]), judge, write_step);
    MPI_Finalize();
    return 0;
}
