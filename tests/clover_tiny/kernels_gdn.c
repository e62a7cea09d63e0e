/*
 * Training kernels of clover-tiny, part one: the gated delta rule, forward and backward.
 *
 * Single-threaded: train.py runs one process per core and averages their gradients. Built by
 * mixers.py with -O3 -march=native -ffast-math; nothing of this runs in the product.
 */
#include "kernels.h"

/* ------------------------------------------------------------------ small float32 products */

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));

static inline vec splat(float x) { return x - (vec){0}; }

/* One 8 x 32 tile of C (+)= A B. Element A[m][k] lies at a[m*ars + k*acs]. */
static inline void product_tile(int depth, const float *a, long ars, long acs, const float *b,
                                long ldb, float *c, long ldc, int accumulate)
{
    vec lo[8], hi[8];
#pragma GCC unroll 8
    for (int m = 0; m < 8; m++) {
        lo[m] = accumulate ? *(vec *)(c + m * ldc) : splat(0);
        hi[m] = accumulate ? *(vec *)(c + m * ldc + 16) : splat(0);
    }
    for (int k = 0; k < depth; k++) {
        vec b_lo = *(const vec *)(b + k * ldb), b_hi = *(const vec *)(b + k * ldb + 16);
#pragma GCC unroll 8
        for (int m = 0; m < 8; m++) {
            vec x = splat(a[m * ars + k * acs]);
            lo[m] += x * b_lo;
            hi[m] += x * b_hi;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < 8; m++) {
        *(vec *)(c + m * ldc) = lo[m];
        *(vec *)(c + m * ldc + 16) = hi[m];
    }
}

/* C[rows][cols] (+)= A B with rows a multiple of 8 and cols of 32; B and C are row-major and dense.
 */
static void product(int rows, int cols, int depth, const float *a, long ars, long acs,
                    const float *b, float *c, int accumulate)
{
    for (int n = 0; n < cols; n += 32)
        for (int m = 0; m < rows; m += 8)
            product_tile(depth, a + m * ars, ars, acs, b + n, cols, c + (long)m * cols + n, cols,
                         accumulate);
}

static void transpose(int rows, int cols, const float *in, float *out)
{
    for (int r0 = 0; r0 < rows; r0 += 16)
        for (int c0 = 0; c0 < cols; c0 += 16)
            for (int c = c0; c < c0 + 16; c++)
                for (int r = r0; r < r0 + 16; r++) out[c * rows + r] = in[r * cols + c];
}

/* ------------------------------------------------------------------ gated delta rule, 32 rows at a
 * time
 *
 * The recurrence per row is  S *= exp(g);  d = beta (v - S^T k);  S += k d^T;  o = S^T q.
 * With G the running sum of g inside the chunk and S the state before it, the same numbers are
 *     d_t = beta_t (v_t - e^{G_t} S^T k_t - sum_{s<t} e^{G_t-G_s} (k_t.k_s) d_s)
 *     o_t = e^{R_t} S^T q_t + sum_s e^{R_t-G_s} (q_t.k_s) d_s
 *     S'  = e^{G_last} S + sum_s e^{G_last-G_s} k_s d_s^T
 * with R = G and s <= t, or, strict (a row does not see itself), R_t = G_{t-1} and s < t. The d_t
 * come from substitution, row after row, exactly as in the recurrence; nothing is inverted. Masked
 * rows have almost equal keys, so an inverse by series would lose all digits.
 *
 * q, k: [seq][T][nk][HEAD]; v, o, resid: [seq][T][nv][HEAD]; g, beta: [seq][T][nv].
 * states: [..][nv][HEAD][HEAD], the state before each chunk.
 */
typedef struct {
    int valid; /* rows of this chunk that exist; the others are zero and change nothing */
    float g_sum[CHUNK], read_sum[CHUNK], beta[CHUNK];
    float k[CHUNK][HEAD], q[CHUNK][HEAD], kt[HEAD][CHUNK];
    float kk[CHUNK][CHUNK], qk[CHUNK][CHUNK];
    float decay[CHUNK][CHUNK];   /* e^{G_t-G_s}, s < t, else 0 */
    float read[CHUNK][CHUNK];    /* e^{R_t-G_s} where row t reads row s, else 0 */
    float read_qk[CHUNK][CHUNK]; /* read * qk */
    float delta[CHUNK][HEAD];
} chunk_t;

typedef struct {
    int T, nk, nv, reverse, strict;
} gdn_shape;

/* Row of the sequence that is step s of the scan. */
static inline long scan_row(const gdn_shape *sh, long seq, int step)
{
    return seq * sh->T + (sh->reverse ? sh->T - 1 - step : step);
}

static void chunk_keys(chunk_t *c, const gdn_shape *sh, long seq, int first, int key_head,
                       const float *q, const float *k)
{
    c->valid = sh->T - first < CHUNK ? sh->T - first : CHUNK;
    memset(c->k, 0, sizeof c->k);
    memset(c->q, 0, sizeof c->q);
    for (int t = 0; t < c->valid; t++) {
        long at = (scan_row(sh, seq, first + t) * sh->nk + key_head) * HEAD;
        memcpy(c->k[t], k + at, sizeof c->k[t]);
        memcpy(c->q[t], q + at, sizeof c->q[t]);
    }
    transpose(CHUNK, HEAD, c->k[0], c->kt[0]);
    product(CHUNK, CHUNK, HEAD, c->k[0], HEAD, 1, c->kt[0], c->kk[0], 0);
    product(CHUNK, CHUNK, HEAD, c->q[0], HEAD, 1, c->kt[0], c->qk[0], 0);
}

static void chunk_gates(chunk_t *c, const gdn_shape *sh, long seq, int first, int head,
                        const float *g, const float *beta)
{
    float sum = 0;
    for (int t = 0; t < CHUNK; t++) {
        int exists = t < c->valid;
        long at = exists ? scan_row(sh, seq, first + t) * sh->nv + head : 0;
        float before = sum;
        sum += exists ? g[at] : 0.0f;
        c->g_sum[t] = sum;
        c->read_sum[t] = sh->strict ? before : sum;
        c->beta[t] = exists ? beta[at] : 0.0f;
    }
    for (int t = 0; t < CHUNK; t++)
        for (int s = 0; s < CHUNK; s++) {
            int reads = sh->strict ? s < t : s <= t;
            c->decay[t][s] = s < t ? expf(fminf(c->g_sum[t] - c->g_sum[s], 0.0f)) : 0.0f;
            c->read[t][s] = reads ? expf(fminf(c->read_sum[t] - c->g_sum[s], 0.0f)) : 0.0f;
            c->read_qk[t][s] = c->read[t][s] * c->qk[t][s];
        }
}

/* resid = v - S^T k and delta = beta * resid, row after row; state_k = S^T k rows or null. */
static void chunk_solve(chunk_t *c, const gdn_shape *sh, long seq, int first, int head,
                        const float *v, float (*state_k)[HEAD], float *resid)
{
    memset(c->delta, 0, sizeof c->delta);
    for (int t = 0; t < c->valid; t++) {
        long at = (scan_row(sh, seq, first + t) * sh->nv + head) * HEAD;
        float known[HEAD];
        float scale = state_k ? expf(c->g_sum[t]) : 0.0f;
        for (int j = 0; j < HEAD; j++) known[j] = state_k ? scale * state_k[t][j] : 0.0f;
        for (int s = 0; s < t; s++) {
            float w = c->decay[t][s] * c->kk[t][s];
            for (int j = 0; j < HEAD; j++) known[j] += w * c->delta[s][j];
        }
        for (int j = 0; j < HEAD; j++) {
            float r = v[at + j] - known[j];
            resid[at + j] = r;
            c->delta[t][j] = c->beta[t] * r;
        }
    }
}

static void chunk_update_state(const chunk_t *c, float (*scaled)[HEAD], const float *state,
                               float *next)
{
    float last = c->g_sum[CHUNK - 1], keep = expf(last);
    for (int s = 0; s < CHUNK; s++) {
        float w = expf(fminf(last - c->g_sum[s], 0.0f));
        for (int i = 0; i < HEAD; i++) scaled[s][i] = w * c->k[s][i];
    }
    for (int i = 0; i < HEAD * HEAD; i++) next[i] = state ? keep * state[i] : 0.0f;
    product(HEAD, HEAD, CHUNK, scaled[0], 1, HEAD, c->delta[0], next, 1);
}

/*
 * T may be any length; the last chunk is then shorter.
 * start[seq] indexes `states` for the state before the sequence, or is -1 for zero. With
 * save_states the state before chunk i of a sequence is written at states[(seq * T / CHUNK + i)].
 */
void gdn_forward(int nseq, int T, int nk, int nv, int reverse, int strict, int save_states,
                 const int *start, const float *q, const float *k, const float *v, const float *g,
                 const float *beta, float *states, float *o, float *resid)
{
    gdn_shape sh = {T, nk, nv, reverse, strict};
    chunk_t *c = malloc(sizeof *c);
    float(*state_k)[HEAD] = malloc(sizeof(float) * CHUNK * HEAD),
    (*out)[HEAD] = malloc(sizeof(float) * CHUNK * HEAD);
    const long state_size = (long)HEAD * HEAD;
    int chunks = (T + CHUNK - 1) / CHUNK, group = nv / nk;
    for (int seq = 0; seq < nseq; seq++)
        for (int i = 0; i < chunks; i++)
            for (int head = 0; head < nv; head++) {
                int first = i * CHUNK;
                long slot = i ? (long)seq * chunks + i : start[seq];
                const float *state = slot < 0 ? 0 : states + (slot * nv + head) * state_size;
                if (head % group == 0) chunk_keys(c, &sh, seq, first, head / group, q, k);
                chunk_gates(c, &sh, seq, first, head, g, beta);
                if (state) product(CHUNK, HEAD, HEAD, c->k[0], HEAD, 1, state, state_k[0], 0);
                chunk_solve(c, &sh, seq, first, head, v, state ? state_k : 0, resid);
                if (state) {
                    product(CHUNK, HEAD, HEAD, c->q[0], HEAD, 1, state, out[0], 0);
                    for (int t = 0; t < CHUNK; t++) {
                        float scale = expf(c->read_sum[t]);
                        for (int j = 0; j < HEAD; j++) out[t][j] *= scale;
                    }
                }
                product(CHUNK, HEAD, CHUNK, c->read_qk[0], CHUNK, 1, c->delta[0], out[0],
                        state != 0);
                for (int t = 0; t < c->valid; t++)
                    memcpy(o + (scan_row(&sh, seq, first + t) * nv + head) * HEAD, out[t],
                           sizeof out[t]);
                if (save_states && i + 1 < chunks)
                    chunk_update_state(c, state_k, state,
                                       states +
                                           (((long)seq * chunks + i + 1) * nv + head) * state_size);
            }
    free(c);
    free(state_k);
    free(out);
}

typedef struct {
    float d_out[CHUNK][HEAD], d_delta[CHUNK][HEAD], x[CHUNK][HEAD], resid[CHUNK][HEAD];
    float delta_t[HEAD][CHUNK], e[CHUNK][CHUNK], f[CHUNK][CHUNK];
    float d_qk[CHUNK][CHUNK], d_kk[CHUNK][CHUNK], d_kk_both[CHUNK][CHUNK];
    float d_q[CHUNK][HEAD], d_k[CHUNK][HEAD];
    float state_out[CHUNK][HEAD], state_x[CHUNK][HEAD], grad_delta[CHUNK][HEAD],
        scaled[CHUNK][HEAD];
    float flipped[HEAD][HEAD];
    float d_sum[CHUNK]; /* gradient of G */
} chunk_grad;

/* Gradient through the output and the substitution: fills x (gradient of beta * resid's right
 * side). */
static void chunk_solve_backward(chunk_grad *b, const chunk_t *c, const float *d_state)
{
    product(CHUNK, HEAD, CHUNK, c->read_qk[0], 1, CHUNK, b->d_out[0], b->d_delta[0], 0);
    if (d_state) {
        float last = c->g_sum[CHUNK - 1];
        product(CHUNK, HEAD, HEAD, c->k[0], HEAD, 1, d_state, b->scaled[0], 0);
        for (int s = 0; s < CHUNK; s++) {
            float w = expf(fminf(last - c->g_sum[s], 0.0f));
            for (int j = 0; j < HEAD; j++) b->d_delta[s][j] += w * b->scaled[s][j];
        }
    }
    for (int s = CHUNK - 1; s >= 0; s--) {
        float *x = b->x[s];
        memcpy(x, b->d_delta[s], sizeof b->x[s]);
        for (int t = s + 1; t < CHUNK; t++) {
            float w = c->beta[t] * c->decay[t][s] * c->kk[t][s];
            for (int j = 0; j < HEAD; j++) x[j] -= w * b->x[t][j];
        }
    }
}

/* Gradients of q.k and k.k inside the chunk, of q and k through them, and their share of the
 * gradient of G. */
static void chunk_inner_backward(chunk_grad *b, const chunk_t *c, int strict)
{
    transpose(CHUNK, HEAD, c->delta[0], b->delta_t[0]);
    product(CHUNK, CHUNK, HEAD, b->d_out[0], HEAD, 1, b->delta_t[0], b->e[0], 0);
    product(CHUNK, CHUNK, HEAD, b->x[0], HEAD, 1, b->delta_t[0], b->f[0], 0);
    memset(b->d_sum, 0, sizeof b->d_sum);
    for (int t = 0; t < CHUNK; t++) {
        float row_read = 0, row_keys = 0;
        for (int s = 0; s < CHUNK; s++) {
            b->d_qk[t][s] = c->read[t][s] * b->e[t][s];
            b->d_kk[t][s] = -c->beta[t] * c->decay[t][s] * b->f[t][s];
            float read = b->d_qk[t][s] * c->qk[t][s], keys = b->d_kk[t][s] * c->kk[t][s];
            row_read += read;
            row_keys += keys;
            b->d_sum[s] -= read + keys;
        }
        b->d_sum[t] += row_keys;
        int read_at = strict ? t - 1 : t;
        if (read_at >= 0) b->d_sum[read_at] += row_read;
    }
    for (int t = 0; t < CHUNK; t++)
        for (int s = 0; s < CHUNK; s++) b->d_kk_both[t][s] = b->d_kk[t][s] + b->d_kk[s][t];
    product(CHUNK, HEAD, CHUNK, b->d_qk[0], CHUNK, 1, c->k[0], b->d_q[0], 0);
    product(CHUNK, HEAD, CHUNK, b->d_qk[0], 1, CHUNK, c->q[0], b->d_k[0], 0);
    product(CHUNK, HEAD, CHUNK, b->d_kk_both[0], CHUNK, 1, c->k[0], b->d_k[0], 1);
}

/* Gradients through the state before the chunk: of q, k and G. */
static void chunk_state_backward(chunk_grad *b, const chunk_t *c, int strict, const float *state)
{
    transpose(HEAD, HEAD, state, b->flipped[0]);
    product(CHUNK, HEAD, HEAD, b->d_out[0], HEAD, 1, b->flipped[0], b->state_out[0], 0);
    product(CHUNK, HEAD, HEAD, b->x[0], HEAD, 1, b->flipped[0], b->state_x[0], 0);
    for (int t = 0; t < CHUNK; t++) {
        float read = expf(c->read_sum[t]), write = c->beta[t] * expf(c->g_sum[t]);
        for (int i = 0; i < HEAD; i++) {
            b->d_q[t][i] += read * b->state_out[t][i];
            b->d_k[t][i] -= write * b->state_x[t][i];
        }
        b->d_sum[t] -= write * dot(c->k[t], b->state_x[t], HEAD);
        int read_at = strict ? t - 1 : t;
        if (read_at >= 0) b->d_sum[read_at] += read * dot(c->q[t], b->state_out[t], HEAD);
    }
}

/* Gradients through the state after the chunk (d_state is its gradient): of k and G. */
static void chunk_next_backward(chunk_grad *b, const chunk_t *c, const float *state,
                                const float *d_state)
{
    float last = c->g_sum[CHUNK - 1];
    transpose(HEAD, HEAD, d_state, b->flipped[0]);
    product(CHUNK, HEAD, HEAD, c->delta[0], HEAD, 1, b->flipped[0], b->grad_delta[0], 0);
    for (int s = 0; s < CHUNK; s++) {
        float w = expf(fminf(last - c->g_sum[s], 0.0f));
        for (int i = 0; i < HEAD; i++) b->d_k[s][i] += w * b->grad_delta[s][i];
        float share = w * dot(c->k[s], b->grad_delta[s], HEAD);
        b->d_sum[CHUNK - 1] += share;
        b->d_sum[s] -= share;
    }
    if (state) b->d_sum[CHUNK - 1] += expf(last) * dot(state, d_state, HEAD * HEAD);
}

/* d_state becomes the gradient of the state before the chunk. */
static void chunk_carry_backward(chunk_grad *b, const chunk_t *c, int has_next, float *d_state)
{
    float keep = has_next ? expf(c->g_sum[CHUNK - 1]) : 0.0f;
    for (int i = 0; i < HEAD * HEAD; i++) d_state[i] = has_next ? keep * d_state[i] : 0.0f;
    for (int t = 0; t < CHUNK; t++) {
        float read = expf(c->read_sum[t]);
        for (int i = 0; i < HEAD; i++) b->scaled[t][i] = read * c->q[t][i];
    }
    product(HEAD, HEAD, CHUNK, b->scaled[0], 1, HEAD, b->d_out[0], d_state, 1);
    for (int t = 0; t < CHUNK; t++) {
        float write = -c->beta[t] * expf(c->g_sum[t]);
        for (int i = 0; i < HEAD; i++) b->scaled[t][i] = write * c->k[t][i];
    }
    product(HEAD, HEAD, CHUNK, b->scaled[0], 1, HEAD, b->x[0], d_state, 1);
}

static void chunk_load_grad(chunk_grad *b, chunk_t *c, const gdn_shape *sh, long seq, int first,
                            int head, const float *d_o, const float *resid)
{
    memset(b->d_out, 0, sizeof b->d_out);
    memset(b->resid, 0, sizeof b->resid);
    memset(c->delta, 0, sizeof c->delta);
    for (int t = 0; t < c->valid; t++) {
        long at = (scan_row(sh, seq, first + t) * sh->nv + head) * HEAD;
        memcpy(b->d_out[t], d_o + at, sizeof b->d_out[t]);
        memcpy(b->resid[t], resid + at, sizeof b->resid[t]);
        for (int j = 0; j < HEAD; j++) c->delta[t][j] = c->beta[t] * resid[at + j];
    }
}

static void chunk_store_grad(const chunk_grad *b, const chunk_t *c, const gdn_shape *sh, long seq,
                             int first, int head, float *dq, float *dk, float *dv, float *dg,
                             float *dbeta)
{
    float sum = 0;
    int key_head = head / (sh->nv / sh->nk);
    for (int t = c->valid - 1; t >= 0; t--) {
        long row = scan_row(sh, seq, first + t), at_k = (row * sh->nk + key_head) * HEAD,
             at_v = (row * sh->nv + head) * HEAD;
        for (int i = 0; i < HEAD; i++) {
            dq[at_k + i] += b->d_q[t][i];
            dk[at_k + i] += b->d_k[t][i];
            dv[at_v + i] = c->beta[t] * b->x[t][i];
        }
        sum += b->d_sum[t];
        dg[row * sh->nv + head] = sum;
        dbeta[row * sh->nv + head] = dot(b->x[t], b->resid[t], HEAD);
    }
}

/*
 * dq and dk must be zeroed by the caller. d_states has the shape of `states`: on entry the
 * gradients that other readers of the saved states left there; the gradient of a sequence's start
 * state is added at start[seq]. With own_states = 0 (blocks, T == CHUNK) the sequence saved none
 * itself.
 */
void gdn_backward(int nseq, int T, int nk, int nv, int reverse, int strict, int own_states,
                  const int *start, const float *q, const float *k, const float *g,
                  const float *beta, const float *states, const float *resid, const float *d_o,
                  float *d_states, float *dq, float *dk, float *dv, float *dg, float *dbeta)
{
    gdn_shape sh = {T, nk, nv, reverse, strict};
    chunk_t *c = malloc(sizeof *c);
    chunk_grad *b = malloc(sizeof *b);
    const long state_size = (long)HEAD * HEAD;
    float *carry = malloc(sizeof(float) * nv * state_size);
    int chunks = (T + CHUNK - 1) / CHUNK, group = nv / nk;
    for (int seq = 0; seq < nseq; seq++)
        for (int i = chunks - 1; i >= 0; i--)
            for (int head = 0; head < nv; head++) {
                int first = i * CHUNK, has_next = own_states && i + 1 < chunks;
                long slot = i ? (long)seq * chunks + i : start[seq];
                const float *state = slot < 0 ? 0 : states + (slot * nv + head) * state_size;
                float *d_state = carry + head * state_size;
                if (head % group == 0) chunk_keys(c, &sh, seq, first, head / group, q, k);
                chunk_gates(c, &sh, seq, first, head, g, beta);
                chunk_load_grad(b, c, &sh, seq, first, head, d_o, resid);
                chunk_solve_backward(b, c, has_next ? d_state : 0);
                chunk_inner_backward(b, c, strict);
                if (state) chunk_state_backward(b, c, strict, state);
                if (has_next) chunk_next_backward(b, c, state, d_state);
                chunk_store_grad(b, c, &sh, seq, first, head, dq, dk, dv, dg, dbeta);
                if (!state) continue;
                chunk_carry_backward(b, c, has_next, d_state);
                float *shared = d_states + (slot * nv + head) * state_size;
                for (long e = 0; e < state_size; e++) shared[e] = d_state[e] += shared[e];
            }
    free(c);
    free(b);
    free(carry);
}
