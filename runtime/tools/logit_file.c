#include "runtime/tools/logit_file.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/space.h"

typedef struct head {
    char magic[8];
    uint32_t version, top;
    fl_logit_setup setup;
    uint64_t n_rows;
    uint64_t rows_hash;
    uint64_t head_hash; /* of this head, with 0 here */
} head;
_Static_assert(sizeof(head) == 192, "the head has a fixed size");

enum { VERSION = 1, PIECE = 1 << 20 };
static const char magic[8] = "FLLOGITS";

static uint64_t hash_head(const head *given)
{
    head h = *given;
    h.head_hash = 0;
    return fl_hash64(&h, sizeof h);
}

bool fl_logit_file_is(const char *path)
{
    fl_err unread = {0};
    char found[8];
    int fd = -1;
    uint64_t size = 0;
    if (fl_file_open(path, &fd, &size, &unread) != FL_OK) return false;
    const bool is = size >= sizeof found &&
                    fl_file_read_at(fd, found, sizeof found, 0, path, &unread) == FL_OK &&
                    memcmp(found, magic, sizeof magic) == 0;
    close(fd);
    return is;
}

/* ---- writing ---- */

struct fl_logit_writer {
    head h;
    uint64_t row_bytes, put; /* rows so far */
    fl_outfile *file;
    fl_hasher *hash;
};

fl_status fl_logit_writer_open(fl_logit_writer **out, const char *path, const fl_logit_setup *s,
                               uint64_t n_rows, fl_err *err)
{
    fl_status st = FL_OK;
    fl_logit_writer *w = calloc(1, sizeof *w);
    if (!w) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    w->h = (head){.version = VERSION, .top = FL_LOGIT_TOP, .setup = *s, .n_rows = n_rows};
    memcpy(w->h.magic, magic, sizeof magic);
    w->row_bytes = fl_logit_row_bytes(s->vocab);
    w->hash = fl_hasher_create();
    if (!w->hash) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    FL_GO(fl_outfile_open(&w->file, path, err));
    FL_GO(fl_space_check(fl_outfile_tmp_path(w->file), sizeof w->h + n_rows * w->row_bytes, path,
                         err));
    FL_GO(fl_outfile_write(w->file, &w->h, sizeof w->h, err));
    *out = w;
    return FL_OK;
out:
    fl_logit_writer_discard(&w);
    return st;
}

fl_status fl_logit_writer_put(fl_logit_writer *w, const void *rows, uint64_t n, fl_err *err)
{
    fl_hasher_add(w->hash, rows, n * w->row_bytes);
    w->put += n;
    return fl_outfile_write(w->file, rows, n * w->row_bytes, err);
}

fl_status fl_logit_writer_finish(fl_logit_writer *w, fl_err *err)
{
    assert(w->put == w->h.n_rows);
    w->h.rows_hash = fl_hasher_value(w->hash);
    w->h.head_hash = hash_head(&w->h);
    FL_TRY(fl_outfile_write_at(w->file, &w->h, sizeof w->h, 0, err));
    return fl_outfile_flush(w->file, err);
}

const char *fl_logit_writer_tmp_path(const fl_logit_writer *w)
{
    return fl_outfile_tmp_path(w->file);
}

fl_status fl_logit_writer_commit(fl_logit_writer **writer, fl_err *err)
{
    fl_logit_writer *w = *writer;
    fl_status st = fl_logit_writer_finish(w, err);
    if (st == FL_OK) st = fl_outfile_commit(&w->file, err);
    fl_logit_writer_discard(writer);
    return st;
}

void fl_logit_writer_discard(fl_logit_writer **writer)
{
    fl_logit_writer *w = *writer;
    if (!w) return;
    fl_outfile_discard(&w->file);
    fl_hasher_destroy(&w->hash);
    free(w);
    *writer = NULL;
}

/* ---- reading ---- */

struct fl_logit_reader {
    char *path;
    int fd;
    head h;
    uint64_t row_bytes;
};

/* The sizes of a head are possible (so that no product overflows) and add up to the file's. */
static bool sizes_agree(const head *h, uint64_t file)
{
    const fl_logit_setup *s = &h->setup;
    if (s->vocab < 1 || s->vocab > FL_LOGIT_VOCAB_MAX || h->n_rows > 1ull << 40) return false;
    return sizeof *h + h->n_rows * fl_logit_row_bytes(s->vocab) == file;
}

static fl_status check_head(const fl_logit_reader *r, uint64_t file, fl_err *err)
{
    const head *h = &r->h;
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is not a file of logits; eval --save-logits writes one", r->path);
    if (h->version != VERSION || h->top != FL_LOGIT_TOP)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is a file of logits of version %u, this program reads %d; write it "
                       "anew with eval --save-logits",
                       r->path, h->version, VERSION);
    if (hash_head(h) != h->head_hash)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the file of logits is damaged: the checksum of its head is wrong",
                       r->path);
    if (!sizes_agree(h, file) || !memchr(h->setup.name, 0, sizeof h->setup.name))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the file of logits is cut short or damaged: its head does not describe "
                       "a file of %llu bytes",
                       r->path, (unsigned long long)file);
    return FL_OK;
}

static fl_status hash_rows(const fl_logit_reader *r, uint64_t file, fl_err *err)
{
    fl_status st = FL_OK;
    fl_hasher *hash = fl_hasher_create();
    char *piece = malloc(PIECE);
    if (!hash || !piece) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", r->path));
    for (uint64_t at = sizeof r->h, n; at < file; at += n) {
        n = file - at < PIECE ? file - at : PIECE;
        FL_GO(fl_file_read_at(r->fd, piece, n, at, r->path, err));
        fl_hasher_add(hash, piece, n);
    }
    if (fl_hasher_value(hash) != r->h.rows_hash)
        st = FL_FAIL(err, FL_E_FORMAT, 0,
                     "%s: the file of logits is damaged: the checksum of its rows is wrong",
                     r->path);
out:
    fl_hasher_destroy(&hash);
    free(piece);
    return st;
}

fl_status fl_logit_reader_open(fl_logit_reader **out, const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t file = 0;
    fl_logit_reader *r = calloc(1, sizeof *r);
    if (!r) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    r->fd = -1;
    r->path = strdup(path);
    if (!r->path) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    FL_GO(fl_file_open(path, &r->fd, &file, err));
    if (file < sizeof r->h)
        FL_GO(FL_FAIL(err, FL_E_FORMAT, 0, "%s: is not a file of logits (%llu bytes)", path,
                      (unsigned long long)file));
    FL_GO(fl_file_read_at(r->fd, &r->h, sizeof r->h, 0, path, err));
    FL_GO(check_head(r, file, err));
    FL_GO(hash_rows(r, file, err));
    r->row_bytes = fl_logit_row_bytes(r->h.setup.vocab);
    *out = r;
    return FL_OK;
out:
    fl_logit_reader_close(&r);
    return st;
}

void fl_logit_reader_close(fl_logit_reader **reader)
{
    fl_logit_reader *r = *reader;
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    free(r->path);
    free(r);
    *reader = NULL;
}

const fl_logit_setup *fl_logit_reader_setup(const fl_logit_reader *r) { return &r->h.setup; }

uint64_t fl_logit_reader_rows(const fl_logit_reader *r) { return r->h.n_rows; }

fl_status fl_logit_reader_get(fl_logit_reader *r, uint64_t first, uint64_t n, void *dst,
                              fl_err *err)
{
    if (first > r->h.n_rows || n > r->h.n_rows - first)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the file of logits has %llu rows, row %llu is asked for", r->path,
                       (unsigned long long)r->h.n_rows, (unsigned long long)(first + n - 1));
    FL_TRY(fl_file_read_at(r->fd, dst, n * r->row_bytes, sizeof r->h + first * r->row_bytes,
                           r->path, err));
    for (uint64_t i = 0; i < n; i++)
        if (!fl_logit_row_valid((char *)dst + i * r->row_bytes, r->h.setup.vocab))
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: row %llu of the file of logits is damaged",
                           r->path, (unsigned long long)(first + i));
    return FL_OK;
}
