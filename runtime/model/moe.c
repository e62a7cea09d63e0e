#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/model/layers.h"

/* The MoE part: route each row, run the union of the rows' experts (each expert once, for all its
 * rows), combine in a fixed order. The union goes in parts, as experts become ready: what is
 * present first, then what arrives while that is computed. Which part an expert falls into changes
 * nothing in its output. */

enum { POOL_MASS_MIN = 16 };
static const float POOL_MASS = 0.6f;

/* ---- routing ---- */

/* Probabilities in place of n logits. */
static void softmax_row(float *l, int n)
{
    float max = l[0], sum = 0.0f;
    for (int e = 1; e < n; e++) max = l[e] > max ? l[e] : max;
    for (int e = 0; e < n; e++) sum += l[e] = fl_law_exp(l[e] - max);
    for (int e = 0; e < n; e++) l[e] /= sum;
}

/* The top_k largest logits (of the experts in `pool`, NULL = all), ties to the lower index, in
 * falling order; softmax over them. False when a logit is not finite. */
static bool route_row(const float *logits, int n, int top_k, const bool *pool, int32_t *expert,
                      float *weight)
{
    int got = 0;
    for (int e = 0; e < n; e++) {
        const float l = logits[e];
        if (!isfinite(l)) return false;
        if (pool && !pool[e]) continue;
        if (got == top_k && l <= weight[got - 1]) continue;
        int at = got < top_k ? got++ : got - 1;
        for (; at > 0 && weight[at - 1] < l; at--) {
            weight[at] = weight[at - 1];
            expert[at] = expert[at - 1];
        }
        weight[at] = l;
        expert[at] = e;
    }
    softmax_row(weight, top_k);
    return true;
}

/* Where the routing is scripted: the script's experts, weighed by their logits. */
static void follow_script(const fl_pass *p, int layer, bool guess)
{
    const fl_route_buffers *r = &p->buf->route;
    const int n = p->hp->n_expert, k = p->hp->top_k;
    if (!p->routing || !fl_routing_follow(p->routing, layer, p->n_rows, guess, r->expert)) return;
    for (int t = 0; t < p->n_rows; t++) {
        for (int i = t * k; i < (t + 1) * k; i++)
            r->weight[i] = p->buf->moe.logits[(int64_t)t * n + r->expert[i]];
        softmax_row(r->weight + t * k, k);
    }
}
/* What each expert is worth to the block: its largest probability in any row, or the sum of its
 * probabilities in the rows that chose it. */
static void pool_worth(const fl_pass *p, const float *prob, float *worth)
{
    const int n = p->hp->n_expert, k = p->hp->top_k;
    const int rows = p->n_rows - p->n_write;
    memset(worth, 0, (size_t)n * sizeof(*worth));
    for (int t = 0; t < rows; t++) {
        const float *row = prob + (int64_t)t * n;
        if (p->sw->pool == FL_POOL_MAX) {
            for (int e = 0; e < n; e++)
                if (row[e] > worth[e]) worth[e] = row[e];
        } else {
            const int32_t *chosen = p->buf->route.expert + (p->n_write + t) * k;
            for (int i = 0; i < k; i++) worth[chosen[i]] += row[chosen[i]];
        }
    }
}

/* Marks the pool in in[n]: the most valuable experts, lower index first on ties, until pool_c of
 * them are taken, or (mode mass) more than POOL_MASS of the worth and POOL_MASS_MIN. Never fewer
 * than a row needs. */
static void pool_pick(const fl_clover *sw, const float *worth, int n, int top_k, bool *in)
{
    float total = 0.0f, sum = 0.0f;
    const int least = sw->pool == FL_POOL_MASS ? POOL_MASS_MIN : sw->pool_c;
    for (int e = 0; e < n; e++) {
        total += worth[e];
        in[e] = false;
    }
    for (int taken = 0; taken < n; taken++) {
        const bool enough = sw->pool == FL_POOL_MAX || sum > POOL_MASS * total;
        if (taken >= least && taken >= top_k && enough) return;
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!in[e] && (best < 0 || worth[e] > worth[best])) best = e;
        in[best] = true;
        sum += worth[best];
    }
}

/* The block's rows choose again, each inside the experts that the whole block shares. */
static void route_in_pool(const fl_pass *p)
{
    const int n = p->hp->n_expert, k = p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    const int rows = p->n_rows - p->n_write;
    const float *logits = p->buf->moe.logits + (int64_t)p->n_write * n;
    memcpy(r->pool_prob, logits, (size_t)(rows * n) * sizeof(*logits));
    for (int t = 0; t < rows; t++) softmax_row(r->pool_prob + (int64_t)t * n, n);
    pool_worth(p, r->pool_prob, r->pool_worth);
    pool_pick(p->sw, r->pool_worth, n, k, r->pool_in);
    for (int t = 0; t < rows; t++) {
        const int64_t at = (int64_t)(p->n_write + t) * k;
        route_row(logits + (int64_t)t * n, n, k, r->pool_in, r->expert + at, r->weight + at);
    }
}

static fl_status route(const fl_pass *p, int layer, fl_err *err)
{
    const int n = p->hp->n_expert, k = p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    for (int t = 0; t < p->n_rows; t++)
        if (!route_row(p->buf->moe.logits + (int64_t)t * n, n, k, NULL, r->expert + t * k,
                       r->weight + t * k))
            return fl_pass_nan(layer, "router", err);
    if (p->n_rows > p->n_write && p->sw->pool != FL_POOL_OFF) route_in_pool(p);
    follow_script(p, layer, false);
    return FL_OK;
}

fl_status fl_moe_route(const fl_pass *p, int layer, fl_err *err)
{
    const fl_hparams *hp = p->hp;
    fl_rows in = {.x = p->buf->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job job = {&p->weights->layer[layer].router, p->buf->moe.logits, hp->n_expert};
    if (!fl_rows_prepare(p->exec, &in, p->buf->act, &job, 1))
        return fl_pass_nan(layer, "MoE input", err);
    fl_linear_run(p->exec, &job, 1, &in);
    return route(p, layer, err);
}

/* ---- union ---- */

/* Lists the experts that some row chose, by rising id; numbers the pairs so that an expert's pairs
 * are neighbours in row order. Leaves each expert's place in the list in `count`. Returns the size
 * of the union. */
static int make_union(const fl_pass *p)
{
    const int n_expert = p->hp->n_expert, n_pairs = p->n_rows * p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    memset(r->count, 0, (size_t)n_expert * sizeof(*r->count));
    for (int i = 0; i < n_pairs; i++) r->count[r->expert[i]]++;

    int n = 0;
    r->first[0] = 0;
    for (int e = 0; e < n_expert; e++) {
        if (!r->count[e]) continue;
        r->order[n] = e;
        r->rows[n] = r->count[e];
        r->first[n + 1] = r->first[n] + r->count[e];
        r->count[e] = r->first[n++]; /* from here on: the expert's next free pair */
    }
    for (int i = 0; i < n_pairs; i++) {
        const int pair = r->count[r->expert[i]]++;
        r->pair[i] = pair;
        r->pair_row[pair] = i / p->hp->top_k;
    }
    for (int u = 0; u < n; u++) r->count[r->order[u]] = u;
    return n;
}

/* ---- reading ahead ---- */

/* Lists the experts that some row chose. Returns how many. */
static int list_chosen(const fl_pass *p, int32_t *list)
{
    const int n_expert = p->hp->n_expert, n_pairs = p->n_rows * p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    int n = 0;
    memset(r->count, 0, (size_t)n_expert * sizeof(*r->count));
    for (int i = 0; i < n_pairs; i++) r->count[r->expert[i]]++;
    for (int e = 0; e < n_expert; e++)
        if (r->count[e]) list[n++] = e;
    return n;
}

void fl_moe_hint(const fl_pass *p, int layer)
{
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    const int n = hp->n_expert, k = hp->top_k;
    /* A long chunk asks for nearly all experts: nothing to guess. */
    if (!fl_store_reads_ahead(p->store) || p->n_rows > 2 * b->max_block) return;
    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job job = {&p->weights->layer[layer].router, b->moe.logits, n};
    fl_rows_norm(p, p->weights->layer[layer].ffn_norm);
    if (!fl_rows_prepare(p->exec, &in, b->act, &job, 1)) return;
    fl_linear_run(p->exec, &job, 1, &in);
    for (int t = 0; t < p->n_rows; t++)
        if (!route_row(b->moe.logits + (int64_t)t * n, n, k, NULL, b->route.expert + t * k,
                       b->route.weight + t * k))
            return; /* the layer itself will say so */
    follow_script(p, layer, true);
    const int chosen = list_chosen(p, b->route.order);
    fl_store_guess(p->store, layer, b->route.order, chosen);
}

/* ---- running it ---- */

/* Computes the experts that came, and tells the store how long that took. */
static const char *run_part(const fl_pass *p, int layer, int n, bool first)
{
    const fl_route_buffers *r = &p->buf->route;
    uint64_t work = 0;
    for (int i = 0; i < n; i++) {
        const int32_t e = r->came[i].expert, u = r->count[e];
        r->entry[i] = u;
        r->view[u] = r->came[i];
        work += fl_lane_work(fl_store_expert_bytes(p->store, layer, e), r->rows[u]);
    }
    const uint64_t start = fl_clock_ns();
    const char *not_finite = fl_moe_run_part(p, layer, n, first);
    fl_store_computed(p->store, work, fl_clock_ns() - start);
    return not_finite;
}

/* The whole union, in order of arrival. */
static fl_status run_union(const fl_pass *p, int layer, int n_union, fl_err *err)
{
    const fl_route_buffers *r = &p->buf->route;
    fl_store_begin(p->store, layer, p->n_rows, r->order, r->rows, n_union);
    for (int done = 0, n; done < n_union; done += n) {
        FL_TRY(fl_store_next(p->store, r->came, &n, err));
        /* What this layer lacks is on its way: behind it comes what the next one will want. */
        if (layer + 1 < p->hp->n_layer) fl_store_prefetch(p->store, layer + 1);
        const char *not_finite = run_part(p, layer, n, done == 0);
        fl_store_release(p->store, layer, r->came, n);
        if (!not_finite) continue;
        fl_store_end(p->store);
        return fl_pass_nan(layer, not_finite, err);
    }
    fl_store_end(p->store);
    return FL_OK;
}

/* ---- all of it ---- */

typedef struct combine_run {
    const fl_pass *p;
    atomic_bool broken;
} combine_run;

/* x += the row's experts by falling probability, the shared expert last: one fma chain from 0. */
static void combine_task(void *arg, int t, int worker)
{
    combine_run *r = arg;
    const fl_pass *p = r->p;
    const fl_buffers *b = p->buf;
    const fl_kernels *kern = &p->exec->k;
    const int64_t d = p->hp->d_model;
    const int k = p->hp->top_k;
    float *y = b->y + t * d;
    (void)worker;
    memset(y, 0, (size_t)d * sizeof(float));
    for (int i = t * k; i < (t + 1) * k; i++)
        kern->axpy(b->route.weight[i], b->moe.pair_y + b->route.pair[i] * d, d, y);
    fl_moe_add_shared(p, t, y);
    if (!fl_row_add(b->x + t * d, y, d))
        atomic_store_explicit(&r->broken, true, memory_order_relaxed);
}

fl_status fl_moe_forward(const fl_pass *p, int layer, fl_err *err)
{
    FL_TRY(fl_moe_begin(p, layer, err));
    FL_TRY(route(p, layer, err));
    if (p->routing)
        fl_routing_layer(p->routing, layer, p->n_rows, p->hp->top_k, p->buf->route.expert);
    FL_TRY(run_union(p, layer, make_union(p), err));
    combine_run r = {.p = p};
    fl_pool_run(p->exec->pool, combine_task, &r, p->n_rows);
    return atomic_load(&r.broken) ? fl_pass_nan(layer, "MoE output", err) : FL_OK;
}
