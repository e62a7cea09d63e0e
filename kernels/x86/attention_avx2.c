#include <assert.h>

#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

/* Four query heads share every key and value that is loaded; a chunk of FL_ATTN_CHUNK keys is
 * finished for them before the next one begins. */
enum { HEADS = 4 };

typedef struct heads {
    const float *q[HEADS]; /* heads past the last one repeat it and are not stored */
    float *out[HEADS];
    float max[HEADS], sum[HEADS];
    int n;
    float p[HEADS][FL_ATTN_CHUNK];
} heads;

/* A product of a half and a byte is exact: the values are those that the block stands for. */
FL_INLINE void load16_q8_0(const uint8_t *block, int from, __m256 v[2])
{
    const __m256 d = _mm256_set1_ps(fl_half_at(block));
    const __m128i q = fl_load128(block + 2 + from);
    v[0] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
    v[1] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8))));
}

/* 16 consecutive values of a cache row, from element `at` of the cache. */
FL_INLINE void load16(const void *base, uint32_t type, int64_t at, __m256 v[2])
{
    if (type == FL_TYPE_Q8_0) {
        load16_q8_0((const uint8_t *)base + (at >> 5) * 34, (int)(at & 31), v);
    } else if (type == FL_TYPE_F16) {
        __m256i h = fl_load256((const uint16_t *)base + at);
        v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
        v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    } else {
        v[0] = _mm256_loadu_ps((const float *)base + at);
        v[1] = _mm256_loadu_ps((const float *)base + at + 8);
    }
}

FL_INLINE void scores(const fl_attn_args *a, uint32_t type, heads *h, int64_t first, int n)
{
    for (int j = 0; j < n; j++) {
        __m256 x[HEADS], y[HEADS];
        for (int i = 0; i < HEADS; i++) x[i] = y[i] = _mm256_setzero_ps();
        for (int d = 0; d < a->head_dim; d += 16) {
            __m256 k[2];
            load16(a->k, type, (first + j) * a->kv_stride + d, k);
            for (int i = 0; i < HEADS; i++) {
                x[i] = _mm256_fmadd_ps(_mm256_loadu_ps(h->q[i] + d), k[0], x[i]);
                y[i] = _mm256_fmadd_ps(_mm256_loadu_ps(h->q[i] + d + 8), k[1], y[i]);
            }
        }
        float s[HEADS];
        _mm_storeu_ps(s, _mm_mul_ps(fl_lanes_sum4(x, y), _mm_set1_ps(a->scale)));
        for (int i = 0; i < HEADS; i++) h->p[i][j] = s[i];
    }
}

/* p becomes exp(p - max); gives the sum. */
static float soften(float *p, int n, float *max)
{
    float top = p[0], lanes[16] = {0};
    for (int j = 1; j < n; j++) top = p[j] > top ? p[j] : top;
    *max = top;
    __m256 a = _mm256_setzero_ps(), b = a, m = _mm256_set1_ps(top);
    int j = 0;
    for (; j + 16 <= n; j += 16) {
        __m256 u = fl_exp8(_mm256_sub_ps(_mm256_loadu_ps(p + j), m));
        __m256 v = fl_exp8(_mm256_sub_ps(_mm256_loadu_ps(p + j + 8), m));
        _mm256_storeu_ps(p + j, u);
        _mm256_storeu_ps(p + j + 8, v);
        a = _mm256_add_ps(a, u);
        b = _mm256_add_ps(b, v);
    }
    _mm256_storeu_ps(lanes, a);
    _mm256_storeu_ps(lanes + 8, b);
    for (int i = 0; j < n; j++, i++) {
        p[j] = fl_law_exp(p[j] - top);
        lanes[i] += p[j];
    }
    return fl_lanes_sum(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
}

/* Weighted values of the chunk, and the combination with the chunks before. */
FL_INLINE void mix_values(const fl_attn_args *a, uint32_t type, const heads *h, int64_t first,
                          int n, const float keep[HEADS], const float add[HEADS])
{
    for (int d = 0; d < a->head_dim; d += 16) {
        __m256 o[HEADS][2];
        for (int i = 0; i < HEADS; i++) o[i][0] = o[i][1] = _mm256_setzero_ps();
        for (int j = 0; j < n; j++) {
            __m256 v[2];
            load16(a->v, type, (first + j) * a->kv_stride + d, v);
            for (int i = 0; i < HEADS; i++) {
                __m256 p = _mm256_broadcast_ss(&h->p[i][j]);
                o[i][0] = _mm256_fmadd_ps(p, v[0], o[i][0]);
                o[i][1] = _mm256_fmadd_ps(p, v[1], o[i][1]);
            }
        }
        for (int i = 0; i < h->n; i++) {
            for (int k = 0; k < 2; k++) {
                float *out = h->out[i] + d + 8 * k;
                __m256 t = o[i][k];
                if (first) {
                    __m256 old = _mm256_mul_ps(_mm256_set1_ps(keep[i]), _mm256_loadu_ps(out));
                    t = _mm256_fmadd_ps(_mm256_set1_ps(add[i]), t, old);
                }
                _mm256_storeu_ps(out, t);
            }
        }
    }
}

FL_INLINE void chunk(const fl_attn_args *a, uint32_t type, heads *h, int64_t first, int n)
{
    float keep[HEADS] = {0}, add[HEADS] = {0};
    scores(a, type, h, first, n);
    for (int i = 0; i < h->n; i++) {
        float m, l = soften(h->p[i], n, &m);
        if (first == 0) {
            h->max[i] = m;
            h->sum[i] = l;
            continue;
        }
        float top = m > h->max[i] ? m : h->max[i];
        keep[i] = fl_law_exp(h->max[i] - top);
        add[i] = fl_law_exp(m - top);
        h->sum[i] = fmaf(add[i], l, keep[i] * h->sum[i]);
        h->max[i] = top;
    }
    mix_values(a, type, h, first, n, keep, add);
}

FL_INLINE void run(const fl_attn_args *a, uint32_t type, heads *h)
{
    for (int64_t first = 0; first < a->n_keys; first += FL_ATTN_CHUNK) {
        int64_t left = a->n_keys - first;
        chunk(a, type, h, first, left < FL_ATTN_CHUNK ? (int)left : FL_ATTN_CHUNK);
    }
    for (int i = 0; i < h->n; i++) {
        __m256 s = _mm256_set1_ps(h->sum[i]);
        for (int d = 0; d < a->head_dim; d += 8) {
            float *out = h->out[i] + d;
            _mm256_storeu_ps(out, _mm256_div_ps(_mm256_loadu_ps(out), s));
        }
    }
}

void fl_avx2_attention(const fl_attn_args *a)
{
    assert(a->n_keys > 0 && a->head_dim % 16 == 0);
    for (int h0 = 0; h0 < a->n_q; h0 += HEADS) {
        heads h;
        h.n = a->n_q - h0 < HEADS ? a->n_q - h0 : HEADS;
        for (int i = 0; i < HEADS; i++) {
            int64_t at = (int64_t)(h0 + (i < h.n ? i : h.n - 1)) * a->head_dim;
            h.q[i] = a->q + at;
            h.out[i] = a->out + at;
        }
        if (a->kv_type == FL_TYPE_F16)
            run(a, FL_TYPE_F16, &h);
        else if (a->kv_type == FL_TYPE_Q8_0)
            run(a, FL_TYPE_Q8_0, &h);
        else
            run(a, FL_TYPE_F32, &h);
    }
}
