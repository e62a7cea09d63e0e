#include "runtime/model/buffers.h"

#include <assert.h>

#include "quant/law.h"
#include "runtime/model/state.h"

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static fl_act *take_act(fl_arena *a, int64_t rows, int64_t cols)
{
    return FL_TAKE(a, fl_act, rows * ((cols + 255) / 256));
}

static void lay_attn(fl_attn_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s,
                     fl_arena *a)
{
    const int64_t rows = s->max_rows;
    const int64_t q = (int64_t)hp->n_head * hp->head_dim;
    const int64_t kv = (int64_t)hp->n_head_kv * hp->head_dim;
    b->qg = FL_TAKE(a, float, rows * 2 * q);
    b->k = FL_TAKE(a, float, (rows * kv));
    b->v = FL_TAKE(a, float, (rows * kv));
    b->q = FL_TAKE(a, float, (rows * q));
    b->out = FL_TAKE(a, float, (rows * q));
    const int64_t parts = (int64_t)FL_ATTN_SLOTS * hp->n_head;
    b->part_max = FL_TAKE(a, float, parts);
    b->part_sum = FL_TAKE(a, float, parts);
    b->part_out = FL_TAKE(a, float, parts * hp->head_dim);
    b->run_max = FL_TAKE(a, float, parts);
    b->run_sum = FL_TAKE(a, float, parts);
    b->mtp = s->mtp ? FL_TAKE(a, float, rows * 2 * hp->d_model) : NULL;
}

static void lay_gdn(fl_gdn_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s, fl_arena *a)
{
    const int64_t c = fl_hparams_channels(hp), nv = hp->gdn_v_heads, d = hp->gdn_dim;
    const int64_t rows = s->max_rows, block = s->max_block;
    b->u = FL_TAKE(a, float, (rows * c));
    b->c = FL_TAKE(a, float, (rows * c));
    b->z = FL_TAKE(a, float, (rows * nv * d));
    b->o = FL_TAKE(a, float, (rows * nv * d));
    b->alpha = FL_TAKE(a, float, (rows * nv));
    b->beta = FL_TAKE(a, float, (rows * nv));
    b->bwd_c = FL_TAKE(a, float, (block * c));
    b->bwd_alpha = FL_TAKE(a, float, (rows * nv));
    b->bwd_beta = FL_TAKE(a, float, (rows * nv));
    b->worker_s = FL_TAKE(a, float, (s->n_threads * d * d));
    b->worker_r = FL_TAKE(a, float, (s->n_threads * block * d));
}

static void lay_moe(fl_moe_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s, fl_arena *a)
{
    const int64_t rows = s->max_rows, pairs = rows * hp->top_k;
    b->logits = FL_TAKE(a, float, rows * hp->n_expert);
    b->shared_g = FL_TAKE(a, float, rows * hp->d_ff_shared);
    b->shared_u = FL_TAKE(a, float, rows * hp->d_ff_shared);
    b->shared_gate = FL_TAKE(a, float, rows);
    b->shared_y = FL_TAKE(a, float, rows * hp->d_model);
    b->pair_x = s->float_experts ? FL_TAKE(a, float, pairs * hp->d_model) : NULL;
    b->pair_q = take_act(a, pairs, max64(hp->d_model, hp->d_ff));
    b->pair_g = FL_TAKE(a, float, pairs * hp->d_ff);
    b->pair_u = FL_TAKE(a, float, pairs * hp->d_ff);
    b->pair_y = FL_TAKE(a, float, pairs * hp->d_model);
}

static void lay_route(fl_route_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s,
                      fl_arena *a)
{
    const int64_t rows = s->max_rows;
    b->expert = FL_TAKE(a, int32_t, rows * hp->top_k);
    b->weight = FL_TAKE(a, float, rows * hp->top_k);
    b->pair = FL_TAKE(a, int32_t, rows * hp->top_k);
    b->pair_row = FL_TAKE(a, int32_t, rows * hp->top_k);
    b->first = FL_TAKE(a, int32_t, hp->n_expert + 1);
    b->count = FL_TAKE(a, int32_t, hp->n_expert);
    b->order = FL_TAKE(a, int32_t, hp->n_expert);
    b->rows = FL_TAKE(a, int32_t, hp->n_expert);
    b->view = FL_TAKE(a, fl_expert_view, hp->n_expert);
    b->came = FL_TAKE(a, fl_expert_view, hp->n_expert);
    b->entry = FL_TAKE(a, int32_t, hp->n_expert);
    b->gathered = FL_TAKE(a, fl_latch, hp->n_expert);
    b->ready = FL_TAKE(a, fl_latch, hp->n_expert);
    b->pieces_left = FL_TAKE(a, atomic_int, hp->n_expert);
    b->pool_prob = FL_TAKE(a, float, (s->max_block * hp->n_expert));
    b->pool_worth = FL_TAKE(a, float, hp->n_expert);
    b->pool_in = FL_TAKE(a, bool, hp->n_expert);
}

/* Gives the four overlapping parts the same place: each is laid from the same mark, the arena
 * goes on behind the longest. */
static void lay_overlapping(fl_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s,
                            fl_arena *a)
{
    const uint64_t mark = a->used;
    uint64_t end = mark;
    lay_attn(&b->attn, hp, s, a);
    end = end > a->used ? end : a->used;
    a->used = mark;
    lay_gdn(&b->gdn, hp, s, a);
    end = end > a->used ? end : a->used;
    a->used = mark;
    lay_moe(&b->moe, hp, s, a);
    end = end > a->used ? end : a->used;
    a->used = mark;
    b->head_part = FL_TAKE(a, float, s->n_threads * s->max_block * FL_HEAD_PART);
    a->used = end > a->used ? end : a->used;
}

static void lay_out(fl_buffers *b, const fl_hparams *hp, const fl_buffers_shape *s, fl_arena *a)
{
    const int64_t d = hp->d_model, t = s->max_rows, r = s->max_block;
    int64_t cols = max64(d, (int64_t)hp->n_head * hp->head_dim);
    cols = max64(cols, (int64_t)hp->gdn_v_heads * hp->gdn_dim);
    cols = max64(cols, hp->d_ff_shared);
    if (s->mtp) cols = max64(cols, 2 * d);
    b->max_rows = t;
    b->max_block = r;
    b->x = FL_TAKE(a, float, (t * d));
    b->xn = FL_TAKE(a, float, (t * d));
    b->y = FL_TAKE(a, float, (t * d));
    b->act = take_act(a, t, cols);
    b->rope_cos = FL_TAKE(a, float, t *(hp->rot_dim / 2));
    b->rope_sin = FL_TAKE(a, float, t *(hp->rot_dim / 2));
    b->rope_freq = FL_TAKE(a, double, hp->rot_dim / 2);
    b->gdn.ones = FL_TAKE(a, float, r);
    b->gdn.zeros = FL_TAKE(a, float, max64(r, fl_hparams_channels(hp)));
    lay_route(&b->route, hp, s, a);
    lay_overlapping(b, hp, s, a);
    b->head_x = FL_TAKE(a, float, (r * d));
    b->head_q = take_act(a, r, d);
    b->logits = FL_TAKE(a, float, r * hp->n_vocab);
    b->mtp_h = s->mtp ? FL_TAKE(a, float, d) : NULL;
}

uint64_t fl_buffers_bytes(const fl_index *ix, const fl_buffers_shape *shape)
{
    fl_buffers b = {0};
    fl_arena a = {0};
    lay_out(&b, &ix->hp, shape, &a);
    return a.used;
}

void fl_buffers_init(fl_buffers *b, const fl_index *ix, const fl_buffers_shape *shape, void *memory)
{
    fl_arena a = {.base = memory, .size = fl_buffers_bytes(ix, shape)};
    *b = (fl_buffers){0};
    lay_out(b, &ix->hp, shape, &a);
    for (int64_t i = 0; i < shape->max_block; i++) b->gdn.ones[i] = 1.0f;
    fl_law_rope_freq(ix->hp.rope_base, ix->hp.rot_dim / 2, b->rope_freq);
}
