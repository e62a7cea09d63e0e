#include <assert.h>
#include <math.h>

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

/* Scores of one chunk become exp(score - max); gives their sum and the maximum. */
static float chunk_weights(const fl_attn_args *a, const float *q, int64_t first, int n, float *p,
                           float *max)
{
    float top = 0.0f, lanes[16] = {0};
    for (int j = 0; j < n; j++) {
        float dot[16] = {0}, k[16];
        for (int d = 0; d < a->head_dim; d += 16) {
            load16(a->k, a->kv_type, (first + j) * a->kv_stride + d, k);
            fl_law_lanes_add(dot, q + d, k, 16);
        }
        p[j] = fl_law_lanes_sum(dot) * a->scale;
        top = j == 0 || p[j] > top ? p[j] : top;
    }
    for (int j = 0; j < n; j++) {
        p[j] = fl_law_exp(p[j] - top);
        lanes[j % 16] += p[j];
    }
    *max = top;
    return fl_law_lanes_sum(lanes);
}

static void one_head(const fl_attn_args *a, const float *q, float *out)
{
    float max = 0.0f, sum = 0.0f;
    for (int64_t first = 0; first < a->n_keys; first += FL_ATTN_CHUNK) {
        int64_t left = a->n_keys - first;
        int n = left < FL_ATTN_CHUNK ? (int)left : FL_ATTN_CHUNK;
        float p[FL_ATTN_CHUNK], m, l = chunk_weights(a, q, first, n, p, &m);
        float top = first == 0 || m > max ? m : max;
        float keep = first == 0 ? 0.0f : fl_law_exp(max - top), add = fl_law_exp(m - top);
        for (int d = 0; d < a->head_dim; d += 16) {
            float o[16] = {0}, v[16];
            for (int j = 0; j < n; j++) {
                load16(a->v, a->kv_type, (first + j) * a->kv_stride + d, v);
                for (int i = 0; i < 16; i++) o[i] = fmaf(p[j], v[i], o[i]);
            }
            for (int i = 0; i < 16; i++)
                out[d + i] = first == 0 ? o[i] : fmaf(add, o[i], keep * out[d + i]);
        }
        sum = first == 0 ? l : fmaf(add, l, keep * sum);
        max = top;
    }
    for (int d = 0; d < a->head_dim; d++) out[d] = out[d] / sum;
}

void fl_ref_attention(const fl_attn_args *a)
{
    assert(a->n_keys > 0 && a->head_dim % 16 == 0);
    assert(a->kv_type == FL_TYPE_F16 || a->kv_type == FL_TYPE_Q8_0 || a->kv_type == FL_TYPE_F32);
    assert(a->kv_type != FL_TYPE_Q8_0 || (a->head_dim % 32 == 0 && a->kv_stride % 32 == 0));
    for (int h = 0; h < a->n_q; h++)
        one_head(a, a->q + (int64_t)h * a->head_dim, a->out + (int64_t)h * a->head_dim);
}
