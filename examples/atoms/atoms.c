/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * atoms: argon in a periodic box, on any number of MPI processes, restartable with Backstay.
 *
 * The box is cut into cells, no smaller than the range of the forces; a process has some layers of cells and the
 * atoms in them, and in a step gets copies of those in the layers next to its own. Atoms that cross a boundary move to
 * another process, so that each process has another number of them at each checkpoint: its part of the array of all
 * atoms is protected anew before it. In which order they stand in that array does not matter: whoever reads them sends
 * each to whom it belongs. So any number of processes, up to one a layer, can go on.
 *
 * The force on an atom is summed over the cells around it in one order, and in a cell by the atoms' numbers: it does not
 * depend on who computes it, and the result is the same to the last bit however many processes had a part in it.
 */
#include <backstay/backstay_mpi.h>

#include <math.h>

#define RANGE 2.5
#define STEP 0.004
#define EDGE 1.6796                        /* of a unit cell, which has four atoms */

typedef struct {
    double number, x[3], v[3];
} atom;

enum { NUMBERS = sizeof(atom) / sizeof(double) };

static struct {
    double box;                            /* its edge */
    int atoms, cells;                      /* of all processes; along an edge */
} all;

static struct {
    int rank, ranks, first, layers;        /* the layers of cells of this process */
    int atoms, here;                       /* its own, and with the copies of others' */
    atom *atom;                            /* room for all, and for copies of all */
    atom *next;
    double (*force)[3];
    int *cell;                             /* where the atoms of each cell begin, the copies' layers included */
} my;

static double step = 0;
static backstay_session *session;

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "atoms: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void *room(size_t count, size_t bytes)
{
    void *found = calloc(count, bytes);

    if (found == NULL)
        stop("memory", "there is not enough");
    return found;
}

static int cell_along(double x)
{
    int at = (int)(x / all.box * all.cells);

    return at < all.cells ? at : all.cells - 1;
}

/* The process that has a layer: as those of `cut_box`. */
static int owner(int layer)
{
    return ((layer + 1) * my.ranks - 1) / all.cells;
}

static void cut_box(int units)
{
    all.atoms = 4 * units * units * units;
    all.box = units * EDGE;
    all.cells = (int)(all.box / RANGE);
    if (all.cells < 3 || my.ranks > all.cells)
        stop("the box", "it has fewer than 3 layers of cells, or than one for each process");
    my.first = all.cells * my.rank / my.ranks;
    my.layers = all.cells * (my.rank + 1) / my.ranks - my.first;
    my.atom = room(3 * (size_t)all.atoms, sizeof(atom));
    my.next = room(3 * (size_t)all.atoms, sizeof(atom));
    my.force = room((size_t)all.atoms, sizeof *my.force);
    my.cell = room((size_t)(my.layers + 2) * all.cells * all.cells + 1, sizeof(int));
}

/* A crystal at first; each process makes the atoms whose numbers are its share, whoever they belong to. */
static void make_atoms(int from, int to)
{
    static const double at[4][3] = {{0, 0, 0}, {0, .5, .5}, {.5, 0, .5}, {.5, .5, 0}};
    int units = (int)(all.box / EDGE + 0.5);

    my.atoms = to - from;
    for (int i = from; i < to; i++) {
        int unit[3] = {i / 4 / units / units, i / 4 / units % units, i / 4 % units};
        uint64_t seed = (uint64_t)i * 0x9e3779b97f4a7c15u + 1;

        my.atom[i - from].number = i;
        for (int d = 0; d < 3; d++) {
            seed = (seed ^ (seed >> 29)) * 0xbf58476d1ce4e5b9u;
            my.atom[i - from].x[d] = (unit[d] + at[i % 4][d]) * EDGE;
            my.atom[i - from].v[d] = (double)(seed >> 11) / (double)(1ull << 52) - 1;
        }
    }
}

/* Each atom goes to the process that has its layer. */
static void send_home(void)
{
    int *counts = room(4 * (size_t)my.ranks, sizeof(int)), *places = counts + my.ranks;
    int *coming = places + my.ranks, *begins = coming + my.ranks, *used = room((size_t)my.ranks, sizeof(int));
    atom *swap;

    for (int i = 0; i < my.atoms; i++)
        counts[owner(cell_along(my.atom[i].x[0]))] += NUMBERS;
    for (int i = 1; i < my.ranks; i++)
        places[i] = places[i - 1] + counts[i - 1];
    for (int i = 0; i < my.atoms; i++) {
        int to = owner(cell_along(my.atom[i].x[0]));

        my.next[places[to] / NUMBERS + used[to]++] = my.atom[i];
    }
    MPI_Alltoall(counts, 1, MPI_INT, coming, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 1; i < my.ranks; i++)
        begins[i] = begins[i - 1] + coming[i - 1];
    MPI_Alltoallv(my.next, counts, places, MPI_DOUBLE, my.atom, coming, begins, MPI_DOUBLE, MPI_COMM_WORLD);
    my.atoms = (begins[my.ranks - 1] + coming[my.ranks - 1]) / NUMBERS;
    swap = my.next;
    my.next = my.atom;
    my.atom = swap;
    free(counts);
    free(used);
}

/* By cells, in a cell by numbers. */
static int by_place(const void *one, const void *other)
{
    const atom *a = one, *b = other;
    int places[2][3];

    for (int d = 0; d < 3; d++) {
        places[0][d] = cell_along(a->x[d]);
        places[1][d] = cell_along(b->x[d]);
        if (places[0][d] != places[1][d])
            return places[0][d] < places[1][d] ? -1 : 1;
    }
    return (a->number > b->number) - (a->number < b->number);
}

/* Sorts its own by cells, and puts copies of the layers around them before and after. */
static void look_around(void)
{
    int before = (my.rank + my.ranks - 1) % my.ranks, after = (my.rank + 1) % my.ranks;
    int low = 0, high = 0, got, layer_cells = all.cells * all.cells, at = 0;
    atom *own = my.next;
    MPI_Status status;

    qsort(own, (size_t)my.atoms, sizeof(atom), by_place);
    while (low < my.atoms && cell_along(own[low].x[0]) == my.first)
        low++;
    while (high < my.atoms && cell_along(own[my.atoms - 1 - high].x[0]) == my.first + my.layers - 1)
        high++;
    MPI_Sendrecv(own + my.atoms - high, high * NUMBERS, MPI_DOUBLE, after, 0,
                 my.atom, all.atoms * NUMBERS, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_DOUBLE, &got);
    my.here = got / NUMBERS;
    memcpy(my.atom + my.here, own, (size_t)my.atoms * sizeof(atom));
    MPI_Sendrecv(own, low * NUMBERS, MPI_DOUBLE, before, 1,
                 my.atom + my.here + my.atoms, all.atoms * NUMBERS, MPI_DOUBLE, after, 1, MPI_COMM_WORLD, &status);
    my.here += my.atoms;
    MPI_Get_count(&status, MPI_DOUBLE, &got);
    my.here += got / NUMBERS;
    for (int cell = 0; cell <= (my.layers + 2) * layer_cells; cell++) {
        my.cell[cell] = at;
        for (int layer = cell / layer_cells; at < my.here; at++) {
            int x = (my.first - 1 + layer + all.cells) % all.cells;
            const double *place = my.atom[at].x;

            if (cell_along(place[0]) != x ||
                cell_along(place[1]) * all.cells + cell_along(place[2]) != cell % layer_cells)
                break;
        }
    }
}

/* What the atoms of a cell do to one: always in the same order. */
static void pull(const atom *one, int from, int to, double *force)
{
    for (int j = from; j < to; j++) {
        const atom *other = my.atom + j;
        double way[3], square = 0, near, size;

        for (int d = 0; d < 3; d++) {
            way[d] = one->x[d] - other->x[d];
            way[d] -= all.box * rint(way[d] / all.box);
            square += way[d] * way[d];
        }
        if (other->number == one->number || square > RANGE * RANGE)
            continue;
        near = 1 / (square * square * square);
        size = 48 * near * (near - 0.5) / square;
        for (int d = 0; d < 3; d++)
            force[d] += size * way[d];
    }
}

/* The forces on its own atoms, which stand behind the copies of the layer before. */
static void find_forces(void)
{
    int n = all.cells, skipped;

    send_home();
    look_around();
    skipped = my.cell[n * n];
    for (int i = 0; i < my.atoms; i++) {
        const atom *one = my.atom + skipped + i;
        int at[3] = {cell_along(one->x[0]) - my.first + 1, cell_along(one->x[1]), cell_along(one->x[2])};

        memset(my.force[i], 0, sizeof my.force[i]);
        for (int k = 0; k < 27; k++) {
            int y = (at[1] + k / 3 % 3 - 1 + n) % n, z = (at[2] + k % 3 - 1 + n) % n;
            int cell = ((at[0] + k / 9 - 1) * n + y) * n + z;

            pull(one, my.cell[cell], my.cell[cell + 1], my.force[i]);
        }
    }
    memmove(my.atom, my.atom + skipped, (size_t)my.atoms * sizeof(atom));
}

static void push(double time)
{
    for (int i = 0; i < my.atoms; i++)
        for (int d = 0; d < 3; d++)
            my.atom[i].v[d] += time * my.force[i][d];
}

static void one_step(void)
{
    push(STEP / 2);
    for (int i = 0; i < my.atoms; i++)
        for (int d = 0; d < 3; d++) {
            double *x = &my.atom[i].x[d];

            *x += STEP * my.atom[i].v[d];
            *x -= all.box * floor(*x / all.box);
            if (*x >= all.box)
                *x = 0;
        }
    find_forces();
    push(STEP / 2);
    step++;
}

/* ---- Backstay -------------------------------------------------------------------------------- */

/* `count` rows of the array of all atoms, behind those of the processes before. */
static void protect(int count)
{
    uint64_t whole[2] = {(uint64_t)all.atoms, NUMBERS}, part[2] = {(uint64_t)count, NUMBERS}, at[2] = {0, 0};
    uint64_t mine = part[0], one = 1, zero = 0;
    backstay_array array = backstay_array_default();

    MPI_Exscan(&mine, &at[0], 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    array.name = "atom";
    array.element = BACKSTAY_F64;
    array.address = my.atom;
    array.ndim = 2;
    array.shape = part;
    array.global_shape = whole;
    array.start = at;
    if (backstay_protect_array(session, &array) != BACKSTAY_OK)
        stop("protect", backstay_message(session));
    array.name = "step";                   /* the same on every process */
    array.address = &step;
    array.ndim = 1;
    array.shape = array.global_shape = &one;
    array.start = &zero;
    if (backstay_protect_array(session, &array) != BACKSTAY_OK)
        stop("protect", backstay_message(session));
}

static void begin_or_go_on(void)
{
    int from = (int)((long)all.atoms * my.rank / my.ranks), to = (int)((long)all.atoms * (my.rank + 1) / my.ranks);
    backstay_restored restored = backstay_restored_default();
    int32_t status;

    if (backstay_mpi_open(MPI_COMM_WORLD, NULL, &session) != BACKSTAY_OK)
        stop("open", backstay_message(NULL));
    my.atoms = to - from;
    protect(my.atoms);
    status = backstay_restore(session, &restored);
    if (status == BACKSTAY_NO_CHECKPOINT)
        make_atoms(from, to);
    else if (status != BACKSTAY_OK)
        stop("restore", backstay_message(session));
    else if (my.rank == 0)
        printf("restored checkpoint %d of %u processes: step %.0f\n", (int)restored.checkpoint.number,
               (unsigned)restored.ranks_then, step);
    fflush(stdout);
    find_forces();
}

/* A checkpoint that fails is no reason to stop: the last one stays. */
static void take_checkpoint(void)
{
    protect(my.atoms);
    if (backstay_checkpoint(session, NULL) != BACKSTAY_OK && my.rank == 0)
        fprintf(stderr, "atoms: %s\n", backstay_message(session));
}

/* ---- end of Backstay ------------------------------------------------------------------------- */

/* Every atom at the place of its number. */
static void write_atoms(const char *path)
{
    MPI_File file;

    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
        stop(path, "cannot be written");
    for (int i = 0; i < my.atoms; i++)
        MPI_File_write_at(file, (MPI_Offset)(my.atom[i].number * sizeof(atom)), my.atom + i, NUMBERS, MPI_DOUBLE,
                          MPI_STATUS_IGNORE);
    MPI_File_close(&file);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 0, every = argc > 3 ? atoi(argv[3]) : 10;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &my.ranks);
    if (steps < 1 || every < 1)
        stop("atoms STEPS [OUTPUT [EVERY [UNITS]]]", "a checkpoint every so many steps; so many unit cells an edge");
    cut_box(argc > 4 ? atoi(argv[4]) : 10);
    begin_or_go_on();
    while (step < steps) {
        one_step();
        if ((int)step % every == 0)
            take_checkpoint();
    }
    if (argc > 2)
        write_atoms(argv[2]);
    protect(my.atoms);
    if (backstay_finish(session) != BACKSTAY_OK && my.rank == 0)
        fprintf(stderr, "atoms: %s\n", backstay_message(NULL));
    if (my.rank == 0)
        printf("finished at step %.0f\n", step);
    MPI_Finalize();
    return 0;
}
