#include <math.h>
#include <string.h>

#include "runtime/model/layers.h"

/* The MTP block: one attention layer with experts that reads, for token i, the token's embedding
 * and the final-norm row of token i - 1, and predicts token i + 1. */

/* The block's input for one token: both halves normed, the embedding's first. `scratch` [d_model];
 * `h` may be in it. */
static void input_row(const fl_pass *p, int32_t id, const float *h, float *scratch, float *out)
{
    const fl_mtp_weights *w = &p->weights->mtp;
    const int64_t d = p->hp->d_model;
    p->exec->k.rmsnorm(h, w->hnorm, d, p->hp->eps, out + d);
    fl_embed_row(&p->weights->embed, id, scratch);
    p->exec->k.rmsnorm(scratch, w->enorm, d, p->hp->eps, out);
}

/* y rows [first, first + n) of the block's residual stream, from its input rows; false when the
 * input is not finite. */
static bool project(const fl_pass *p, int first, int n, float *y)
{
    const int64_t d = p->hp->d_model;
    fl_rows in = {.x = p->buf->attn.mtp + first * 2 * d, .ld = 2 * d, .cols = 2 * d, .n = n};
    const fl_linear_job fc = {&p->weights->mtp.fc, y + first * d, d};
    if (!fl_rows_prepare(p->exec, &in, p->buf->act, &fc, 1)) return false;
    fl_linear_run(p->exec, &fc, 1, &in);
    return true;
}

/* ---- the rows of the cache ---- */

typedef struct input_run {
    const fl_pass *p;
    const int32_t *ids;
    int first;
} input_run;

static void input_task(void *arg, int i, int worker)
{
    const input_run *r = arg;
    const fl_pass *p = r->p;
    const int t = r->first + i;
    const int64_t d = p->hp->d_model;
    float *scratch = p->buf->xn + t * d;
    const float *h = p->state->h_last;
    (void)worker;
    if (t > 0) {
        p->exec->k.rmsnorm(p->buf->x + (t - 1) * d, p->weights->output_norm, d, p->hp->eps,
                           scratch);
        h = scratch;
    }
    input_row(p, r->ids[t], h, scratch, p->buf->attn.mtp + t * 2 * d);
}

static void norm_task(void *arg, int i, int worker)
{
    const input_run *r = arg;
    const fl_pass *p = r->p;
    const int64_t d = p->hp->d_model, at = (r->first + i) * d;
    (void)worker;
    p->exec->k.rmsnorm(p->buf->y + at, p->weights->layer[p->hp->n_layer].attn_norm, d, p->hp->eps,
                       p->buf->xn + at);
}

void fl_mtp_follow(const fl_pass *p, const int32_t *ids, int n)
{
    const int first = p->at == 0; /* no token stands before the first one */
    input_run r = {p, ids, first};
    if (n == first) return;
    fl_pool_run(p->exec->pool, input_task, &r, n - first);
    if (!project(p, first, n - first, p->buf->y))
        for (int64_t i = first * p->hp->d_model; i < n * p->hp->d_model; i++) p->buf->y[i] = NAN;
    fl_pool_run(p->exec->pool, norm_task, &r, n - first);
    fl_attention_keys(p, p->hp->n_layer, first, n - first);
}

/* ---- one step ---- */

fl_status fl_mtp_step(const fl_pass *p, int32_t id, const float *h, fl_err *err)
{
    const int layer = p->hp->n_layer;
    input_row(p, id, h, p->buf->xn, p->buf->attn.mtp);
    if (!project(p, 0, 1, p->buf->x)) return fl_pass_nan(layer, "MTP input", err);
    fl_rope_prepare(p);
    FL_TRY(fl_layer_forward(p, layer, err));
    p->exec->k.rmsnorm(p->buf->x, p->weights->mtp.norm, p->hp->d_model, p->hp->eps, p->buf->mtp_h);
    return FL_OK;
}
