#include <math.h>
#include <string.h>

#include "runtime/model/layers.h"

/* A Gated DeltaNet layer. Clean rows run the per-token recurrence in place and leave the last
 * three raw rows; block rows run it on a copy of the state that is thrown away, read out as the
 * block mode says. */

typedef struct gdn_run {
    const fl_pass *p;
    const fl_layer_weights *w;
    int layer;
    bool bidir;
    /* All rows of the pass: the buffers', or those of state->held. */
    float *u, *c;        /* [n_rows][C] raw, convolved */
    float *decay, *beta; /* [n_rows][nv] */
} gdn_run;

static gdn_run make_run(const fl_pass *p, int layer)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const fl_gdn_buffers *b = &p->buf->gdn;
    const fl_held *h = &p->state->held;
    const bool block = p->n_rows > p->n_write;
    gdn_run r = {.p = p,
                 .w = w,
                 .layer = layer,
                 .bidir = block && p->sw->gdn_block_mode == FL_GDN_BIDIR && w->has_bwd,
                 .u = b->u,
                 .c = b->c,
                 .decay = b->alpha,
                 .beta = b->beta};
    if (p->held) {
        r.u = h->u[layer];
        r.c = h->c[layer];
        r.decay = h->decay[layer];
        r.beta = h->beta[layer];
    }
    return r;
}

/* q and k heads of a convolved row to unit length; q also times 1/sqrt(d). */
static void norm_heads(const gdn_run *r, float *c)
{
    const fl_hparams *hp = r->p->hp;
    const int d = hp->gdn_dim;
    const float scale = 1.0f / sqrtf((float)d);
    for (int h = 0; h < hp->gdn_k_heads; h++) {
        float *q = c + h * d, *k = c + (hp->gdn_k_heads + h) * d;
        r->p->exec->k.l2norm(q, d, scale, q);
        r->p->exec->k.l2norm(k, d, 1.0f, k);
    }
}

/* decay = E(a * softplus(alpha + dt)) and beta = sigmoid(beta), in place: the law's functions, so
 * that a decay has the same bits on every machine. Where a decay is near 1 its argument is near 0,
 * so its error stays that of one float rounding. Both turn an infinity into a number: x - x makes
 * it a NaN that the checks find, and is 0 for all that is finite. */
static void gates(const gdn_run *r, const float *a, const float *dt, float *alpha, float *beta)
{
    for (int n = 0; n < r->p->hp->gdn_v_heads; n++) {
        const float x = alpha[n] + dt[n], y = beta[n];
        alpha[n] = fl_law_exp(a[n] * fl_law_softplus(x)) + (x - x);
        beta[n] = fl_law_sigmoid(y) + (y - y);
    }
}

/* A block row whose convolution does not look back over the block's left edge. */
static bool no_tail(const gdn_run *r, int t)
{
    return t >= r->p->n_write && r->p->sw->gdn_tail == FL_TAIL_ZEROS;
}

/* Convolution, norms and gates of row t, forward and (in a bidirectional block) backward. */
static void row_task(void *arg, int t, int worker)
{
    const gdn_run *r = arg;
    const fl_hparams *hp = r->p->hp;
    const fl_gdn_buffers *b = &r->p->buf->gdn;
    const int64_t c = r->p->state->n_channels, nv = hp->gdn_v_heads;
    const float *row[4];
    (void)worker;
    for (int a = 0; a < 4; a++) {
        const int at = t - 3 + a;
        row[a] = at >= 0 ? r->u + at * c : r->p->state->tail[r->layer] + (3 + at) * c;
        if (no_tail(r, t) && at < r->p->n_write) row[a] = b->zeros;
    }
    r->p->exec->k.conv4_silu(row, r->w->conv, c, r->c + t * c);
    norm_heads(r, r->c + t * c);
    gates(r, r->w->a, r->w->dt, r->decay + t * nv, r->beta + t * nv);
    if (!r->bidir || t < r->p->n_write) return;

    /* The mirror image: tap 3 is this row, taps 2..0 the rows to its right. */
    const float *past =
        r->p->sw->gdn_conv_edge == FL_EDGE_REPEAT ? r->u + (r->p->n_rows - 1) * c : b->zeros;
    for (int a = 0; a < 4; a++) {
        const int at = t + 3 - a;
        row[a] = at < r->p->n_rows ? r->u + at * c : past;
    }
    float *back = b->bwd_c + (t - r->p->n_write) * c;
    r->p->exec->k.conv4_silu(row, r->w->bwd_conv, c, back);
    norm_heads(r, back);
    gates(r, r->w->bwd_a, r->w->bwd_dt, b->bwd_alpha + t * nv, b->bwd_beta + t * nv);
}

/* The scan of value head n over n_rows rows of c. */
static fl_gdn_args scan_args(const gdn_run *r, int n, float *s, int n_rows, const float *c,
                             const float *decay, const float *beta)
{
    const fl_hparams *hp = r->p->hp;
    const int nk = hp->gdn_k_heads, nv = hp->gdn_v_heads, d = hp->gdn_dim;
    const int kh = hp->v_grouped ? n / (nv / nk) : n % nk;
    const int64_t stride = r->p->state->n_channels;
    return (fl_gdn_args){.s = s,
                         .dk = d,
                         .dv = d,
                         .n_rows = n_rows,
                         .q = c + kh * d,
                         .k = c + (nk + kh) * d,
                         .v = c + (2 * nk + n) * d,
                         .q_stride = stride,
                         .k_stride = stride,
                         .v_stride = stride,
                         .decay = decay + n,
                         .beta = beta + n,
                         .gate_stride = nv};
}

/* Forward scan over rows [t0, t1) of the pass, outputs to their rows of o. */
static fl_gdn_args forward_args(const gdn_run *r, int n, float *s, int t0, int t1)
{
    const fl_gdn_buffers *b = &r->p->buf->gdn;
    const int64_t d = r->p->hp->gdn_dim, nv = r->p->hp->gdn_v_heads;
    fl_gdn_args a = scan_args(r, n, s, t1 - t0, r->c + t0 * r->p->state->n_channels,
                              r->decay + t0 * nv, r->beta + t0 * nv);
    a.o = b->o + (t0 * nv + n) * d;
    a.o_stride = nv * d;
    return a;
}

/* Rows from `from` on of a finished scan read its state as it now is: a strict scan with decay 1
 * and beta 0, which leaves the state alone and sums in the same order as every other read-out. */
static void read_state(const gdn_run *r, fl_gdn_args a, int from)
{
    const fl_gdn_buffers *b = &r->p->buf->gdn;
    a.n_rows -= from;
    a.q += from * a.q_stride;
    a.k += from * a.k_stride;
    a.v += from * a.v_stride;
    a.o += from * a.o_stride;
    a.decay = b->ones;
    a.beta = b->zeros;
    a.gate_stride = 1;
    a.strict = 1;
    if (a.n_rows > 0) r->p->exec->k.gdn_scan(&a);
}

/* One row of the block: what the forward scan read (o) and what the backward scan read (back),
 * together into o. */
static void combine(const gdn_run *r, float mix, float *back, float *o)
{
    const int64_t d = r->p->hp->gdn_dim;
    const fl_kernels *k = &r->p->exec->k;
    switch (r->p->sw->gdn_combine) {
    case FL_COMBINE_MIX: k->axpy(mix, back, d, o); break;
    case FL_COMBINE_SUM: k->axpy(1.0f, back, d, o); break;
    case FL_COMBINE_GATE: /* f + g (r - f) */
        k->axpy(-1.0f, o, d, back);
        k->axpy(fl_law_sigmoid(mix), back, d, o);
        break;
    }
}

/* Adds to the block's rows what the backward scan reads; it starts from nothing at the block's
 * right edge. */
static void add_backward(const gdn_run *r, int n, int worker)
{
    const fl_pass *p = r->p;
    const fl_gdn_buffers *b = &p->buf->gdn;
    const int64_t d = p->hp->gdn_dim, nv = p->hp->gdn_v_heads;
    const int t0 = p->n_write, rows = p->n_rows - t0;
    const float mix = r->w->bwd_mix[n];
    if (p->sw->gdn_combine == FL_COMBINE_MIX && mix == 0.0f)
        return; /* the base layer, to the bit */
    float *s = b->worker_s + worker * d * d;
    float *back = b->worker_r + worker * p->buf->max_block * d;
    memset(s, 0, (size_t)(d * d) * sizeof(float));
    fl_gdn_args a =
        scan_args(r, n, s, rows, b->bwd_c, b->bwd_alpha + t0 * nv, b->bwd_beta + t0 * nv);
    a.o = back;
    a.o_stride = d;
    a.strict = p->sw->gdn_scan == FL_SCAN_STRICT;
    a.reverse = 1;
    p->exec->k.gdn_scan(&a);
    for (int t = 0; t < rows; t++) combine(r, mix, back + t * d, b->o + ((t0 + t) * nv + n) * d);
}

/* The block rows of value head n, from a copy of the state s, which moves only when the block is
 * committed by this pass. */
static void block_rows(const gdn_run *r, int n, float *s, int worker)
{
    const fl_pass *p = r->p;
    const int64_t d = p->hp->gdn_dim;
    float *copy = p->buf->gdn.worker_s + worker * d * d;
    memcpy(copy, s, (size_t)(d * d) * sizeof(float));
    const fl_gdn_args a = forward_args(r, n, copy, p->n_write, p->n_rows);
    p->exec->k.gdn_scan(&a);
    if (p->sw->gdn_block_mode == FL_GDN_BLOCKEND) read_state(r, a, 0);
    if (p->sw->gdn_block_mode == FL_GDN_MIXED) read_state(r, a, p->n_lead);
    if (p->commit) memcpy(s, copy, (size_t)(d * d) * sizeof(float));
    if (r->bidir) add_backward(r, n, worker);
}

/* The clean rows of value head n, in pieces that end where a copy of the state is wanted. */
static void clean_rows(const gdn_run *r, int n, float *s)
{
    const fl_pass *p = r->p;
    const size_t bytes = (size_t)(p->hp->gdn_dim * p->hp->gdn_dim) * sizeof(float);
    int t = 0;
    for (int i = 0; i <= p->n_copies; i++) {
        const int to = i < p->n_copies ? (int)(p->copy[i].n - p->state->n) : p->n_write;
        const fl_gdn_args a = forward_args(r, n, s, t, to);
        if (to > t) p->exec->k.gdn_scan(&a);
        if (i < p->n_copies) memcpy(fl_state_in_copy(p->state, &p->copy[i], s), s, bytes);
        t = to;
    }
}

/* One value head over all rows: scan, read-out, gated norm. */
static void head_task(void *arg, int n, int worker)
{
    const gdn_run *r = arg;
    const fl_pass *p = r->p;
    const fl_hparams *hp = p->hp;
    const fl_gdn_buffers *b = &p->buf->gdn;
    const int64_t d = hp->gdn_dim, nv = hp->gdn_v_heads;
    float *s = p->state->s[r->layer] + n * d * d;
    if (p->n_write > 0) clean_rows(r, n, s);
    if (p->n_rows > p->n_write) block_rows(r, n, s, worker);

    for (int t = 0; t < p->n_rows; t++) {
        float *o = b->o + (t * nv + n) * d;
        p->exec->k.rmsnorm(o, r->w->gdn_norm, d, hp->eps, o);
        p->exec->k.silu_mul(b->z + (t * nv + n) * d, o, d, o);
    }
}

/* The last three rows of (old tail, the first n rows of u), oldest first, into `to`, which may be
 * the tail itself. */
static void keep_tail(const gdn_run *r, int n, float *to)
{
    const int64_t c = r->p->state->n_channels;
    const float *tail = r->p->state->tail[r->layer];
    for (int i = 0; i < 3; i++) {
        const int at = n - 3 + i; /* row of u; negative: row 3 + at of the old tail */
        memmove(to + i * c, at >= 0 ? r->u + at * c : tail + (3 + at) * c,
                (size_t)c * sizeof(float));
    }
}

static void keep_tails(const gdn_run *r)
{
    const fl_pass *p = r->p;
    float *tail = p->state->tail[r->layer];
    for (int i = 0; i < p->n_copies; i++)
        keep_tail(r, (int)(p->copy[i].n - p->state->n),
                  fl_state_in_copy(p->state, &p->copy[i], tail));
    keep_tail(r, p->n_write, tail);
}

static void promote_task(void *arg, int n, int worker)
{
    const gdn_run *r = arg;
    const int64_t d = r->p->hp->gdn_dim;
    (void)worker;
    const fl_gdn_args a = forward_args(r, n, r->p->state->s[r->layer] + n * d * d, 0, r->p->n_rows);
    r->p->exec->k.gdn_scan(&a);
}

void fl_gdn_promote(const fl_pass *p, int layer)
{
    gdn_run r = make_run(p, layer);
    fl_pool_run(p->exec->pool, promote_task, &r, p->hp->gdn_v_heads);
    keep_tail(&r, p->n_rows, p->state->tail[layer]);
}

fl_status fl_gdn_forward(const fl_pass *p, int layer, fl_err *err)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    const int64_t nv = hp->gdn_v_heads, v_dim = nv * hp->gdn_dim;
    gdn_run r = make_run(p, layer);

    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job proj[] = {{&w->qkv, r.u, p->state->n_channels},
                                  {&w->z, b->gdn.z, v_dim},
                                  {&w->alpha, r.decay, nv},
                                  {&w->beta, r.beta, nv},
                                  {&w->bwd_alpha, b->gdn.bwd_alpha, nv},
                                  {&w->bwd_beta, b->gdn.bwd_beta, nv}};
    const int n_proj = r.bidir ? 6 : 4;
    const fl_rows block = {.x = b->xn + p->n_write * hp->d_model,
                           .ld = hp->d_model,
                           .cols = hp->d_model,
                           .n = r.bidir ? p->n_rows - p->n_write : 0};
    fl_observe(p->see, FL_SITE_MIXER_IN, -1, &in);
    fl_observe(p->see, FL_SITE_BLOCK_IN, -1, &block);
    if (!fl_rows_prepare(p->exec, &in, b->act, proj, n_proj))
        return fl_pass_nan(layer, "GDN input", err);
    fl_linear_run(p->exec, proj, n_proj, &in);

    fl_pool_run(p->exec->pool, row_task, &r, p->n_rows);
    fl_pool_run(p->exec->pool, head_task, &r, (int)nv);
    if (p->n_write > 0) keep_tails(&r);
    if (p->commit) keep_tail(&r, p->n_rows, p->state->tail[layer]);

    fl_rows mid = {.x = b->gdn.o, .ld = v_dim, .cols = v_dim, .n = p->n_rows};
    const fl_linear_job out = {&w->out, b->y, hp->d_model};
    fl_observe(p->see, FL_SITE_MIXER_OUT, -1, &mid);
    if (!fl_rows_prepare(p->exec, &mid, b->act, &out, 1))
        return fl_pass_nan(layer, "GDN output", err);
    fl_linear_run(p->exec, &out, 1, &mid);
    return fl_rows_add(p, b->x, b->y) ? FL_OK : fl_pass_nan(layer, "GDN output", err);
}
