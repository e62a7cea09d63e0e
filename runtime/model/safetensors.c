#include "runtime/model/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "runtime/base/file.h"
#include "runtime/model/jscan.h"
#include "runtime/model/names.h"

/* The format's own limit on the header, and ours on the table (real files: at most 32,000). */
enum { MAX_HEADER = 100 * 1000 * 1000, MAX_TENSORS = 1 << 18, MAX_NAME = 512, MAX_DIMS = 8 };

#define SHOW(s) (int)((s).n < 100 ? (s).n : 100), (s).p

struct fl_safetensors {
    char *text; /* the JSON, names unescaped in place */
    fl_safetensor *tensor;
    size_t n, room;
    fl_str license; /* of __metadata__ */
};

/* The header's text and where the data lies. */
typedef struct scan {
    fl_jscan j;
    uint64_t data_start, data_bytes;
} scan;

/* Texts by name; of them only the licence is kept. */
static fl_status read_metadata(fl_jscan *c, fl_str *license)
{
    fl_str name, s;
    FL_TRY(fl_jscan_expect(c, '{'));
    if (fl_jscan_take(c, '}')) return FL_OK;
    do {
        FL_TRY(fl_jscan_string(c, &name, "a name"));
        FL_TRY(fl_jscan_expect(c, ':'));
        FL_TRY(fl_jscan_string(c, &s, "a text"));
        if (name.n == 7 && memcmp(name.p, "license", 7) == 0) *license = s;
    } while (fl_jscan_take(c, ','));
    return fl_jscan_expect(c, '}');
}

static const struct {
    const char *name;
    uint32_t type;
    unsigned bytes;
} dtypes[] = {
    {"BF16", FL_TYPE_BF16, 2},
    {"F16", FL_TYPE_F16, 2},
    {"F32", FL_TYPE_F32, 4},
    {"F64", FL_TYPE_F64, 8},
    {"I8", FL_TYPE_I8, 1},
    {"I16", FL_TYPE_I16, 2},
    {"I32", FL_TYPE_I32, 4},
    {"I64", FL_TYPE_I64, 8},
    {"BOOL", FL_FOREIGN_BOOL, 1},
    {"U8", FL_FOREIGN_U8, 1},
    {"U16", FL_FOREIGN_U16, 2},
    {"U32", FL_FOREIGN_U32, 4},
    {"U64", FL_FOREIGN_U64, 8},
    {"F8_E4M3", FL_FOREIGN_F8_E4M3, 1},
    {"F8_E5M2", FL_FOREIGN_F8_E5M2, 1},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

const char *fl_foreign_type_name(uint32_t type)
{
    if (type == FL_FOREIGN_OTHER) return "an unknown type";
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].type == type && type >= FL_TYPE_LIMIT) return dtypes[i].name;
    return NULL;
}

/* What one entry says, before it is checked. */
typedef struct entry {
    fl_str dtype;
    uint64_t shape[MAX_DIMS], place[2];
    int n_shape, n_place;
    bool has_shape;
} entry;

static fl_status read_field(scan *c, entry *e)
{
    fl_str key;
    FL_TRY(fl_jscan_string(&c->j, &key, "a field name"));
    FL_TRY(fl_jscan_expect(&c->j, ':'));
    if (key.n == 5 && memcmp(key.p, "dtype", 5) == 0 && !e->dtype.p)
        return fl_jscan_string(&c->j, &e->dtype, "a data type");
    if (key.n == 5 && memcmp(key.p, "shape", 5) == 0 && !e->has_shape) {
        e->has_shape = true;
        return fl_jscan_numbers(&c->j, e->shape, MAX_DIMS, &e->n_shape);
    }
    if (key.n == 12 && memcmp(key.p, "data_offsets", 12) == 0 && !e->n_place)
        return fl_jscan_numbers(&c->j, e->place, 2, &e->n_place);
    return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                   "%s: a tensor has a field '%.*s' that is unknown or comes twice (known: dtype, "
                   "shape, data_offsets): the file is damaged",
                   c->j.path, SHOW(key));
}

/* Shape to ggml order; *elems gets the product. */
static fl_status set_shape(const scan *c, const entry *e, fl_safetensor *t, uint64_t *elems)
{
    for (int d = 0; d < 4; d++) t->ne[d] = 1;
    t->n_dims = e->n_shape == 0 ? 1 : e->n_shape < 4 ? e->n_shape : 4;
    *elems = 1;
    for (int d = 0; d < e->n_shape; d++) {
        const uint64_t v = e->shape[d];
        if (v == 0 || v > INT64_MAX || __builtin_mul_overflow(*elems, v, elems) ||
            *elems > INT64_MAX)
            return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                           "%s: tensor '%.*s': dimension %d is %" PRIu64
                           ", the shape is not possible: the file is damaged",
                           c->j.path, SHOW(t->name), d, v);
        const int at = e->n_shape - 1 - d;
        t->ne[at < 3 ? at : 3] *= (int64_t)v;
    }
    return FL_OK;
}

static fl_status check_entry(const scan *c, const entry *e, fl_safetensor *t)
{
    if (!e->dtype.p || !e->has_shape || e->n_place != 2)
        return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                       "%s: tensor '%.*s' lacks one of dtype, shape and data_offsets: the file is "
                       "damaged",
                       c->j.path, SHOW(t->name));
    uint64_t elems, want;
    FL_TRY(set_shape(c, e, t, &elems));
    const uint64_t begin = e->place[0], end = e->place[1];
    if (begin > end || end > c->data_bytes)
        return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                       "%s: tensor '%.*s' lies at bytes %" PRIu64 " to %" PRIu64
                       " of the data, the file has %" PRIu64
                       ": it is truncated or damaged, download it again",
                       c->j.path, SHOW(t->name), begin, end, c->data_bytes);
    t->offset = c->data_start + begin;
    t->bytes = end - begin;
    t->type = FL_FOREIGN_OTHER;
    for (int i = 0; i < N_DTYPES; i++) {
        if (strlen(dtypes[i].name) != e->dtype.n ||
            memcmp(dtypes[i].name, e->dtype.p, e->dtype.n) != 0)
            continue;
        t->type = dtypes[i].type;
        if (__builtin_mul_overflow(elems, dtypes[i].bytes, &want) || want != t->bytes)
            return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                           "%s: tensor '%.*s' of %" PRIu64 " elements of type %s has %" PRIu64
                           " bytes, which do not fit together: the file is damaged",
                           c->j.path, SHOW(t->name), elems, dtypes[i].name, t->bytes);
    }
    return FL_OK;
}

static fl_status read_tensor(scan *c, fl_str name, fl_safetensor *t)
{
    t->name = name;
    if (name.n == 0 || name.n > MAX_NAME)
        return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                       "%s: a tensor has a name of %zu bytes, allowed are 1 to %d: the file is "
                       "damaged",
                       c->j.path, name.n, MAX_NAME);
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f)
            return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                           "%s: tensor '%.*s' has a control character in its name: the file is "
                           "damaged",
                           c->j.path, SHOW(name));
    entry e = {0};
    FL_TRY(fl_jscan_expect(&c->j, '{'));
    do FL_TRY(read_field(c, &e));
    while (fl_jscan_take(&c->j, ','));
    FL_TRY(fl_jscan_expect(&c->j, '}'));
    return check_entry(c, &e, t);
}

static fl_status add_tensor(scan *c, fl_safetensors *s, fl_str name)
{
    if (s->n == s->room) {
        const size_t room = s->room ? s->room * 2 : 256;
        fl_safetensor *more = room <= MAX_TENSORS ? realloc(s->tensor, room * sizeof *more) : NULL;
        if (!more)
            return FL_FAIL(c->j.err, FL_E_NOMEM, 0,
                           "%s: no memory for a table of %zu tensors (at most %d)", c->j.path, room,
                           MAX_TENSORS);
        s->tensor = more;
        s->room = room;
    }
    FL_TRY(read_tensor(c, name, &s->tensor[s->n]));
    s->n++;
    return FL_OK;
}

static fl_status read_entries(scan *c, fl_safetensors *s)
{
    FL_TRY(fl_jscan_expect(&c->j, '{'));
    bool metadata = false;
    if (!fl_jscan_take(&c->j, '}')) {
        do {
            fl_str name;
            FL_TRY(fl_jscan_string(&c->j, &name, "a tensor name"));
            FL_TRY(fl_jscan_expect(&c->j, ':'));
            if (name.n == 12 && memcmp(name.p, "__metadata__", 12) == 0 && !metadata) {
                metadata = true;
                FL_TRY(read_metadata(&c->j, &s->license));
            } else {
                FL_TRY(add_tensor(c, s, name));
            }
        } while (fl_jscan_take(&c->j, ','));
        FL_TRY(fl_jscan_expect(&c->j, '}'));
    }
    return fl_jscan_end(&c->j);
}

static int by_offset(const void *a, const void *b)
{
    const fl_safetensor *x = *(const fl_safetensor *const *)a;
    const fl_safetensor *y = *(const fl_safetensor *const *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* No byte in two tensors, none in no tensor: whoever writes this format packs them. */
static fl_status check_places(const scan *c, const fl_safetensor **order, size_t n)
{
    uint64_t at = c->data_start;
    for (size_t i = 0; i < n; i++) {
        const fl_safetensor *t = order[i];
        if (t->offset < at)
            return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                           "%s: tensors '%.*s' and '%.*s' overlap: the file is damaged", c->j.path,
                           SHOW(order[i - 1]->name), SHOW(t->name));
        if (t->offset > at)
            return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                           "%s: %" PRIu64
                           " bytes before tensor '%.*s' belong to no tensor: the file is damaged",
                           c->j.path, t->offset - at, SHOW(t->name));
        at = t->offset + t->bytes;
    }
    if (at == c->data_start + c->data_bytes) return FL_OK;
    return FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                   "%s: %" PRIu64 " bytes at its end belong to no tensor: the file is damaged",
                   c->j.path, c->data_start + c->data_bytes - at);
}

/* No name twice, places as above. */
static fl_status check_table(const scan *c, const fl_safetensors *s)
{
    fl_names names;
    fl_status st = fl_names_init(&names, s->n, c->j.err);
    const fl_safetensor **order = malloc((s->n + 1) * sizeof *order);
    if (!order) st = FL_FAIL(c->j.err, FL_E_NOMEM, 0, "%s: no memory for its tensors", c->j.path);
    for (size_t i = 0; i < s->n && st == FL_OK; i++) {
        order[i] = &s->tensor[i];
        if (fl_names_put(&names, s->tensor[i].name, (int64_t)i) != FL_NAMES_NONE)
            st = FL_FAIL(c->j.err, FL_E_FORMAT, 0,
                         "%s: tensor '%.*s' appears twice: the file is damaged", c->j.path,
                         SHOW(s->tensor[i].name));
    }
    if (st == FL_OK) qsort(order, s->n, sizeof *order, by_offset);
    if (st == FL_OK) st = check_places(c, order, s->n);
    free(order);
    fl_names_fini(&names);
    return st;
}

/* Takes ownership of `text`, the n bytes of JSON. */
static fl_status parse(fl_safetensors **out, char *text, uint64_t n, uint64_t file_bytes,
                       const char *path, fl_err *err)
{
    fl_safetensors *s = calloc(1, sizeof *s);
    if (!s) {
        free(text);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    }
    s->text = text;
    scan c = {{text, text + n, text, 8, path, err}, 8 + n, file_bytes - 8 - n};
    fl_status st = read_entries(&c, s);
    if (st == FL_OK) st = check_table(&c, s);
    if (st == FL_OK)
        *out = s;
    else
        fl_safetensors_close(&s);
    return st;
}

/* The header's length from the file's first 8 bytes. */
static fl_status header_length(const uint8_t first[8], uint64_t file_bytes, const char *path,
                               uint64_t *n, fl_err *err)
{
    *n = 0;
    for (int i = 7; i >= 0; i--) *n = *n << 8 | first[i];
    if (*n > file_bytes - 8 || *n > MAX_HEADER || *n < 2)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: claims a header of %" PRIu64 " bytes, the file has %" PRIu64
                       " (limit %d): it is truncated or not a safetensors file, download it again",
                       path, *n, file_bytes, MAX_HEADER);
    return FL_OK;
}

static fl_status too_short(uint64_t file_bytes, const char *path, fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: %" PRIu64 " bytes are too few for a safetensors file: it is truncated, "
                   "download it again",
                   path, file_bytes);
}

fl_status fl_safetensors_parse(fl_safetensors **out, const uint8_t *data, uint64_t n,
                               const char *path, fl_err *err)
{
    uint64_t len;
    if (n < 8) return too_short(n, path, err);
    FL_TRY(header_length(data, n, path, &len, err));
    char *text = malloc(len);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its header", path);
    memcpy(text, data + 8, len);
    return parse(out, text, len, n, path, err);
}

fl_status fl_safetensors_open(fl_safetensors **out, int fd, uint64_t file_bytes, const char *path,
                              fl_err *err)
{
    uint8_t first[8];
    uint64_t len;
    if (file_bytes < 8) return too_short(file_bytes, path, err);
    FL_TRY(fl_file_read_at(fd, first, 8, 0, path, err));
    FL_TRY(header_length(first, file_bytes, path, &len, err));
    char *text = malloc(len);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its header", path);
    const fl_status st = fl_file_read_at(fd, text, len, 8, path, err);
    if (st != FL_OK) {
        free(text);
        return st;
    }
    return parse(out, text, len, file_bytes, path, err);
}

void fl_safetensors_close(fl_safetensors **s)
{
    if (!*s) return;
    free((*s)->text);
    free((*s)->tensor);
    free(*s);
    *s = NULL;
}

size_t fl_safetensors_n(const fl_safetensors *s) { return s->n; }
const fl_safetensor *fl_safetensors_at(const fl_safetensors *s, size_t i) { return &s->tensor[i]; }

fl_str fl_safetensors_license(const fl_safetensors *s) { return s->license; }
