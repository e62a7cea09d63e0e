#ifndef FL_MODEL_STATE_H
#define FL_MODEL_STATE_H

#include "runtime/base/arena.h"
#include "runtime/model/index.h"

/* Rows of a held pass: run clean, but the state waits for the word how many of them count. */
typedef struct fl_held {
    int max_rows; /* 0: none, no memory */
    int n;        /* rows of the last held pass; 0 once another pass ran */
    /* [n_layer], NULL on attention layers */
    float **u;             /* [max_rows][C] raw rows */
    float **c;             /* [max_rows][C] convolved q | k | v */
    float **decay, **beta; /* [max_rows][nv] */
} fl_held;

/* The state of one sequence, all of it written by clean passes alone, token-causal but for
 * FL_COMMIT_BLOCK_BIDIR:
 *   n        committed tokens
 *   k, v     per attention layer [n_ctx][n_head_kv][head_dim], rows 0 .. n-1, keys rotated at
 *            their absolute position; F16, Q8_0 or F32. Rows from n on are scratch for a
 *            block pass.
 *   s        per GDN layer [nv][d][d] float32: key dimension outer, value dimension inner;
 *            after token n-1
 *   tail     per GDN layer [3][C] float32: the last three raw in_proj_qkv rows, oldest first
 *            (before convolution and SiLU), zeros before token 0
 *   h_last   [d_model] the final-norm row of token n-1
 *   ids      [n_ctx] the tokens themselves, 0 .. n-1 (host memory)
 * The MTP block's cache, the last of k and v, holds in row i the pair of token i and the final-norm
 * row of token i - 1, so it is as long as the others; row 0 is never used and zero.
 * Three arenas: the KV cache, the GDN state (with h_last), held rows; sized by the same code in
 * counting mode. */
typedef struct fl_state {
    int64_t n, n_ctx;
    int64_t n_causal;   /* tokens, at most n, behind which the state was that of a clean pass over
                           them; n unless blocks were committed otherwise */
    uint32_t kv_type;   /* FL_TYPE_F16, FL_TYPE_Q8_0 or FL_TYPE_F32 */
    int64_t kv_row;     /* elements of one cached row: n_head_kv * head_dim */
    int64_t n_channels; /* C */
    int64_t s_elems;    /* nv * d * d */
    int n_layer;        /* of the model, and one more for the MTP block if it is loaded */
    void **k, **v;      /* [n_layer], NULL on GDN layers */
    float **s, **tail;  /* [n_layer], NULL on attention layers */
    float *h_last;
    int32_t *ids;
    uint8_t *gdn; /* the GDN arena: s, tail and h_last */
    uint64_t gdn_bytes;
    fl_held held;
    bool broken;     /* a clean pass failed half way: only a reset or a copy makes it usable */
    uint64_t resets; /* times that the sequence began anew: copies of earlier ones are void */
} fl_state;

/* A copy of what cannot be rolled back: the GDN arena (s, tail, h_last) behind token n - 1. With
 * the cache's rows below n it is the whole state. */
typedef struct fl_state_copy {
    int64_t n;
    void *memory; /* [gdn_bytes] host memory */
} fl_state_copy;
/* How many copies a budget of host memory holds, each in whole pages of *copy_bytes; 0 = a tenth of
 * this machine's memory. At most `most`. A budget given that holds none is FL_E_ARG with the size
 * that would do. */
FL_CHECKED fl_status fl_state_fit_copies(uint64_t gdn_bytes, uint64_t budget, int64_t most,
                                         uint64_t *copy_bytes, int *n, fl_err *err);
/* Copies the state as it is now; to->n is set. */
void fl_state_save(const fl_state *st, fl_state_copy *to);
/* Goes back to a copy made of this very sequence: rows below n of the cache still hold it. */
void fl_state_restore(fl_state *st, const fl_state_copy *from);
/* Where a part of the GDN arena (s[i], tail[i], h_last) lies in a copy. */
static inline void *fl_state_in_copy(const fl_state *st, const fl_state_copy *c, const void *part)
{
    return (uint8_t *)c->memory + ((const uint8_t *)part - st->gdn);
}

typedef struct fl_state_shape {
    int64_t n_ctx;
    uint32_t kv_type;
    int held_rows; /* 0: no held passes */
    bool mtp;      /* with the MTP block's KV cache */
} fl_state_shape;

/* Device memory of the three arenas. */
typedef struct fl_state_sizes {
    uint64_t kv, gdn, held;
} fl_state_sizes;
fl_state_sizes fl_state_measure(const fl_index *ix, const fl_state_shape *shape);

/* Lays the state into device memory of these sizes (held may be NULL when its size is 0) and
 * resets it. */
FL_CHECKED fl_status fl_state_init(fl_state *st, const fl_index *ix, const fl_state_shape *shape,
                                   void *kv, void *gdn, void *held, fl_err *err);
void fl_state_fini(fl_state *st); /* host-side tables; the memory is the caller's */
/* Back to the empty sequence. */
void fl_state_reset(fl_state *st);

/* Bytes of one row of k or of v of one layer; rows lie without gaps. */
uint64_t fl_state_kv_row_bytes(const fl_state *st);

/* Writes one row of keys and values ([n_head_kv][head_dim] floats each) at cache row `row`, rounded
 * as quant/FORMAT.md L6 says: large values saturate instead of turning into infinity; what is not
 * finite stays so (in a Q8_0 cache its block of 32 becomes NaN). */
void fl_state_put_kv(fl_state *st, int layer, int64_t row, const float *k, const float *v);

/* GDN channels C = 2 nk d + nv d. */
static inline int64_t fl_hparams_channels(const fl_hparams *hp)
{
    return (2 * (int64_t)hp->gdn_k_heads + hp->gdn_v_heads) * hp->gdn_dim;
}

#endif
