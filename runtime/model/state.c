#include "runtime/model/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t kv_elem_bytes(uint32_t kv_type) { return kv_type == FL_TYPE_F32 ? 4 : 2; }

/* The one description of the layout: counting when the arenas have no base, and then `st` may
 * lack its tables. */
static void lay_out(fl_state *st, const fl_index *ix, fl_arena *kv, fl_arena *gdn)
{
    const fl_hparams *hp = &ix->hp;
    const uint64_t kv_bytes =
        (uint64_t)st->n_ctx * (uint64_t)st->kv_row * kv_elem_bytes(st->kv_type);
    for (int i = 0; i < hp->n_layer; i++) {
        if (ix->layer[i].full_attention) {
            void *k = fl_arena_take(kv, kv_bytes, 64);
            void *v = fl_arena_take(kv, kv_bytes, 64);
            if (st->k) st->k[i] = k, st->v[i] = v;
        } else {
            float *s = FL_TAKE(gdn, float, st->s_elems);
            float *tail = FL_TAKE(gdn, float, 3 * st->n_channels);
            if (st->s) st->s[i] = s, st->tail[i] = tail;
        }
    }
    st->h_last = FL_TAKE(gdn, float, hp->d_model);
}

static void set_shape(fl_state *st, const fl_index *ix, int64_t n_ctx, uint32_t kv_type)
{
    const fl_hparams *hp = &ix->hp;
    *st = (fl_state){.n_ctx = n_ctx,
                     .kv_type = kv_type,
                     .kv_row = (int64_t)hp->n_head_kv * hp->head_dim,
                     .n_channels = fl_hparams_channels(hp),
                     .s_elems = (int64_t)hp->gdn_v_heads * hp->gdn_dim * hp->gdn_dim,
                     .n_layer = hp->n_layer};
}

void fl_state_bytes(const fl_index *ix, int64_t n_ctx, uint32_t kv_type, uint64_t *kv_bytes,
                    uint64_t *gdn_bytes)
{
    fl_state st;
    fl_arena kv = {0}, gdn = {0};
    set_shape(&st, ix, n_ctx, kv_type);
    lay_out(&st, ix, &kv, &gdn);
    *kv_bytes = kv.used;
    *gdn_bytes = gdn.used;
}

fl_status fl_state_init(fl_state *st, const fl_index *ix, int64_t n_ctx, uint32_t kv_type,
                        void *kv_memory, void *gdn_memory, fl_err *err)
{
    fl_arena kv = {.base = kv_memory}, gdn = {.base = gdn_memory};
    const size_t n = (size_t)ix->hp.n_layer;
    fl_state_bytes(ix, n_ctx, kv_type, &kv.size, &gdn.size);
    set_shape(st, ix, n_ctx, kv_type);
    st->k = calloc(n, sizeof(*st->k));
    st->v = calloc(n, sizeof(*st->v));
    st->s = calloc(n, sizeof(*st->s));
    st->tail = calloc(n, sizeof(*st->tail));
    if (!st->k || !st->v || !st->s || !st->tail) {
        fl_state_fini(st);
        return FL_FAIL(err, FL_E_NOMEM, 0, "sequence state: out of memory");
    }
    lay_out(st, ix, &kv, &gdn);
    fl_state_reset(st);
    return FL_OK;
}

void fl_state_fini(fl_state *st)
{
    free(st->k);
    free(st->v);
    free(st->s);
    free(st->tail);
    *st = (fl_state){0};
}

void fl_state_reset(fl_state *st)
{
    for (int i = 0; i < st->n_layer; i++) {
        if (!st->s[i]) continue;
        memset(st->s[i], 0, (size_t)st->s_elems * sizeof(float));
        memset(st->tail[i], 0, (size_t)(3 * st->n_channels) * sizeof(float));
    }
    st->n = 0;
    st->broken = false;
}

static uint16_t to_f16_saturated(float f)
{
    if (f > 65504.0f) f = 65504.0f;
    if (f < -65504.0f) f = -65504.0f;
    return fl_f32_to_f16(f);
}

void fl_state_put_kv(fl_state *st, int layer, int64_t row, const float *k, const float *v)
{
    const int64_t n = st->kv_row;
    assert(row < st->n_ctx && st->k[layer]);
    if (st->kv_type == FL_TYPE_F32) {
        memcpy((float *)st->k[layer] + row * n, k, (size_t)n * sizeof(float));
        memcpy((float *)st->v[layer] + row * n, v, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *hk = (uint16_t *)st->k[layer] + row * n;
    uint16_t *hv = (uint16_t *)st->v[layer] + row * n;
    for (int64_t i = 0; i < n; i++) {
        hk[i] = to_f16_saturated(k[i]);
        hv[i] = to_f16_saturated(v[i]);
    }
}
