/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The job that the multiprocess tests kill. Every word of its variables tells which step wrote it, in
 * which start of the job, on which rank, in which variable and where in it; which words a step writes
 * follows from a hash, so that after a restore every word is checked against the step restored.
 *
 * Events go to the pipe that ORACLE_EVENTS names, one line each, in one write: "RANK EVENT WORDS...".
 *   pid P | fresh | restored NUMBER INCARNATION STEP FELL_BACK | wrong TEXT | mix TEXT | verified STEP
 *   begin STEP | started STEP | committed NUMBER INCARNATION STEP | failed STEP STATUS TEXT
 *   error OPERATION STATUS TEXT (it exits with 3) | closed STEP | leaving STEP
 * With --watch 1, whenever that changes on its node: encoding NUMBER INCARNATION | protected NUMBER INCARNATION
 * | short TEXT (protection is less than was asked for; without words: no longer).
 *   unprotected STEP STATUS TEXT: the wait for protection failed | holding STEP
 *   archived NUMBER INCARNATION STEP | unarchived STEP STATUS TEXT: the wait for the archive ended so
 */
#include <backstay/backstay_mpi.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEPS_MAX 4096
#define TINY 300
#define FIELD_ROWS 960
#define FIELD_COLS 64
#define CLOCK 840
#define NOBODY 255                    /* the rank in words of global arrays */

enum { BIG = 1, BREATHING, PAGED, MARKED, FIELD, GUEST, BALLAST, FIRST_TINY = 100 };

/* Words in granules: a step writes a granule whole or not at all, one of `among` granules. */
typedef struct array {
    char name[24];
    uint64_t id;
    uint64_t *at;
    size_t words, first;              /* `first`: where a part of a global array begins */
    size_t granule;
    uint64_t among;
    uint64_t rank;
    int32_t tracking;
    int is_protected;
} array;

static struct {
    int64_t steps, pause_us, late_rank, late_step, late_ms, ballast_step, ballast_mib, restore_number;
    size_t big_words;
    int64_t wait_protected;           /* steps up to this one wait until they are protected */
    int64_t wait_archived;            /* steps up to this one wait until they are in the archive */
    int64_t hold_step;                /* after its checkpoint nothing more happens until it is killed */
    int background, slabs, fixed, no_folder, start, watch, leave;
    uint64_t seed;
} run = {.hold_step = -1, .steps = 20, .pause_us = 1000, .big_words = (size_t)1 << 18, .late_rank = -1, .late_step = -1,
         .ballast_step = -1, .start = 1, .seed = 1};

static int rank, ranks, events = -1;
static backstay_session *session;
static array big, breathing, paged, marked, field, guest, ballast, tiny[TINY];
static int64_t step;
static uint16_t history[STEPS_MAX];   /* which start computed which step */
static int64_t clock_part[CLOCK];
static size_t clock_first, clock_count, history_first, history_count;
static uint16_t history_part[STEPS_MAX];
static long wrong;

/* ---- Events ---------------------------------------------------------------------------------- */

static void event(const char *format, ...)
{
    char line[1024];
    int length = snprintf(line, sizeof line, "%d ", rank);
    va_list arguments;

    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    for (int at = 0; at < length; at++)
        if (line[at] == '\n')
            line[at] = ' ';
    line[length++] = '\n';
    if (events >= 0 && write(events, line, (size_t)length) != length)
        _exit(4);
}

static void stop(const char *operation, int32_t status, const char *text)
{
    event("error %s %d %s", operation, (int)status, text);
    MPI_Finalize();
    exit(3);
}

static void check(const char *operation, int32_t status)
{
    if (status != BACKSTAY_OK)
        stop(operation, status, backstay_message(session));
}

static void nap(int64_t us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

/* ---- What every word must be ------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static int changes(const array *a, size_t granule, int64_t at_step)
{
    uint64_t key = run.seed ^ a->id << 52 ^ a->rank << 44 ^ (uint64_t)granule << 20 ^ (uint64_t)at_step;
    return at_step == 1 || mix(key) % a->among == 0;
}

static int64_t last_change(const array *a, size_t granule, int64_t at_step)
{
    while (at_step > 0 && !changes(a, granule, at_step))
        at_step--;
    return at_step;
}

static uint64_t word(const array *a, size_t index, int64_t at_step)
{
    uint64_t where = mix(index) & 0xffff;
    return (uint64_t)at_step << 44 | (uint64_t)history[at_step] << 34 | a->rank << 26 | a->id << 16 | where;
}

static void fill(const array *a, size_t granule, int64_t at_step)
{
    size_t begin = granule * a->granule, end = begin + a->granule;

    for (size_t i = begin; i < end && i < a->first + a->words; i++)
        if (i >= a->first)
            a->at[i - a->first] = word(a, i, at_step);
}

static size_t first_granule(const array *a) { return a->first / a->granule; }
static size_t end_granule(const array *a) { return (a->first + a->words + a->granule - 1) / a->granule; }

/* What step `step` writes. */
static void advance(const array *a)
{
    for (size_t g = first_granule(a); g < end_granule(a); g++) {
        if (!changes(a, g, step))
            continue;
        fill(a, g, step);
        if (a->tracking == BACKSTAY_TRACKING_MARKED) {
            uint64_t begin = g * a->granule * 8, end = begin + a->granule * 8;
            if (end > a->words * 8)
                end = a->words * 8;
            check("mark_dirty", backstay_mark_dirty(session, a->name, begin, end - begin));
        }
    }
}

/* The same array made anew: what all steps up to this one have written. */
static void rebuild(const array *a)
{
    for (size_t g = first_granule(a); g < end_granule(a); g++)
        fill(a, g, last_change(a, g, step));
}

static void verify(const array *a)
{
    for (size_t g = first_granule(a); g < end_granule(a); g++) {
        int64_t written = last_change(a, g, step);
        for (size_t i = g * a->granule; i < (g + 1) * a->granule && i < a->first + a->words; i++) {
            if (i < a->first)
                continue;
            uint64_t found = a->at[i - a->first], expected = word(a, i, written);
            if (found != expected && ++wrong <= 3)
                event("wrong %s[%zu] at step %" PRId64 ": expected %016" PRIx64 " (step %" PRId64
                      " start %d), found %016" PRIx64 " (step %d start %d rank %d variable %d)",
                      a->name, i, step, expected, written, history[written], found, (int)(found >> 44),
                      (int)(found >> 34 & 1023), (int)(found >> 26 & 255), (int)(found >> 16 & 1023));
        }
    }
}

/* ---- Variables ------------------------------------------------------------------------------- */

static uint64_t *memory(size_t words)
{
    void *at = mmap(NULL, words * 8 + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        stop("mmap", 0, "no memory");
    return at;
}

static void size_array(array *a, size_t words)
{
    uint64_t *old = a->at;
    size_t old_words = a->words;

    a->at = memory(words);
    a->words = words;
    if (a->is_protected) {
        struct backstay_array shape = backstay_array_default();
        uint64_t extent = words;
        shape.name = a->name;
        shape.address = a->at;
        shape.element = BACKSTAY_U64;
        shape.ndim = 1;
        shape.shape = &extent;
        shape.tracking = a->tracking;
        check("protect", backstay_protect_array(session, &shape));
    }
    if (old != NULL)
        munmap(old, old_words * 8 + 1);
}

static void make(array *a, uint64_t id, const char *name, size_t words, size_t granule, uint64_t among,
                 int32_t tracking)
{
    snprintf(a->name, sizeof a->name, "%s", name);
    a->id = id;
    a->rank = (uint64_t)rank;
    a->granule = granule;
    a->among = among;
    a->tracking = tracking;
    a->is_protected = 1;
    size_array(a, words);
}

static size_t part_of(size_t whole, size_t *first)
{
    *first = whole * (size_t)rank / (size_t)ranks;
    return whole * (size_t)(rank + 1) / (size_t)ranks - *first;
}

static void protect_slab(const char *name, int32_t element, void *at, uint32_t ndim, const uint64_t *shape,
                         const uint64_t *whole, const uint64_t *start)
{
    struct backstay_array slab = backstay_array_default();

    slab.name = name;
    slab.address = at;
    slab.element = element;
    slab.ndim = ndim;
    slab.shape = shape;
    slab.global_shape = whole;
    slab.start = start;
    check("protect", backstay_protect_array(session, &slab));
}

static void make_field(void)
{
    size_t first, rows = part_of(FIELD_ROWS, &first);
    uint64_t whole[2] = {FIELD_ROWS, FIELD_COLS}, shape[2] = {rows, FIELD_COLS}, start[2] = {first, 0};

    snprintf(field.name, sizeof field.name, "a field of all ranks");
    field.id = FIELD;
    field.rank = NOBODY;
    field.granule = FIELD_COLS;
    field.among = 8;
    field.words = rows * FIELD_COLS;
    field.first = first * FIELD_COLS;
    field.at = memory(field.words);
    protect_slab(field.name, BACKSTAY_U64, field.at, 2, shape, whole, start);
}

/* The step and the history as global arrays, which any number of ranks can have back. */
static void make_clock(void)
{
    uint64_t whole, shape, start;

    clock_count = part_of(CLOCK, &clock_first);
    whole = CLOCK, shape = clock_count, start = clock_first;
    protect_slab("clock", BACKSTAY_I64, clock_part, 1, &shape, &whole, &start);
    history_count = part_of(STEPS_MAX, &history_first);
    whole = STEPS_MAX, shape = history_count, start = history_first;
    protect_slab("history", BACKSTAY_U16, history_part, 1, &shape, &whole, &start);
}

static void protect_plain(const char *name, int32_t element, void *at, uint64_t count)
{
    check("protect", backstay_protect(session, name, element, at, count));
}

static size_t breath(int64_t at_step)
{
    return run.fixed ? 30000 : 20000 + mix(run.seed ^ (uint64_t)at_step ^ (uint64_t)rank << 32) % 20000;
}

static int guest_is_there(int64_t at_step) { return !run.fixed && at_step / 4 % 2 == 1; }

static void make_all(void)
{
    make_field();
    if (run.slabs) {
        make_clock();
        return;
    }
    protect_plain("step", BACKSTAY_I64, &step, 1);
    protect_plain("history", BACKSTAY_U16, history, STEPS_MAX);
    make(&big, BIG, "big", run.big_words, 256, 64, BACKSTAY_TRACKING_HASH);
    make(&breathing, BREATHING, "breathing", breath(0), 64, 16, BACKSTAY_TRACKING_DEFAULT);
    make(&paged, PAGED, "paged", 1 << 16, 512, 32, BACKSTAY_TRACKING_PAGES);
    make(&marked, MARKED, "marked", (1 << 16) + 77, 128, 32, BACKSTAY_TRACKING_MARKED);
    for (int t = 0; t < TINY; t++) {
        char name[16];
        snprintf(name, sizeof name, "tiny.%03d", t);
        make(&tiny[t], (uint64_t)(FIRST_TINY + t), name, 1 + (size_t)t % 9, 16, 4, BACKSTAY_TRACKING_DEFAULT);
    }
}

static void welcome_guest(void)
{
    if (!guest.is_protected)
        make(&guest, GUEST, "guest", 3000, 64, 4, BACKSTAY_TRACKING_FULL);
}

static void see_guest_off(void)
{
    if (guest.is_protected)
        check("unprotect", backstay_unprotect(session, guest.name));
    guest.is_protected = 0;
}

/* Memory as large as what is stored, before a restore. */
static void fit_to_stored(void)
{
    uint64_t shape[BACKSTAY_DIMENSIONS_MAX];
    size_t ndim = 0;

    if (run.slabs)
        return;
    if (backstay_stored_shape(session, "breathing", (uint32_t)rank, shape, 8, &ndim) == BACKSTAY_OK)
        size_array(&breathing, shape[0]);
    if (backstay_stored_shape(session, "guest", (uint32_t)rank, shape, 8, &ndim) == BACKSTAY_OK)
        welcome_guest();
    else
        see_guest_off();
}

/* ---- A start ---------------------------------------------------------------------------------- */

static void compute(void)
{
    step++;
    history[step] = (uint16_t)run.start;
    advance(&field);
    if (run.slabs) {
        for (size_t i = 0; i < clock_count; i++)
            clock_part[i] = step;
        memcpy(history_part, history + history_first, history_count * sizeof *history);
        return;
    }
    advance(&big);
    advance(&paged);
    advance(&marked);
    for (int t = 0; t < TINY; t++)
        advance(&tiny[t]);
    if (!run.fixed)
        size_array(&breathing, breath(step));
    rebuild(&breathing);
    if (guest_is_there(step)) {
        welcome_guest();
        rebuild(&guest);
    } else {
        see_guest_off();
    }
    if (step == run.ballast_step) {
        make(&ballast, BALLAST, "ballast", (size_t)run.ballast_mib << 17, 512, 2, BACKSTAY_TRACKING_HASH);
        rebuild(&ballast);
    }
}

static void drop_ballast(void)
{
    if (ballast.is_protected)
        check("unprotect", backstay_unprotect(session, ballast.name));
    ballast.is_protected = 0;
}

/* The step and the history of a slabs-only job, from the parts of all ranks. */
static void gather_clock(void)
{
    int64_t own[2] = {INT64_MAX, INT64_MAX}, all[2];

    for (size_t i = 0; i < clock_count; i++) {
        own[0] = clock_part[i] < own[0] ? clock_part[i] : own[0];
        own[1] = -clock_part[i] < own[1] ? -clock_part[i] : own[1];
    }
    MPI_Allreduce(own, all, 2, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
    if (all[0] != -all[1])
        event("mix the clock shows steps %" PRId64 " and %" PRId64, all[0], -all[1]);
    step = all[0];
    memset(history, 0, sizeof history);
    memcpy(history + history_first, history_part, history_count * sizeof *history);
    MPI_Allreduce(MPI_IN_PLACE, history, STEPS_MAX, MPI_UINT16_T, MPI_MAX, MPI_COMM_WORLD);
}

static void verify_all(void)
{
    uint64_t sum = 0, own[4], all[4];

    if (run.slabs)
        gather_clock();
    for (int64_t s = 0; s < STEPS_MAX; s++)
        sum = mix(sum ^ history[s]) >> 1;
    own[0] = (uint64_t)step, own[1] = ~(uint64_t)step, own[2] = sum, own[3] = ~sum;
    MPI_Allreduce(own, all, 4, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (all[0] != ~all[1] || all[2] != ~all[3])
        event("mix ranks are at different steps or of different starts: step %" PRId64, step);
    if (step < 1 || step >= STEPS_MAX) {
        event("wrong step %" PRId64, step);
        return;
    }
    verify(&field);
    if (run.slabs)
        return;
    if (breathing.words != breath(step) || guest.is_protected != guest_is_there(step))
        event("wrong shape: breathing has %zu words, guest is %s at step %" PRId64, breathing.words,
              guest.is_protected ? "there" : "not there", step);
    verify(&big);
    verify(&breathing);
    verify(&paged);
    verify(&marked);
    for (int t = 0; t < TINY; t++)
        verify(&tiny[t]);
    if (guest.is_protected)
        verify(&guest);
}

static void restore(void)
{
    backstay_restored restored = backstay_restored_default();
    int32_t status = BACKSTAY_VARIABLE_MISMATCH;

    /* An older checkpoint than the one whose shapes were asked for may have others. */
    for (int attempt = 0; attempt < 4 && status == BACKSTAY_VARIABLE_MISMATCH; attempt++) {
        fit_to_stored();
        status = run.restore_number > 0
                     ? backstay_restore_from(session, (uint64_t)run.restore_number, &restored)
                     : backstay_restore(session, &restored);
    }
    if (status == BACKSTAY_NO_CHECKPOINT) {
        event("fresh");
        see_guest_off();
        if (!run.slabs)
            size_array(&breathing, breath(0));
        step = 0;
        return;
    }
    check("restore", status);
    verify_all();
    event("restored %" PRIu64 " %" PRIu64 " %" PRId64 " %u", restored.checkpoint.number,
          restored.checkpoint.incarnation, step, restored.fell_back);
    if (wrong == 0)
        event("verified %" PRId64, step);
}

static void report_checkpoint(int32_t status, const backstay_report *report, int64_t of_step)
{
    if (status == BACKSTAY_OK)
        event("committed %" PRIu64 " %" PRIu64 " %" PRId64, report->checkpoint.number,
              report->checkpoint.incarnation, of_step);
    else
        event("failed %" PRId64 " %d %s", of_step, (int)status, backstay_message(session));
}

/* Says what is known of protection, where that changed. Local. */
static void watch_protection(void)
{
    static backstay_protection last;
    backstay_protection now = backstay_protection_default();

    if (!run.watch)
        return;
    check("protection_status", backstay_protection_status(session, &now));
    if (now.encoding.number != 0 && now.encoding.number != last.encoding.number)
        event("encoding %" PRIu64 " %" PRIu64, now.encoding.number, now.encoding.incarnation);
    if (now.at_protected.number != last.at_protected.number
        || now.at_protected.incarnation != last.at_protected.incarnation)
        event("protected %" PRIu64 " %" PRIu64, now.at_protected.number, now.at_protected.incarnation);
    if (strcmp(now.shortfall, last.shortfall) != 0)
        event("short %s", now.shortfall);
    last = now;
}

/* A checkpoint that is not done before it is protected. */
static int32_t protected_checkpoint(backstay_report *report)
{
    backstay_handle *handle = NULL;
    backstay_protection now = backstay_protection_default();
    int32_t status = backstay_checkpoint_start(session, &handle);

    if (status != BACKSTAY_OK)
        return status;
    event("started %" PRId64, step);
    status = backstay_wait(session, handle, BACKSTAY_LEVEL_PROTECTED, report);
    if (status == BACKSTAY_OK)
        return status;
    event("unprotected %" PRId64 " %d %s", step, (int)status, backstay_message(session));
    check("protection_status", backstay_protection_status(session, &now));
    report->checkpoint = now.at_node;
    return BACKSTAY_OK;
}

/* A checkpoint that is not done before it is in the archive, or known not to get there. */
static int32_t archived_checkpoint(backstay_report *report)
{
    backstay_handle *handle = NULL;
    backstay_protection now = backstay_protection_default();
    int32_t status = backstay_checkpoint_start(session, &handle);

    if (status != BACKSTAY_OK)
        return status;
    event("started %" PRId64, step);
    status = backstay_wait(session, handle, BACKSTAY_LEVEL_ARCHIVE, report);
    if (status == BACKSTAY_OK) {
        event("archived %" PRIu64 " %" PRIu64 " %" PRId64, report->checkpoint.number,
              report->checkpoint.incarnation, step);
        return status;
    }
    event("unarchived %" PRId64 " %d %s", step, (int)status, backstay_message(session));
    check("protection_status", backstay_protection_status(session, &now));
    report->checkpoint = now.at_node;
    return BACKSTAY_OK;
}

static void hold(void)
{
    event("holding %" PRId64, step);
    for (;;) {
        watch_protection();
        nap(2000);
    }
}

static int should_leave(void)
{
    bool leave = false;

    if (run.leave)
        check("should_leave", backstay_should_leave(session, &leave));
    if (leave)
        event("leaving %" PRId64, step);
    return leave;
}

static void live(void)
{
    backstay_handle *handle = NULL;

    while (step < run.steps) {
        backstay_report report = backstay_report_default();
        int32_t status;

        compute();
        nap((int64_t)(mix((uint64_t)step ^ run.seed << 20 ^ (uint64_t)rank << 50) % (uint64_t)(run.pause_us + 1)));
        if (handle != NULL) {
            bool done = false;
            check("test", backstay_test(session, handle, BACKSTAY_LEVEL_NODE, &done));
            status = backstay_wait(session, handle, BACKSTAY_LEVEL_NODE, &report);
            handle = NULL;
            report_checkpoint(status, &report, step - 1);
            report = backstay_report_default();
        }
        if (rank == run.late_rank && step == run.late_step)
            nap(run.late_ms * 1000);
        event("begin %" PRId64, step);
        if (step <= run.wait_archived) {
            status = archived_checkpoint(&report);
            report_checkpoint(status, &report, step);
        } else if (step <= run.wait_protected) {
            status = protected_checkpoint(&report);
            report_checkpoint(status, &report, step);
        } else if (run.background) {
            status = backstay_checkpoint_start(session, &handle);
            if (status == BACKSTAY_OK)
                event("started %" PRId64, step);
            else
                report_checkpoint(status, &report, step);
        } else {
            status = backstay_checkpoint(session, &report);
            report_checkpoint(status, &report, step);
        }
        if (status != BACKSTAY_OK)
            drop_ballast();
        watch_protection();
        if (should_leave())
            break;
        if (step == run.hold_step)
            hold();
    }
    if (handle != NULL) {
        backstay_report report = backstay_report_default();
        report_checkpoint(backstay_wait(session, handle, BACKSTAY_LEVEL_NODE, &report), &report, step);
    }
}

static void leave_folder(void)
{
    char name[] = "/tmp/backstay-gone-XXXXXX";
    if (mkdtemp(name) == NULL || chdir(name) != 0 || rmdir(name) != 0)
        stop("chdir", 0, "cannot stand in a deleted folder");
}

static void arguments(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *text = argv[i + 1];
        int64_t value = strtoll(text, NULL, 10);
        if (strcmp(name, "--steps") == 0)
            run.steps = value < STEPS_MAX ? value : STEPS_MAX - 1;
        else if (strcmp(name, "--pause-us") == 0)
            run.pause_us = value;
        else if (strcmp(name, "--kib") == 0)
            run.big_words = (size_t)value << 7;
        else if (strcmp(name, "--seed") == 0)
            run.seed = (uint64_t)value;
        else if (strcmp(name, "--start") == 0)
            run.start = (int)value;
        else if (strcmp(name, "--background") == 0)
            run.background = (int)value;
        else if (strcmp(name, "--slabs") == 0)
            run.slabs = (int)value;
        else if (strcmp(name, "--fixed") == 0)
            run.fixed = (int)value;
        else if (strcmp(name, "--no-folder") == 0)
            run.no_folder = (int)value;
        else if (strcmp(name, "--wait-protected") == 0)
            run.wait_protected = value;
        else if (strcmp(name, "--wait-archived") == 0)
            run.wait_archived = value;
        else if (strcmp(name, "--hold") == 0)
            run.hold_step = value;
        else if (strcmp(name, "--watch") == 0)
            run.watch = (int)value;
        else if (strcmp(name, "--leave") == 0)
            run.leave = (int)value;
        else if (strcmp(name, "--restore") == 0)
            run.restore_number = value;
        else if (strcmp(name, "--late") == 0)
            sscanf(text, "%" SCNd64 ":%" SCNd64 ":%" SCNd64, &run.late_rank, &run.late_step, &run.late_ms);
        else if (strcmp(name, "--ballast") == 0)
            sscanf(text, "%" SCNd64 ":%" SCNd64, &run.ballast_step, &run.ballast_mib);
        else
            stop("arguments", 0, name);
    }
}

int main(int argc, char **argv)
{
    const char *pipe = getenv("ORACLE_EVENTS");

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (pipe != NULL)
        events = open(pipe, O_WRONLY);
    event("pid %d", (int)getpid());
    arguments(argc, argv);
    if (run.no_folder)
        leave_folder();
    check("open", backstay_mpi_open(MPI_COMM_WORLD, NULL, &session));
    make_all();
    restore();
    if (wrong == 0)
        live();
    check("close", backstay_close(session));
    event("closed %" PRId64, step);
    MPI_Finalize();
    return wrong == 0 ? 0 : 5;
}
