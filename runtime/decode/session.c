#include "runtime/decode/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/decode/loop.h"

typedef struct fl_session_head {
    char magic[8];
    uint32_t version, kv_type;
    uint64_t identity;
    uint32_t act_f32, n_kv_layers;
    int64_t n; /* tokens */
    uint64_t n_rungs, n_note;
    uint64_t kv_row_bytes; /* one row of K or of V of one layer */
    uint64_t gdn_bytes;    /* one copy */
    uint64_t reading;      /* fl_index_digest */
    uint64_t bulk_hash;    /* of all behind the front */
    uint64_t front_hash;   /* of this head, with 0 here, and the front behind it */
} fl_session_head;

typedef struct rung_entry {
    int64_t n, kind;
} rung_entry;

struct fl_session {
    char *path;
    int fd;
    fl_session_head h;
    uint8_t *front; /* tokens, rungs, note */
    uint64_t n_front;
};

enum { VERSION = 2, PIECE = 1 << 20 };
static const char magic[8] = "FLSESSIO";

static uint64_t front_bytes(const fl_session_head *h)
{
    return h->n_note + (uint64_t)h->n * sizeof(int32_t) + h->n_rungs * sizeof(rung_entry);
}

static uint64_t cache_bytes(const fl_session_head *h) { return (uint64_t)h->n * h->kv_row_bytes; }

static uint64_t bulk_bytes(const fl_session_head *h)
{
    return 2 * h->n_kv_layers * cache_bytes(h) + (h->n_rungs + 1) * h->gdn_bytes;
}

static uint64_t hash_front(const fl_session_head *head, const uint8_t *front, uint64_t n)
{
    fl_session_head h = *head;
    h.front_hash = 0;
    return fl_hash64_seeded(front, n, fl_hash64(&h, sizeof(h)));
}

/* ---- reading the front ---- */

/* The sizes of a head are possible (so that no product overflows) and add up to the file's. */
static bool sizes_agree(const fl_session_head *h, uint64_t file)
{
    if (h->n < 0 || h->n > FL_MAX_CONTEXT || h->n_rungs > (uint64_t)h->n ||
        h->n_note > FL_SESSION_NOTE_MAX || h->n_kv_layers > 4096 || h->kv_row_bytes > 1 << 24 ||
        h->gdn_bytes > 1ull << 40)
        return false;
    return sizeof(*h) + front_bytes(h) + bulk_bytes(h) == file;
}

static fl_status read_head(fl_session *s, uint64_t file, fl_err *err)
{
    fl_session_head *h = &s->h;
    if (file < sizeof(*h))
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is not a session file (%llu bytes)", s->path,
                       (unsigned long long)file);
    FL_TRY(fl_file_read_at(s->fd, h, sizeof(*h), 0, s->path, err));
    if (memcmp(h->magic, magic, sizeof(magic)) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is not a session file; name a new file to start a session", s->path);
    if (h->version != VERSION)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is a session file of version %u, this program reads %d", s->path,
                       h->version, VERSION);
    if (!sizes_agree(h, file))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session file is cut short or damaged: its head does not describe a "
                       "file of %llu bytes",
                       s->path, (unsigned long long)file);
    return FL_OK;
}

static const int32_t *tokens_of(const fl_session *s) { return (const int32_t *)(void *)s->front; }

static rung_entry rung_at(const fl_session *s, uint64_t i)
{
    rung_entry r;
    memcpy(&r, s->front + (uint64_t)s->h.n * sizeof(int32_t) + i * sizeof(r), sizeof(r));
    return r;
}

static fl_status damaged(const char *path, const char *what, fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the session file is damaged: %s", path, what);
}

/* What a right checksum does not promise: a file can be made by hand. */
static fl_status check_front(const fl_session *s, fl_err *err)
{
    int64_t below = 0;
    for (uint64_t i = 0; i < s->h.n_rungs; i++) {
        const rung_entry r = rung_at(s, i);
        if (r.n <= below || r.n > s->h.n || r.kind < 0 || r.kind > FL_RUNG_KINDS)
            return damaged(s->path, "its checkpoints are out of order", err);
        below = r.n;
    }
    return FL_OK;
}

static fl_status read_front(fl_session *s, fl_err *err)
{
    s->n_front = front_bytes(&s->h);
    s->front = malloc(s->n_front + 1);
    if (!s->front)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for %llu bytes", s->path,
                       (unsigned long long)s->n_front);
    s->front[s->n_front] = 0;
    FL_TRY(fl_file_read_at(s->fd, s->front, s->n_front, sizeof(s->h), s->path, err));
    if (hash_front(&s->h, s->front, s->n_front) != s->h.front_hash)
        return damaged(s->path, "the checksum of its head is wrong", err);
    return check_front(s, err);
}

fl_status fl_session_open(fl_session **out, const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t file = 0;
    fl_session *s = calloc(1, sizeof(*s));
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    s->fd = -1;
    s->path = strdup(path);
    if (!s->path) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path));
    FL_GO(fl_file_open(path, &s->fd, &file, err));
    FL_GO(read_head(s, file, err));
    FL_GO(read_front(s, err));
    *out = s;
    return FL_OK;
out:
    fl_session_close(&s);
    return st;
}

void fl_session_close(fl_session **session)
{
    fl_session *s = *session;
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s->front);
    free(s->path);
    free(s);
    *session = NULL;
}

const char *fl_session_note(const fl_session *s, size_t *n)
{
    *n = s->h.n_note;
    return (const char *)s->front + s->n_front - s->h.n_note;
}

int64_t fl_session_tokens(const fl_session *s) { return s->h.n; }

/* ---- whose it is ---- */

fl_status fl_session_check(const fl_session *s, const fl_engine *e, uint64_t identity, fl_err *err)
{
    const fl_session_head *h = &s->h;
    const fl_type_info *type = fl_type_get(h->kv_type);
    if (h->identity != identity)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session is of another model; name a new file to start one with "
                       "this model",
                       s->path);
    if (h->reading != fl_index_digest(e->model->index))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session was made when this model's file was read another way (a "
                       "probe, --map or --v-heads changed that); name a new file to start one",
                       s->path);
    if (h->kv_type != e->params.kv_type)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session has a KV cache in %s, this run in %s; change --kv or name "
                       "a new file",
                       s->path, type ? type->name : "an unknown type",
                       fl_type_get(e->params.kv_type)->name);
    if ((h->act_f32 != 0) != e->params.act_f32)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session was made with --act %s; give that or name a new file",
                       s->path, h->act_f32 ? "f32" : "law");
    if (h->n > e->params.n_ctx)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the session has %lld tokens, the context %lld; raise --ctx", s->path,
                       (long long)h->n, (long long)e->params.n_ctx);
    for (int64_t i = 0; i < h->n; i++)
        if (tokens_of(s)[i] < 0 || tokens_of(s)[i] >= e->model->index->hp.n_vocab)
            return damaged(s->path, "a token is outside the vocabulary", err);
    return FL_OK;
}

static uint32_t kv_layers(const fl_state *st)
{
    uint32_t n = 0;
    for (int i = 0; i < st->n_layer; i++) n += st->k[i] != NULL;
    return n;
}

/* The model's attention layers, and the MTP block's if the run that saved had loaded it. */
static bool layers_fit(const fl_session_head *h, const fl_engine *e)
{
    const uint32_t model = kv_layers(&e->state) - e->params.mtp;
    return h->n_kv_layers == model ||
           (e->model->index->hp.n_mtp > 0 && h->n_kv_layers == model + 1);
}

/* ---- the bulk ---- */

typedef struct stream {
    const fl_session *s; /* reading */
    uint64_t at;
    fl_outfile *f; /* writing */
    fl_hasher *hash;
} stream;

static fl_status open_hash(stream *x, const char *path, fl_err *err)
{
    x->hash = fl_hasher_create();
    if (!x->hash) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    return FL_OK;
}

static fl_status get(stream *x, void *to, uint64_t n, fl_err *err)
{
    FL_TRY(fl_file_read_at(x->s->fd, to, n, x->at, x->s->path, err));
    fl_hasher_add(x->hash, to, n);
    x->at += n;
    return FL_OK;
}

static fl_status put(stream *x, const void *from, uint64_t n, fl_err *err)
{
    fl_hasher_add(x->hash, from, n);
    return fl_outfile_write(x->f, from, n, err);
}

/* A part that has no place here: only its checksum counts. */
static fl_status skip(stream *x, uint64_t n, fl_err *err)
{
    fl_status st = FL_OK;
    if (n == 0) return st;
    uint8_t *piece = malloc(PIECE);
    if (!piece) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", x->s->path);
    for (uint64_t k; st == FL_OK && n > 0; n -= k) {
        k = n < PIECE ? n : PIECE;
        st = get(x, piece, k, err);
    }
    free(piece);
    return st;
}

static fl_status read_rungs(stream *x, fl_generator *g, fl_err *err)
{
    for (uint64_t i = 0; i < x->s->h.n_rungs; i++) {
        const rung_entry r = rung_at(x->s, i);
        fl_state_copy *copy = fl_ladder_put(g->ladder, r.n, (unsigned)r.kind);
        if (copy)
            FL_TRY(get(x, copy->memory, x->s->h.gdn_bytes, err));
        else
            FL_TRY(skip(x, x->s->h.gdn_bytes, err));
    }
    return FL_OK;
}

/* The MTP block's cache, the last one, may be missing in the file or have no place here: drafts
 * then see nothing of what was read, the text is the same. */
static fl_status read_cache(stream *x, fl_state *st, fl_err *err)
{
    const uint64_t bytes = cache_bytes(&x->s->h);
    uint32_t left = x->s->h.n_kv_layers;
    for (int i = 0; i < st->n_layer; i++) {
        if (!st->k[i]) continue;
        if (left == 0) {
            memset(st->k[i], 0, bytes);
            memset(st->v[i], 0, bytes);
            continue;
        }
        FL_TRY(get(x, st->k[i], bytes, err));
        FL_TRY(get(x, st->v[i], bytes, err));
        left--;
    }
    return skip(x, 2 * left * bytes, err);
}

static fl_status read_bulk(stream *x, fl_generator *g, fl_err *err)
{
    const fl_session_head *h = &x->s->h;
    fl_state *st = &g->engine->state;
    FL_TRY(read_cache(x, st, err));
    FL_TRY(read_rungs(x, g, err));
    FL_TRY(get(x, st->gdn, h->gdn_bytes, err));
    if (fl_hasher_value(x->hash) != h->bulk_hash)
        return damaged(x->s->path, "the checksum of its state is wrong", err);
    memcpy(st->ids, tokens_of(x->s), (size_t)h->n * sizeof(*st->ids));
    st->n = st->n_causal = h->n;
    return FL_OK;
}

static void forget(fl_generator *g)
{
    fl_state_reset(&g->engine->state);
    fl_ladder_drop(g->ladder, 0);
    g->resets = g->engine->state.resets;
}

fl_status fl_session_restore(const fl_session *s, fl_generator *g, uint64_t identity, fl_err *err)
{
    const fl_state *st = &g->engine->state;
    FL_TRY(fl_session_check(s, g->engine, identity, err));
    if (s->h.gdn_bytes != st->gdn_bytes || s->h.kv_row_bytes != fl_state_kv_row_bytes(st) ||
        !layers_fit(&s->h, g->engine))
        return damaged(s->path, "its sizes are not this model's", err);
    stream x = {.s = s, .at = sizeof(s->h) + s->n_front};
    FL_TRY(open_hash(&x, s->path, err));
    forget(g);
    const fl_status result = read_bulk(&x, g, err);
    if (result != FL_OK) forget(g);
    fl_hasher_destroy(&x.hash);
    return result;
}

/* ---- writing ---- */

static fl_session_head make_head(const fl_generator *g, uint64_t identity, size_t n_note)
{
    const fl_state *st = &g->engine->state;
    fl_session_head h = {.version = VERSION,
                         .kv_type = st->kv_type,
                         .identity = identity,
                         .act_f32 = g->engine->params.act_f32,
                         .n_kv_layers = kv_layers(st),
                         .n = st->n,
                         .n_rungs = (uint64_t)g->ladder->n,
                         .n_note = n_note,
                         .kv_row_bytes = fl_state_kv_row_bytes(st),
                         .gdn_bytes = st->gdn_bytes,
                         .reading = fl_index_digest(g->engine->model->index)};
    memcpy(h.magic, magic, sizeof(magic));
    return h;
}

/* Tokens, rungs and note in one piece; malloc'ed. */
static uint8_t *make_front(const fl_generator *g, const fl_session_head *h, const char *note)
{
    uint8_t *front = malloc(front_bytes(h) + 1), *p = front;
    if (!front) return NULL;
    memcpy(p, g->engine->state.ids, (size_t)h->n * sizeof(int32_t));
    p += (size_t)h->n * sizeof(int32_t);
    for (int i = 0; i < g->ladder->n; i++, p += sizeof(rung_entry)) {
        const rung_entry r = {g->ladder->rung[i].copy.n, g->ladder->rung[i].kind};
        memcpy(p, &r, sizeof(r));
    }
    if (h->n_note) memcpy(p, note, h->n_note);
    return front;
}

static fl_status write_bulk(stream *x, const fl_generator *g, const fl_session_head *h, fl_err *err)
{
    const fl_state *st = &g->engine->state;
    for (int i = 0; i < st->n_layer; i++) {
        if (!st->k[i]) continue;
        FL_TRY(put(x, st->k[i], cache_bytes(h), err));
        FL_TRY(put(x, st->v[i], cache_bytes(h), err));
    }
    for (int i = 0; i < g->ladder->n; i++)
        FL_TRY(put(x, g->ladder->rung[i].copy.memory, h->gdn_bytes, err));
    return put(x, st->gdn, h->gdn_bytes, err);
}

static fl_status write_all(stream *x, const fl_generator *g, fl_session_head *h,
                           const uint8_t *front, fl_err *err)
{
    FL_TRY(fl_outfile_write(x->f, h, sizeof(*h), err));
    FL_TRY(fl_outfile_write(x->f, front, front_bytes(h), err));
    FL_TRY(write_bulk(x, g, h, err));
    h->bulk_hash = fl_hasher_value(x->hash);
    h->front_hash = hash_front(h, front, front_bytes(h));
    return fl_outfile_write_at(x->f, h, sizeof(*h), 0, err);
}

fl_status fl_session_save(fl_generator *g, uint64_t identity, const char *path, const char *note,
                          size_t n_note, uint64_t *bytes, fl_err *err)
{
    fl_status st = FL_OK;
    stream x = {0};
    if (n_note > FL_SESSION_NOTE_MAX)
        return FL_FAIL(err, FL_E_ARG, 0, "%s: the conversation has %zu bytes, at most %d are kept",
                       path, n_note, FL_SESSION_NOTE_MAX);
    fl_loop_go_back(g, g->engine->state.ids, g->engine->state.n);
    fl_session_head h = make_head(g, identity, n_note);
    uint8_t *front = make_front(g, &h, note);
    if (!front) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    FL_GO(open_hash(&x, path, err));
    FL_GO(fl_outfile_open(&x.f, path, err));
    FL_GO(write_all(&x, g, &h, front, err));
    *bytes = fl_outfile_tell(x.f);
    st = fl_outfile_commit(&x.f, err);
out:
    fl_outfile_discard(&x.f);
    fl_hasher_destroy(&x.hash);
    free(front);
    return st;
}
