#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "quant/blocks.h"

static float load(const void *base, uint32_t type, int64_t at)
{
    if (type == FL_TYPE_F16) return fl_f16_to_f32(((const uint16_t *)base)[at]);
    if (type == FL_TYPE_F32) return ((const float *)base)[at];
    const fl_block_q8_0 *b = (const fl_block_q8_0 *)base + at / 32;
    return fl_f16_to_f32(b->d) * (float)b->q[at % 32];
}

/* 16 consecutive values of a cache row, from element `at` of the cache. */
static void load16(const void *base, uint32_t type, int64_t at, float out[16])
{
    for (int i = 0; i < 16; i++) out[i] = load(base, type, at + i);
}

bool fl_attn_fits(const fl_attn_args *a)
{
    for (int r = 0; r < a->n_rows; r++) {
        if (a->n_keys[r] < 1) return false;
    }
    if (a->kv_type == FL_TYPE_Q8_0) return a->head_dim % 32 == 0 && a->kv_stride % 32 == 0;
    return a->head_dim % 16 == 0 && (a->kv_type == FL_TYPE_F16 || a->kv_type == FL_TYPE_F32);
}

/* Scores of one chunk become exp(score - max); gives their sum and the maximum. */
static float chunk_weights(const fl_attn_args *a, const float *q, int kv, int64_t first, int n,
                           float *p, float *max)
{
    float top = -INFINITY, lanes[16] = {0};
    for (int j = 0; j < n; j++) {
        float dot[16] = {0}, k[16];
        for (int d = 0; d < a->head_dim; d += 16) {
            load16(a->k, a->kv_type, (first + j) * a->kv_stride + kv * a->head_dim + d, k);
            fl_law_lanes_add(dot, q + d, k, 16);
        }
        p[j] = fl_law_lanes_sum(dot) * a->scale;
        top = p[j] > top ? p[j] : top;
    }
    for (int j = 0; j < n; j++) {
        p[j] = fl_law_exp(p[j] - top);
        lanes[j % 16] += p[j];
    }
    *max = top;
    return fl_law_lanes_sum(lanes);
}

/* Sixteen dimensions of the chunk's weighted values. */
static void weighted(const fl_attn_args *a, const float *p, int kv, int64_t first, int n, int d,
                     float o[16])
{
    float v[16];
    memset(o, 0, 16 * sizeof *o);
    for (int j = 0; j < n; j++) {
        load16(a->v, a->kv_type, (first + j) * a->kv_stride + kv * a->head_dim + d, v);
        for (int i = 0; i < 16; i++) o[i] = fmaf(p[j], v[i], o[i]);
    }
}

static int keys_in_chunk(int64_t n_keys, int64_t first)
{
    const int64_t left = n_keys - first;
    return left < 0 ? 0 : left < FL_ATTN_CHUNK ? (int)left : FL_ATTN_CHUNK;
}

static void one_head(const fl_attn_args *a, const float *q, int kv, int64_t n_keys, float *out)
{
    float max = 0.0f, sum = 0.0f;
    for (int64_t first = 0; first < n_keys; first += FL_ATTN_CHUNK) {
        const int n = keys_in_chunk(n_keys, first);
        float p[FL_ATTN_CHUNK], m, l = chunk_weights(a, q, kv, first, n, p, &m);
        float top = first == 0 || m > max ? m : max;
        float keep = first == 0 ? 0.0f : fl_law_exp(max - top), add = fl_law_exp(m - top);
        for (int d = 0; d < a->head_dim; d += 16) {
            float o[16];
            weighted(a, p, kv, first, n, d, o);
            for (int i = 0; i < 16; i++)
                out[d + i] = first == 0 ? o[i] : fmaf(add, o[i], keep * out[d + i]);
        }
        sum = first == 0 ? l : fmaf(add, l, keep * sum);
        max = top;
    }
    for (int d = 0; d < a->head_dim; d++) out[d] = out[d] / sum;
}

void fl_ref_attention(const fl_attn_args *a, float *out, int64_t out_stride)
{
    assert(fl_attn_fits(a));
    for (int r = 0; r < a->n_rows; r++) {
        for (int h = 0; h < a->n_kv * a->n_q; h++) {
            const int64_t at = (int64_t)h * a->head_dim;
            one_head(a, a->q + r * a->q_stride + at, h / a->n_q, a->n_keys[r],
                     out + r * out_stride + at);
        }
    }
}

void fl_ref_attention_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to)
{
    assert(fl_attn_fits(a));
    const int64_t first = chunk * FL_ATTN_CHUNK;
    for (int r = 0; r < a->n_rows; r++) {
        for (int h = 0; h < a->n_kv * a->n_q; h++) {
            const int64_t at = r * to->ld + h;
            const float *q = a->q + r * a->q_stride + (int64_t)h * a->head_dim;
            const int n = keys_in_chunk(a->n_keys[r], first), kv = h / a->n_q;
            float p[FL_ATTN_CHUNK];
            to->sum[at] = n == 0 ? 0.0f : chunk_weights(a, q, kv, first, n, p, &to->max[at]);
            for (int d = 0; n > 0 && d < a->head_dim; d += 16)
                weighted(a, p, kv, first, n, d, to->out + at * a->head_dim + d);
        }
    }
}

static void join_head(const fl_attn_part *run, const fl_attn_part *part, int h, int head_dim)
{
    float *out = run->out + (int64_t)h * head_dim;
    const float *o = part->out + (int64_t)h * head_dim, max = run->max[h], m = part->max[h];
    if (part->sum[h] == 0.0f) return;
    if (run->sum[h] == 0.0f) {
        run->max[h] = m;
        run->sum[h] = part->sum[h];
        memcpy(out, o, (size_t)head_dim * sizeof *out);
        return;
    }
    const float top = m > max ? m : max, keep = fl_law_exp(max - top), add = fl_law_exp(m - top);
    for (int d = 0; d < head_dim; d++) out[d] = fmaf(add, o[d], keep * out[d]);
    run->sum[h] = fmaf(add, part->sum[h], keep * run->sum[h]);
    run->max[h] = top;
}

void fl_ref_attention_join(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                           int head_dim)
{
    for (int h = 0; h < n_heads; h++) join_head(run, part, h, head_dim);
}
