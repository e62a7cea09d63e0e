#include <stdatomic.h>
#include <string.h>

#include "runtime/model/layers.h"

/* The experts of a pass on the worker pool. All of a part is one job, without a barrier inside:
 *   1. the shared expert's activations, row by row;
 *   2. an expert's rows are brought side by side, where they are not;
 *   3. pieces of gate and up, of all experts; the last piece of an expert quantizes its rows;
 *   4. pieces of the shared expert's down;
 *   5. pieces of down, of all experts.
 * A task waits for what it reads (runtime/base/latch.h): tasks are taken in rising order, and it
 * is always a lower one that is waited for. */

enum { FFN_LEAST = 32, DOWN_LEAST = 64, TASKS_PER_THREAD = 16 };

typedef struct part_run {
    const fl_pass *p;
    int layer;
    int n;                         /* the part: entries of the union, in route.entry */
    bool first;                    /* of its union: the shared expert runs along */
    int64_t ffn_piece, down_piece; /* outputs of one task */
    int ffn_pieces, down_pieces;   /* of an expert */
    int end[5];                    /* of each kind of task above */
    atomic_int shared_left;        /* rows */
    atomic_bool bad, shared_bad;
} part_run;

/* Matrix `part` of union entry u as it lies in the leased memory. */
static fl_mat expert_mat(const part_run *r, int u, int part)
{
    const fl_hparams *hp = r->p->hp;
    const fl_route_buffers *route = &r->p->buf->route;
    const fl_expert_view *v = &route->view[u];
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

static int n_rows(const part_run *r, int u)
{
    const fl_route_buffers *route = &r->p->buf->route;
    return route->first[u + 1] - route->first[u];
}

/* ---- an expert's input ---- */

/* Are its rows neighbours in the pass? They rise. */
static bool is_side_by_side(const part_run *r, int u)
{
    const fl_route_buffers *route = &r->p->buf->route;
    const int32_t *row = route->pair_row + route->first[u];
    return row[n_rows(r, u) - 1] - row[0] == n_rows(r, u) - 1;
}

static void gather(const part_run *r, int u)
{
    const fl_buffers *b = r->p->buf;
    const int64_t d = r->p->hp->d_model, blocks = d / 256;
    for (int64_t pair = b->route.first[u]; pair < b->route.first[u + 1]; pair++) {
        const int64_t row = b->route.pair_row[pair];
        if (!r->p->exec->act_f32)
            memcpy(b->moe.pair_q + pair * blocks, b->act + row * blocks,
                   (size_t)blocks * sizeof(fl_act));
        if (b->moe.pair_x)
            memcpy(b->moe.pair_x + pair * d, b->xn + row * d, (size_t)d * sizeof(float));
    }
}

static fl_rows input_rows(const part_run *r, int u)
{
    const fl_buffers *b = r->p->buf;
    const int64_t d = r->p->hp->d_model, p0 = b->route.first[u];
    fl_rows in = {.ld = d, .cols = d, .n = n_rows(r, u)};
    if (is_side_by_side(r, u)) {
        in.x = b->xn + b->route.pair_row[p0] * d;
        in.q = b->act + b->route.pair_row[p0] * (d / 256);
    } else {
        in.x = b->moe.pair_x ? b->moe.pair_x + p0 * d : NULL;
        in.q = b->moe.pair_q + p0 * (d / 256);
    }
    return in;
}

/* ---- gate, up, down ---- */

/* Where an expert's h is quantized, if it is: in the place of up's output, which nobody reads any
 * more by then. */
static fl_act *mid_q(const part_run *r, int u)
{
    const int64_t ff = r->p->hp->d_ff, at = r->p->buf->route.first[u] * ff;
    return ff % 256 == 0 ? (fl_act *)(void *)(r->p->buf->moe.pair_u + at) : NULL;
}

static fl_rows mid_rows(const part_run *r, int u)
{
    const int64_t ff = r->p->hp->d_ff;
    return (fl_rows){.x = r->p->buf->moe.pair_g + r->p->buf->route.first[u] * ff,
                     .ld = ff,
                     .cols = ff,
                     .q = mid_q(r, u),
                     .n = n_rows(r, u)};
}

static void quantize_mid(part_run *r, int u)
{
    const fl_rows mid = mid_rows(r, u);
    const fl_mat down = expert_mat(r, u, 2);
    if (!fl_exec_uses_law(r->p->exec, down.type, down.cols)) return;
    for (int i = 0; i < mid.n; i++)
        if (!r->p->exec->k.act_quantize(mid.x + i * mid.ld, mid.cols,
                                        mid_q(r, u) + i * (mid.cols / 256)))
            atomic_store_explicit(&r->bad, true, memory_order_relaxed);
}

/* h = silu(gate x) * (up x) for a piece of the expert's width. */
static void run_ffn(part_run *r, int u, int piece)
{
    const fl_moe_buffers *b = &r->p->buf->moe;
    const fl_exec *x = r->p->exec;
    fl_route_buffers *route = &r->p->buf->route;
    const int64_t ff = r->p->hp->d_ff, at = route->first[u] * ff;
    const int64_t n0 = piece * r->ffn_piece, n1 = n0 + r->ffn_piece < ff ? n0 + r->ffn_piece : ff;
    const fl_mat gate = expert_mat(r, u, 0), up = expert_mat(r, u, 1);
    fl_latch_wait(&route->gathered[u]);
    const fl_rows in = input_rows(r, u);
    fl_linear_piece(x, &gate, n0, n1, &in, b->pair_g + at, ff);
    fl_linear_piece(x, &up, n0, n1, &in, b->pair_u + at, ff);
    for (int i = 0; i < in.n; i++) {
        float *g = b->pair_g + at + i * ff + n0;
        x->k.silu_mul(g, b->pair_u + at + i * ff + n0, n1 - n0, g);
    }
    if (atomic_fetch_sub_explicit(&route->pieces_left[u], 1, memory_order_acq_rel) > 1) return;
    quantize_mid(r, u);
    fl_latch_arrive(&route->ready[u], 1);
}

static void run_down(const part_run *r, int u, int piece)
{
    const int64_t d = r->p->hp->d_model, n0 = piece * r->down_piece;
    const int64_t n1 = n0 + r->down_piece < d ? n0 + r->down_piece : d;
    const fl_mat down = expert_mat(r, u, 2);
    fl_latch_wait(&r->p->buf->route.ready[u]);
    if (atomic_load_explicit(&r->bad, memory_order_relaxed)) return;
    const fl_rows mid = mid_rows(r, u);
    fl_linear_piece(r->p->exec, &down, n0, n1, &mid,
                    r->p->buf->moe.pair_y + r->p->buf->route.first[u] * d, d);
}

/* ---- shared expert ---- */

/* Where its h is quantized, if it is: in the place of up's output, as an expert's. */
static fl_act *shared_q(const fl_pass *p)
{
    return p->hp->d_ff_shared % 256 == 0 ? (fl_act *)(void *)p->buf->moe.shared_u : NULL;
}

static fl_rows shared_mid_rows(const fl_pass *p)
{
    const int64_t ff = p->hp->d_ff_shared;
    return (fl_rows){
        .x = p->buf->moe.shared_g, .ld = ff, .cols = ff, .q = shared_q(p), .n = p->n_rows};
}

static void begin_shared(part_run *r)
{
    atomic_init(&r->shared_left, r->p->n_rows);
    fl_latch_set(&r->p->buf->route.shared_ready, 1);
}

/* h of one row; the last one quantizes all. */
static void shared_mid(part_run *r, int t)
{
    const fl_moe_buffers *b = &r->p->buf->moe;
    const fl_mat *down = &r->p->weights->layer[r->layer].shared_down;
    const fl_kernels *k = &r->p->exec->k;
    const int64_t ff = r->p->hp->d_ff_shared;
    float *g = b->shared_g + t * ff;
    k->silu_mul(g, b->shared_u + t * ff, ff, g);
    if (atomic_fetch_sub_explicit(&r->shared_left, 1, memory_order_acq_rel) > 1) return;
    const bool law = fl_exec_uses_law(r->p->exec, down->type, ff);
    for (int i = 0; law && i < r->p->n_rows; i++)
        if (!k->act_quantize(b->shared_g + i * ff, ff, shared_q(r->p) + i * (ff / 256)))
            atomic_store_explicit(&r->shared_bad, true, memory_order_relaxed);
    fl_latch_arrive(&r->p->buf->route.shared_ready, 1);
}

static void run_shared_down(const part_run *r, int piece)
{
    const int64_t d = r->p->hp->d_model, n0 = piece * r->down_piece;
    const int64_t n1 = n0 + r->down_piece < d ? n0 + r->down_piece : d;
    fl_latch_wait(&r->p->buf->route.shared_ready);
    if (atomic_load_explicit(&r->shared_bad, memory_order_relaxed)) return;
    const fl_rows mid = shared_mid_rows(r->p);
    fl_linear_piece(r->p->exec, &r->p->weights->layer[r->layer].shared_down, n0, n1, &mid,
                    r->p->buf->moe.shared_y, d);
}

fl_status fl_moe_begin(const fl_pass *p, int layer, fl_err *err)
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
    return FL_OK;
}

static void shared_mid_task(void *arg, int t, int worker)
{
    (void)worker;
    shared_mid(arg, t);
}

fl_status fl_moe_shared(const fl_pass *p, int layer, fl_err *err)
{
    part_run r = {.p = p, .layer = layer};
    const fl_linear_job down = {&p->weights->layer[layer].shared_down, p->buf->moe.shared_y,
                                p->hp->d_model};
    FL_TRY(fl_moe_begin(p, layer, err));
    begin_shared(&r);
    fl_pool_run(p->exec->pool, shared_mid_task, &r, p->n_rows);
    const fl_rows mid = shared_mid_rows(p);
    fl_observe(p->see, FL_SITE_SHARED_MID, -1, &mid);
    if (atomic_load_explicit(&r.shared_bad, memory_order_relaxed))
        return fl_pass_nan(layer, "shared expert", err);
    fl_linear_run(p->exec, &down, 1, &mid);
    return FL_OK;
}

void fl_moe_add_shared(const fl_pass *p, int row, float *y)
{
    const int64_t d = p->hp->d_model;
    /* x - x: the sigmoid would hide an infinity. */
    const float x = p->buf->moe.shared_gate[row], gate = fl_law_sigmoid(x) + (x - x);
    p->exec->k.axpy(gate, p->buf->moe.shared_y + row * d, d, y);
}

/* ---- one part as one job ---- */

static void part_task(void *arg, int task, int worker)
{
    part_run *r = arg;
    fl_route_buffers *route = &r->p->buf->route;
    if (worker == 0) fl_store_poll(r->p->store); /* the owner: reads and copies go on meanwhile */
    if (task < r->end[0]) {
        shared_mid(r, task);
    } else if (task < r->end[1]) {
        const int u = route->entry[task - r->end[0]];
        if (!is_side_by_side(r, u)) gather(r, u);
        fl_latch_arrive(&route->gathered[u], 1);
    } else if (task < r->end[2]) {
        task -= r->end[1];
        run_ffn(r, route->entry[task / r->ffn_pieces], task % r->ffn_pieces);
    } else if (task < r->end[3]) {
        run_shared_down(r, task - r->end[2]);
    } else {
        task -= r->end[3];
        run_down(r, route->entry[task / r->down_pieces], task % r->down_pieces);
    }
}

/* Into how many pieces to cut a matrix when there are n of its kind. More than the threads need
 * would cost: many rows are packed anew for each piece. */
static int pieces_of(int64_t outputs, int64_t least, int n, int threads)
{
    const int64_t most = (outputs + least - 1) / least,
                  want = (TASKS_PER_THREAD * threads + n - 1) / n;
    return (int)(want < most ? want : most);
}

static int64_t piece_of(int64_t outputs, int pieces)
{
    return ((outputs + pieces - 1) / pieces + 15) / 16 * 16;
}

/* The shared expert runs along with the first part. */
static void lay_out(part_run *r)
{
    const fl_hparams *hp = r->p->hp;
    fl_route_buffers *route = &r->p->buf->route;
    const int n = r->n, threads = fl_pool_threads(r->p->exec->pool);
    r->ffn_piece = piece_of(hp->d_ff, pieces_of(hp->d_ff, FFN_LEAST, n, threads));
    r->down_piece = piece_of(hp->d_model, pieces_of(hp->d_model, DOWN_LEAST, n, threads));
    r->ffn_pieces = (int)((hp->d_ff + r->ffn_piece - 1) / r->ffn_piece);
    r->down_pieces = (int)((hp->d_model + r->down_piece - 1) / r->down_piece);
    /* One row needs no gathering. */
    const bool shared = r->first, gathers = r->p->n_rows > 1;
    const int tasks[] = {shared ? r->p->n_rows : 0, gathers ? n : 0, n * r->ffn_pieces,
                         shared ? r->down_pieces : 0, n * r->down_pieces};
    for (int i = 0, end = 0; i < 5; i++) r->end[i] = end += tasks[i];
    if (shared) begin_shared(r);
    for (int i = 0; i < n; i++) {
        const int u = route->entry[i];
        fl_latch_set(&route->gathered[u], gathers);
        fl_latch_set(&route->ready[u], 1);
        atomic_store_explicit(&route->pieces_left[u], r->ffn_pieces, memory_order_relaxed);
    }
}

const char *fl_moe_run_part(const fl_pass *p, int layer, int n, bool first)
{
    part_run r = {.p = p, .layer = layer, .n = n, .first = first};
    lay_out(&r);
    fl_pool_run(p->exec->pool, part_task, &r, r.end[4]);
    if (atomic_load_explicit(&r.shared_bad, memory_order_relaxed)) return "shared expert";
    return atomic_load_explicit(&r.bad, memory_order_relaxed) ? "expert activations" : NULL;
}
