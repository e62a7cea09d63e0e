#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/io.h"
#include "runtime/model/gguf_write_parts.h"

enum { PIECE = 1 << 20, DEPTH = 4 };

fl_status fl_gw_check_stop(const fl_gguf_writer *w, fl_err *err)
{
    if (!w->stop || !*w->stop) return FL_OK;
    return FL_FAIL(err, FL_E_CANCELED, 0, "%s: interrupted; nothing was changed", w->path);
}

fl_status fl_gw_check_table(const fl_gguf_writer *w, const fl_gw_part *p, const char *path,
                            fl_err *err)
{
    fl_gguf *g = NULL;
    int fd = -1;
    uint64_t size;
    fl_status st;
    FL_GO(fl_file_open(path, &fd, &size, err));
    FL_GO(fl_gguf_open(&g, fd, size, path, err));
    bool same = fl_gguf_n_tensors(g) == p->n && fl_gguf_data_start(g) == p->data_start &&
                size == p->data_start + p->data_bytes;
    for (size_t i = 0; same && i < p->n; i++) {
        const fl_gw_tensor *e = &w->tensor[p->first + i];
        const fl_gguf_tensor *t = fl_gguf_tensor_at(g, i);
        same = t->name.n == strlen(e->name) && memcmp(t->name.p, e->name, t->name.n) == 0 &&
               t->type == e->type && t->n_dims == e->n_dims &&
               memcmp(t->ne, e->ne, sizeof e->ne) == 0 && t->bytes == e->bytes &&
               t->offset == e->offset && (p->data_start + t->offset) % w->alignment == 0;
    }
    if (!same)
        st = FL_FAIL(err, FL_E_IO, 0, "%s: what was written reads back differently (tensor table)",
                     p->path);
out:
    fl_gguf_close(&g);
    if (fd >= 0) close(fd);
    return st;
}

/* The file's bytes in order, while the next ones are on their way. */
typedef struct stream {
    fl_io *io;
    uint8_t *buf;
    uint64_t slot_bytes, end;   /* bytes of the file that are wanted */
    uint64_t asked, given;      /* pieces */
    const uint8_t *data[DEPTH]; /* of the pieces that have come */
} stream;

static fl_status stream_open(stream *s, const char *path, uint64_t end, fl_err *err)
{
    *s = (stream){.end = end};
    FL_TRY(fl_io_open(&s->io, NULL, &path, 1, DEPTH, err));
    s->slot_bytes = fl_io_cover(s->io, 0, PIECE);
    void *p = NULL;
    if (posix_memalign(&p, fl_io_align(s->io), DEPTH * s->slot_bytes) != 0)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to read it again", path);
    s->buf = p;
    return FL_OK;
}

static void stream_close(stream *s)
{
    fl_io_close(&s->io);
    free(s->buf);
}

static uint64_t piece_bytes(const stream *s, uint64_t k)
{
    const uint64_t left = s->end - k * PIECE;
    return left < PIECE ? left : PIECE;
}

static fl_status stream_next(stream *s, const uint8_t **data, uint64_t *n, fl_err *err)
{
    for (; s->asked < s->given + DEPTH && s->asked * PIECE < s->end; s->asked++) {
        const uint64_t slot = s->asked % DEPTH;
        const fl_extent x = {0, s->asked * PIECE, piece_bytes(s, s->asked)};
        s->data[slot] = NULL;
        FL_TRY(fl_io_submit(s->io, &x, s->buf + slot * s->slot_bytes, slot, err));
    }
    while (!s->data[s->given % DEPTH]) {
        fl_io_done done[DEPTH];
        int got;
        FL_TRY(fl_io_wait(s->io, done, 1, DEPTH, &got, err));
        for (int i = 0; i < got; i++) s->data[done[i].tag] = done[i].data;
    }
    *data = s->data[s->given % DEPTH];
    *n = piece_bytes(s, s->given);
    s->given++;
    return FL_OK;
}

/* Takes in bytes of the file from `at` on: hashes section by section (the header, then tensors). */
typedef struct sections {
    const fl_gguf_writer *w;
    const fl_gw_part *p;
    fl_hasher *hash;
    uint64_t at;
    int64_t good; /* sections that were right, less 1 */
    bool bad;
} sections;

static void take(sections *s, const uint8_t *data, uint64_t n)
{
    while (n > 0 && !s->bad) {
        const size_t tensor = s->p->first + (size_t)s->good; /* of no use in the header */
        const bool header = s->good < 0;
        const uint64_t end = header ? s->p->data_start : fl_gw_end(s->w, s->p, tensor);
        const uint64_t k = end - s->at < n ? end - s->at : n;
        fl_hasher_add(s->hash, data, k);
        s->at += k;
        data += k;
        n -= k;
        if (s->at < end) return;
        const uint64_t want = header ? s->p->header_hash : s->w->tensor[tensor].hash;
        s->bad = fl_hasher_value(s->hash) != want;
        s->good += !s->bad;
        fl_hasher_reset(s->hash);
    }
}

/* Tensors that a file of this size holds whole, at most n; -1: not even the header. */
static int64_t whole(const fl_gguf_writer *w, const fl_gw_part *p, uint64_t size, size_t n)
{
    if (size < p->data_start || p->data_start == 0) return -1;
    while (n > 0 && fl_gw_end(w, p, p->first + n - 1) > size) n--;
    return (int64_t)n;
}

fl_status fl_gw_compare(const fl_gguf_writer *w, const fl_gw_part *p, const char *path, size_t n,
                        int64_t *good, fl_err *err)
{
    struct stat sb;
    stream s = {0};
    sections c = {.w = w, .p = p, .hash = fl_hasher_create(), .good = -1};
    fl_status st = FL_OK;
    *good = -1;
    if (!c.hash) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to read it again", path);
    const int64_t have = stat(path, &sb) == 0 ? whole(w, p, (uint64_t)sb.st_size, n) : -1;
    if (have < 0) goto out;
    const uint64_t end = have == 0 ? p->data_start : fl_gw_end(w, p, p->first + (size_t)have - 1);
    FL_GO(stream_open(&s, path, end, err));
    while (c.at < end && !c.bad) {
        const uint8_t *data;
        uint64_t k;
        FL_GO(fl_gw_check_stop(w, err));
        FL_GO(stream_next(&s, &data, &k, err));
        take(&c, data, k);
    }
    *good = c.good;
out:
    stream_close(&s);
    fl_hasher_destroy(&c.hash);
    return st;
}
