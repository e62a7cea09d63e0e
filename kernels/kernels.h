#ifndef FL_KERNELS_H
#define FL_KERNELS_H

#include "quant/format.h"
#include "quant/law.h"

/* A weight matrix as it lies in a file: [rows][cols], row-major, rows are outputs. */
typedef struct fl_mat {
    const void *data;
    uint32_t type; /* fl_type */
    int64_t rows;  /* outputs */
    int64_t cols;  /* inputs; y[n] = sum_i W[n][i] x[i] */
    float scale;   /* the file's optional ".scale" companion, else 1; multiplies the result */
} fl_mat;

/* Attention of n_rows rows over the keys and values of one layer's cache: [n_ctx][n_kv][head_dim],
 * type F16, Q8_0 or F32. A row has n_q query heads for each kv head. For Q8_0 head_dim and
 * kv_stride are multiples of 32. All kv heads belong into one call: memory delivers whole rows of
 * the cache twice as fast as every other head of them. */
typedef struct fl_attn_args {
    const float *q; /* [n_rows] rows q_stride floats apart: [n_kv][n_q][head_dim], rotated */
    int64_t q_stride;
    int n_rows, n_kv, n_q;
    int head_dim;          /* multiple of 16 */
    const void *k, *v;     /* the cache's row 0 */
    int64_t kv_stride;     /* elements between two rows of k or v */
    uint32_t kv_type;      /* FL_TYPE_F16, FL_TYPE_Q8_0 or FL_TYPE_F32 */
    const int64_t *n_keys; /* [n_rows] keys seen by each row: 0 .. n_keys-1; at least 1 */
    float scale;           /* 1/sqrt(head_dim) */
} fl_attn_args;

/* A softmax that is not finished: the rows' heads over some chunks of keys. */
typedef struct fl_attn_part {
    float *max, *sum; /* [rows][ld]; sum 0: no keys yet */
    float *out;       /* [rows][ld][head_dim]; not to be read where sum is 0 */
    int64_t ld;       /* heads between two rows */
} fl_attn_part;

/* One value head's gated delta rule over T rows (base-model: decay, read, delta, write, output).
 * S is [dk][dv] float32, updated in place. Rows are `*_stride` floats apart. With strict = 1 the
 * output of row t is read before row t is written (the backward branch); reverse = 1 walks
 * t = T-1 .. 0. decay and beta are one value per row, `gate_stride` floats apart.
 * Order of operations per row, for every column j on its own:
 *   [strict: o_j = sum_i q_i S_ij]  S_ij *= decay;  m_j = fma chain over i ascending of k_i S_ij
 *   d_j = beta * (v_j - m_j);  S_ij = fma(k_i, d_j, S_ij);  [else: o_j = fma chain of q_i S_ij] */
typedef struct fl_gdn_args {
    float *s;
    int dk, dv, n_rows;
    int strict, reverse;
    const float *q, *k, *v; /* q already l2-normalised and scaled, k l2-normalised */
    int64_t q_stride, k_stride, v_stride;
    const float *decay, *beta;
    int64_t gate_stride;
    float *o;
    int64_t o_stride;
} fl_gdn_args;

/* Keys per partial softmax; chunk c holds the keys 256 c .. 256 c + 255. */
#define FL_ATTN_CHUNK 256
/* Query heads of all rows that one reading of the cache serves; a call with more reads it again. */
#define FL_ATTN_HEADS 64

/* Pure functions: no allocation, no global state, safe from any thread. All give the same bits
 * on every tier (quant/FORMAT.md); none may alias output with input unless said. */
typedef struct fl_kernels {
    const char *name; /* "reference", "avx2", ...: the best tier installed */

    /* L1: cols % 256 == 0, writes cols/256 blocks; false when a value is not finite. */
    bool (*act_quantize)(const float *x, int64_t cols, fl_act *out);

    /* L2: y[r * ldy + n] for weight rows n in [n0, n1) and activation rows r in [0, n_rows).
     * w->type has a law of its own (not FL_LAW_FLOAT), cols % 256 == 0; x is
     * [n_rows][cols / 256]. */
    void (*mul_law)(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy);

    /* L6: the same with float activations x[n_rows][ldx] and any readable type. */
    void (*mul_float)(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                      int n_rows, float *y, int64_t ldy);

    /* y = x * (1 / sqrt(sumsq(x) / n + eps)) * w, each product rounded. y may be x. */
    void (*rmsnorm)(const float *x, const float *w, int64_t n, float eps, float *y);
    /* y = x * (scale / sqrt(sumsq(x) + 1e-6)). y may be x. */
    void (*l2norm)(const float *x, int64_t n, float scale, float *y);
    /* L3: h = g / (1 + E(-g)) * u. h may be g or u. */
    void (*silu_mul)(const float *g, const float *u, int64_t n, float *h);
    /* y = x / (1 + E(-g)) (a sigmoid gate). y may be x. */
    void (*sigmoid_mul)(const float *x, const float *g, int64_t n, float *y);
    /* y[c] = silu(fma chain over taps a = 0..3 of w[c][a] * row[a][c]); tap 3 is the newest. */
    void (*conv4_silu)(const float *const row[4], const float *w, int64_t n, float *y);
    /* y[i] = fma(a, x[i], y[i]). */
    void (*axpy)(float a, const float *x, int64_t n, float *y);
    /* Sum of E(x[i] - max) in 16 lanes of double and their tree (FORMAT.md, L6); e[i] = the terms,
     * e may be NULL. No term of a softmax is lost: max is the largest x. */
    double (*exp_sum)(const float *x, int64_t n, float max, float *e);
    void (*gdn_scan)(const fl_gdn_args *a);
    /* Softmax attention: keys in fixed chunks of 256 by absolute index, the partial (max, sum, out)
     * of the chunks combined in ascending order (FORMAT.md, L6). out: rows out_stride apart. */
    void (*attention)(const fl_attn_args *a, float *out, int64_t out_stride);
    /* The partial softmax of one chunk, all heads of n_rows rows. */
    void (*attention_chunk)(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to);
    /* Combines row 0's first n_heads of `part`, which stands behind all of `run`, into `run`. */
    void (*attention_join)(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                           int head_dim);
} fl_kernels;

/* Fills with the C reference, then lets each tier that this CPU has (and that is not above
 * `max_tier`, NULL = best) overwrite entries. Returns false for an unknown tier name. A known
 * tier that the CPU lacks leaves the best one below it: `name` says which.
 * tests/kernels/ holds each entry of each tier to the bits of the reference. */
bool fl_kernels_init(fl_kernels *k, const char *max_tier);
/* Names of the tiers built in, best last; NULL behind the last. */
const char *const *fl_kernels_tiers(void);

#endif
