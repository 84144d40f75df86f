/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * heat2d: how heat spreads over a plate, on any number of MPI processes, restartable with Backstay.
 *
 * Each process has a block of the plate. In a step it exchanges edges with its neighbours and replaces
 * each cell by the mean of the four around it. The run ends after --steps, or when no cell changed by
 * more than --tolerance: a maximum does not depend on how the plate is cut, so neither does the result.
 *
 * What makes it restartable is between "Backstay" and "end of Backstay": the plate is protected as a
 * part of a global array, so that another number of processes can go on with it.
 */
#define _POSIX_C_SOURCE 200809L
#include <backstay/backstay_mpi.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <time.h>

enum { DUE = -1 };                    /* an interval that Backstay decides */

static struct {
    int rows, cols, steps, interval, blocks, progress, wait_protected;
    double tolerance, pace;
    const char *initial, *output, *report;
} run = {1024, 1024, 2000, 100, 0, 0, 0, 1e-12, 0, "spots", NULL, NULL};

static struct {
    MPI_Comm comm;
    int rank, ranks;
    int north, south, west, east;     /* ranks of the neighbours, MPI_PROC_NULL at the border */
    int row, col, rows, cols;         /* where this block begins, and its size */
    double *cell;                     /* rows x cols, row-major, nothing around it */
    double *at_north, *at_south;      /* the neighbours' edges; at the border, its fixed heat */
    double *at_west, *at_east;
    double *above, *line;             /* a row before its update, with room for a cell on each side */
    MPI_Datatype column;
} my;

static struct {
    double step;
    double change;                    /* the largest of any cell in that step, over all processes */
} now = {0, DBL_MAX};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "heat2d: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static double *cells(size_t count)
{
    double *room = calloc(count, sizeof *room);
    if (room == NULL)
        stop("memory", "there is not enough");
    return room;
}

/* ---- The plate ------------------------------------------------------------------------------- */

static void cut_plate(void)
{
    int dims[2] = {0, run.blocks ? 0 : 1}, periods[2] = {0, 0}, at[2];

    MPI_Comm_size(MPI_COMM_WORLD, &my.ranks);
    MPI_Dims_create(my.ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &my.comm);
    MPI_Comm_rank(my.comm, &my.rank);
    MPI_Cart_coords(my.comm, my.rank, 2, at);
    MPI_Cart_shift(my.comm, 0, 1, &my.north, &my.south);
    MPI_Cart_shift(my.comm, 1, 1, &my.west, &my.east);
    if (dims[0] > run.rows || dims[1] > run.cols)
        stop("--rows, --cols", "fewer than processes");
    my.row = (int)((long)run.rows * at[0] / dims[0]);
    my.col = (int)((long)run.cols * at[1] / dims[1]);
    my.rows = (int)((long)run.rows * (at[0] + 1) / dims[0]) - my.row;
    my.cols = (int)((long)run.cols * (at[1] + 1) / dims[1]) - my.col;

    my.cell = cells((size_t)my.rows * my.cols);
    my.at_north = cells(my.cols);
    my.at_south = cells(my.cols);
    my.at_west = cells(my.rows);
    my.at_east = cells(my.rows);
    my.above = cells(my.cols + 2);
    my.line = cells(my.cols + 2);
    MPI_Type_vector(my.rows, 1, my.cols, MPI_DOUBLE, &my.column);
    MPI_Type_commit(&my.column);
}

/* The heat at first: the border where row or col is outside, the plate where they are inside. */
static double heat(int row, int col)
{
    static const double spots[][3] = {{.10, .30, .04}, {.14, .72, .02}, {.60, .55, .06}};
    int border = row < 0 || col < 0 || row == run.rows || col == run.cols;

    if (strcmp(run.initial, "edge") == 0)
        return row < 0 ? 100 : 0;
    if (strcmp(run.initial, "everywhere") == 0)
        return border ? 0 : (row * 31 + col * 17) % 101;
    for (int i = 0; i < 3; i++)
        if (!border && hypot((double)row / run.rows - spots[i][0],
                             (double)col / run.cols - spots[i][1]) < spots[i][2])
            return 100;
    return 0;
}

static void heat_plate(void)
{
    for (int i = 0; i < my.rows; i++)
        for (int j = 0; j < my.cols; j++)
            my.cell[(size_t)i * my.cols + j] = heat(my.row + i, my.col + j);
}

static void heat_border(void)
{
    for (int j = 0; j < my.cols; j++) {
        my.at_north[j] = heat(-1, my.col + j);
        my.at_south[j] = heat(run.rows, my.col + j);
    }
    for (int i = 0; i < my.rows; i++) {
        my.at_west[i] = heat(my.row + i, -1);
        my.at_east[i] = heat(my.row + i, run.cols);
    }
}

/* Sends each edge to the neighbour there. Nobody beyond the border answers, so its heat stays. */
static void exchange_edges(void)
{
    double *last_row = my.cell + (size_t)(my.rows - 1) * my.cols, *last_col = my.cell + my.cols - 1;

    MPI_Sendrecv(my.cell, my.cols, MPI_DOUBLE, my.north, 0,
                 my.at_south, my.cols, MPI_DOUBLE, my.south, 0, my.comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(last_row, my.cols, MPI_DOUBLE, my.south, 1,
                 my.at_north, my.cols, MPI_DOUBLE, my.north, 1, my.comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(my.cell, 1, my.column, my.west, 2,
                 my.at_east, my.rows, MPI_DOUBLE, my.east, 2, my.comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(last_col, 1, my.column, my.east, 3,
                 my.at_west, my.rows, MPI_DOUBLE, my.west, 3, my.comm, MPI_STATUS_IGNORE);
}

/* One row: each cell becomes the mean of the four around it. `line` is the row as it was. */
static void step_row(double *restrict row, const double *restrict line, const double *restrict above,
                     const double *restrict below)
{
    for (int j = 0; j < my.cols; j++)
        row[j] = 0.25 * ((above[j + 1] + below[j]) + (line[j] + line[j + 2]));
}

/* One step in place: only the row above and this one are needed as they were. If `look`, the largest
 * change of any cell here is returned. */
static double step_once(int look)
{
    double change = 0;

    exchange_edges();
    memcpy(my.above + 1, my.at_north, my.cols * sizeof(double));
    for (int i = 0; i < my.rows; i++) {
        double *row = my.cell + (size_t)i * my.cols;
        const double *below = i + 1 < my.rows ? row + my.cols : my.at_south;
        double *above = my.above, *line = my.line;

        line[0] = my.at_west[i];
        memcpy(line + 1, row, my.cols * sizeof(double));
        line[my.cols + 1] = my.at_east[i];
        step_row(row, line, above, below);
        for (int j = 0; look && j < my.cols; j++)
            change = fmax(change, fabs(row[j] - line[j + 1]));
        my.above = line;
        my.line = above;
    }
    return change;
}

/* Sleeps until a step that began at `begun` has taken as long as it is to. */
static void keep_pace(double begun)
{
    double left = begun + run.pace - MPI_Wtime();
    struct timespec time = {(time_t)left, (long)(1e9 * (left - floor(left)))};

    if (run.pace > 0 && left > 0)
        nanosleep(&time, NULL);
}

/* Writes the plate as a .npy file: rank 0 the header, every process its block. */
static void write_plate(const char *path)
{
    char head[129];
    int whole[2] = {run.rows, run.cols}, part[2] = {my.rows, my.cols}, at[2] = {my.row, my.col};
    MPI_Datatype block;
    MPI_File file;
    int used = snprintf(head, sizeof head,
                        "%cNUMPY%c%c%c%c{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }",
                        0x93, 1, 0, 118, 0, run.rows, run.cols);

    memset(head + used, ' ', (size_t)(127 - used));
    head[127] = '\n';
    MPI_Type_create_subarray(2, whole, part, at, MPI_ORDER_C, MPI_DOUBLE, &block);
    MPI_Type_commit(&block);
    if (MPI_File_open(my.comm, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
        stop(path, "cannot be written");
    if (my.rank == 0)
        MPI_File_write_at(file, 0, head, 128, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_set_view(file, 128, MPI_DOUBLE, block, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, my.cell, my.rows * my.cols, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Type_free(&block);
}

/* ---- Backstay -------------------------------------------------------------------------------- */

static backstay_session *session;

/* Protects this process's part of a global array. */
static void protect(const char *name, void *address, uint32_t ndim, const uint64_t *shape,
                    const uint64_t *global_shape, const uint64_t *start)
{
    backstay_array array = backstay_array_default();

    array.name = name;
    array.element = BACKSTAY_F64;
    array.address = address;
    array.ndim = ndim;
    array.shape = shape;
    array.global_shape = global_shape;
    array.start = start;
    if (backstay_protect_array(session, &array) != BACKSTAY_OK)
        stop("protect", backstay_message(session));
}

/* Opens, protects, restores: afterwards `now` and the plate are as the last checkpoint had them. */
static void begin_or_go_on(void)
{
    uint64_t whole[2] = {(uint64_t)run.rows, (uint64_t)run.cols};
    uint64_t part[2] = {(uint64_t)my.rows, (uint64_t)my.cols};
    uint64_t at[2] = {(uint64_t)my.row, (uint64_t)my.col};
    uint64_t two = 2, zero = 0;
    backstay_restored restored = backstay_restored_default();
    int32_t status;

    if (backstay_mpi_open(my.comm, NULL, &session) != BACKSTAY_OK)
        stop("open", backstay_message(NULL));
    protect("plate", my.cell, 2, part, whole, at);
    protect("now", &now, 1, &two, &two, &zero);     /* the same on every process */

    status = backstay_restore(session, &restored);
    if (status == BACKSTAY_NO_CHECKPOINT)
        heat_plate();
    else if (status != BACKSTAY_OK)
        stop("restore", backstay_message(session));
    if (my.rank == 0 && run.progress && status == BACKSTAY_NO_CHECKPOINT)
        printf("no checkpoint: starting from the beginning\n");
    else if (my.rank == 0 && run.progress)
        printf("restored checkpoint %d of %u processes: step %.0f\n",
               (int)restored.checkpoint.number, (unsigned)restored.ranks_then, now.step);
    fflush(stdout);
}

/* Whether this step is followed by a checkpoint: each so many, or when Backstay says that it is time. */
static int checkpoint_is_due(void)
{
    int32_t level = 0;

    if (run.interval > 0)
        return (int)now.step % run.interval == 0;
    if (backstay_due(session, &level) != BACKSTAY_OK && my.rank == 0)
        fprintf(stderr, "heat2d: %s\n", backstay_message(session));
    return level > 0;
}

/* A checkpoint on the nodes; with --wait protected, one that survives the loss of a node as well. */
static int32_t checkpoint(backstay_report *cost)
{
    backstay_handle *handle = NULL;
    int32_t status;

    if (!run.wait_protected)
        return backstay_checkpoint(session, cost);
    status = backstay_checkpoint_start(session, &handle);
    if (status != BACKSTAY_OK)
        return status;
    return backstay_wait(session, handle, BACKSTAY_LEVEL_PROTECTED, cost);
}

/* A checkpoint that fails is no reason to stop: the last one stays. */
static void take_checkpoint(void)
{
    backstay_report cost = backstay_report_default();
    FILE *file = NULL;

    if (checkpoint(&cost) != BACKSTAY_OK) {
        /* All processes have the same words; one says them. */
        if (my.rank == 0)
            fprintf(stderr, "heat2d: %s\n", backstay_message(session));
        return;
    }
    if (my.rank == 0 && run.progress) {
        printf("step %.0f of %d  change %.3e  checkpoint %d\n", now.step, run.steps, now.change,
               (int)cost.checkpoint.number);
        fflush(stdout);
    }
    if (run.report == NULL || (file = fopen(run.report, "a")) == NULL)
        return;
    fprintf(file,
            "{\"rank\": %d, \"step\": %.0f, \"incarnation\": %" PRIu64 ", \"checkpoint\": %" PRIu64
            ", \"blocks_total\": %" PRIu64 ", \"blocks_changed\": %" PRIu64
            ", \"bytes_total\": %" PRIu64 ", \"bytes_changed\": %" PRIu64 ", \"bytes_manifest\": %" PRIu64
            ", \"blocking_seconds\": %.9f, \"protect_seconds\": %.9f}\n",
            my.rank, now.step, cost.checkpoint.incarnation, cost.checkpoint.number, cost.blocks_total,
            cost.blocks_changed, cost.bytes_total, cost.bytes_changed, cost.bytes_manifest,
            cost.blocking_seconds, cost.protect_seconds);
    fclose(file);
}

/* ---- end of Backstay ------------------------------------------------------------------------- */

static void usage(void)
{
    puts("heat2d [--rows N] [--cols N] [--steps N] [--tolerance X] [--interval STEPS] [--blocks]\n"
         "       [--initial spots|edge|everywhere] [--output FILE.npy] [--report FILE.jsonl]\n"
         "       [--wait node|protected] [--progress] [--pace SECONDS]\n"
         "--interval  steps between checkpoints, and between looks at the tolerance; `due` when Backstay says so\n"
         "--pace      a step takes at least so long, as if there was more to compute\n"
         "--wait      until each checkpoint is on its nodes, or survives the loss of some (needs redundancy)\n"
         "--blocks    cut the plate in both directions, not in strips of rows\n"
         "--report    append what each checkpoint cost, a line of JSON for each process");
    exit(2);
}

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = argv[i + 1];

        if (strcmp(name, "--blocks") == 0) {
            run.blocks = 1;
            continue;
        }
        if (strcmp(name, "--progress") == 0) {
            run.progress = 1;
            continue;
        }
        if (value == NULL)
            usage();
        i++;
        if (strcmp(name, "--rows") == 0)
            run.rows = atoi(value);
        else if (strcmp(name, "--cols") == 0)
            run.cols = atoi(value);
        else if (strcmp(name, "--steps") == 0)
            run.steps = atoi(value);
        else if (strcmp(name, "--interval") == 0)
            run.interval = strcmp(value, "due") == 0 ? DUE : atoi(value);
        else if (strcmp(name, "--pace") == 0)
            run.pace = atof(value);
        else if (strcmp(name, "--tolerance") == 0)
            run.tolerance = atof(value);
        else if (strcmp(name, "--initial") == 0)
            run.initial = value;
        else if (strcmp(name, "--output") == 0)
            run.output = value;
        else if (strcmp(name, "--wait") == 0)
            run.wait_protected = strcmp(value, "node") != 0;
        else if (strcmp(name, "--report") == 0)
            run.report = value;
        else
            usage();
    }
    if (run.rows < 1 || run.cols < 1 || (run.interval < 1 && run.interval != DUE))
        usage();
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    read_arguments(argc, argv);
    cut_plate();
    heat_border();
    begin_or_go_on();

    while (now.step < run.steps && now.change > run.tolerance) {
        double begun = MPI_Wtime(), change;
        int look;

        now.step++;
        look = checkpoint_is_due();
        change = step_once(look);
        keep_pace(begun);
        if (look) {
            MPI_Allreduce(&change, &now.change, 1, MPI_DOUBLE, MPI_MAX, my.comm);
            take_checkpoint();
        }
    }
    if (run.output != NULL)
        write_plate(run.output);
    if (backstay_finish(session) != BACKSTAY_OK && my.rank == 0)
        fprintf(stderr, "heat2d: %s\n", backstay_message(NULL));
    if (my.rank == 0)
        printf("finished at step %.0f, change %.3e\n", now.step, now.change);
    MPI_Type_free(&my.column);
    MPI_Finalize();
    return 0;
}
