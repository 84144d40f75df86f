/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What backstay.f90 stands on: descriptors of Fortran arrays become Backstay's arrays, and Fortran's
 * communicators C's. Compile it with mpicc, or with -DBACKSTAY_WITHOUT_MPI for programs without MPI; its
 * ISO_Fortran_binding.h is that of the Fortran compiler.
 */
#ifdef BACKSTAY_WITHOUT_MPI
#include <backstay/backstay.h>
#else
#include <backstay/backstay_mpi.h>
#endif
#include <ISO_Fortran_binding.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME_BYTES 256 /* with the zero byte */
/* Dimensions of an array of Fortran's, and one for the bytes of an element. */
#define DIMENSIONS (CFI_MAX_RANK + 1)

/* What is protected under a name, so that memory that moved is found, and marks find their place. */
typedef struct variable {
    struct variable *next;
    char name[NAME_BYTES];
    char *address;
    uint64_t bytes;
    int32_t element;
    uint32_t ndim;
    uint64_t shape[BACKSTAY_DIMENSIONS_MAX];
} variable;

/* Not freed when it is closed: a copy of the Fortran variable then still finds that it is closed. */
typedef struct fortran_session {
    backstay_session *open; /* NULL: closed */
    variable *variables;
} fortran_session;

/* type(backstay_session) */
typedef struct session_variable {
    fortran_session *session;
} session_variable;

/* Rank 0 is a scalar, so Fortran's shape is counted apart from C's. Slowest dimension first. */
typedef struct shape {
    int32_t element;
    int ndim;
    uint64_t extent[DIMENSIONS];
    uint64_t whole[DIMENSIONS];
    uint64_t start[DIMENSIONS];
} shape;

/* In backstay.f90: error stop with the message of this thread. */
void backstay_fortran_stop(void);

/* All integers; other compilers than gfortran also have logicals under these codes. */
static const CFI_type_t integer_types[] = {
    CFI_type_int8_t,        CFI_type_int16_t,       CFI_type_int32_t,       CFI_type_int64_t,
    CFI_type_int_least8_t,  CFI_type_int_least16_t, CFI_type_int_least32_t, CFI_type_int_least64_t,
    CFI_type_int_fast8_t,   CFI_type_int_fast16_t,  CFI_type_int_fast32_t,  CFI_type_int_fast64_t,
    CFI_type_signed_char,   CFI_type_short,         CFI_type_int,           CFI_type_long,
    CFI_type_long_long,     CFI_type_size_t,        CFI_type_intmax_t,      CFI_type_intptr_t,
    CFI_type_ptrdiff_t,     CFI_type_Bool,
#ifdef CFI_type_Logical /* gfortran's */
    CFI_type_Logical + (2 << CFI_type_kind_shift),
    CFI_type_Logical + (4 << CFI_type_kind_shift),
    CFI_type_Logical + (8 << CFI_type_kind_shift),
#endif
};

static const struct {
    CFI_type_t type;
    int32_t element;
    size_t bytes;
} real_types[] = {
    {CFI_type_float, BACKSTAY_F32, 4},
    {CFI_type_double, BACKSTAY_F64, 8},
    {CFI_type_float_Complex, BACKSTAY_COMPLEX64, 8},
    {CFI_type_double_Complex, BACKSTAY_COMPLEX128, 16},
#ifdef CFI_type_half_float
    {CFI_type_half_float, BACKSTAY_F16, 2},
#endif
#ifdef CFI_type_bfloat
    {CFI_type_bfloat, BACKSTAY_BF16, 2},
#endif
};

/* Kinds that Backstay has no element for: their bytes are, as one dimension more. */
static const CFI_type_t wide_types[] = {
    CFI_type_long_double,
    CFI_type_long_double_Complex,
    CFI_type_int128_t,
#ifdef CFI_type_Logical
    CFI_type_Logical + (16 << CFI_type_kind_shift),
#endif
#ifdef CFI_type_extended_double
    CFI_type_extended_double,
#endif
#ifdef CFI_type_extended_double_Complex
    CFI_type_extended_double_Complex,
#endif
#ifdef CFI_type_float128
    CFI_type_float128,
#endif
#ifdef CFI_type_float128_Complex
    CFI_type_float128_Complex,
#endif
};

static int32_t refuse(int32_t status, const char *operation, const char *name, const char *format, ...)
{
    char what[640], text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %s%s%s", operation, name, *name ? ": " : "", what);
    return backstay_refuse(status, text);
}

/* What stat= and errmsg= say, or the error stop where there is no stat=. */
static void finish(int32_t status, int32_t *stat, CFI_cdesc_t *errmsg)
{
    const char *text = backstay_message(NULL);

    if (stat != NULL)
        *stat = status;
    if (status == BACKSTAY_OK)
        return;
    if (errmsg != NULL) {
        size_t length = strlen(text) < errmsg->elem_len ? strlen(text) : errmsg->elem_len;

        memset(errmsg->base_addr, ' ', errmsg->elem_len);
        memcpy(errmsg->base_addr, text, length);
    }
    if (stat == NULL)
        backstay_fortran_stop();
}

static int32_t check_open(const session_variable *variable, const char *operation)
{
    if (variable->session == NULL)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "the session was never opened");
    if (variable->session->open == NULL)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "the session is closed");
    return BACKSTAY_OK;
}

/* The session for the C interface, which refuses NULL; backstay.f90 asked check_open before. */
backstay_session *backstay_fortran_session(const session_variable *variable)
{
    return variable->session == NULL ? NULL : variable->session->open;
}

int32_t backstay_fortran_check_open(const session_variable *variable, const char *operation)
{
    return check_open(variable, operation);
}

/* ---- Names ----------------------------------------------------------------------------------------- */

/* Fortran's text without the blanks at its end. */
static int32_t name_of(const CFI_cdesc_t *text, const char *operation, char *name)
{
    const char *from = text->base_addr;
    size_t length = text->elem_len;

    while (length > 0 && from[length - 1] == ' ')
        length--;
    if (length >= NAME_BYTES)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "the name %.32s... has %zu bytes, more than %d",
                      from, length, NAME_BYTES - 1);
    if (length > 0 && memchr(from, 0, length) != NULL)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "the name has a zero byte; it needs none");
    memcpy(name, from, length);
    name[length] = '\0';
    return BACKSTAY_OK;
}

static variable *find(const fortran_session *session, const char *name)
{
    variable *at = session->variables;

    while (at != NULL && strcmp(at->name, name) != 0)
        at = at->next;
    return at;
}

static void forget(fortran_session *session, const char *name)
{
    variable **at = &session->variables;

    while (*at != NULL && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    if (*at != NULL) {
        variable *gone = *at;
        *at = gone->next;
        free(gone);
    }
}

/* ---- Descriptors ----------------------------------------------------------------------------------- */

static int is_one_of(CFI_type_t type, const CFI_type_t *types, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (types[i] == type)
            return 1;
    return 0;
}

static int is_integer(const CFI_cdesc_t *x)
{
    return is_one_of(x->type, integer_types, sizeof integer_types / sizeof *integer_types);
}

/* The element that is stored as it is; 0 if there is none. */
static int32_t stored_type(const CFI_cdesc_t *x)
{
    static const int32_t by_bytes[9] = {0, BACKSTAY_I8, BACKSTAY_I16, 0, BACKSTAY_I32, 0, 0, 0, BACKSTAY_I64};

    if (is_integer(x) && x->elem_len < 9)
        return by_bytes[x->elem_len];
    for (size_t i = 0; i < sizeof real_types / sizeof *real_types; i++)
        if (x->type == real_types[i].type && x->elem_len == real_types[i].bytes)
            return real_types[i].element;
    return 0;
}

/* Type and bytes of the elements. `extra` becomes the extent of a dimension that stands for a part of
 * the element, 0 if there is none. */
static int32_t element_of(const CFI_cdesc_t *x, int as_bytes, const char *operation, const char *name,
                          int32_t *element, uint64_t *extra, int *has_extra)
{
    *has_extra = 1;
    *extra = x->elem_len;
    *element = BACKSTAY_BYTES;
    if (as_bytes)
        return BACKSTAY_OK;
    if (x->type == CFI_type_char) {
        *element = BACKSTAY_U8;
        return BACKSTAY_OK;
    }
#ifdef CFI_type_char32_t
    if (x->type == CFI_type_char32_t) {
        *element = BACKSTAY_U32;
        *extra = x->elem_len / 4;
        return BACKSTAY_OK;
    }
#elif defined CFI_type_ucs4_char
    if (x->type == CFI_type_ucs4_char) {
        *element = BACKSTAY_U32;
        *extra = x->elem_len / 4;
        return BACKSTAY_OK;
    }
#endif
    *element = stored_type(x);
    if (*element != 0) {
        *has_extra = 0;
        return BACKSTAY_OK;
    }
    *element = BACKSTAY_BYTES;
    if (x->type > 0 && is_one_of(x->type, wide_types, sizeof wide_types / sizeof *wide_types))
        return BACKSTAY_OK;
#ifdef CFI_type_cfunptr
    if (x->type == CFI_type_cfunptr)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                      "is a type(c_funptr): an address means nothing in another process");
#endif
    if (x->type == CFI_type_cptr)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                      "is a type(c_ptr): an address means nothing in another process");
    return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                  "is of a derived type, or of one that Backstay does not know (code %d, %zu bytes): protect "
                  "its components, or, if none is allocatable or a pointer, use backstay_protect_bytes",
                  (int)x->type, x->elem_len);
}

/* What can be protected lies in one piece; dimensions of one element step where they like. */
static int32_t check_descriptor(const CFI_cdesc_t *x, const char *operation, const char *name)
{
    CFI_index_t next = (CFI_index_t)x->elem_len;

    if (x->rank > 0 && x->dim[x->rank - 1].extent == -1)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                      "is of assumed size: hand over a section with its last bound, as in a(:, 1:n)");
    if (x->base_addr == NULL)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name, "is not allocated or not associated");
    for (int i = 0; i < x->rank; i++)
        if (x->dim[i].extent == 0)
            return BACKSTAY_OK;
    for (int i = 0; i < x->rank; i++) {
        if (x->dim[i].extent > 1 && x->dim[i].sm != next)
            return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                          "is not contiguous: in dimension %d the next element is %td bytes away, not %td; "
                          "protect the whole array, or a contiguous copy", i + 1, x->dim[i].sm, next);
        next *= x->dim[i].extent;
    }
    return BACKSTAY_OK;
}

/* Backstay's shape is Fortran's backwards: the same bytes in row-major order. */
static int32_t shape_of(const CFI_cdesc_t *x, int as_bytes, const char *operation, const char *name, shape *to)
{
    uint64_t extra = 0;
    int has_extra = 0;
    int32_t status = check_descriptor(x, operation, name);

    if (status == BACKSTAY_OK)
        status = element_of(x, as_bytes, operation, name, &to->element, &extra, &has_extra);
    to->ndim = 0;
    for (int i = x->rank - 1; status == BACKSTAY_OK && i >= 0; i--)
        to->extent[to->ndim++] = (uint64_t)x->dim[i].extent;
    if (has_extra)
        to->extent[to->ndim++] = extra;
    return status;
}

/* A number of an array of integers; global_shape and first are not always contiguous. */
static int64_t number_at(const CFI_cdesc_t *numbers, int at)
{
    const char *place = (const char *)numbers->base_addr + at * numbers->dim[0].sm;

    return numbers->elem_len == 8 ? *(const int64_t *)(const void *)place
                                  : *(const int32_t *)(const void *)place;
}

/* Where the part is in the whole, from Fortran's numbers, which count from 1. */
static int32_t place_of(const CFI_cdesc_t *x, const CFI_cdesc_t *whole, const CFI_cdesc_t *first,
                        const char *operation, const char *name, shape *to)
{
    int rank = x->rank;

    if (whole->dim[0].extent != rank || first->dim[0].extent != rank)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                      "has %d dimensions, global_shape %td and first %td", rank, whole->dim[0].extent,
                      first->dim[0].extent);
    for (int i = 0; i < rank; i++) {
        int64_t all = number_at(whole, i), from = number_at(first, i);
        int64_t here = x->dim[i].extent;

        if (from < 1 || all < here || from - 1 > all - here)
            return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                          "in dimension %d the part begins at %lld and has %lld of %lld elements; first "
                          "counts from 1", i + 1, (long long)from, (long long)here, (long long)all);
        to->whole[rank - 1 - i] = (uint64_t)all;
        to->start[rank - 1 - i] = (uint64_t)from - 1;
    }
    if (to->ndim > rank) {
        to->whole[rank] = to->extent[rank];
        to->start[rank] = 0;
    }
    return BACKSTAY_OK;
}

/* Backstay stores 8 dimensions: the fastest ones of more become one. Of a part they must be whole. */
static int32_t fold(shape *to, int is_part, const char *operation, const char *name)
{
    while (to->ndim > BACKSTAY_DIMENSIONS_MAX) {
        int last = --to->ndim;
        uint64_t whole = to->whole[last], limit = UINT64_MAX / (whole ? whole : 1);

        to->extent[last - 1] *= to->extent[last];
        if (!is_part)
            continue;
        if (whole != to->extent[last] || to->start[last] != 0 || to->whole[last - 1] > limit)
            return refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                          "has more than %d dimensions, and a part of its first ones: of an array with so "
                          "many only the last ones can be cut", BACKSTAY_DIMENSIONS_MAX);
        to->whole[last - 1] *= whole;
        to->start[last - 1] *= whole;
    }
    return BACKSTAY_OK;
}

/* ---- Variables ------------------------------------------------------------------------------------- */

static int32_t remember(fortran_session *session, const char *name, const CFI_cdesc_t *x, const shape *as)
{
    variable *entry = find(session, name);

    if (entry == NULL) {
        entry = calloc(1, sizeof *entry);
        if (entry == NULL)
            return refuse(BACKSTAY_INTERNAL, "backstay_protect", name, "no memory");
        strcpy(entry->name, name);
        entry->next = session->variables;
        session->variables = entry;
    }
    entry->address = x->base_addr;
    entry->bytes = x->elem_len;
    for (int i = 0; i < x->rank; i++)
        entry->bytes *= (uint64_t)x->dim[i].extent;
    entry->element = as->element;
    entry->ndim = (uint32_t)as->ndim;
    memcpy(entry->shape, as->extent, sizeof entry->shape);
    return BACKSTAY_OK;
}

static int32_t protect(const session_variable *session, const CFI_cdesc_t *text, const CFI_cdesc_t *x,
                       const CFI_cdesc_t *whole, const CFI_cdesc_t *first, int as_bytes,
                       const int32_t *tracking, const int32_t *block_bytes)
{
    const char *operation = as_bytes ? "backstay_protect_bytes" : "backstay_protect";
    backstay_array array = backstay_array_default();
    char name[NAME_BYTES] = "";
    shape as;
    int32_t status = check_open(session, operation);

    memset(&as, 0, sizeof as);
    if (status == BACKSTAY_OK)
        status = name_of(text, operation, name);
    if (status == BACKSTAY_OK)
        status = shape_of(x, as_bytes, operation, name, &as);
    if (status == BACKSTAY_OK && whole != NULL)
        status = place_of(x, whole, first, operation, name, &as);
    if (status == BACKSTAY_OK)
        status = fold(&as, whole != NULL, operation, name);
    if (status == BACKSTAY_OK && block_bytes != NULL && *block_bytes < 0)
        status = refuse(BACKSTAY_INVALID_ARGUMENT, operation, name, "block_bytes is %d", (int)*block_bytes);
    if (status != BACKSTAY_OK)
        return status;
    array.name = name;
    array.address = x->base_addr;
    array.element = as.element;
    array.ndim = (uint32_t)as.ndim;
    array.shape = as.extent;
    array.global_shape = whole == NULL ? NULL : as.whole;
    array.start = whole == NULL ? NULL : as.start;
    array.tracking = tracking == NULL ? BACKSTAY_TRACKING_DEFAULT : *tracking;
    array.block_bytes = block_bytes == NULL ? 0 : (uint32_t)*block_bytes;
    status = backstay_protect_array(session->session->open, &array);
    if (status == BACKSTAY_OK && (status = remember(session->session, name, x, &as)) != BACKSTAY_OK)
        backstay_unprotect(session->session->open, name);
    return status;
}

void backstay_fortran_protect(const session_variable *session, const CFI_cdesc_t *name, const CFI_cdesc_t *x,
                              const int32_t *tracking, const int32_t *block_bytes, int32_t *stat,
                              CFI_cdesc_t *errmsg)
{
    finish(protect(session, name, x, NULL, NULL, 0, tracking, block_bytes), stat, errmsg);
}

void backstay_fortran_protect_part(const session_variable *session, const CFI_cdesc_t *name,
                                   const CFI_cdesc_t *x, const CFI_cdesc_t *whole, const CFI_cdesc_t *first,
                                   const int32_t *tracking, const int32_t *block_bytes, int32_t *stat,
                                   CFI_cdesc_t *errmsg)
{
    finish(protect(session, name, x, whole, first, 0, tracking, block_bytes), stat, errmsg);
}

/* With 64 bits in global_shape and first, which their descriptors say. */
void backstay_fortran_protect_long_part(const session_variable *session, const CFI_cdesc_t *name,
                                        const CFI_cdesc_t *x, const CFI_cdesc_t *whole,
                                        const CFI_cdesc_t *first, const int32_t *tracking,
                                        const int32_t *block_bytes, int32_t *stat, CFI_cdesc_t *errmsg)
{
    backstay_fortran_protect_part(session, name, x, whole, first, tracking, block_bytes, stat, errmsg);
}

void backstay_fortran_protect_bytes(const session_variable *session, const CFI_cdesc_t *name,
                                    const CFI_cdesc_t *x, const int32_t *tracking, const int32_t *block_bytes,
                                    int32_t *stat, CFI_cdesc_t *errmsg)
{
    finish(protect(session, name, x, NULL, NULL, 1, tracking, block_bytes), stat, errmsg);
}

int32_t backstay_fortran_unprotect(const session_variable *session, const CFI_cdesc_t *text)
{
    char name[NAME_BYTES];
    int32_t status = check_open(session, "backstay_unprotect");

    if (status == BACKSTAY_OK)
        status = name_of(text, "backstay_unprotect", name);
    if (status == BACKSTAY_OK)
        status = backstay_unprotect(session->session->open, name);
    if (status == BACKSTAY_OK)
        forget(session->session, name);
    return status;
}

/* Whether x is what is protected under this name, where it is and as it is. */
_Bool backstay_fortran_is_protected(const session_variable *session, const CFI_cdesc_t *text,
                                    const CFI_cdesc_t *x)
{
    const char *operation = "backstay_is_protected";
    char name[NAME_BYTES];
    variable *entry = NULL;
    shape as;

    memset(&as, 0, sizeof as);
    if (check_open(session, operation) != BACKSTAY_OK || name_of(text, operation, name) != BACKSTAY_OK)
        return 0;
    entry = find(session->session, name);
    if (entry == NULL || x->base_addr != entry->address)
        return 0;
    /* Bytes of a derived type are compared as such. */
    if (shape_of(x, entry->element == BACKSTAY_BYTES, operation, name, &as) != BACKSTAY_OK)
        return 0;
    if (fold(&as, 0, operation, name) != BACKSTAY_OK)
        return 0;
    return as.element == entry->element && (uint32_t)as.ndim == entry->ndim &&
           memcmp(as.extent, entry->shape, entry->ndim * sizeof *entry->shape) == 0;
}

/* Marks from the first to the last byte of a section of what is protected. */
void backstay_fortran_mark_dirty(const session_variable *session, const CFI_cdesc_t *text,
                                 const CFI_cdesc_t *section, int32_t *stat, CFI_cdesc_t *errmsg)
{
    const char *operation = "backstay_mark_dirty";
    char name[NAME_BYTES];
    const variable *entry = NULL;
    int32_t status = check_open(session, operation);
    ptrdiff_t from = 0, to = (ptrdiff_t)section->elem_len;
    int empty = 0;

    if (status == BACKSTAY_OK)
        status = name_of(text, operation, name);
    if (status == BACKSTAY_OK && (entry = find(session->session, name)) == NULL)
        status = refuse(BACKSTAY_INVALID_ARGUMENT, operation, name, "nothing is protected under this name");
    if (status == BACKSTAY_OK && section->base_addr == NULL)
        status = refuse(BACKSTAY_INVALID_ARGUMENT, operation, name, "the section is not allocated");
    for (int i = 0; i < section->rank; i++) {
        ptrdiff_t far = (section->dim[i].extent - 1) * section->dim[i].sm;

        empty = empty || section->dim[i].extent == 0;
        *(far < 0 ? &from : &to) += far;
    }
    if (status == BACKSTAY_OK && !empty) {
        from += (char *)section->base_addr - entry->address;
        to += (char *)section->base_addr - entry->address;
        if (from < 0 || (uint64_t)to > entry->bytes)
            status = refuse(BACKSTAY_INVALID_ARGUMENT, operation, name,
                            "the section is no part of what is protected; protect it again if it moved");
        else
            status = backstay_mark_dirty(session->session->open, name, (uint64_t)from, (uint64_t)(to - from));
    }
    finish(status, stat, errmsg);
}

void backstay_fortran_read_rank(const session_variable *session, const CFI_cdesc_t *text, const int32_t *rank,
                                const CFI_cdesc_t *x, int32_t *stat, CFI_cdesc_t *errmsg)
{
    const char *operation = "backstay_read_rank";
    char name[NAME_BYTES];
    uint64_t bytes = x->elem_len;
    int32_t status = check_open(session, operation);

    if (status == BACKSTAY_OK)
        status = name_of(text, operation, name);
    if (status == BACKSTAY_OK)
        status = check_descriptor(x, operation, name);
    for (int i = 0; i < x->rank; i++)
        bytes *= (uint64_t)x->dim[i].extent;
    if (status == BACKSTAY_OK && *rank < 0)
        status = refuse(BACKSTAY_INVALID_ARGUMENT, operation, name, "there is no rank %d", (int)*rank);
    if (status == BACKSTAY_OK)
        status = backstay_read_rank(session->session->open, name, (uint32_t)*rank, x->base_addr, bytes);
    finish(status, stat, errmsg);
}

/* ---- Settings -------------------------------------------------------------------------------------- */

/* Settings from names and values, each with a zero after it; what cannot be set backstay_open says. */
backstay_options *backstay_fortran_options(const char *pairs, int64_t bytes)
{
    backstay_options *options = backstay_options_new();
    const char *name = pairs, *end = pairs + bytes;

    while (name < end) {
        const char *value = name + strlen(name) + 1;

        backstay_option_set(options, name, value);
        name = value + strlen(value) + 1;
    }
    return options;
}

/* ---- Sessions -------------------------------------------------------------------------------------- */

static int32_t check_not_open(const session_variable *variable, const char *operation)
{
    if (variable->session == NULL || variable->session->open == NULL)
        return BACKSTAY_OK;
    return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "this session is open already; close it first");
}

/* Hands an open session to Fortran's variable. */
static int32_t deliver(session_variable *variable, fortran_session *made, int32_t status)
{
    if (status == BACKSTAY_OK)
        variable->session = made;
    else
        free(made);
    return status;
}

int32_t backstay_fortran_open_single(session_variable *variable, const backstay_options *options)
{
    fortran_session *made = NULL;
    int32_t status = check_not_open(variable, "backstay_open_single");

    if (status != BACKSTAY_OK)
        return status;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return refuse(BACKSTAY_INTERNAL, "backstay_open_single", "", "no memory");
    return deliver(variable, made, backstay_open(NULL, options, &made->open));
}

#ifdef BACKSTAY_WITHOUT_MPI

int32_t backstay_fortran_open(session_variable *variable, const CFI_cdesc_t *comm,
                              const backstay_options *options)
{
    (void)variable, (void)comm, (void)options;
    return refuse(BACKSTAY_UNSUPPORTED, "backstay_open", "", "backstay_fortran.c was compiled without MPI");
}

#else

/* Whether MPI knows the communicator: asked with errors returned, since MPI_Comm_dup would abort. */
static int is_communicator(MPI_Comm comm)
{
    MPI_Comm held[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    MPI_Errhandler before[2];
    int size = 0, code;

    if (comm == MPI_COMM_NULL)
        return 0;
    for (int i = 0; i < 2; i++) {
        MPI_Comm_get_errhandler(held[i], &before[i]);
        MPI_Comm_set_errhandler(held[i], MPI_ERRORS_RETURN);
    }
    code = MPI_Comm_size(comm, &size);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_set_errhandler(held[i], before[i]);
        MPI_Errhandler_free(&before[i]);
    }
    return code == MPI_SUCCESS;
}

/* `comm` is an integer or a type(MPI_Comm), which is one integer: no module of MPI's is needed here. */
int32_t backstay_fortran_open(session_variable *variable, const CFI_cdesc_t *comm,
                              const backstay_options *options)
{
    const char *operation = "backstay_open";
    fortran_session *made = NULL;
    MPI_Comm handle = MPI_COMM_NULL;
    int initialized = 0, finalized = 0;
    int32_t status = check_not_open(variable, operation);
    int fits = comm->rank == 0 && comm->base_addr != NULL && comm->elem_len == sizeof(MPI_Fint) &&
               (is_integer(comm) || comm->type == CFI_type_struct || comm->type == CFI_type_other);

    if (status != BACKSTAY_OK)
        return status;
    if (!fits)
        return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "",
                      "comm is neither a type(MPI_Comm) nor a default integer (code %d, %zu bytes, rank %d)",
                      (int)comm->type, comm->elem_len, (int)comm->rank);
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Finalized(&finalized);
    if (initialized && !finalized) {
        handle = MPI_Comm_f2c(*(const MPI_Fint *)comm->base_addr);
        if (!is_communicator(handle))
            return refuse(BACKSTAY_INVALID_ARGUMENT, operation, "", "comm is no communicator");
    }
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return refuse(BACKSTAY_INTERNAL, operation, "", "no memory");
    return deliver(variable, made, backstay_mpi_open(handle, options, &made->open));
}

#endif

int32_t backstay_fortran_end(const session_variable *variable, int32_t is_done)
{
    int32_t status = check_open(variable, is_done ? "backstay_finish" : "backstay_close");

    if (status != BACKSTAY_OK)
        return status;
    status = is_done ? backstay_finish(variable->session->open) : backstay_close(variable->session->open);
    if (status == BACKSTAY_INVALID_ARGUMENT) /* another thread is inside a call: it stays open */
        return status;
    variable->session->open = NULL;
    while (variable->session->variables != NULL)
        forget(variable->session, variable->session->variables->name);
    return status;
}
