#ifndef FL_MODEL_STATE_H
#define FL_MODEL_STATE_H

#include "runtime/base/arena.h"
#include "runtime/model/index.h"

/* The state of one sequence, all of it written by clean, token-causal passes alone:
 *   n        committed tokens
 *   k, v     per attention layer [n_ctx][n_head_kv][head_dim], rows 0 .. n-1, keys rotated at
 *            their absolute position; F16 or F32. Rows from n on are scratch for a block pass.
 *   s        per GDN layer [nv][d][d] float32: key dimension outer, value dimension inner;
 *            after token n-1
 *   tail     per GDN layer [3][C] float32: the last three raw in_proj_qkv rows, oldest first
 *            (before convolution and SiLU), zeros before token 0
 *   h_last   [d_model] the final-norm row of token n-1
 * Two arenas: the KV cache and the GDN state (with h_last), sized by the same code in counting
 * mode. */
typedef struct fl_state {
    int64_t n, n_ctx;
    uint32_t kv_type;   /* FL_TYPE_F16 or FL_TYPE_F32 */
    int64_t kv_row;     /* elements of one cached row: n_head_kv * head_dim */
    int64_t n_channels; /* C */
    int64_t s_elems;    /* nv * d * d */
    int n_layer;
    void **k, **v;     /* [n_layer], NULL on GDN layers */
    float **s, **tail; /* [n_layer], NULL on attention layers */
    float *h_last;
    bool broken; /* a clean pass failed half way: only a reset makes it usable */
} fl_state;

void fl_state_bytes(const fl_index *ix, int64_t n_ctx, uint32_t kv_type, uint64_t *kv_bytes,
                    uint64_t *gdn_bytes);
/* Lays the state into two runs of device memory of these sizes and resets it. */
FL_CHECKED fl_status fl_state_init(fl_state *st, const fl_index *ix, int64_t n_ctx,
                                   uint32_t kv_type, void *kv_memory, void *gdn_memory,
                                   fl_err *err);
void fl_state_fini(fl_state *st); /* host-side tables; the memory is the caller's */
/* Back to the empty sequence. */
void fl_state_reset(fl_state *st);

/* Writes one row of keys and values ([n_head_kv][head_dim] floats each) at cache row `row`. An
 * F16 cache saturates at +-65504 instead of turning a large value into infinity; NaN stays. */
void fl_state_put_kv(fl_state *st, int layer, int64_t row, const float *k, const float *v);

/* GDN channels C = 2 nk d + nv d. */
static inline int64_t fl_hparams_channels(const fl_hparams *hp)
{
    return (2 * (int64_t)hp->gdn_k_heads + hp->gdn_v_heads) * hp->gdn_dim;
}

#endif
