#include <math.h>
#include <string.h>

#include "runtime/model/layers.h"

void fl_rope_prepare(const fl_pass *p)
{
    const int half = p->hp->rot_dim / 2;
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
    int first; /* row of task 0 */
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

/* One row and one key-value head: all query heads that share it, then their gates. */
static void attend_task(void *arg, int task, int worker)
{
    const attn_run *r = arg;
    const fl_hparams *hp = r->p->hp;
    const fl_state *st = r->p->state;
    const fl_attn_buffers *b = &r->p->buf->attn;
    const int hd = hp->head_dim, group = hp->n_head / hp->n_head_kv;
    /* Late rows see the most keys; they go first so that the pool ends evenly. */
    const int t = r->p->n_rows - 1 - task / hp->n_head_kv, kv = task % hp->n_head_kv;
    const int64_t at = ((int64_t)t * hp->n_head + (int64_t)kv * group) * hd;
    const uint64_t row = fl_state_kv_row_bytes(st);
    /* Row 0 of the MTP block's cache is not used. */
    const int64_t skip = r->layer == hp->n_layer;
    const uint64_t head_at =
        (uint64_t)skip * row + fl_type_row_bytes(st->kv_type, (uint64_t)(kv * hd));
    (void)worker;
    const fl_attn_args a = {.q = b->q + at,
                            .n_q = group,
                            .head_dim = hd,
                            .k = (const uint8_t *)st->k[r->layer] + head_at,
                            .v = (const uint8_t *)st->v[r->layer] + head_at,
                            .kv_stride = st->kv_row,
                            .kv_type = st->kv_type,
                            .n_keys = r->p->at - skip +
                                      (t < r->p->n_write || r->p->held ? t + 1 : r->p->n_rows),
                            .scale = 1.0f / sqrtf((float)hd),
                            .out = b->out + at};
    r->p->exec->k.attention(&a);
    for (int h = 0; h < group; h++) {
        float *out = b->out + at + (int64_t)h * hd;
        const float *gate = b->qg + (((int64_t)t * hp->n_head + kv * group + h) * 2 + 1) * hd;
        r->p->exec->k.sigmoid_mul(out, gate, hd, out);
        if (!all_finite(a.q + (int64_t)h * hd, hd) || !all_finite(gate, hd)) out[0] = NAN;
    }
}

void fl_attention_keys(const fl_pass *p, int layer, int first, int n)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const int64_t d = p->hp->d_model, row = p->state->kv_row;
    float *k = p->buf->attn.k + first * row, *v = p->buf->attn.v + first * row;
    attn_run r = {p, w, layer, first};
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
    attn_run r = {p, w, layer, 0};

    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job proj[] = {{&w->q, b->attn.qg, w->q.rows},
                                  {&w->k, b->attn.k, w->k.rows},
                                  {&w->v, b->attn.v, w->v.rows}};
    fl_observe(p->see, FL_SITE_MIXER_IN, -1, &in);
    if (!fl_rows_prepare(p->exec, &in, b->act, proj, 3))
        return fl_pass_nan(layer, "attention input", err);
    fl_linear_run(p->exec, proj, 3, &in);

    fl_pool_run(p->exec->pool, head_task, &r, p->n_rows);
    fl_pool_run(p->exec->pool, attend_task, &r, p->n_rows * hp->n_head_kv);

    const int64_t cols = (int64_t)hp->n_head * hp->head_dim;
    fl_rows mid = {.x = b->attn.out, .ld = cols, .cols = cols, .n = p->n_rows};
    const fl_linear_job out = {&w->o, b->y, hp->d_model};
    fl_observe(p->see, FL_SITE_MIXER_OUT, -1, &mid);
    if (!fl_rows_prepare(p->exec, &mid, b->act, &out, 1))
        return fl_pass_nan(layer, "attention output", err);
    fl_linear_run(p->exec, &out, 1, &mid);
    return fl_rows_add(p, b->x, b->y) ? FL_OK : fl_pass_nan(layer, "attention output", err);
}
