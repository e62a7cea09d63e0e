#include "quant/round.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "quant/format.h"
#include "quant/grid.h"

enum { SUPER = 256, N_SUB = 8 };

void fl_round_weights(const float *x, float *w, int n)
{
    /* Sums run over 8 lanes and a fixed tree: the same bits for vectors of any width. */
    float a[8] = {0}, sq = 0.0f;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) a[j] += x[i + j] * x[i + j];
    for (; i < n; i++) sq += x[i] * x[i];
    sq += ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    const float rms = sqrtf(sq / (float)n);
    for (i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

int64_t fl_round_nonfinite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

/* ---- from a fit to bytes ---- */

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_scales(const fl_fit *b, uint8_t *o)
{
    uint8_t *sc = o + 4;
    put_u16(o, b->d_bits);
    put_u16(o + 2, b->dmin_bits);
    for (int k = 0; k < 4; k++) {
        sc[k] = (uint8_t)(b->s[k] | ((b->s[k + 4] >> 4) << 6));
        sc[k + 4] = (uint8_t)(b->m[k] | ((b->m[k + 4] >> 4) << 6));
        sc[k + 8] = (uint8_t)((b->s[k + 4] & 15) | ((b->m[k + 4] & 15) << 4));
    }
}

static void pack_q4_k(const fl_fit *b, uint8_t *o)
{
    put_scales(b, o);
    for (int k = 0; k < N_SUB; k += 2)
        for (int j = 0; j < 32; j++)
            o[16 + 16 * k + j] = (uint8_t)((int)b->q[k * 32 + j] | (int)b->q[k * 32 + 32 + j] << 4);
}

static void pack_q5_k(const fl_fit *b, uint8_t *o)
{
    put_scales(b, o);
    memset(o + 16, 0, 32);
    for (int k = 0; k < N_SUB; k += 2) {
        for (int j = 0; j < 32; j++) {
            const int a = (int)b->q[k * 32 + j], c = (int)b->q[k * 32 + 32 + j];
            o[48 + 16 * k + j] = (uint8_t)((a & 15) | (c & 15) << 4);
            o[16 + j] |= (uint8_t)((a >> 4) << k | (c >> 4) << (k + 1));
        }
    }
}

static void pack_q6_k(const fl_fit *b, uint8_t *o)
{
    for (int h = 0; h < 2; h++) {
        for (int j = 0; j < 32; j++) {
            int v[4];
            for (int g = 0; g < 4; g++) v[g] = (int)b->q[128 * h + 32 * g + j] + 32;
            o[64 * h + j] = (uint8_t)((v[0] & 15) | (v[2] & 15) << 4);
            o[64 * h + 32 + j] = (uint8_t)((v[1] & 15) | (v[3] & 15) << 4);
            o[128 + 32 * h + j] =
                (uint8_t)(v[0] >> 4 | (v[1] >> 4) << 2 | (v[2] >> 4) << 4 | (v[3] >> 4) << 6);
        }
    }
    for (int k = 0; k < 16; k++) o[192 + k] = (uint8_t)(int8_t)b->s[k];
    put_u16(o + 208, b->d_bits);
}

static int level_index(float level)
{
    int i = 0;
    while (i < 15 && fl_grid_levels[i] < level) i++;
    return i;
}

static void pack_iq4_xs(const fl_fit *b, uint8_t *o)
{
    unsigned high = 0;
    put_u16(o, b->d_bits);
    memset(o + 4, 0, 4);
    for (int k = 0; k < N_SUB; k++) {
        const unsigned s = (unsigned)(b->s[k] + 32);
        o[4 + k / 2] |= (uint8_t)((s & 15) << 4 * (k % 2));
        high |= (s >> 4) << 2 * k;
        for (int j = 0; j < 16; j++)
            o[8 + 16 * k + j] =
                (uint8_t)(level_index(b->q[32 * k + j]) | level_index(b->q[32 * k + 16 + j]) << 4);
    }
    put_u16(o + 2, (uint16_t)high);
}

static void pack_q4_0(const fl_fit *b, uint8_t *o)
{
    put_u16(o, b->d_bits);
    for (int j = 0; j < 16; j++)
        o[2 + j] = (uint8_t)(((int)b->q[j] + 8) | ((int)b->q[j + 16] + 8) << 4);
}

static void pack_q8_0(const fl_fit *b, uint8_t *o)
{
    put_u16(o, b->d_bits);
    for (int j = 0; j < 32; j++) o[2 + j] = (uint8_t)(int8_t)b->q[j];
}

const float fl_grid_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static const fl_grid grids[] = {
    {FL_TYPE_Q4_K, 256, 32, 0, 15, false, true, 0, 63, 63, pack_q4_k},
    {FL_TYPE_Q5_K, 256, 32, 0, 31, false, true, 0, 63, 63, pack_q5_k},
    {FL_TYPE_Q6_K, 256, 16, -32, 31, false, false, -128, 127, -128, pack_q6_k},
    {FL_TYPE_IQ4_XS, 256, 32, -127, 113, true, false, -32, 31, -32, pack_iq4_xs},
    {FL_TYPE_Q4_0, 32, 32, -8, 7, false, false, 1, 1, 1, pack_q4_0},
    {FL_TYPE_Q8_0, 32, 32, -127, 127, false, false, 1, 1, 1, pack_q8_0},
};

const fl_grid *fl_grid_get(uint32_t type)
{
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        if (grids[i].type == type) return &grids[i];
    return NULL;
}

const fl_fitter *fl_fitter_get(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return fl_fitter_avx2();
#endif
    return fl_fitter_reference();
}

/* ---- without importance ---- */

static void quantize(uint32_t type, const float *src, uint8_t *dst, int64_t n)
{
    const fl_grid *f = fl_grid_get(type);
    const fl_fitter *t = fl_fitter_get();
    const int bytes = fl_type_get(type)->block_bytes;
    for (int64_t i = 0; i < n; i += f->block, dst += bytes) {
        float w[SUPER];
        fl_fit b;
        for (int k = 0; k < f->block; k += f->sub) fl_round_weights(src + i + k, w + k, f->sub);
        t->fit(f, src + i, w, &b);
        f->pack(&b, dst);
    }
}

void fl_quantize_q4_k(const float *src, void *dst, int64_t n)
{
    quantize(FL_TYPE_Q4_K, src, dst, n);
}

void fl_quantize_q5_k(const float *src, void *dst, int64_t n)
{
    quantize(FL_TYPE_Q5_K, src, dst, n);
}

void fl_quantize_q6_k(const float *src, void *dst, int64_t n)
{
    quantize(FL_TYPE_Q6_K, src, dst, n);
}

void fl_quantize_iq4_xs(const float *src, void *dst, int64_t n)
{
    quantize(FL_TYPE_IQ4_XS, src, dst, n);
}

void fl_quantize_q4_0(const float *src, void *dst, int64_t n)
{
    quantize(FL_TYPE_Q4_0, src, dst, n);
}

void fl_quantize_q8_0(const float *src, void *dst, int64_t n)
{
    const fl_grid *f = fl_grid_get(FL_TYPE_Q8_0);
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += f->block, o += 34) {
        fl_fit b;
        float peak = 0.0f;
        for (int j = 0; j < f->block; j++) peak = fmaxf(peak, fabsf(src[i + j]));
        b.d_bits = fl_f32_to_f16(fminf(peak / 127.0f, 65504.0f));
        const float d = fl_f16_to_f32(b.d_bits), inv = d > 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < f->block; j++) {
            const float l = rintf(src[i + j] * inv);
            b.q[j] = l > -127.0f ? (l < 127.0f ? l : 127.0f) : -127.0f;
        }
        f->pack(&b, o);
    }
}
