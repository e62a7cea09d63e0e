#include "runtime/model/gguf_write.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/format.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/space.h"
#include "runtime/model/source.h"

enum { NAME_MAX_BYTES = 63, READ_PIECE = 4 << 20 };

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed;
} bytes;

typedef struct entry {
    char name[NAME_MAX_BYTES + 1];
    uint32_t type;
    int n_dims;
    int64_t ne[4];
    uint64_t offset, bytes; /* offset relative to the data section */
} entry;

struct fl_gguf_writer {
    char *path;
    uint32_t alignment;
    bytes kv;   /* serialised metadata */
    bytes keys; /* the keys, each with its NUL */
    uint64_t n_kv;
    char twice[128]; /* first key that was given twice, or "" */
    entry *tensor;
    size_t n_tensors, cap_tensors;
    uint64_t data_bytes; /* of the data section, padded */
    fl_outfile *file;
    const volatile sig_atomic_t *stop; /* or NULL */
    size_t current;                    /* tensor being written */
    uint64_t done;                     /* its bytes so far */
    bool unseen;                       /* some bytes were copied by the kernel */
    uint64_t data_start;
    fl_hasher *hash;
};

static uint64_t pad_to(uint64_t v, uint64_t align) { return (v + align - 1) & ~(align - 1); }

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

static void put_key(fl_gguf_writer *w, const char *key, uint32_t type)
{
    assert(!w->file);
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
    assert(!w->file);
    const fl_type_info *ti = fl_type_get(type);
    if (strlen(name) > NAME_MAX_BYTES || !name[0])
        return FL_FAIL(err, FL_E_ARG, 0, "%s: tensor name '%s' must have 1 to %d bytes", w->path,
                       name, NAME_MAX_BYTES);
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
        entry *t = realloc(w->tensor, cap * sizeof *t);
        if (!t) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the tensor table", w->path);
        w->tensor = t;
        w->cap_tensors = cap;
    }
    entry *e = &w->tensor[w->n_tensors++];
    memset(e, 0, sizeof *e);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->type = type;
    e->n_dims = n_dims;
    for (int i = 0; i < 4; i++) e->ne[i] = i < n_dims ? ne[i] : 1;
    e->offset = w->data_bytes;
    e->bytes = row_bytes * rows;
    w->data_bytes = pad_to(w->data_bytes + e->bytes, w->alignment);
    return FL_OK;
}

static uint64_t header_bytes(const fl_gguf_writer *w)
{
    uint64_t n = 4 + 4 + 8 + 8 + w->kv.n;
    if (!fl_gguf_has_key(w, "general.alignment")) n += 8 + strlen("general.alignment") + 4 + 4;
    for (size_t i = 0; i < w->n_tensors; i++)
        n += 8 + strlen(w->tensor[i].name) + 4 + 8 * (uint64_t)w->tensor[i].n_dims + 4 + 8;
    return n;
}

uint64_t fl_gguf_writer_bytes(const fl_gguf_writer *w)
{
    return pad_to(header_bytes(w), w->alignment) + w->data_bytes;
}

static fl_status emit(fl_gguf_writer *w, const void *data, uint64_t n, fl_err *err)
{
    fl_hasher_add(w->hash, data, n);
    return fl_outfile_write(w->file, data, n, err);
}

static fl_status write_header(fl_gguf_writer *w, fl_err *err)
{
    bytes h = {0};
    append(&h, "GGUF", 4);
    append_u32(&h, 3);
    append_u64(&h, w->n_tensors);
    append_u64(&h, w->n_kv);
    append(&h, w->kv.p, w->kv.n);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const entry *e = &w->tensor[i];
        append_str(&h, e->name, strlen(e->name));
        append_u32(&h, (uint32_t)e->n_dims);
        append(&h, e->ne, 8 * (size_t)e->n_dims);
        append_u32(&h, e->type);
        append_u64(&h, e->offset);
    }
    w->data_start = pad_to(h.n, w->alignment);
    while (h.n < w->data_start && !h.failed) {
        static const uint8_t zero[64] = {0};
        const uint64_t left = w->data_start - h.n;
        append(&h, zero, left < sizeof zero ? (size_t)left : sizeof zero);
    }
    fl_status st = h.failed ? FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the header", w->path)
                            : emit(w, h.p, h.n, err);
    free(h.p);
    return st;
}

fl_status fl_gguf_writer_begin(fl_gguf_writer *w, fl_err *err)
{
    assert(!w->file);
    if (!fl_gguf_has_key(w, "general.alignment"))
        fl_gguf_put_u32(w, "general.alignment", w->alignment);
    if (w->twice[0])
        return FL_FAIL(err, FL_E_ARG, 0, "%s: metadata key %s is given twice", w->path, w->twice);
    if (w->kv.failed || w->keys.failed)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the metadata", w->path);
    FL_TRY(fl_outfile_open(&w->file, w->path, err));
    /* On the file system of the temporary, which may be another than the name's (a symbolic link).
     */
    FL_TRY(fl_space_check(fl_outfile_tmp_path(w->file), fl_gguf_writer_bytes(w), w->path, err));
    return write_header(w, err);
}

/* Padding behind the tensor at hand, and on to the next. */
static fl_status end_tensor(fl_gguf_writer *w, fl_err *err)
{
    const entry *e = &w->tensor[w->current];
    uint64_t left = pad_to(e->offset + e->bytes, w->alignment) - (e->offset + e->bytes);
    while (left > 0) {
        static const uint8_t zero[4096] = {0};
        const uint64_t piece = left < sizeof zero ? left : sizeof zero;
        FL_TRY(emit(w, zero, piece, err));
        left -= piece;
    }
    w->current++;
    w->done = 0;
    return FL_OK;
}

fl_status fl_gguf_writer_write(fl_gguf_writer *w, const void *data, uint64_t n, fl_err *err)
{
    assert(w->file && w->current < w->n_tensors);
    const entry *e = &w->tensor[w->current];
    assert(n <= e->bytes - w->done);
    FL_TRY(emit(w, data, n, err));
    w->done += n;
    return w->done < e->bytes ? FL_OK : end_tensor(w, err);
}

fl_status fl_gguf_writer_copy(fl_gguf_writer *w, int from, uint64_t offset, const char *from_path,
                              fl_err *err)
{
    assert(w->file && w->current < w->n_tensors && w->done == 0);
    w->unseen = true;
    FL_TRY(fl_outfile_copy(w->file, from, offset, w->tensor[w->current].bytes, from_path, err));
    return end_tensor(w, err);
}
fl_status fl_gguf_writer_flush(fl_gguf_writer *w, fl_err *err)
{
    return fl_outfile_flush(w->file, err);
}

void fl_gguf_writer_stop_on(fl_gguf_writer *w, const volatile sig_atomic_t *stop)
{
    w->stop = stop;
}

static fl_status check_stop(const fl_gguf_writer *w, fl_err *err)
{
    if (!w->stop || !*w->stop) return FL_OK;
    return FL_FAIL(err, FL_E_CANCELED, 0, "%s: interrupted; nothing was changed", w->path);
}

/* Names, types, shapes and places as a reader sees them. */
static fl_status verify_table(const fl_gguf_writer *w, const char *tmp, fl_err *err)
{
    fl_source *src = NULL;
    fl_status st;
    FL_GO(fl_source_open(&src, tmp, err));
    bool same = fl_source_n_tensors(src) == w->n_tensors;
    for (size_t i = 0; same && i < w->n_tensors; i++) {
        const entry *e = &w->tensor[i];
        const fl_tensor *t = fl_source_find(src, e->name);
        same = t && t->type == e->type && t->n_dims == e->n_dims &&
               memcmp(t->ne, e->ne, sizeof e->ne) == 0 && t->bytes == e->bytes &&
               t->offset == w->data_start + e->offset && t->offset % w->alignment == 0;
    }
    if (!same)
        st = FL_FAIL(err, FL_E_IO, 0, "%s: what was written reads back differently (tensor table)",
                     w->path);
out:
    fl_source_close(&src);
    return st;
}

/* The whole file again from the disk, against the hash of what was given to write. */
static fl_status verify_bytes(const fl_gguf_writer *w, const char *tmp, fl_err *err)
{
    int fd = -1;
    uint64_t size = 0;
    fl_status st = FL_OK;
    uint8_t *buf = malloc(READ_PIECE);
    fl_hasher *h = fl_hasher_create();
    if (!buf || !h) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to verify it", w->path);
        goto out;
    }
    FL_GO(fl_file_open(tmp, &fd, &size, err));
    if (fsync(fd) != 0) {
        st = FL_FAIL(err, FL_E_IO, errno, "%s: fsync: %s", w->path, strerror(errno));
        goto out;
    }
    /* Advice only: a kernel that keeps the pages makes the check weaker, not wrong. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (size != w->data_start + w->data_bytes) {
        st = FL_FAIL(err, FL_E_IO, 0, "%s: %llu bytes on disk, %llu were written", w->path,
                     (unsigned long long)size, (unsigned long long)(w->data_start + w->data_bytes));
        goto out;
    }
    for (uint64_t at = 0; at < size;) {
        const uint64_t left = size - at, n = left < READ_PIECE ? left : READ_PIECE;
        FL_GO(check_stop(w, err));
        FL_GO(fl_file_read_at(fd, buf, n, at, tmp, err));
        fl_hasher_add(h, buf, n);
        at += n;
    }
    if (fl_hasher_value(h) != fl_hasher_value(w->hash))
        st =
            FL_FAIL(err, FL_E_IO, 0,
                    "%s: what is on the disk differs from what was written; the disk or the memory "
                    "is faulty",
                    w->path);
out:
    if (fd >= 0) close(fd);
    fl_hasher_destroy(&h);
    free(buf);
    return st;
}

fl_status fl_gguf_writer_commit(fl_gguf_writer **pw, fl_err *err)
{
    fl_gguf_writer *w = *pw;
    fl_status st;
    assert(w->file && w->current == w->n_tensors);
    FL_GO(check_stop(w, err));
    FL_GO(fl_outfile_flush(w->file, err));
    FL_GO(verify_table(w, fl_outfile_tmp_path(w->file), err));
    if (!w->unseen) FL_GO(verify_bytes(w, fl_outfile_tmp_path(w->file), err));
    FL_GO(check_stop(w, err));
    st = fl_outfile_commit(&w->file, err);
out:
    fl_gguf_writer_discard(pw);
    return st;
}
