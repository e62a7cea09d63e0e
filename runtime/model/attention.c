#include <assert.h>
#include <math.h>
#include <string.h>

#include "runtime/model/layers.h"

void fl_rope_prepare(const fl_pass *p)
{
    const int half = p->hp->rot_dim / 2;
    assert(p->n_rows <= p->buf->max_rows && p->n_rows - p->n_write <= p->buf->max_block);
    for (int t = 0; t < p->n_rows; t++) {
        const double pos = (double)(p->at + t);
        for (int j = 0; j < half; j++) {
            double s, c;
            fl_law_sincos64(pos * p->buf->rope_freq[j], &s, &c);
            p->buf->rope_cos[t * half + j] = (float)c;
            p->buf->rope_sin[t * half + j] = (float)s;
        }
    }
}

/* Pairs (j, j + half) of the head's first 2 * half values. */
static void rotate(float *head, const float *c, const float *s, int half)
{
    for (int j = 0; j < half; j++) {
        const float a = head[j], b = head[j + half];
        head[j] = fmaf(a, c[j], -(b * s[j]));
        head[j + half] = fmaf(b, c[j], a * s[j]);
    }
}

static bool all_finite(const float *x, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

typedef struct attn_run {
    const fl_pass *p;
    const fl_layer_weights *w;
    int layer;
    int first; /* row of keys_task 0 */
    int group; /* rows of a task */
    /* Keys shared out among threads: chunks [chunk, chunk + window) at a time. */
    int64_t chunk;
    int window;
    bool last; /* no chunk stands behind the window */
} attn_run;

/* Norms and rotates the keys of one row and puts them and its values into the cache. The softmax
 * would turn an infinite key into a weight, so the row's values carry it on as a NaN. */
static void keys_task(void *arg, int i, int worker)
{
    const attn_run *r = arg;
    const fl_hparams *hp = r->p->hp;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const int hd = hp->head_dim, half = hp->rot_dim / 2, t = r->first + i;
    const float *c = r->p->buf->rope_cos + t * half, *s = r->p->buf->rope_sin + t * half;
    float *k = b->k + (int64_t)t * r->p->state->kv_row;
    float *v = b->v + (int64_t)t * r->p->state->kv_row;
    (void)worker;
    for (int h = 0; h < hp->n_head_kv; h++) {
        r->p->exec->k.rmsnorm(k + h * hd, r->w->k_norm, hd, hp->eps, k + h * hd);
        rotate(k + h * hd, c, s, half);
        if (!all_finite(k + h * hd, hd)) v[h * hd] = NAN;
    }
    fl_state_put_kv(r->p->state, r->layer, r->p->at + t, k, v);
}

/* The same, and the queries of the row. */
static void head_task(void *arg, int t, int worker)
{
    const attn_run *r = arg;
    const fl_hparams *hp = r->p->hp;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const fl_kernels *kern = &r->p->exec->k;
    const int hd = hp->head_dim, half = hp->rot_dim / 2;
    const float *c = r->p->buf->rope_cos + t * half, *s = r->p->buf->rope_sin + t * half;
    for (int h = 0; h < hp->n_head; h++) {
        float *q = b->q + ((int64_t)t * hp->n_head + h) * hd;
        kern->rmsnorm(b->qg + ((int64_t)t * hp->n_head + h) * 2 * hd, r->w->q_norm, hd, hp->eps, q);
        rotate(q, c, s, half);
    }
    keys_task(arg, t, worker);
}

/* Keys that row t sees. Row 0 of the MTP block's cache is not used. */
static int64_t row_keys(const attn_run *r, int t)
{
    const fl_pass *p = r->p;
    const int rows = t < p->n_write || p->held ? t + 1 : p->n_rows;
    return p->at + rows - (r->layer == p->hp->n_layer);
}

/* Rows t .. t + n - 1; n_keys has room for their keys. */
static fl_attn_args row_args(const attn_run *r, int t, int n, int64_t *n_keys)
{
    const fl_hparams *hp = r->p->hp;
    const fl_state *st = r->p->state;
    const int64_t row = (int64_t)hp->n_head * hp->head_dim;
    const uint64_t skip = r->layer == hp->n_layer ? fl_state_kv_row_bytes(st) : 0;
    for (int i = 0; i < n; i++) n_keys[i] = row_keys(r, t + i);
    return (fl_attn_args){.q = r->p->buf->attn.q + t * row,
                          .q_stride = row,
                          .n_rows = n,
                          .n_kv = hp->n_head_kv,
                          .n_q = hp->n_head / hp->n_head_kv,
                          .head_dim = hp->head_dim,
                          .k = (const uint8_t *)st->k[r->layer] + skip,
                          .v = (const uint8_t *)st->v[r->layer] + skip,
                          .kv_stride = st->kv_row,
                          .kv_type = st->kv_type,
                          .n_keys = n_keys,
                          .scale = 1.0f / sqrtf((float)hp->head_dim)};
}

static void gate_heads(const attn_run *r, int t)
{
    const fl_hparams *hp = r->p->hp;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const int hd = hp->head_dim;
    for (int h = 0; h < hp->n_head; h++) {
        const int64_t at = (int64_t)t * hp->n_head + h;
        float *out = b->out + at * hd;
        const float *gate = b->qg + (2 * at + 1) * hd;
        r->p->exec->k.sigmoid_mul(out, gate, hd, out);
        if (!all_finite(b->q + at * hd, hd) || !all_finite(gate, hd)) out[0] = NAN;
    }
}

/* A group of rows. Late rows see the most keys; they go first so that the pool ends evenly. */
static void attend_task(void *arg, int task, int worker)
{
    const attn_run *r = arg;
    const int end = r->p->n_rows - task * r->group, t = end > r->group ? end - r->group : 0;
    int64_t n_keys[FL_ATTN_HEADS];
    const fl_attn_args a = row_args(r, t, end - t, n_keys);
    (void)worker;
    r->p->exec->k.attention(&a, r->p->buf->attn.out + t * a.q_stride, a.q_stride);
    for (int i = t; i < end; i++) gate_heads(r, i);
}

static fl_attn_part part_at(const attn_run *r, int64_t slot)
{
    const fl_hparams *hp = r->p->hp;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const int64_t at = slot * hp->n_head;
    return (fl_attn_part){b->part_max + at, b->part_sum + at, b->part_out + at * hp->head_dim,
                          hp->n_head};
}

/* One chunk of keys and a group of rows; neighbours read the same chunk. */
static void chunk_task(void *arg, int task, int worker)
{
    const attn_run *r = arg;
    const int rows = r->p->n_rows, groups = (rows + r->group - 1) / r->group;
    const int c = task / groups, t = task % groups * r->group;
    int64_t n_keys[FL_ATTN_HEADS];
    const fl_attn_args a = row_args(r, t, rows - t < r->group ? rows - t : r->group, n_keys);
    const fl_attn_part to = part_at(r, (int64_t)c * rows + t);
    (void)worker;
    r->p->exec->k.attention_chunk(&a, r->chunk + c, &to);
}

/* The window's chunks of one row, in order. */
static void join_task(void *arg, int t, int worker)
{
    const attn_run *r = arg;
    const fl_hparams *hp = r->p->hp;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const int hd = hp->head_dim, heads = hp->n_head;
    const int64_t at = (int64_t)t * heads;
    const fl_attn_part run = {b->run_max + at, b->run_sum + at, b->out + at * hd, heads};
    (void)worker;
    for (int h = 0; r->chunk == 0 && h < heads; h++) run.sum[h] = 0.0f;
    for (int c = 0; c < r->window; c++) {
        const fl_attn_part part = part_at(r, (int64_t)c * r->p->n_rows + t);
        r->p->exec->k.attention_join(&run, &part, heads, hd);
    }
    if (!r->last) return;
    for (int h = 0; h < heads; h++)
        for (int d = 0; d < hd; d++) run.out[h * hd + d] = run.out[h * hd + d] / run.sum[h];
    gate_heads(r, t);
}

/* All rows and heads. Groups of rows go to the threads where there are enough of them; else
 * chunks of keys do, so that one row over a long context keeps every thread busy. */
static void attend(attn_run *r)
{
    fl_pool *pool = r->p->exec->pool;
    const int rows = r->p->n_rows, threads = fl_pool_threads(pool);
    r->group = FL_ATTN_HEADS / r->p->hp->n_head;
    if (r->group < 1) r->group = 1;
    const int groups = (rows + r->group - 1) / r->group;
    const int64_t chunks = (row_keys(r, rows - 1) + FL_ATTN_CHUNK - 1) / FL_ATTN_CHUNK;
    if (threads == 1 || groups >= 4 * threads || chunks == 1 || rows > FL_ATTN_SLOTS) {
        fl_pool_run(pool, attend_task, r, groups);
        return;
    }
    const int64_t window = FL_ATTN_SLOTS / rows;
    for (r->chunk = 0; r->chunk < chunks; r->chunk += window) {
        r->last = chunks - r->chunk <= window;
        r->window = r->last ? (int)(chunks - r->chunk) : (int)window;
        fl_pool_run(pool, chunk_task, r, r->window * groups);
        fl_pool_run(pool, join_task, r, rows);
    }
}

void fl_attention_keys(const fl_pass *p, int layer, int first, int n)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const int64_t d = p->hp->d_model, row = p->state->kv_row;
    float *k = p->buf->attn.k + first * row, *v = p->buf->attn.v + first * row;
    attn_run r = {.p = p, .w = w, .layer = layer, .first = first};
    fl_rows in = {.x = p->buf->xn + first * d, .ld = d, .cols = d, .n = n};
    const fl_linear_job proj[] = {{&w->k, k, w->k.rows}, {&w->v, v, w->v.rows}};
    if (fl_rows_prepare(p->exec, &in, p->buf->act, proj, 2))
        fl_linear_run(p->exec, proj, 2, &in);
    else
        for (int64_t i = 0; i < n * row; i++) k[i] = v[i] = NAN;
    fl_pool_run(p->exec->pool, keys_task, &r, n);
}

fl_status fl_attention_forward(const fl_pass *p, int layer, fl_err *err)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    attn_run r = {.p = p, .w = w, .layer = layer};

    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job proj[] = {{&w->q, b->attn.qg, w->q.rows},
                                  {&w->k, b->attn.k, w->k.rows},
                                  {&w->v, b->attn.v, w->v.rows}};
    fl_observe(p->see, FL_SITE_MIXER_IN, -1, &in);
    if (!fl_rows_prepare(p->exec, &in, b->act, proj, 3))
        return fl_pass_nan(layer, "attention input", err);
    fl_linear_run(p->exec, proj, 3, &in);

    fl_pool_run(p->exec->pool, head_task, &r, p->n_rows);
    attend(&r);

    const int64_t cols = (int64_t)hp->n_head * hp->head_dim;
    fl_rows mid = {.x = b->attn.out, .ld = cols, .cols = cols, .n = p->n_rows};
    const fl_linear_job out = {&w->o, b->y, hp->d_model};
    fl_observe(p->see, FL_SITE_MIXER_OUT, -1, &mid);
    if (!fl_rows_prepare(p->exec, &mid, b->act, &out, 1))
        return fl_pass_nan(layer, "attention output", err);
    fl_linear_run(p->exec, &out, 1, &mid);
    return fl_rows_add(p, b->x, b->y) ? FL_OK : fl_pass_nan(layer, "attention output", err);
}
