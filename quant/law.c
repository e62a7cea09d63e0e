#include "quant/law.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/format.h"

bool fl_law_option_h = true;

static uint32_t magnitude_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x7fffffff;
}

static float largest(const float *v, int n)
{
    float m = 0.0f;
    for (int i = 0; i < n; i++) m = fabsf(v[i]) > m ? fabsf(v[i]) : m;
    return m;
}

static void quantize_block(const float *v, fl_act *out)
{
    float m = largest(v, 256);
    bool zero = m < 0x1p-121f; /* 127 / m would overflow */
    float id = zero ? 0.0f : 127.0f / m;
    out->scale = zero ? 0.0f : m / 127.0f * (fl_law_option_h ? 0.125f : 1.0f);
    out->unused = 0;
    for (int k = 0; k < 8; k++, v += 32) {
        int p = 1;
        float up = 1.0f;
        if (fl_law_option_h) {
            float mk = largest(v, 32);
            while (p < 8 && mk > m * 0.125f * (float)p) p *= 2;
            up = 8.0f / (float)p;
        }
        int sum = 0;
        for (int i = 0; i < 32; i++) {
            int q = (int)rintf(v[i] * id * up);
            out->x[32 * k + i] = (int8_t)q;
            sum += q;
        }
        out->p[k] = (int16_t)p;
        out->sum[k] = (int16_t)(sum * p);
    }
}

bool fl_law_quantize(const float *v, int64_t cols, fl_act *out)
{
    assert(cols % 256 == 0);
    for (int64_t i = 0; i < cols; i++) {
        if (magnitude_bits(v[i]) >= 0x7f800000) return false;
    }
    for (int64_t b = 0; b < cols / 256; b++) quantize_block(v + 256 * b, out + b);
    return true;
}

/* sum of w x over n values of one activation sub-block. */
static int32_t dot_int(const int8_t *w, const int8_t *x, int n)
{
    int32_t s = 0;
    for (int i = 0; i < n; i++) s += (int32_t)w[i] * x[i];
    return s;
}

/* The levels of 256 values as small integers, and the integer scale of each 16 of them. */
static void levels_s(uint32_t type, const void *w, int8_t q[256], int s[16], float *d)
{
    if (type == FL_TYPE_Q6_K) {
        const fl_block_q6_k *b = w;
        *d = fl_f16_to_f32(b->d);
        for (int i = 0; i < 256; i++) {
            int n = i / 128, g = (i % 128) / 32, l = i % 32, y = b->ql[64 * n + 32 * (g & 1) + l];
            int lo = g < 2 ? y & 15 : y >> 4;
            q[i] = (int8_t)((lo | ((b->qh[32 * n + l] >> (2 * g)) & 3) << 4) - 32);
        }
        for (int k = 0; k < 16; k++) s[k] = b->sc[k];
    } else if (type == FL_TYPE_Q3_K) {
        const fl_block_q3_k *b = w;
        *d = fl_f16_to_f32(b->d);
        for (int i = 0; i < 256; i++) {
            int n = i / 128, j = (i % 128) / 32, l = i % 32;
            int lo = (b->q[32 * n + l] >> (2 * j)) & 3;
            q[i] = (int8_t)(lo - ((b->hm[l] >> (4 * n + j)) & 1 ? 0 : 4));
        }
        for (int k = 0; k < 16; k++) s[k] = fl_q3_scale(b->sc, k);
    } else {
        const fl_block_iq4_xs *b = w;
        assert(type == FL_TYPE_IQ4_XS);
        *d = fl_f16_to_f32(b->d);
        for (int i = 0; i < 256; i++) {
            int k = i / 32, j = i % 32, y = b->q[16 * k + j % 16];
            q[i] = fl_iq4_values[j < 16 ? y & 15 : y >> 4];
        }
        for (int k = 0; k < 16; k++) s[k] = fl_iq4_xs_scale(b, k / 2);
    }
}

static float dot_s(uint32_t type, const uint8_t *w, const fl_act *x, int64_t n_blocks)
{
    int64_t bytes = fl_type_get(type)->block_bytes;
    float acc = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
        int8_t q[256];
        int s[16];
        float d;
        levels_s(type, w + b * bytes, q, s, &d);
        int32_t sum = 0;
        for (int k = 0; k < 16; k++)
            sum += s[k] * x[b].p[k / 2] * dot_int(q + 16 * k, x[b].x + 16 * k, 16);
        acc = fmaf(x[b].scale, d * (float)sum, acc);
    }
    return acc;
}

/* One super-block of Q4_K or Q5_K, whose fields have the same meaning. */
typedef struct k_block {
    float d, dmin;
    const uint8_t *sc, *q;
    const uint8_t *qh; /* NULL for Q4_K */
} k_block;

static k_block k_block_at(uint32_t type, const void *w, int64_t b)
{
    if (type == FL_TYPE_Q5_K) {
        const fl_block_q5_k *v = (const fl_block_q5_k *)w + b;
        return (k_block){fl_f16_to_f32(v->d), fl_f16_to_f32(v->dmin), v->sc, v->q, v->qh};
    }
    const fl_block_q4_k *v = (const fl_block_q4_k *)w + b;
    return (k_block){fl_f16_to_f32(v->d), fl_f16_to_f32(v->dmin), v->sc, v->q, NULL};
}

static float dot_k(uint32_t type, const void *w, const fl_act *x, int64_t n_blocks)
{
    float acc = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
        k_block v = k_block_at(type, w, b);
        int32_t sum = 0, min = 0;
        for (int k = 0; k < 8; k++) {
            int8_t q[32];
            for (int l = 0; l < 32; l++) {
                int y = (v.q[32 * (k / 2) + l] >> (4 * (k & 1))) & 15;
                q[l] = (int8_t)(v.qh ? y | ((v.qh[l] >> k) & 1) << 4 : y);
            }
            sum += fl_k_scale(v.sc, k) * x[b].p[k] * dot_int(q, x[b].x + 32 * k, 32);
            min += fl_k_min(v.sc, k) * x[b].sum[k];
        }
        float u = v.dmin * (float)min;
        acc = fmaf(x[b].scale, fmaf(v.d, (float)sum, -u), acc);
    }
    return acc;
}

/* Levels and scale of block i of a row of 32-element blocks (NVFP4: of 16 elements). */
static void levels_32(uint32_t type, const uint8_t *w, int64_t i, int8_t q[32], float *d)
{
    if (type == FL_TYPE_Q8_0) {
        const fl_block_q8_0 *b = (const fl_block_q8_0 *)w + i;
        *d = fl_f16_to_f32(b->d);
        memcpy(q, b->q, 32);
    } else if (type == FL_TYPE_NVFP4) {
        const fl_block_nvfp4 *b = (const fl_block_nvfp4 *)w + i / 4;
        *d = fl_ue4m3_half_to_f32(b->d[i % 4]);
        for (int j = 0; j < 8; j++) {
            q[j] = fl_fp4_values[b->q[8 * (i % 4) + j] & 15];
            q[j + 8] = fl_fp4_values[b->q[8 * (i % 4) + j] >> 4];
        }
    } else if (type == FL_TYPE_MXFP4) {
        const fl_block_mxfp4 *b = (const fl_block_mxfp4 *)w + i;
        *d = fl_e8m0_half_to_f32(b->e);
        for (int j = 0; j < 16; j++) {
            q[j] = fl_fp4_values[b->q[j] & 15];
            q[j + 16] = fl_fp4_values[b->q[j] >> 4];
        }
    } else { /* Q4_0 and IQ4_NL differ in the meaning of a nibble only */
        const fl_block_q4_0 *b = (const fl_block_q4_0 *)w + i;
        assert(type == FL_TYPE_Q4_0 || type == FL_TYPE_IQ4_NL);
        *d = fl_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            int lo = b->q[j] & 15, hi = b->q[j] >> 4;
            q[j] = type == FL_TYPE_Q4_0 ? (int8_t)(lo - 8) : fl_iq4_values[lo];
            q[j + 16] = type == FL_TYPE_Q4_0 ? (int8_t)(hi - 8) : fl_iq4_values[hi];
        }
    }
}

static float dot_32(uint32_t type, const uint8_t *w, const fl_act *x, int64_t cols)
{
    int block = type == FL_TYPE_NVFP4 ? 16 : 32;
    float acc = 0.0f;
    for (int64_t i = 0; i < cols / block; i++) {
        const fl_act *a = x + i * block / 256;
        int at = (int)(i * block % 256);
        int8_t q[32];
        float d;
        levels_32(type, w, i, q, &d);
        int32_t sum = a->p[at / 32] * dot_int(q, a->x + at, block);
        acc = fmaf(a->scale, d * (float)sum, acc);
    }
    return acc;
}

float fl_law_dot(uint32_t type, const void *w, const fl_act *x, int64_t cols)
{
    const fl_type_info *info = fl_type_get(type);
    assert(info && info->law > FL_LAW_FLOAT && cols % 256 == 0);
    if (info->law == FL_LAW_K) return dot_k(type, w, x, cols / 256);
    if (info->law == FL_LAW_S) return dot_s(type, w, x, cols / 256);
    return dot_32(type, w, x, cols);
}

float fl_law_exp(float x)
{
    if (isnan(x)) return x; /* a gate must not turn a broken value into a good one */
    x = x > 87.0f ? 87.0f : x;
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 0x1.715476p+0f); /* 1 / ln 2 */
    float r = fmaf(n, -0x1.63p-1f, x);   /* ln 2 in two parts, the first with 9 bits: exact */
    r = fmaf(n, 0x1.bd0106p-13f, r);
    /* Minimax polynomial on |r| <= ln(2) / 2, relative error 3.1e-9. */
    float p = 0x1.6a23d0p-10f;
    p = fmaf(p, r, 0x1.123a20p-7f);
    p = fmaf(p, r, 0x1.5558f2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float s;
    memcpy(&s, &bits, sizeof s);
    return p * s;
}

float fl_law_log1p(float t)
{
    /* log(1 + t) = 2 atanh(u), u = t / (2 + t) <= 1/3: the series in u^2 ends at u^15. */
    float u = t / (2.0f + t), v = u * u;
    float p = 0x1.111112p-4f; /* 1/15 */
    p = fmaf(p, v, 0x1.3b13b2p-4f);
    p = fmaf(p, v, 0x1.745d18p-4f);
    p = fmaf(p, v, 0x1.c71c72p-4f);
    p = fmaf(p, v, 0x1.24924ap-3f);
    p = fmaf(p, v, 0x1.99999ap-3f);
    p = fmaf(p, v, 0x1.555556p-2f);
    float w = 2.0f * u;
    return fmaf(w, p * v, w);
}

float fl_law_softplus(float x)
{
    float l = fl_law_log1p(fl_law_exp(-fabsf(x)));
    return (x > 0.0f ? x : 0.0f) + l;
}

float fl_law_sigmoid(float x) { return 1.0f / (1.0f + fl_law_exp(-x)); }

float fl_law_silu(float x) { return x / (1.0f + fl_law_exp(-x)); }

float fl_law_silu_mul(float g, float u) { return g / (1.0f + fl_law_exp(-g)) * u; }

void fl_law_lanes_add(float lanes[16], const float *w, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) lanes[i % 16] = fmaf(w[i], x[i], lanes[i % 16]);
}

float fl_law_lanes_sum(const float lanes[16])
{
    float s[8];
    for (int j = 0; j < 8; j++) s[j] = lanes[j] + lanes[j + 8];
    for (int half = 4; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    }
    return s[0];
}

float fl_law_float_dot(const float *w, const float *x, int64_t n)
{
    float lanes[16] = {0};
    fl_law_lanes_add(lanes, w, x, n);
    return fl_law_lanes_sum(lanes);
}

float fl_law_sumsq(const float *x, int64_t n) { return fl_law_float_dot(x, x, n); }
