#include "runtime/model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "runtime/base/file.h"
#include "runtime/model/names.h"

/* What a header may be at most; real ones have 50 keys, 753 tensors and 12 MiB. The limits keep
 * a damaged count from becoming a large allocation. */
enum {
    MAX_KV = 1 << 16,
    MAX_TENSORS = 1 << 18,
    MAX_KEY = 1 << 16,
    MAX_TENSOR_NAME = 255,
    MAX_ALIGNMENT = 1 << 20,
    FIRST_READ = 1 << 20
};
static const uint64_t max_header = 128u << 20;

/* A name as arguments of "%.*s", short enough to leave room for the rest of a message. */
#define SHOW(s) (int)((s).n < 100 ? (s).n : 100), (s).p

/* Least bytes of a key-value pair (empty key, one byte) and of a tensor's entry. */
enum { MIN_KV_BYTES = 13, MIN_TENSOR_BYTES = 32 };

struct fl_gguf {
    uint8_t *own; /* header bytes when read from a file */
    uint32_t version;
    uint64_t alignment, data_start;
    fl_kv *kv;
    size_t n_kv;
    fl_gguf_tensor *tensor;
    size_t n_tensors;
    fl_names keys;
};

/* A cursor over the first `have` bytes of a file of `file_bytes`. Running past `have` inside the
 * file gives FL_E_BUSY without a message: the caller loads more and parses again. */
typedef struct cursor {
    const uint8_t *p;
    uint64_t have, file_bytes, at;
    uint64_t want; /* with FL_E_BUSY: bytes of the file needed */
    const char *path;
    fl_err *err;
    char where[96]; /* "metadata key 3 of 40" for messages */
} cursor;

static fl_status need(cursor *c, uint64_t n)
{
    if (n > c->file_bytes - c->at)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: %s at byte %" PRIu64 " needs %" PRIu64
                       " bytes, the file ends after %" PRIu64
                       ": it is truncated or damaged, download it again",
                       c->path, c->where, c->at, n, c->file_bytes - c->at);
    if (n > c->have - c->at) {
        c->want = c->at + n;
        return FL_E_BUSY;
    }
    return FL_OK;
}

static uint64_t le(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static fl_status read_uint(cursor *c, unsigned n, uint64_t *v)
{
    FL_TRY(need(c, n));
    *v = le(c->p + c->at, n);
    c->at += n;
    return FL_OK;
}

static fl_status read_str(cursor *c, fl_str *s)
{
    uint64_t n;
    FL_TRY(read_uint(c, 8, &n));
    FL_TRY(need(c, n));
    *s = (fl_str){(const char *)c->p + c->at, (size_t)n};
    c->at += n;
    return FL_OK;
}

/* Bytes of a scalar; 0 for strings, arrays and unknown types. */
static unsigned scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static fl_status too_many(cursor *c, const fl_kv *kv)
{
    return FL_FAIL(c->err, FL_E_FORMAT, 0,
                   "%s: %s ('%.*s') claims %" PRIu64
                   " elements, more than the file can hold: it is truncated or damaged, download "
                   "it again",
                   c->path, c->where, SHOW(kv->key), kv->count);
}

static fl_status skip_elements(cursor *c, fl_kv *kv, uint32_t type)
{
    if (type == FL_GGUF_STRING) {
        if (kv->count > (c->file_bytes - c->at) / 8) return too_many(c, kv);
        for (uint64_t i = 0; i < kv->count; i++) {
            fl_str s;
            FL_TRY(read_str(c, &s));
        }
        return FL_OK;
    }
    const unsigned size = scalar_bytes(type);
    if (!size)
        return FL_FAIL(
            c->err, FL_E_FORMAT, 0,
            "%s: %s ('%.*s') has value type %u, known are 0 to 12%s: the file is damaged", c->path,
            c->where, SHOW(kv->key), (unsigned)type,
            type == FL_GGUF_ARRAY ? " and no arrays inside arrays" : "");
    if (kv->count > (c->file_bytes - c->at) / size) return too_many(c, kv);
    FL_TRY(need(c, kv->count * size));
    c->at += kv->count * size;
    return FL_OK;
}

static fl_status read_kv(cursor *c, fl_kv *kv)
{
    FL_TRY(read_str(c, &kv->key));
    if (kv->key.n == 0 || kv->key.n > MAX_KEY)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: %s has a name of %zu bytes, allowed are 1 to %d: the file is damaged",
                       c->path, c->where, kv->key.n, MAX_KEY);
    uint64_t v;
    FL_TRY(read_uint(c, 4, &v));
    kv->type = (uint32_t)v;
    kv->count = 1;
    uint32_t elem = kv->type;
    if (kv->type == FL_GGUF_ARRAY) {
        FL_TRY(read_uint(c, 4, &v));
        elem = kv->elem_type = (uint32_t)v;
        FL_TRY(read_uint(c, 8, &kv->count));
    }
    const uint64_t from = c->at;
    FL_TRY(skip_elements(c, kv, elem));
    kv->data = c->p + from;
    kv->data_bytes = c->at - from;
    return FL_OK;
}

/* A count from the header against the limit and against what the file can hold. */
static fl_status check_count(const cursor *c, uint64_t n, uint64_t most, uint64_t least_bytes,
                             const char *what)
{
    const uint64_t room = (c->file_bytes - c->at) / least_bytes;
    if (n <= most && n <= room) return FL_OK;
    return FL_FAIL(c->err, FL_E_FORMAT, 0,
                   "%s: the header claims %" PRIu64 " %s, the file can hold %" PRIu64
                   ": it is truncated or damaged, download it again",
                   c->path, n, what, room < most ? room : most);
}

static fl_status read_kvs(cursor *c, fl_gguf *g, uint64_t n)
{
    FL_TRY(check_count(c, n, MAX_KV, MIN_KV_BYTES, "metadata keys"));
    g->n_kv = (size_t)n;
    g->kv = calloc(g->n_kv + 1, sizeof *g->kv);
    if (!g->kv) return FL_FAIL(c->err, FL_E_NOMEM, 0, "%s: no memory for its metadata", c->path);
    FL_TRY(fl_names_init(&g->keys, g->n_kv, c->err));
    for (size_t i = 0; i < g->n_kv; i++) {
        snprintf(c->where, sizeof c->where, "metadata key %zu of %zu", i + 1, g->n_kv);
        FL_TRY(read_kv(c, &g->kv[i]));
        if (fl_names_put(&g->keys, g->kv[i].key, (int64_t)i) != FL_NAMES_NONE)
            return FL_FAIL(c->err, FL_E_FORMAT, 0,
                           "%s: metadata key '%.*s' appears twice: the file is damaged", c->path,
                           SHOW(g->kv[i].key));
    }
    return FL_OK;
}

/* A tensor's size from type and shape; bytes stays 0 for a type this build does not know. */
static fl_status measure(const cursor *c, fl_gguf_tensor *t)
{
    int64_t elems = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (t->ne[d] < 1 || __builtin_mul_overflow(elems, t->ne[d], &elems))
            return FL_FAIL(c->err, FL_E_FORMAT, 0,
                           "%s: tensor '%.*s': dimension %d is %" PRId64
                           ", the shape is not possible: the file is damaged",
                           c->path, SHOW(t->name), d, t->ne[d]);
    const fl_type_info *ti = fl_type_get(t->type);
    if (!ti) return FL_OK;
    if (t->ne[0] % ti->block_elems)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: tensor '%.*s': rows of %" PRId64
                       " elements do not divide into blocks of %d (%s): the file is damaged",
                       c->path, SHOW(t->name), t->ne[0], ti->block_elems, ti->name);
    if (__builtin_mul_overflow((uint64_t)(elems / ti->block_elems), (uint64_t)ti->block_bytes,
                               &t->bytes))
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: tensor '%.*s' would be larger than 2^64 bytes: the file is damaged",
                       c->path, SHOW(t->name));
    return FL_OK;
}

/* Names are printed: an escape sequence in one would reach the terminal. */
static bool has_control(fl_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f) return true;
    return false;
}

static fl_status read_tensor(cursor *c, fl_gguf_tensor *t)
{
    FL_TRY(read_str(c, &t->name));
    if (t->name.n == 0 || t->name.n > MAX_TENSOR_NAME || has_control(t->name))
        return FL_FAIL(
            c->err, FL_E_FORMAT, 0,
            "%s: %s has a name of %zu bytes%s, allowed are 1 to %d without control "
            "characters: the file is damaged",
            c->path, c->where, t->name.n,
            t->name.n > MAX_TENSOR_NAME || t->name.n == 0 ? "" : " with a control character in it",
            MAX_TENSOR_NAME);
    uint64_t v;
    FL_TRY(read_uint(c, 4, &v));
    if (v < 1 || v > 4)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: tensor '%.*s' has %" PRIu64
                       " dimensions, allowed are 1 to 4: the file is damaged",
                       c->path, SHOW(t->name), v);
    t->n_dims = (int)v;
    for (int d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims) continue;
        FL_TRY(read_uint(c, 8, &v));
        t->ne[d] = (int64_t)v;
    }
    FL_TRY(read_uint(c, 4, &v));
    t->type = (uint32_t)v;
    FL_TRY(read_uint(c, 8, &t->offset));
    return measure(c, t);
}

static fl_status check_names(const cursor *c, const fl_gguf *g)
{
    fl_names names;
    fl_status st = fl_names_init(&names, g->n_tensors, c->err);
    for (size_t i = 0; st == FL_OK && i < g->n_tensors; i++)
        if (fl_names_put(&names, g->tensor[i].name, (int64_t)i) != FL_NAMES_NONE)
            st = FL_FAIL(c->err, FL_E_FORMAT, 0,
                         "%s: tensor '%.*s' appears twice: the file is damaged", c->path,
                         SHOW(g->tensor[i].name));
    fl_names_fini(&names);
    return st;
}

static fl_status read_tensors(cursor *c, fl_gguf *g, uint64_t n)
{
    FL_TRY(check_count(c, n, MAX_TENSORS, MIN_TENSOR_BYTES, "tensors"));
    g->n_tensors = (size_t)n;
    g->tensor = calloc(g->n_tensors + 1, sizeof *g->tensor);
    if (!g->tensor)
        return FL_FAIL(c->err, FL_E_NOMEM, 0, "%s: no memory for its tensor table", c->path);
    for (size_t i = 0; i < g->n_tensors; i++) {
        snprintf(c->where, sizeof c->where, "tensor entry %zu of %zu", i + 1, g->n_tensors);
        FL_TRY(read_tensor(c, &g->tensor[i]));
    }
    return check_names(c, g);
}

static int by_offset(const void *a, const void *b)
{
    const fl_gguf_tensor *x = *(const fl_gguf_tensor *const *)a;
    const fl_gguf_tensor *y = *(const fl_gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Of two neighbours in the file: apart, and nothing between them but padding. What lies behind a
 * tensor of a type that is not read cannot be told. */
static fl_status check_neighbours(const cursor *c, const fl_gguf *g, const fl_gguf_tensor *a,
                                  const fl_gguf_tensor *b)
{
    const uint64_t end = a->offset + a->bytes;
    const fl_type_info *ti = fl_type_get(a->type);
    if (end > b->offset)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: tensors '%.*s' and '%.*s' overlap: the file is damaged", c->path,
                       SHOW(a->name), SHOW(b->name));
    if (ti && ti->readable && b->offset - end >= g->alignment)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: %" PRIu64
                       " bytes between tensors '%.*s' and '%.*s' belong to neither: the file is "
                       "damaged",
                       c->path, b->offset - end, SHOW(a->name), SHOW(b->name));
    return FL_OK;
}

/* Every tensor lies aligned inside the data section, apart from the others. */
static fl_status check_places(const cursor *c, const fl_gguf *g)
{
    const uint64_t room = c->file_bytes > g->data_start ? c->file_bytes - g->data_start : 0;
    const fl_gguf_tensor **order = malloc((g->n_tensors + 1) * sizeof *order);
    if (!order) return FL_FAIL(c->err, FL_E_NOMEM, 0, "%s: no memory for its tensors", c->path);
    fl_status st = FL_OK;
    for (size_t i = 0; i < g->n_tensors && st == FL_OK; i++) {
        const fl_gguf_tensor *t = order[i] = &g->tensor[i];
        if (t->offset % g->alignment)
            st = FL_FAIL(c->err, FL_E_FORMAT, 0,
                         "%s: tensor '%.*s' starts at offset %" PRIu64
                         ", not a multiple of the alignment %" PRIu64 ": the file is damaged",
                         c->path, SHOW(t->name), t->offset, g->alignment);
        else if (t->offset > room || t->bytes > room - t->offset)
            st = FL_FAIL(c->err, FL_E_FORMAT, 0,
                         "%s: tensor '%.*s' needs %" PRIu64 " bytes at offset %" PRIu64
                         " of the data, the file has %" PRIu64
                         " there: it is truncated or damaged, download it again",
                         c->path, SHOW(t->name), t->bytes, t->offset, room);
    }
    if (st == FL_OK) qsort(order, g->n_tensors, sizeof *order, by_offset);
    for (size_t i = 1; i < g->n_tensors && st == FL_OK; i++)
        st = check_neighbours(c, g, order[i - 1], order[i]);
    free(order);
    return st;
}

static fl_status read_alignment(const cursor *c, fl_gguf *g)
{
    const fl_kv *kv = fl_gguf_find(g, "general.alignment");
    const int64_t a = fl_kv_int(kv, kv ? 0 : 32);
    if (a < 1 || a > MAX_ALIGNMENT || (a & (a - 1)))
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: general.alignment is %" PRId64
                       ", expected a power of two up to %d: the file is damaged",
                       c->path, a, MAX_ALIGNMENT);
    g->alignment = (uint64_t)a;
    return FL_OK;
}

static fl_status read_version(cursor *c, fl_gguf *g)
{
    uint64_t v;
    FL_TRY(read_uint(c, 4, &v));
    if (memcmp(c->p, "GGUF", 4) != 0)
        return FL_FAIL(
            c->err, FL_E_FORMAT, 0,
            "%s: starts with bytes %02x %02x %02x %02x, not with 'GGUF': not a GGUF file", c->path,
            c->p[0], c->p[1], c->p[2], c->p[3]);
    FL_TRY(read_uint(c, 4, &v));
    if (v == 0x02000000 || v == 0x03000000)
        return FL_FAIL(c->err, FL_E_UNSUPPORTED, 0,
                       "%s: a big-endian GGUF file; take the little-endian one", c->path);
    if (v != 2 && v != 3)
        return FL_FAIL(c->err, v == 1 ? FL_E_UNSUPPORTED : FL_E_FORMAT, 0,
                       "%s: GGUF version %" PRIu64 ", this program reads 2 and 3%s", c->path, v,
                       v == 1 ? ": convert the model anew" : ": the file is damaged or newer");
    g->version = (uint32_t)v;
    return FL_OK;
}

static fl_status parse(cursor *c, fl_gguf *g)
{
    snprintf(c->where, sizeof c->where, "the header");
    FL_TRY(read_version(c, g));
    uint64_t n_tensors, n_kv;
    FL_TRY(read_uint(c, 8, &n_tensors));
    FL_TRY(read_uint(c, 8, &n_kv));
    FL_TRY(read_kvs(c, g, n_kv));
    FL_TRY(read_alignment(c, g));
    FL_TRY(read_tensors(c, g, n_tensors));
    g->data_start = (c->at + g->alignment - 1) & ~(g->alignment - 1);
    return check_places(c, g);
}

/* Parses what is there; *want > 0 on return: that many bytes of the file are needed first. */
static fl_status parse_new(fl_gguf **out, const uint8_t *data, uint64_t have, uint64_t file_bytes,
                           const char *path, uint64_t *want, fl_err *err)
{
    fl_gguf *g = calloc(1, sizeof *g);
    if (!g) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    cursor c = {.p = data, .have = have, .file_bytes = file_bytes, .path = path, .err = err};
    const fl_status st = parse(&c, g);
    *want = st == FL_E_BUSY ? c.want : 0;
    if (st != FL_OK)
        fl_gguf_close(&g);
    else
        *out = g;
    return st;
}

fl_status fl_gguf_parse(fl_gguf **out, const uint8_t *data, uint64_t n, const char *path,
                        fl_err *err)
{
    uint64_t want;
    return parse_new(out, data, n, n, path, &want, err);
}

fl_status fl_gguf_open(fl_gguf **out, int fd, uint64_t file_bytes, const char *path, fl_err *err)
{
    uint8_t *buf = NULL;
    uint64_t have = 0, target = file_bytes < FIRST_READ ? file_bytes : FIRST_READ;
    fl_status st;
    for (;;) {
        uint8_t *bigger = realloc(buf, target + 1);
        if (!bigger) {
            st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for a header of %" PRIu64 " bytes",
                         path, target);
            break;
        }
        buf = bigger;
        st = fl_file_read_at(fd, buf + have, target - have, have, path, err);
        if (st != FL_OK) break;
        have = target;
        uint64_t want;
        st = parse_new(out, buf, have, file_bytes, path, &want, err);
        if (st != FL_E_BUSY) break;
        if (want > max_header) {
            st = FL_FAIL(err, FL_E_FORMAT, 0,
                         "%s: the header claims to be longer than %" PRIu64
                         " bytes: it is damaged, download it again",
                         path, max_header);
            break;
        }
        target = want > have * 2 ? want : have * 2;
        if (target > file_bytes) target = file_bytes;
    }
    if (st == FL_OK)
        (*out)->own = buf;
    else
        free(buf);
    return st;
}

void fl_gguf_close(fl_gguf **g)
{
    if (!*g) return;
    fl_names_fini(&(*g)->keys);
    free((*g)->kv);
    free((*g)->tensor);
    free((*g)->own);
    free(*g);
    *g = NULL;
}

uint32_t fl_gguf_version(const fl_gguf *g) { return g->version; }
uint64_t fl_gguf_alignment(const fl_gguf *g) { return g->alignment; }
uint64_t fl_gguf_data_start(const fl_gguf *g) { return g->data_start; }
size_t fl_gguf_n_kv(const fl_gguf *g) { return g->n_kv; }
const fl_kv *fl_gguf_kv_at(const fl_gguf *g, size_t i) { return &g->kv[i]; }
size_t fl_gguf_n_tensors(const fl_gguf *g) { return g->n_tensors; }
const fl_gguf_tensor *fl_gguf_tensor_at(const fl_gguf *g, size_t i) { return &g->tensor[i]; }

const fl_kv *fl_gguf_find(const fl_gguf *g, const char *key)
{
    const int64_t i = fl_names_get(&g->keys, (fl_str){key, strlen(key)});
    return i == FL_NAMES_NONE ? NULL : &g->kv[i];
}

/* A scalar as integer and as number; false for strings. */
static bool scalar(uint32_t type, const uint8_t *p, int64_t *i, double *d)
{
    const unsigned size = scalar_bytes(type);
    if (!size) return false;
    const uint64_t u = le(p, size);
    union {
        uint32_t u;
        float f;
    } f32 = {(uint32_t)u};
    union {
        uint64_t u;
        double d;
    } f64 = {u};
    switch (type) {
    case FL_GGUF_I8: *i = (int8_t)u; break;
    case FL_GGUF_I16: *i = (int16_t)u; break;
    case FL_GGUF_I32: *i = (int32_t)u; break;
    case FL_GGUF_F32: *d = f32.f; return true;
    case FL_GGUF_F64: *d = f64.d; return true;
    default: *i = (int64_t)u; break;
    }
    *d = type == FL_GGUF_U64 ? (double)u : (double)*i;
    return true;
}

static bool is_float(uint32_t type) { return type == FL_GGUF_F32 || type == FL_GGUF_F64; }

int64_t fl_kv_int(const fl_kv *kv, int64_t def)
{
    int64_t i = 0;
    double d = 0;
    if (!kv || is_float(kv->type) || !scalar(kv->type, kv->data, &i, &d)) return def;
    return kv->type == FL_GGUF_U64 && i < 0 ? def : i;
}

double fl_kv_num(const fl_kv *kv, double def)
{
    int64_t i = 0;
    double d = 0;
    return kv && scalar(kv->type, kv->data, &i, &d) ? d : def;
}

bool fl_kv_bool(const fl_kv *kv, bool def) { return fl_kv_int(kv, def) != 0; }

fl_str fl_kv_str(const fl_kv *kv)
{
    if (!kv || kv->type != FL_GGUF_STRING) return (fl_str){NULL, 0};
    return (fl_str){(const char *)kv->data + 8, kv->data_bytes - 8};
}

/* One element of an array of scalars seen as a key of its own; false outside. */
static bool element(const fl_kv *kv, uint64_t i, fl_kv *out)
{
    if (!kv || kv->type != FL_GGUF_ARRAY || i >= kv->count) return false;
    const unsigned size = scalar_bytes(kv->elem_type);
    *out = (fl_kv){.type = kv->elem_type, .count = 1, .data = kv->data + i * size};
    return size != 0;
}

int64_t fl_kv_int_at(const fl_kv *kv, uint64_t i, int64_t def)
{
    fl_kv one;
    return element(kv, i, &one) ? fl_kv_int(&one, def) : def;
}

double fl_kv_num_at(const fl_kv *kv, uint64_t i, double def)
{
    fl_kv one;
    return element(kv, i, &one) ? fl_kv_num(&one, def) : def;
}

bool fl_kv_strings(const fl_kv *kv, fl_str *out)
{
    if (!kv || kv->type != FL_GGUF_ARRAY || kv->elem_type != FL_GGUF_STRING) return false;
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->count; i++) {
        out[i] = (fl_str){(const char *)p + 8, (size_t)le(p, 8)};
        p += 8 + out[i].n;
    }
    return true;
}
