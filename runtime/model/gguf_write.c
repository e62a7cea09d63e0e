#include "runtime/model/gguf_write.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/format.h"
#include "runtime/base/space.h"
#include "runtime/model/gguf_write_parts.h"

enum { MAX_PARTS = 1000 };
typedef fl_gw_bytes bytes;

static void append(bytes *b, const void *data, size_t n)
{
    if (b->failed || n == 0) return;
    if (n > b->cap - b->n) {
        size_t cap = b->cap ? b->cap : 4096;
        while (cap - b->n < n && cap < SIZE_MAX / 2) cap *= 2;
        uint8_t *p = cap - b->n < n ? NULL : realloc(b->p, cap);
        if (!p) {
            b->failed = true;
            return;
        }
        b->p = p;
        b->cap = cap;
    }
    memcpy(b->p + b->n, data, n);
    b->n += n;
}

static void append_u32(bytes *b, uint32_t v) { append(b, &v, sizeof v); }
static void append_u64(bytes *b, uint64_t v) { append(b, &v, sizeof v); }
static void append_str(bytes *b, const char *p, size_t n)
{
    append_u64(b, n);
    append(b, p, n);
}

fl_status fl_gguf_writer_create(fl_gguf_writer **out, const char *path, uint32_t alignment,
                                fl_err *err)
{
    *out = NULL;
    if (alignment == 0) alignment = FL_GGUF_ALIGN;
    if (alignment < 8 || (alignment & (alignment - 1)))
        return FL_FAIL(err, FL_E_ARG, 0, "%s: alignment %u is no power of two of at least 8", path,
                       alignment);
    fl_gguf_writer *w = calloc(1, sizeof *w);
    if (w) w->path = strdup(path);
    if (w) w->hash = fl_hasher_create();
    if (!w || !w->path || !w->hash) {
        fl_gguf_writer_discard(&w);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to write it", path);
    }
    w->alignment = alignment;
    *out = w;
    return FL_OK;
}

void fl_gguf_writer_discard(fl_gguf_writer **pw)
{
    fl_gguf_writer *w = *pw;
    if (!w) return;
    if (w->file) fl_outfile_discard(&w->file);
    for (int i = 0; i < w->n_parts; i++) {
        if (w->begun && w->kept) unlink(w->part[i].tmp);
        free(w->part[i].path);
        free(w->part[i].tmp);
    }
    free(w->part);
    fl_hasher_destroy(&w->hash);
    free(w->kv.p);
    free(w->keys.p);
    free(w->tensor);
    free(w->path);
    free(w);
    *pw = NULL;
}

bool fl_gguf_has_key(const fl_gguf_writer *w, const char *key)
{
    const size_t n = strlen(key) + 1;
    for (size_t at = 0; at < w->keys.n;) {
        const char *have = (const char *)w->keys.p + at;
        const size_t have_n = strlen(have) + 1;
        if (have_n == n && memcmp(have, key, n) == 0) return true;
        at += have_n;
    }
    return false;
}

static void append_number(bytes *b, const char *key, uint32_t type, uint32_t v, size_t n)
{
    append_str(b, key, strlen(key));
    append_u32(b, type);
    append(b, &v, n);
}

static void put_key(fl_gguf_writer *w, const char *key, uint32_t type)
{
    assert(!w->part);
    if (fl_gguf_has_key(w, key) && !w->twice[0]) snprintf(w->twice, sizeof w->twice, "%s", key);
    append(&w->keys, key, strlen(key) + 1);
    append_str(&w->kv, key, strlen(key));
    append_u32(&w->kv, type);
    w->n_kv++;
}

void fl_gguf_put_u32(fl_gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, FL_GGUF_U32);
    append_u32(&w->kv, v);
}

void fl_gguf_put_i32(fl_gguf_writer *w, const char *key, int32_t v)
{
    put_key(w, key, FL_GGUF_I32);
    append(&w->kv, &v, sizeof v);
}

void fl_gguf_put_f32(fl_gguf_writer *w, const char *key, float v)
{
    put_key(w, key, FL_GGUF_F32);
    append(&w->kv, &v, sizeof v);
}

void fl_gguf_put_bool(fl_gguf_writer *w, const char *key, bool v)
{
    const uint8_t byte = v;
    put_key(w, key, FL_GGUF_BOOL);
    append(&w->kv, &byte, 1);
}

void fl_gguf_put_str(fl_gguf_writer *w, const char *key, const char *text, size_t n)
{
    put_key(w, key, FL_GGUF_STRING);
    append_str(&w->kv, text, n);
}

void fl_gguf_put_strings(fl_gguf_writer *w, const char *key, const fl_str *v, uint64_t n)
{
    put_key(w, key, FL_GGUF_ARRAY);
    append_u32(&w->kv, FL_GGUF_STRING);
    append_u64(&w->kv, n);
    for (uint64_t i = 0; i < n; i++) append_str(&w->kv, v[i].p, v[i].n);
}

void fl_gguf_put_i32s(fl_gguf_writer *w, const char *key, const int32_t *v, uint64_t n)
{
    put_key(w, key, FL_GGUF_ARRAY);
    append_u32(&w->kv, FL_GGUF_I32);
    append_u64(&w->kv, n);
    append(&w->kv, v, n * sizeof *v);
}

void fl_gguf_put_bools(fl_gguf_writer *w, const char *key, const bool *v, uint64_t n)
{
    put_key(w, key, FL_GGUF_ARRAY);
    append_u32(&w->kv, FL_GGUF_BOOL);
    append_u64(&w->kv, n);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t byte = v[i];
        append(&w->kv, &byte, 1);
    }
}

void fl_gguf_put_copy(fl_gguf_writer *w, const char *key, const fl_kv *kv)
{
    put_key(w, key, kv->type);
    if (kv->type == FL_GGUF_ARRAY) {
        append_u32(&w->kv, kv->elem_type);
        append_u64(&w->kv, kv->count);
    }
    append(&w->kv, kv->data, kv->data_bytes);
}

fl_status fl_gguf_add_tensor(fl_gguf_writer *w, const char *name, uint32_t type, int n_dims,
                             const int64_t *ne, fl_err *err)
{
    assert(!w->part);
    const fl_type_info *ti = fl_type_get(type);
    if (strlen(name) > FL_GW_NAME_MAX || !name[0])
        return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor name '%s' must have 1 to %d bytes", w->path,
                       name, FL_GW_NAME_MAX);
    if (!ti)
        return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor %s: unknown type %u", w->path, name, type);
    if (n_dims < 1 || n_dims > 4)
        return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor %s has %d dimensions, 1 to 4 are possible",
                       w->path, name, n_dims);
    for (size_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensor[i].name, name) == 0)
            return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor %s is declared twice", w->path, name);
    uint64_t rows = 1;
    for (int i = 0; i < n_dims; i++) {
        if (ne[i] < 1 || (i > 0 && (uint64_t)ne[i] > (UINT64_C(1) << 50) / rows))
            return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor %s: dimension %d is %lld", w->path, name,
                           i, (long long)ne[i]);
        if (i > 0) rows *= (uint64_t)ne[i];
    }
    const uint64_t row_bytes = fl_type_row_bytes(type, (uint64_t)ne[0]);
    if (row_bytes == 0 || row_bytes > (UINT64_C(1) << 60) / rows)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: tensor %s: rows of %lld values do not fit type %s (blocks of %u)",
                       w->path, name, (long long)ne[0], ti->name, ti->block_elems);
    if (w->n_tensors == w->cap_tensors) {
        const size_t cap = w->cap_tensors ? 2 * w->cap_tensors : 64;
        fl_gw_tensor *t = realloc(w->tensor, cap * sizeof *t);
        if (!t) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the tensor table", w->path);
        w->tensor = t;
        w->cap_tensors = cap;
    }
    fl_gw_tensor *e = &w->tensor[w->n_tensors++];
    memset(e, 0, sizeof *e);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->type = type;
    e->n_dims = n_dims;
    for (int i = 0; i < 4; i++) e->ne[i] = i < n_dims ? ne[i] : 1;
    e->bytes = row_bytes * rows;
    return FL_OK;
}

/* ---- which tensor lies where ---- */

static uint64_t key_bytes(const char *key, uint64_t value) { return 8 + strlen(key) + 4 + value; }

static uint64_t entry_bytes(const fl_gw_tensor *t)
{
    return 8 + strlen(t->name) + 4 + 8 * (uint64_t)t->n_dims + 4 + 8;
}

/* Header bytes without tensor entries; the first part has all metadata. */
static uint64_t bare_header(const fl_gguf_writer *w, bool first, bool split)
{
    uint64_t n = 4 + 4 + 8 + 8 + (first ? w->kv.n : 0);
    if (!first || !fl_gguf_has_key(w, "general.alignment")) n += key_bytes("general.alignment", 4);
    if (split)
        n += key_bytes("split.no", 2) + key_bytes("split.count", 2) +
             key_bytes("split.tensors.count", 4);
    return n;
}

/* Appends part `i` with the tensors from `first` on, as many as `most` bytes take (0: all). */
static fl_status add_part(fl_gguf_writer *w, size_t first, uint64_t most, fl_err *err)
{
    fl_gw_part *more = realloc(w->part, ((size_t)w->n_parts + 1) * sizeof *more);
    if (!more) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its parts", w->path);
    w->part = more;
    fl_gw_part *p = &w->part[w->n_parts];
    *p = (fl_gw_part){.first = first};
    uint64_t header = bare_header(w, first == 0, most > 0);
    for (size_t i = first; i < w->n_tensors; i++) {
        fl_gw_tensor *t = &w->tensor[i];
        const uint64_t h = header + entry_bytes(t), d = fl_gw_pad(w, p->data_bytes + t->bytes);
        if (most > 0 && p->n > 0 && fl_gw_pad(w, h) + d > most) break;
        t->offset = p->data_bytes;
        p->data_bytes = d;
        header = h;
        p->n++;
    }
    p->data_start = fl_gw_pad(w, header);
    w->n_parts++;
    return FL_OK;
}

char *fl_gguf_part_name(const char *path, int i, int n)
{
    const size_t len = strlen(path);
    const int stem = (int)(len > 5 && strcmp(path + len - 5, ".gguf") == 0 ? len - 5 : len);
    char *name = NULL;
    const int rc = n > 1 ? asprintf(&name, "%.*s-%05d-of-%05d.gguf", stem, path, i + 1, n)
                         : asprintf(&name, "%s", path);
    return rc < 0 ? NULL : name;
}

static fl_status name_parts(fl_gguf_writer *w, fl_err *err)
{
    for (int i = 0; i < w->n_parts; i++) {
        fl_gw_part *p = &w->part[i];
        p->path = fl_gguf_part_name(w->path, i, w->n_parts);
        if (p->path && asprintf(&p->tmp, "%s" FL_OUTFILE_PART, p->path) < 0) p->tmp = NULL;
        if (!p->path || !p->tmp)
            return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its parts", w->path);
    }
    return FL_OK;
}

static fl_status place_tensors(fl_gguf_writer *w, fl_err *err)
{
    FL_TRY(add_part(w, 0, 0, err));
    if (w->split == 0 || w->part[0].data_start + w->part[0].data_bytes <= w->split) return FL_OK;
    w->n_parts = 0;
    for (size_t at = 0; at < w->n_tensors;) {
        if (w->n_parts == MAX_PARTS)
            return FL_FAIL(err, FL_E_ARG, 0, "%s: more than %d parts; take larger ones", w->path,
                           MAX_PARTS);
        FL_TRY(add_part(w, at, w->split, err));
        at += w->part[w->n_parts - 1].n;
    }
    return FL_OK;
}

/* A part's header; *h.failed when memory is out. */
static void append_header(const fl_gguf_writer *w, int i, bytes *h)
{
    const fl_gw_part *p = &w->part[i];
    const bool split = w->n_parts > 1, align = i > 0 || !fl_gguf_has_key(w, "general.alignment");
    append(h, "GGUF", 4);
    append_u32(h, 3);
    append_u64(h, p->n);
    append_u64(h, (i == 0 ? w->n_kv : 0) + (align ? 1 : 0) + (split ? 3 : 0));
    if (i == 0) append(h, w->kv.p, w->kv.n);
    if (align) append_number(h, "general.alignment", FL_GGUF_U32, w->alignment, 4);
    if (split) {
        append_number(h, "split.no", FL_GGUF_U16, (uint32_t)i, 2);
        append_number(h, "split.count", FL_GGUF_U16, (uint32_t)w->n_parts, 2);
        append_number(h, "split.tensors.count", FL_GGUF_I32, (uint32_t)w->n_tensors, 4);
    }
    for (size_t k = 0; k < p->n; k++) {
        const fl_gw_tensor *e = &w->tensor[p->first + k];
        append_str(h, e->name, strlen(e->name));
        append_u32(h, (uint32_t)e->n_dims);
        append(h, e->ne, 8 * (size_t)e->n_dims);
        append_u32(h, e->type);
        append_u64(h, e->offset);
    }
    while (h->n < p->data_start && !h->failed) {
        static const uint8_t zero[64] = {0};
        const uint64_t left = p->data_start - h->n;
        append(h, zero, left < sizeof zero ? (size_t)left : sizeof zero);
    }
}

/* The same; the caller frees h->p. */
static fl_status make_header(const fl_gguf_writer *w, int i, bytes *h, fl_err *err)
{
    *h = (bytes){0};
    append_header(w, i, h);
    if (!h->failed) return FL_OK;
    free(h->p);
    *h = (bytes){0};
    return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the header", w->path);
}

fl_status fl_gguf_writer_header(const fl_gguf_writer *w, void **out, uint64_t *n, fl_err *err)
{
    bytes h;
    assert(w->n_parts == 1);
    const fl_status st = make_header(w, 0, &h, err);
    *out = h.p;
    *n = h.n;
    return st;
}

fl_status fl_gguf_writer_layout(fl_gguf_writer *w, fl_err *err)
{
    assert(!w->part);
    if (w->twice[0])
        return FL_FAIL(err, FL_E_ARG, 0, "%s: metadata key %s is given twice", w->path, w->twice);
    if (w->kv.failed || w->keys.failed)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the metadata", w->path);
    FL_TRY(place_tensors(w, err));
    FL_TRY(name_parts(w, err));
    for (int i = 0; i < w->n_parts; i++) {
        bytes h;
        FL_TRY(make_header(w, i, &h, err));
        w->part[i].header_hash = fl_hash64(h.p, h.n);
        free(h.p);
    }
    return FL_OK;
}

int fl_gguf_writer_parts(const fl_gguf_writer *w) { return w->n_parts; }
const char *fl_gguf_writer_part(const fl_gguf_writer *w, int i) { return w->part[i].path; }

uint64_t fl_gguf_writer_identity(const fl_gguf_writer *w)
{
    uint64_t id = (uint64_t)w->n_parts;
    for (int i = 0; i < w->n_parts; i++)
        id = fl_hash64_seeded(&w->part[i].header_hash, sizeof id, id);
    return id;
}

uint64_t fl_gguf_writer_bytes(const fl_gguf_writer *w)
{
    uint64_t n = 0, header = bare_header(w, true, false);
    for (int i = 0; i < w->n_parts; i++) n += w->part[i].data_start + w->part[i].data_bytes;
    if (w->part) return n;
    for (size_t i = 0; i < w->n_tensors; i++) {
        header += entry_bytes(&w->tensor[i]);
        n += fl_gw_pad(w, w->tensor[i].bytes);
    }
    return n + fl_gw_pad(w, header);
}

/* ---- writing ---- */

/* Bytes still to be written; nothing of the part at hand is there but `have` bytes. */
static uint64_t bytes_left(const fl_gguf_writer *w, uint64_t have)
{
    uint64_t n = 0;
    for (int i = w->at; i < w->n_parts; i++) n += w->part[i].data_start + w->part[i].data_bytes;
    return n - have;
}

static fl_status write_header(fl_gguf_writer *w, fl_err *err)
{
    bytes h;
    FL_TRY(make_header(w, w->at, &h, err));
    const fl_status st = fl_outfile_write(w->file, h.p, h.n, err);
    free(h.p);
    return st;
}

/* Opens the file of part w->at, which has `have` good bytes. */
static fl_status open_part(fl_gguf_writer *w, uint64_t have, fl_err *err)
{
    const fl_gw_part *p = &w->part[w->at];
    FL_TRY(w->kept ? fl_outfile_open_part(&w->file, p->path, have, err)
                   : fl_outfile_open(&w->file, p->path, err));
    /* On the file system of the temporary, which may be another than the name's (a symbolic link).
     */
    if (!w->begun)
        FL_TRY(fl_space_check(fl_outfile_tmp_path(w->file), bytes_left(w, have), w->path, err));
    w->begun = true;
    return have > 0 ? FL_OK : write_header(w, err);
}

void fl_gguf_writer_keep(fl_gguf_writer *w) { w->kept = true; }
void fl_gguf_writer_split(fl_gguf_writer *w, uint64_t most) { w->split = most; }

/* The file that holds a part of a kept run: its temporary, or its name when a run was ended while
 * it renamed them. */
static const char *file_of(const fl_gw_part *p)
{
    return access(p->tmp, F_OK) == 0 ? p->tmp : p->path;
}

/* Finds how far the temporaries have got: sets at and current, *have to the good bytes of part at.
 */
static fl_status find_place(fl_gguf_writer *w, size_t n, uint64_t *have, fl_err *err)
{
    *have = 0;
    for (w->at = 0; w->at < w->n_parts; w->at++) {
        const fl_gw_part *p = &w->part[w->at];
        const char *path = file_of(p);
        const size_t left = n > p->first ? n - p->first : 0;
        int64_t good;
        FL_TRY(fl_gw_compare(w, p, path, left < p->n ? left : p->n, &good, err));
        if (good < 1 || (path == p->path && good < (int64_t)p->n)) return FL_OK;
        w->current = p->first + (size_t)good;
        *have = fl_gw_end(w, p, w->current - 1);
        if (good < (int64_t)p->n) return FL_OK;
        *have = 0;
    }
    return FL_OK;
}

fl_status fl_gguf_writer_begin(fl_gguf_writer *w, fl_err *err)
{
    return fl_gguf_writer_resume(w, NULL, 0, err);
}

fl_status fl_gguf_writer_resume(fl_gguf_writer *w, const uint64_t *hash, size_t n, fl_err *err)
{
    uint64_t have = 0;
    assert(!w->begun && n <= w->n_tensors && (n == 0 || w->kept));
    if (!w->part) FL_TRY(fl_gguf_writer_layout(w, err));
    assert(w->kept || w->n_parts == 1);
    for (size_t i = 0; i < n; i++) w->tensor[i].hash = hash[i];
    if (n > 0) FL_TRY(find_place(w, n, &have, err));
    if (w->at == w->n_parts) { /* all there */
        w->begun = true;
        return FL_OK;
    }
    return open_part(w, have, err);
}

size_t fl_gguf_writer_next(const fl_gguf_writer *w) { return w->current; }
uint64_t fl_gguf_writer_hash(const fl_gguf_writer *w, size_t i) { return w->tensor[i].hash; }

/* Padding behind the tensor at hand, and on to the next. */
static fl_status end_tensor(fl_gguf_writer *w, fl_err *err)
{
    const fl_gw_part *p = &w->part[w->at];
    fl_gw_tensor *e = &w->tensor[w->current];
    uint64_t left = fl_gw_pad(w, e->offset + e->bytes) - (e->offset + e->bytes);
    while (left > 0) {
        static const uint8_t zero[4096] = {0};
        const uint64_t piece = left < sizeof zero ? left : sizeof zero;
        fl_hasher_add(w->hash, zero, piece);
        FL_TRY(fl_outfile_write(w->file, zero, piece, err));
        left -= piece;
    }
    e->hash = fl_hasher_value(w->hash);
    fl_hasher_reset(w->hash);
    w->current++;
    w->done = 0;
    if (!w->kept || w->current < p->first + p->n) return FL_OK;
    w->at++;
    return fl_outfile_suspend(&w->file, err);
}

fl_status fl_gguf_writer_write(fl_gguf_writer *w, const void *data, uint64_t n, fl_err *err)
{
    assert(w->begun && w->current < w->n_tensors);
    const fl_gw_tensor *e = &w->tensor[w->current];
    assert(n <= e->bytes - w->done);
    if (!w->file) FL_TRY(open_part(w, 0, err));
    fl_hasher_add(w->hash, data, n);
    FL_TRY(fl_outfile_write(w->file, data, n, err));
    w->done += n;
    return w->done < e->bytes ? FL_OK : end_tensor(w, err);
}

fl_status fl_gguf_writer_copy(fl_gguf_writer *w, int from, uint64_t offset, const char *from_path,
                              fl_err *err)
{
    assert(w->file && w->current < w->n_tensors && w->done == 0 && !w->kept);
    w->unseen = true;
    FL_TRY(fl_outfile_copy(w->file, from, offset, w->tensor[w->current].bytes, from_path, err));
    return end_tensor(w, err);
}

fl_status fl_gguf_writer_flush(fl_gguf_writer *w, fl_err *err)
{
    return w->file ? fl_outfile_flush(w->file, err) : FL_OK;
}

fl_status fl_gguf_writer_sync(fl_gguf_writer *w, fl_err *err)
{
    return w->file ? fl_outfile_sync(w->file, err) : FL_OK;
}

fl_status fl_gguf_writer_suspend(fl_gguf_writer **pw, fl_err *err)
{
    fl_gguf_writer *w = *pw;
    assert(w->kept);
    const fl_status st = w->file ? fl_outfile_suspend(&w->file, err) : FL_OK;
    w->begun = false; /* nothing to remove */
    fl_gguf_writer_discard(pw);
    return st;
}

void fl_gguf_writer_stop_on(fl_gguf_writer *w, const atomic_int *stop) { w->stop = stop; }

/* ---- the end ---- */

static fl_status verify(const fl_gguf_writer *w, const fl_gw_part *p, const char *path, fl_err *err)
{
    int64_t good = (int64_t)p->n;
    FL_TRY(fl_gw_check_table(w, p, path, err));
    if (!w->unseen) FL_TRY(fl_gw_compare(w, p, path, p->n, &good, err));
    if (good == (int64_t)p->n) return FL_OK;
    return FL_FAIL(err, FL_E_IO, 0,
                   "%s: what is on the disk differs from what was written (%s); the disk or the "
                   "memory is faulty",
                   p->path, good < 0 ? "the header" : w->tensor[p->first + (size_t)good].name);
}

/* The renames, once all parts are verified. */
static fl_status publish(fl_gguf_writer *w, fl_err *err)
{
    if (!w->kept) return fl_outfile_commit(&w->file, err);
    for (int i = 0; i < w->n_parts; i++) {
        const fl_gw_part *p = &w->part[i];
        fl_outfile *f = NULL;
        if (file_of(p) == p->path) continue; /* renamed by a run that was ended just then */
        FL_TRY(fl_outfile_open_part(&f, p->path, p->data_start + p->data_bytes, err));
        FL_TRY(fl_outfile_commit(&f, err));
    }
    return FL_OK;
}

fl_status fl_gguf_writer_commit(fl_gguf_writer **pw, fl_err *err)
{
    fl_gguf_writer *w = *pw;
    fl_status st;
    assert(w->begun && w->current == w->n_tensors);
    FL_GO(fl_gw_check_stop(w, err));
    if (w->file) FL_GO(w->kept ? fl_outfile_suspend(&w->file, err) : fl_outfile_sync(w->file, err));
    for (int i = 0; i < w->n_parts; i++) {
        const fl_gw_part *p = &w->part[i];
        FL_GO(verify(w, p, w->kept ? file_of(p) : fl_outfile_tmp_path(w->file), err));
    }
    FL_GO(fl_gw_check_stop(w, err));
    st = publish(w, err);
out:
    if (st == FL_E_CANCELED && w->kept) w->begun = false; /* the temporaries stay */
    fl_gguf_writer_discard(pw);
    return st;
}
