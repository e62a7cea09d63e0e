#include "offload/trace.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"

static const char magic[8] = {'F', 'L', 'R', 'O', 'U', 'T', 'E', 'S'};
enum { VERSION = 1, MAX_LAYERS = 1 << 12, MAX_EXPERTS = 1 << 14, MAX_TOP_K = 256, MAX_BLOCK = 256 };
static const uint64_t MAX_BYTES = UINT64_C(4) << 30;

typedef struct head {
    char magic[8];
    uint32_t version, n_layer, n_expert, top_k, block, synthetic;
    char name[FL_TRACE_NAME];
    uint64_t n_passes;
    uint64_t passes_hash;
    uint64_t head_hash; /* of the head with 0 here */
} head;
_Static_assert(sizeof(head) == 88, "the file's layout");

typedef struct record {
    uint8_t kind, first;
    uint16_t rows, clean, done;
} record;
_Static_assert(sizeof(record) == 8, "the file's layout");

const char *fl_pass_kind_name(fl_pass_kind kind)
{
    static const char *const name[] = {"prefill", "ar", "block", "verify"};
    return name[kind];
}

static uint64_t hash_head(const head *h)
{
    head copy = *h;
    copy.head_hash = 0;
    return fl_hash64(&copy, sizeof copy);
}

static int id_bytes(int n_expert) { return n_expert <= 256 ? 1 : 2; }

static uint64_t layer_bytes(const fl_trace_shape *s, int rows)
{
    return (uint64_t)rows * (uint64_t)s->top_k * (uint64_t)id_bytes(s->n_expert);
}

/* ---- reading ---- */

struct fl_trace {
    fl_trace_shape shape;
    uint8_t *data; /* owned: the passes */
    uint64_t bytes;
    fl_trace_pass *pass; /* [n_passes] */
    uint64_t *at;        /* [n_passes]: of its experts in data */
    int n_passes;
};

static fl_status check_head(const head *h, uint64_t n, const char *name, fl_err *err)
{
    if (n < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is not a routing trace; run --trace-out and bench/traces write one",
                       name);
    if (h->version != VERSION)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is a routing trace of version %u, this program reads %d", name,
                       h->version, VERSION);
    if (hash_head(h) != h->head_hash)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the routing trace is damaged: the checksum of its head is wrong", name);
    if (h->n_layer < 1 || h->n_layer > MAX_LAYERS || h->n_expert < 1 || h->n_expert > MAX_EXPERTS ||
        h->top_k < 1 || h->top_k > MAX_TOP_K || h->top_k > h->n_expert || h->block > MAX_BLOCK ||
        h->synthetic > 1 || !memchr(h->name, 0, sizeof h->name))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the routing trace is damaged: %u layers of %u experts, %u at a time, "
                       "blocks of %u",
                       name, h->n_layer, h->n_expert, h->top_k, h->block);
    return FL_OK;
}

/* Each pass takes at least a record and an id, so the file's length bounds their number. */
static fl_status check_size(const head *h, const uint8_t *passes, uint64_t bytes, const char *name,
                            fl_err *err)
{
    if (h->n_passes > bytes / (sizeof(record) + 1))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the routing trace is cut short: %" PRIu64 " passes in %" PRIu64
                       " bytes",
                       name, h->n_passes, bytes);
    if (fl_hash64(passes, bytes) != h->passes_hash)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the routing trace is cut short or damaged: the checksum of its passes "
                       "is wrong",
                       name);
    return FL_OK;
}

static int32_t id_at(const fl_trace *t, uint64_t at)
{
    uint16_t wide;
    if (id_bytes(t->shape.n_expert) == 1) return t->data[at];
    memcpy(&wide, t->data + at, sizeof wide);
    return wide;
}

void fl_trace_row(const fl_trace *t, int pass, int layer, int row, int32_t *out)
{
    const fl_trace_shape *s = &t->shape;
    const int size = id_bytes(s->n_expert);
    uint64_t at =
        t->at[pass] + layer_bytes(s, t->pass[pass].rows) * (uint64_t)layer + layer_bytes(s, row);
    for (int i = 0; i < s->top_k; i++, at += (uint64_t)size) out[i] = id_at(t, at);
}

static bool row_is_valid(const fl_trace *t, int pass, int layer, int row, bool *seen)
{
    int32_t id[MAX_TOP_K];
    bool ok = true;
    fl_trace_row(t, pass, layer, row, id);
    for (int i = 0; i < t->shape.top_k; i++) {
        if (id[i] >= t->shape.n_expert || seen[id[i]]) ok = false;
        if (id[i] < t->shape.n_expert) seen[id[i]] = true;
    }
    for (int i = 0; i < t->shape.top_k; i++)
        if (id[i] < t->shape.n_expert) seen[id[i]] = false;
    return ok;
}

static fl_status check_experts(const fl_trace *t, int pass, bool *seen, const char *name,
                               fl_err *err)
{
    for (int l = 0; l < t->shape.n_layer; l++)
        for (int r = 0; r < t->pass[pass].rows; r++)
            if (!row_is_valid(t, pass, l, r, seen))
                return FL_FAIL(err, FL_E_FORMAT, 0,
                               "%s: the routing trace is damaged: pass %d, layer %d, row %d: "
                               "expected %d different experts below %d",
                               name, pass, l, r, t->shape.top_k, t->shape.n_expert);
    return FL_OK;
}

static bool pass_is_valid(const record *r)
{
    return r->kind < FL_N_PASS_KINDS && r->first <= (r->kind == FL_PASS_BLOCK) && r->rows >= 1 &&
           r->rows <= FL_TRACE_MAX_ROWS && r->clean <= r->rows && r->done <= r->rows;
}

static fl_status read_passes(fl_trace *t, const char *name, fl_err *err)
{
    static_assert(MAX_EXPERTS <= 1 << 14, "the marks lie on the stack");
    bool seen[MAX_EXPERTS] = {false};
    uint64_t at = 0;
    for (int p = 0; p < t->n_passes; p++) {
        record r = {0};
        if (t->bytes - at >= sizeof r) memcpy(&r, t->data + at, sizeof r);
        if (!pass_is_valid(&r))
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: the routing trace is damaged: pass %d at byte %" PRIu64
                           ": kind %d, %d rows, %d clean, %d done",
                           name, p, sizeof(head) + at, r.kind, r.rows, r.clean, r.done);
        at += sizeof r;
        const uint64_t n = layer_bytes(&t->shape, r.rows) * (uint64_t)t->shape.n_layer;
        if (n > t->bytes - at)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the routing trace ends within pass %d", name,
                           p);
        t->at[p] = at;
        t->pass[p] = (fl_trace_pass){r.kind, r.first, r.rows, r.clean, r.done};
        FL_TRY(check_experts(t, p, seen, name, err));
        at += n;
    }
    if (at == t->bytes) return FL_OK;
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: the routing trace has %" PRIu64 " bytes behind its last pass", name,
                   t->bytes - at);
}

fl_status fl_trace_parse(fl_trace **out, const void *data, uint64_t n, const char *name,
                         fl_err *err)
{
    head h = {0};
    fl_status st = FL_OK;
    *out = NULL;
    memcpy(&h, data, n < sizeof h ? n : sizeof h);
    FL_TRY(check_head(&h, n, name, err));
    const uint8_t *passes = (const uint8_t *)data + sizeof h;
    FL_TRY(check_size(&h, passes, n - sizeof h, name, err));
    fl_trace *t = calloc(1, sizeof *t);
    if (!t) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", name);
    t->shape = (fl_trace_shape){(int)h.n_layer, (int)h.n_expert,  (int)h.top_k,
                                (int)h.block,   h.synthetic != 0, {0}};
    memcpy(t->shape.name, h.name, sizeof h.name);
    t->n_passes = (int)h.n_passes;
    t->bytes = n - sizeof h;
    t->data = malloc(t->bytes + 1);
    t->pass = calloc((size_t)t->n_passes + 1, sizeof *t->pass);
    t->at = calloc((size_t)t->n_passes + 1, sizeof *t->at);
    if (!t->data || !t->pass || !t->at)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory for %d passes", name, t->n_passes));
    memcpy(t->data, passes, t->bytes);
    FL_GO(read_passes(t, name, err));
    *out = t;
    t = NULL;
out:
    fl_trace_close(&t);
    return st;
}

bool fl_trace_is(const char *path)
{
    char begin[sizeof magic];
    int fd = -1;
    uint64_t n = 0;
    if (fl_file_open(path, &fd, &n, NULL) != FL_OK) return false;
    const bool is = n >= sizeof begin &&
                    fl_file_read_at(fd, begin, sizeof begin, 0, path, NULL) == FL_OK &&
                    memcmp(begin, magic, sizeof magic) == 0;
    close(fd);
    return is;
}

fl_status fl_trace_open(fl_trace **out, const char *path, fl_err *err)
{
    char *data = NULL;
    uint64_t n = 0;
    *out = NULL;
    FL_TRY(fl_file_load(path, MAX_BYTES, &data, &n, err));
    const fl_status st = fl_trace_parse(out, data, n, path, err);
    free(data);
    return st;
}

void fl_trace_close(fl_trace **trace)
{
    fl_trace *t = *trace;
    if (!t) return;
    free(t->data);
    free(t->pass);
    free(t->at);
    free(t);
    *trace = NULL;
}

const fl_trace_shape *fl_trace_get_shape(const fl_trace *t) { return &t->shape; }

int fl_trace_n_passes(const fl_trace *t) { return t->n_passes; }

const fl_trace_pass *fl_trace_get_pass(const fl_trace *t, int pass) { return &t->pass[pass]; }

int fl_trace_union(const fl_trace *t, int pass, int layer, int32_t *out)
{
    const fl_trace_shape *s = &t->shape;
    const uint64_t size = (uint64_t)id_bytes(s->n_expert);
    const uint64_t bytes = layer_bytes(s, t->pass[pass].rows);
    const uint64_t at = t->at[pass] + bytes * (uint64_t)layer;
    int n = 0;
    memset(out, 0, (size_t)s->n_expert * sizeof *out);
    for (uint64_t i = 0; i < bytes; i += size) out[id_at(t, at + i)] = 1;
    for (int32_t e = 0; e < s->n_expert; e++)
        if (out[e]) out[n++] = e; /* n <= e: what is overwritten has been looked at */
    return n;
}

/* ---- writing ---- */

struct fl_trace_writer {
    fl_outfile *file;
    fl_hasher *hash;
    head h;
    fl_trace_shape shape;
    int max_rows;
    int *rows;    /* [n_layer]: of what was put for this pass; 0 = nothing */
    uint8_t *ids; /* [n_layer][max_rows * top_k] of one pass */
};

static uint8_t *layer_at(const fl_trace_writer *w, int layer)
{
    return w->ids + layer_bytes(&w->shape, w->max_rows) * (uint64_t)layer;
}

fl_status fl_trace_writer_open(fl_trace_writer **out, const char *path, const fl_trace_shape *shape,
                               int max_rows, fl_err *err)
{
    fl_status st = FL_OK;
    *out = NULL;
    assert(max_rows >= 1 && max_rows <= FL_TRACE_MAX_ROWS && shape->top_k <= shape->n_expert);
    if (shape->n_layer < 1 || shape->n_layer > MAX_LAYERS || shape->n_expert < 1 ||
        shape->n_expert > MAX_EXPERTS || shape->top_k < 1 || shape->top_k > MAX_TOP_K)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s: no routing trace can hold %d layers of %d experts, %d at a time", path,
                       shape->n_layer, shape->n_expert, shape->top_k);
    fl_trace_writer *w = calloc(1, sizeof *w);
    if (!w) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    w->shape = *shape;
    w->max_rows = max_rows;
    w->h = (head){.version = VERSION,
                  .n_layer = (uint32_t)shape->n_layer,
                  .n_expert = (uint32_t)shape->n_expert,
                  .top_k = (uint32_t)shape->top_k,
                  .block = (uint32_t)shape->block,
                  .synthetic = shape->synthetic};
    memcpy(w->h.magic, magic, sizeof magic);
    memcpy(w->h.name, shape->name, sizeof w->h.name);
    w->h.name[sizeof w->h.name - 1] = 0;
    w->hash = fl_hasher_create();
    w->rows = calloc((size_t)shape->n_layer, sizeof *w->rows);
    w->ids = malloc(layer_bytes(shape, max_rows) * (uint64_t)shape->n_layer);
    if (!w->hash || !w->rows || !w->ids)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    FL_GO(fl_outfile_open(&w->file, path, err));
    FL_GO(fl_outfile_write(w->file, &w->h, sizeof w->h, err));
    *out = w;
    return FL_OK;
out:
    fl_trace_writer_discard(&w);
    return st;
}

void fl_trace_writer_layer(fl_trace_writer *w, int layer, int rows, const int32_t *experts)
{
    const fl_trace_shape *s = &w->shape;
    const int n = rows * s->top_k;
    uint8_t *at = layer_at(w, layer);
    assert(layer >= 0 && layer < s->n_layer && rows >= 1 && rows <= w->max_rows);
    w->rows[layer] = rows;
    for (int i = 0; i < n; i++) {
        assert(experts[i] >= 0 && experts[i] < s->n_expert);
        if (id_bytes(s->n_expert) == 1) {
            at[i] = (uint8_t)experts[i];
        } else {
            const uint16_t wide = (uint16_t)experts[i];
            memcpy(at + 2 * i, &wide, sizeof wide);
        }
    }
}

static fl_status put(fl_trace_writer *w, const void *data, uint64_t n, fl_err *err)
{
    fl_hasher_add(w->hash, data, n);
    return fl_outfile_write(w->file, data, n, err);
}

fl_status fl_trace_writer_pass(fl_trace_writer *w, const fl_trace_pass *pass, fl_err *err)
{
    const record r = {(uint8_t)pass->kind, pass->first, (uint16_t)pass->rows, (uint16_t)pass->clean,
                      (uint16_t)pass->done};
    assert(pass_is_valid(&r) && pass->rows <= w->max_rows);
    FL_TRY(put(w, &r, sizeof r, err));
    for (int l = 0; l < w->shape.n_layer; l++) {
        assert(w->rows[l] == pass->rows);
        w->rows[l] = 0;
        FL_TRY(put(w, layer_at(w, l), layer_bytes(&w->shape, pass->rows), err));
    }
    w->h.n_passes++;
    return FL_OK;
}

fl_status fl_trace_writer_commit(fl_trace_writer **writer, fl_err *err)
{
    fl_trace_writer *w = *writer;
    w->h.passes_hash = fl_hasher_value(w->hash);
    w->h.head_hash = hash_head(&w->h);
    fl_status st = fl_outfile_write_at(w->file, &w->h, sizeof w->h, 0, err);
    if (st == FL_OK) st = fl_outfile_commit(&w->file, err);
    fl_trace_writer_discard(writer);
    return st;
}

void fl_trace_writer_discard(fl_trace_writer **writer)
{
    fl_trace_writer *w = *writer;
    if (!w) return;
    fl_outfile_discard(&w->file);
    fl_hasher_destroy(&w->hash);
    free(w->rows);
    free(w->ids);
    free(w);
    *writer = NULL;
}
