#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/model/layers.h"

/* The MoE part: route each row, run the union of the rows' experts (each expert once, for all its
 * rows), combine in a fixed order. The union goes in parts when more experts stream than the
 * store has slots; which part an expert falls into changes nothing in its output. */

enum { FFN_PIECE = 64, DOWN_PIECE = 128, POOL_MASS_MIN = 16 };
static const float POOL_MASS = 0.6f;

/* ---- routing ---- */

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
    const float max = weight[0];
    float sum = 0.0f;
    for (int i = 0; i < top_k; i++) {
        weight[i] = fl_law_exp(weight[i] - max);
        sum += weight[i];
    }
    for (int i = 0; i < top_k; i++) weight[i] /= sum;
    return true;
}

/* Probabilities of all experts in a row, in place of its logits. */
static void softmax_row(float *l, int n)
{
    float max = l[0], sum = 0.0f;
    for (int e = 1; e < n; e++) max = l[e] > max ? l[e] : max;
    for (int e = 0; e < n; e++) sum += l[e] = fl_law_exp(l[e] - max);
    for (int e = 0; e < n; e++) l[e] /= sum;
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

/* Lists the experts that some row chose, those present in device memory first, each group by
 * rising id; numbers the pairs so that an expert's pairs are neighbours in row order. Returns
 * the size of the union. */
static int make_union(const fl_pass *p, int layer, int *n_present)
{
    const int n_expert = p->hp->n_expert, n_pairs = p->n_rows * p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    memset(r->count, 0, (size_t)n_expert * sizeof(*r->count));
    for (int i = 0; i < n_pairs; i++) r->count[r->expert[i]]++;

    /* Asked once for each expert: a read may finish at any time. `first` holds the absent ones
     * until the present ones are listed. */
    int n = 0, n_absent = 0;
    for (int e = 0; e < n_expert; e++) {
        if (!r->count[e]) continue;
        if (fl_store_is_present(p->store, layer, e))
            r->order[n++] = e;
        else
            r->first[n_absent++] = e;
    }
    *n_present = n;
    memcpy(r->order + n, r->first, (size_t)n_absent * sizeof(*r->order));
    n += n_absent;

    r->first[0] = 0;
    for (int i = 0; i < n; i++) {
        const int e = r->order[i];
        r->first[i + 1] = r->first[i] + r->count[e];
        r->count[e] = r->first[i]; /* from here on: the expert's next free pair */
    }
    for (int i = 0; i < n_pairs; i++) {
        const int pair = r->count[r->expert[i]]++;
        r->pair[i] = pair;
        r->pair_row[pair] = i / p->hp->top_k;
    }
    return n;
}

/* ---- reading ahead ---- */

/* Sorts the experts that some row chose by falling count, lower index first; the absent ones stay.
 * Returns how many. */
static int list_absent(const fl_pass *p, int layer, int32_t *list)
{
    const int n_expert = p->hp->n_expert, n_pairs = p->n_rows * p->hp->top_k;
    const fl_route_buffers *r = &p->buf->route;
    int n = 0;
    memset(r->count, 0, (size_t)n_expert * sizeof(*r->count));
    for (int i = 0; i < n_pairs; i++) r->count[r->expert[i]]++;
    for (int e = 0; e < n_expert; e++) {
        if (!r->count[e] || fl_store_is_present(p->store, layer, e)) continue;
        int at = n++;
        for (; at > 0 && r->count[list[at - 1]] < r->count[e]; at--) list[at] = list[at - 1];
        list[at] = e;
    }
    return n;
}

void fl_moe_hint(const fl_pass *p, int layer)
{
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    const int n = hp->n_expert, k = hp->top_k, room = fl_store_lease_max(p->store);
    /* A long chunk asks for nearly all experts: nothing to guess. */
    if (room == 0 || p->n_rows > 2 * b->max_block) return;
    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job job = {&p->weights->layer[layer].router, b->moe.logits, n};
    fl_rows_norm(p, p->weights->layer[layer].ffn_norm);
    if (!fl_rows_prepare(p->exec, &in, b->act, &job, 1)) return;
    fl_linear_run(p->exec, &job, 1, &in);
    for (int t = 0; t < p->n_rows; t++)
        if (!route_row(b->moe.logits + (int64_t)t * n, n, k, NULL, b->route.expert + t * k,
                       b->route.weight + t * k))
            return; /* the layer itself will say so */
    const int absent = list_absent(p, layer, b->route.order);
    fl_store_prefetch(p->store, layer, b->route.order, absent < room ? absent : room);
}

/* ---- experts of one part ---- */

typedef struct part_run {
    const fl_pass *p;
    int layer;
    int u0, u1; /* the part: entries of the union */
    int64_t ffn_pieces, down_pieces;
    atomic_bool bad;
} part_run;

/* Matrix `part` of union entry u as it lies in the leased memory. */
static fl_mat expert_mat(const part_run *r, int u, int part)
{
    const fl_hparams *hp = r->p->hp;
    const fl_route_buffers *route = &r->p->buf->route;
    const fl_expert_view *v = &route->view[u - r->u0];
    const fl_expert_kind *k = &r->p->experts->kind[r->layer * hp->n_expert + route->order[u]];
    fl_mat m = {.type = k->type[part],
                .rows = part == 2 ? hp->d_model : hp->d_ff,
                .cols = part == 2 ? hp->d_ff : hp->d_model,
                .scale = k->scale[part]};
    if (part == 1 && !v->part[1]) /* fused: up rows follow the gate rows */
        m.data = (const uint8_t *)v->part[0] +
                 (uint64_t)hp->d_ff * fl_type_row_bytes(m.type, (uint64_t)hp->d_model);
    else
        m.data = v->part[part];
    return m;
}

/* The rows of union entry u as the input of a matrix of `cols` inputs. */
static fl_rows pair_rows(const part_run *r, int u, const float *x, int64_t cols)
{
    const fl_route_buffers *route = &r->p->buf->route;
    const int64_t p0 = route->first[u];
    return (fl_rows){.x = x ? x + p0 * cols : NULL,
                     .ld = cols,
                     .cols = cols,
                     .q = r->p->buf->moe.pair_q + p0 * (cols / 256),
                     .n = route->first[u + 1] - route->first[u]};
}

static void gather_task(void *arg, int task, int worker)
{
    const part_run *r = arg;
    const fl_buffers *b = r->p->buf;
    const int64_t d = r->p->hp->d_model, blocks = d / 256;
    const int64_t pair = b->route.first[r->u0] + task;
    const int64_t row = b->route.pair_row[pair];
    (void)worker;
    if (!r->p->exec->act_f32)
        memcpy(b->moe.pair_q + pair * blocks, b->act + row * blocks,
               (size_t)blocks * sizeof(fl_act));
    if (b->moe.pair_x) memcpy(b->moe.pair_x + pair * d, b->xn + row * d, (size_t)d * sizeof(float));
}

/* h = silu(gate x) * (up x) for a piece of the expert's width. */
static void ffn_task(void *arg, int task, int worker)
{
    const part_run *r = arg;
    const fl_moe_buffers *b = &r->p->buf->moe;
    const fl_exec *x = r->p->exec;
    const int64_t ff = r->p->hp->d_ff;
    const int u = r->u0 + (int)(task / r->ffn_pieces);
    const int64_t n0 = task % r->ffn_pieces * FFN_PIECE;
    const int64_t n1 = n0 + FFN_PIECE < ff ? n0 + FFN_PIECE : ff;
    const int64_t p0 = r->p->buf->route.first[u];
    const fl_rows in = pair_rows(r, u, b->pair_x, r->p->hp->d_model);
    const fl_mat gate = expert_mat(r, u, 0), up = expert_mat(r, u, 1);
    (void)worker;
    fl_linear_piece(x, &gate, n0, n1, &in, b->pair_g + p0 * ff, ff);
    fl_linear_piece(x, &up, n0, n1, &in, b->pair_u + p0 * ff, ff);
    for (int64_t i = p0; i < p0 + in.n; i++) {
        float *g = b->pair_g + i * ff + n0;
        x->k.silu_mul(g, b->pair_u + i * ff + n0, n1 - n0, g);
    }
}

static void requantize_task(void *arg, int task, int worker)
{
    part_run *r = arg;
    const fl_moe_buffers *b = &r->p->buf->moe;
    const int64_t ff = r->p->hp->d_ff, pair = r->p->buf->route.first[r->u0] + task;
    (void)worker;
    if (!r->p->exec->k.act_quantize(b->pair_g + pair * ff, ff, b->pair_q + pair * (ff / 256)))
        atomic_store_explicit(&r->bad, true, memory_order_relaxed);
}

static void down_task(void *arg, int task, int worker)
{
    const part_run *r = arg;
    const fl_moe_buffers *b = &r->p->buf->moe;
    const int64_t d = r->p->hp->d_model;
    const int u = r->u0 + (int)(task / r->down_pieces);
    const int64_t n0 = task % r->down_pieces * DOWN_PIECE;
    const int64_t n1 = n0 + DOWN_PIECE < d ? n0 + DOWN_PIECE : d;
    const fl_rows in = pair_rows(r, u, b->pair_g, r->p->hp->d_ff);
    const fl_mat down = expert_mat(r, u, 2);
    (void)worker;
    fl_linear_piece(r->p->exec, &down, n0, n1, &in, b->pair_y + r->p->buf->route.first[u] * d, d);
}

/* Does matrix `part` of any expert in the part read quantized rows? */
static bool part_uses_law(const part_run *r, int part)
{
    for (int u = r->u0; u < r->u1; u++) {
        const fl_mat m = expert_mat(r, u, part);
        if (fl_exec_uses_law(r->p->exec, m.type, m.cols)) return true;
    }
    return false;
}

/* Runs entries [u0, u1) of the union; their views are held in route->view. */
static bool run_part(const fl_pass *p, int layer, int u0, int u1)
{
    part_run r = {.p = p,
                  .layer = layer,
                  .u0 = u0,
                  .u1 = u1,
                  .ffn_pieces = (p->hp->d_ff + FFN_PIECE - 1) / FFN_PIECE,
                  .down_pieces = (p->hp->d_model + DOWN_PIECE - 1) / DOWN_PIECE};
    const int n = u1 - u0, n_pairs = p->buf->route.first[u1] - p->buf->route.first[u0];
    fl_pool *pool = p->exec->pool;
    atomic_init(&r.bad, false);
    fl_pool_run(pool, gather_task, &r, n_pairs);
    fl_pool_run(pool, ffn_task, &r, n * (int)r.ffn_pieces);
    if (part_uses_law(&r, 2)) fl_pool_run(pool, requantize_task, &r, n_pairs);
    fl_pool_run(pool, down_task, &r, n * (int)r.down_pieces);
    return !atomic_load_explicit(&r.bad, memory_order_relaxed);
}

/* The whole union, part by part: as many absent experts in a part as one lease can hold. */
static fl_status run_union(const fl_pass *p, int layer, int n, int n_present, fl_err *err)
{
    fl_route_buffers *r = &p->buf->route;
    const int lease_max = fl_store_lease_max(p->store);
    for (int u0 = 0, u1; u0 < n; u0 = u1) {
        int streaming = 0;
        for (u1 = u0; u1 < n; u1++) {
            streaming += !fl_store_is_resident(p->store, layer, r->order[u1]);
            if (streaming > lease_max) break;
        }
        /* What is present now runs before anything is evicted to make room for the rest. */
        if (u0 < n_present && u1 > n_present) u1 = n_present;
        assert(u1 > u0);
        FL_TRY(fl_store_acquire(p->store, layer, r->order + u0, u1 - u0, r->view, err));
        if (u1 < n) fl_store_prefetch(p->store, layer, r->order + u1, n - u1);
        const bool finite = run_part(p, layer, u0, u1);
        fl_store_release(p->store, layer, r->view, u1 - u0);
        if (!finite) return fl_pass_nan(layer, "expert activations", err);
    }
    return FL_OK;
}

/* ---- shared expert, combination ---- */

static void shared_silu_task(void *arg, int t, int worker)
{
    const fl_pass *p = arg;
    const int64_t ff = p->hp->d_ff_shared;
    float *g = p->buf->moe.shared_g + t * ff;
    (void)worker;
    p->exec->k.silu_mul(g, p->buf->moe.shared_u + t * ff, ff, g);
}

/* Router, shared gate and the shared expert's output for all rows; leaves the quantized input
 * rows in buf->act for the routed experts. */
static fl_status run_shared(const fl_pass *p, int layer, fl_err *err)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    fl_rows in = {.x = b->xn, .ld = hp->d_model, .cols = hp->d_model, .n = p->n_rows};
    const fl_linear_job jobs[] = {{&w->router, b->moe.logits, hp->n_expert},
                                  {&w->shared_gate_inp, b->moe.shared_gate, 1},
                                  {&w->shared_gate, b->moe.shared_g, hp->d_ff_shared},
                                  {&w->shared_up, b->moe.shared_u, hp->d_ff_shared}};
    /* Quantized whatever the shared expert needs: routed experts of other types may read it. */
    const bool law = !p->exec->act_f32 && hp->d_model % 256 == 0;
    if (law && !fl_rows_quantize(p->exec, &in, b->act)) return fl_pass_nan(layer, "MoE input", err);
    fl_observe(p->see, FL_SITE_FFN_IN, -1, &in);
    fl_linear_run(p->exec, jobs, 4, &in);
    fl_pool_run(p->exec->pool, shared_silu_task, (void *)p, p->n_rows);
    return FL_OK;
}

static fl_status run_shared_down(const fl_pass *p, int layer, fl_err *err)
{
    const fl_hparams *hp = p->hp;
    fl_buffers *b = p->buf;
    fl_rows in = {
        .x = b->moe.shared_g, .ld = hp->d_ff_shared, .cols = hp->d_ff_shared, .n = p->n_rows};
    const fl_linear_job down = {&p->weights->layer[layer].shared_down, b->moe.shared_y,
                                hp->d_model};
    fl_observe(p->see, FL_SITE_SHARED_MID, -1, &in);
    if (!fl_rows_prepare(p->exec, &in, b->act, &down, 1))
        return fl_pass_nan(layer, "shared expert", err);
    fl_linear_run(p->exec, &down, 1, &in);
    return FL_OK;
}

fl_status fl_moe_shared(const fl_pass *p, int layer, fl_err *err)
{
    FL_TRY(run_shared(p, layer, err));
    return run_shared_down(p, layer, err);
}

void fl_moe_add_shared(const fl_pass *p, int row, float *y)
{
    const int64_t d = p->hp->d_model;
    /* x - x: the sigmoid would hide an infinity. */
    const float x = p->buf->moe.shared_gate[row], gate = fl_law_sigmoid(x) + (x - x);
    p->exec->k.axpy(gate, p->buf->moe.shared_y + row * d, d, y);
}

/* x += the row's experts by falling probability, the shared expert last: one fma chain from 0. */
static void combine_task(void *arg, int t, int worker)
{
    const fl_pass *p = arg;
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
}

fl_status fl_moe_forward(const fl_pass *p, int layer, fl_err *err)
{
    int n_present = 0;
    FL_TRY(run_shared(p, layer, err));
    FL_TRY(route(p, layer, err));
    const int n = make_union(p, layer, &n_present);
    FL_TRY(run_union(p, layer, n, n_present, err));
    FL_TRY(run_shared_down(p, layer, err));
    fl_pool_run(p->exec->pool, combine_task, (void *)p, p->n_rows);
    const bool finite = fl_rows_add(p, p->buf->x, p->buf->y);
    return finite ? FL_OK : fl_pass_nan(layer, "MoE output", err);
}
