#include "quant/dequant.h"

#include <math.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/format.h"

/* Products are grouped as ggml groups them (scale times sub-scale first, no fused operation):
 * that is what makes the results equal to the last bit. */

const int8_t fl_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
const int8_t fl_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float fl_e8m0_half_to_f32(uint8_t e)
{
    union {
        uint32_t u;
        float f;
    } x = {e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23};
    return x.f;
}

float fl_ue4m3_half_to_f32(uint8_t x)
{
    if (x == 0 || x == 0x7f) return 0.0f;
    int e = (x >> 3) & 15, m = x & 7;
    /* Each step is exact: at most four significant bits. */
    return e ? ldexpf(8.0f + (float)m, e - 11) : ldexpf((float)m, -10);
}

void fl_dequantize_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

void fl_dequantize_f16(const void *src, float *dst, int64_t n)
{
    const uint16_t *s = src;
    for (int64_t i = 0; i < n; i++) dst[i] = fl_f16_to_f32(s[i]);
}

void fl_dequantize_bf16(const void *src, float *dst, int64_t n)
{
    const uint16_t *s = src;
    for (int64_t i = 0; i < n; i++) dst[i] = fl_bf16_to_f32(s[i]);
}

void fl_dequantize_q4_0(const void *src, float *dst, int64_t n)
{
    const fl_block_q4_0 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((b->q[j] & 15) - 8) * d;
            dst[j + 16] = (float)((b->q[j] >> 4) - 8) * d;
        }
    }
}

void fl_dequantize_q4_1(const void *src, float *dst, int64_t n)
{
    const fl_block_q4_1 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d), m = fl_f16_to_f32(b->m);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(b->q[j] & 15) * d + m;
            dst[j + 16] = (float)(b->q[j] >> 4) * d + m;
        }
    }
}

static uint32_t load_u32(const uint8_t p[4])
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void fl_dequantize_q5_0(const void *src, float *dst, int64_t n)
{
    const fl_block_q5_0 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d);
        uint32_t qh = load_u32(b->qh);
        for (int j = 0; j < 16; j++) {
            int lo = (b->q[j] & 15) | (int)((qh >> j) & 1) << 4;
            int hi = (b->q[j] >> 4) | (int)((qh >> (j + 16)) & 1) << 4;
            dst[j] = (float)(lo - 16) * d;
            dst[j + 16] = (float)(hi - 16) * d;
        }
    }
}

void fl_dequantize_q5_1(const void *src, float *dst, int64_t n)
{
    const fl_block_q5_1 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d), m = fl_f16_to_f32(b->m);
        uint32_t qh = load_u32(b->qh);
        for (int j = 0; j < 16; j++) {
            int lo = (b->q[j] & 15) | (int)((qh >> j) & 1) << 4;
            int hi = (b->q[j] >> 4) | (int)((qh >> (j + 16)) & 1) << 4;
            dst[j] = (float)lo * d + m;
            dst[j + 16] = (float)hi * d + m;
        }
    }
}

void fl_dequantize_q8_0(const void *src, float *dst, int64_t n)
{
    const fl_block_q8_0 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d);
        for (int j = 0; j < 32; j++) dst[j] = (float)b->q[j] * d;
    }
}

void fl_dequantize_q2_k(const void *src, float *dst, int64_t n)
{
    const fl_block_q2_k *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d), dmin = fl_f16_to_f32(b->dmin);
        for (int k = 0; k < 16; k++) { /* 16 elements, from plane (k % 8) / 2 of half k / 8 */
            const uint8_t *q = b->q + 32 * (k / 8) + 16 * (k & 1);
            int shift = 2 * ((k % 8) / 2);
            float dl = d * (float)(b->sc[k] & 15), ml = dmin * (float)(b->sc[k] >> 4);
            for (int l = 0; l < 16; l++) *dst++ = dl * (float)((q[l] >> shift) & 3) - ml;
        }
    }
}

void fl_dequantize_q3_k(const void *src, float *dst, int64_t n)
{
    const fl_block_q3_k *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d);
        for (int k = 0; k < 16; k++) {
            const uint8_t *q = b->q + 32 * (k / 8) + 16 * (k & 1), *hm = b->hm + 16 * (k & 1);
            int plane = (k % 8) / 2, bit = k / 2;
            float dl = d * (float)fl_q3_scale(b->sc, k);
            for (int l = 0; l < 16; l++) {
                int v = ((q[l] >> (2 * plane)) & 3) - ((hm[l] >> bit) & 1 ? 0 : 4);
                *dst++ = dl * (float)v;
            }
        }
    }
}

void fl_dequantize_q4_k(const void *src, float *dst, int64_t n)
{
    const fl_block_q4_k *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d), dmin = fl_f16_to_f32(b->dmin);
        for (int k = 0; k < 8; k++) {
            const uint8_t *q = b->q + 32 * (k / 2);
            int shift = 4 * (k & 1);
            float dl = d * (float)fl_k_scale(b->sc, k), ml = dmin * (float)fl_k_min(b->sc, k);
            for (int l = 0; l < 32; l++) *dst++ = dl * (float)((q[l] >> shift) & 15) - ml;
        }
    }
}

void fl_dequantize_q5_k(const void *src, float *dst, int64_t n)
{
    const fl_block_q5_k *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d), dmin = fl_f16_to_f32(b->dmin);
        for (int k = 0; k < 8; k++) {
            const uint8_t *q = b->q + 32 * (k / 2);
            int shift = 4 * (k & 1);
            float dl = d * (float)fl_k_scale(b->sc, k), ml = dmin * (float)fl_k_min(b->sc, k);
            for (int l = 0; l < 32; l++) {
                int v = ((q[l] >> shift) & 15) | ((b->qh[l] >> k) & 1) << 4;
                *dst++ = dl * (float)v - ml;
            }
        }
    }
}

void fl_dequantize_q6_k(const void *src, float *dst, int64_t n)
{
    const fl_block_q6_k *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d);
        for (int k = 0; k < 16; k++) {
            int half = k / 8, g = (k % 8) / 2, l0 = 16 * (k & 1);
            const uint8_t *ql = b->ql + 64 * half + 32 * (g & 1) + l0;
            const uint8_t *qh = b->qh + 32 * half + l0;
            float dl = d * (float)b->sc[k];
            for (int l = 0; l < 16; l++) {
                int lo = g < 2 ? ql[l] & 15 : ql[l] >> 4;
                *dst++ = dl * (float)((lo | ((qh[l] >> (2 * g)) & 3) << 4) - 32);
            }
        }
    }
}

void fl_dequantize_iq4_nl(const void *src, float *dst, int64_t n)
{
    const fl_block_iq4_nl *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)fl_iq4_values[b->q[j] & 15];
            dst[j + 16] = d * (float)fl_iq4_values[b->q[j] >> 4];
        }
    }
}

void fl_dequantize_iq4_xs(const void *src, float *dst, int64_t n)
{
    const fl_block_iq4_xs *b = src;
    for (int64_t i = 0; i < n / 256; i++, b++) {
        float d = fl_f16_to_f32(b->d);
        for (int k = 0; k < 8; k++, dst += 32) {
            const uint8_t *q = b->q + 16 * k;
            float dl = d * (float)fl_iq4_xs_scale(b, k);
            for (int j = 0; j < 16; j++) {
                dst[j] = dl * (float)fl_iq4_values[q[j] & 15];
                dst[j + 16] = dl * (float)fl_iq4_values[q[j] >> 4];
            }
        }
    }
}

void fl_dequantize_mxfp4(const void *src, float *dst, int64_t n)
{
    const fl_block_mxfp4 *b = src;
    for (int64_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fl_e8m0_half_to_f32(b->e);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)fl_fp4_values[b->q[j] & 15] * d;
            dst[j + 16] = (float)fl_fp4_values[b->q[j] >> 4] * d;
        }
    }
}

void fl_dequantize_nvfp4(const void *src, float *dst, int64_t n)
{
    const fl_block_nvfp4 *b = src;
    for (int64_t i = 0; i < n / 64; i++, b++) {
        for (int s = 0; s < 4; s++, dst += 16) {
            float d = fl_ue4m3_half_to_f32(b->d[s]);
            for (int j = 0; j < 8; j++) {
                uint8_t y = b->q[8 * s + j];
                dst[j] = (float)fl_fp4_values[y & 15] * d;
                dst[j + 8] = (float)fl_fp4_values[y >> 4] * d;
            }
        }
    }
}
