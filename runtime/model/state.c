#include "runtime/model/state.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/round.h"
#include "runtime/base/memory.h"
#include "runtime/base/options.h"

uint64_t fl_state_kv_row_bytes(const fl_state *st)
{
    return fl_type_row_bytes(st->kv_type, (uint64_t)st->kv_row);
}

typedef struct arenas {
    fl_arena kv, gdn, held;
} arenas;

static void lay_out_gdn(fl_state *st, int layer, int64_t nv, arenas *a)
{
    fl_held *h = &st->held;
    float *s = FL_TAKE(&a->gdn, float, st->s_elems);
    float *tail = FL_TAKE(&a->gdn, float, 3 * st->n_channels);
    float *u = FL_TAKE(&a->held, float, h->max_rows * st->n_channels);
    float *c = FL_TAKE(&a->held, float, h->max_rows * st->n_channels);
    float *decay = FL_TAKE(&a->held, float, h->max_rows *nv);
    float *beta = FL_TAKE(&a->held, float, h->max_rows *nv);
    if (!st->s) return; /* counting */
    st->s[layer] = s;
    st->tail[layer] = tail;
    h->u[layer] = u;
    h->c[layer] = c;
    h->decay[layer] = decay;
    h->beta[layer] = beta;
}

/* The one description of the layout: counting when the arenas have no base, and then `st` has
 * no tables. */
static void lay_out(fl_state *st, const fl_index *ix, arenas *a)
{
    const fl_hparams *hp = &ix->hp;
    const uint64_t kv_bytes = (uint64_t)st->n_ctx * fl_state_kv_row_bytes(st);
    for (int i = 0; i < st->n_layer; i++) {
        if (!fl_index_layer(ix, i)->full_attention) {
            lay_out_gdn(st, i, hp->gdn_v_heads, a);
            continue;
        }
        void *k = fl_arena_take(&a->kv, kv_bytes, 64);
        void *v = fl_arena_take(&a->kv, kv_bytes, 64);
        if (!st->k) continue;
        st->k[i] = k;
        st->v[i] = v;
    }
    st->h_last = FL_TAKE(&a->gdn, float, hp->d_model);
}

static void set_shape(fl_state *st, const fl_index *ix, const fl_state_shape *shape)
{
    const fl_hparams *hp = &ix->hp;
    *st = (fl_state){.n_ctx = shape->n_ctx,
                     .kv_type = shape->kv_type,
                     .held.max_rows = shape->held_rows,
                     .kv_row = (int64_t)hp->n_head_kv * hp->head_dim,
                     .n_channels = fl_hparams_channels(hp),
                     .s_elems = (int64_t)hp->gdn_v_heads * hp->gdn_dim * hp->gdn_dim,
                     .n_layer = hp->n_layer + shape->mtp};
}

fl_state_sizes fl_state_measure(const fl_index *ix, const fl_state_shape *shape)
{
    fl_state st;
    arenas a = {0};
    set_shape(&st, ix, shape);
    lay_out(&st, ix, &a);
    return (fl_state_sizes){a.kv.used, a.gdn.used, a.held.used};
}

/* The per-layer tables, all in one piece that k begins. */
static bool make_tables(fl_state *st)
{
    enum { N_TABLES = 8 };
    const size_t n = (size_t)st->n_layer;
    void **all = calloc(N_TABLES * n, sizeof(*all));
    if (!all) return false;
    st->k = all;
    st->v = all + n;
    st->s = (float **)(all + 2 * n);
    st->tail = (float **)(all + 3 * n);
    st->held.u = (float **)(all + 4 * n);
    st->held.c = (float **)(all + 5 * n);
    st->held.decay = (float **)(all + 6 * n);
    st->held.beta = (float **)(all + 7 * n);
    return true;
}

fl_status fl_state_init(fl_state *st, const fl_index *ix, const fl_state_shape *shape, void *kv,
                        void *gdn, void *held, fl_err *err)
{
    const fl_state_sizes n = fl_state_measure(ix, shape);
    arenas a = {
        {.base = kv, .size = n.kv}, {.base = gdn, .size = n.gdn}, {.base = held, .size = n.held}};
    set_shape(st, ix, shape);
    st->gdn = gdn;
    st->gdn_bytes = n.gdn;
    st->ids = calloc((size_t)st->n_ctx, sizeof(*st->ids));
    if (!st->ids || !make_tables(st)) {
        fl_state_fini(st);
        return FL_FAIL(err, FL_E_NOMEM, 0, "sequence state: out of memory");
    }
    lay_out(st, ix, &a);
    fl_state_reset(st);
    return FL_OK;
}

void fl_state_fini(fl_state *st)
{
    free(st->k);
    free(st->ids);
    *st = (fl_state){0};
}

void fl_state_reset(fl_state *st)
{
    for (int i = 0; i < st->n_layer; i++) {
        if (!st->s[i]) continue;
        memset(st->s[i], 0, (size_t)st->s_elems * sizeof(float));
        memset(st->tail[i], 0, (size_t)(3 * st->n_channels) * sizeof(float));
    }
    st->n = st->n_causal = 0;
    st->held.n = 0;
    st->broken = false;
    st->resets++;
}

fl_status fl_state_fit_copies(uint64_t gdn_bytes, uint64_t budget, int64_t most,
                              uint64_t *copy_bytes, int *n, fl_err *err)
{
    char have[32], need[32];
    const uint64_t page = 4096, bytes = (gdn_bytes + page - 1) / page * page;
    const uint64_t fit = (budget ? budget : fl_memory_total() / 10) / bytes;
    *copy_bytes = bytes;
    *n = fit < (uint64_t)most ? (int)fit : (int)most;
    if (!budget || fit > 0) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0,
                   "--state-budget %s: one checkpoint of this model takes %s; give at least that",
                   fl_size_format(have, budget), fl_size_format(need, bytes));
}

void fl_state_save(const fl_state *st, fl_state_copy *to)
{
    assert(!st->broken);
    to->n = st->n;
    memcpy(to->memory, st->gdn, st->gdn_bytes);
}

void fl_state_restore(fl_state *st, const fl_state_copy *from)
{
    assert(from->n <= st->n);
    memcpy(st->gdn, from->memory, st->gdn_bytes);
    st->n = from->n;
    if (st->n_causal > st->n) st->n_causal = st->n;
    st->held.n = 0;
    st->broken = false;
}

/* Large numbers saturate; infinity and NaN stay what they are, to be found further on. */
static void put_f16(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = fl_f32_to_f16(isfinite(x[i]) ? fminf(fmaxf(x[i], -65504.0f), 65504.0f) : x[i]);
}

/* A block with a value that is not finite becomes NaN as a whole. */
static void put_q8_0(const float *x, int64_t n, fl_block_q8_0 *out)
{
    for (int64_t i = 0; i < n; i += 32, out++) {
        if (fl_round_nonfinite(x + i, 32) < 0)
            fl_quantize_q8_0(x + i, out, 32);
        else
            *out = (fl_block_q8_0){.d = fl_f32_to_f16(NAN)};
    }
}

static void put_row(const fl_state *st, void *cache, int64_t row, const float *x)
{
    const uint64_t bytes = fl_state_kv_row_bytes(st);
    void *out = (uint8_t *)cache + (uint64_t)row * bytes;
    switch (st->kv_type) {
    case FL_TYPE_F16: put_f16(x, st->kv_row, out); break;
    case FL_TYPE_Q8_0: put_q8_0(x, st->kv_row, out); break;
    default: memcpy(out, x, bytes);
    }
}

void fl_state_put_kv(fl_state *st, int layer, int64_t row, const float *k, const float *v)
{
    assert(row < st->n_ctx && st->k[layer]);
    put_row(st, st->k[layer], row, k);
    put_row(st, st->v[layer], row, v);
}
