#include <math.h>
#include <string.h>

#include "bench/support/synth.h"
#include "quant/blocks.h"

static void fill(void *out, size_t n, uint64_t *state)
{
    uint8_t *p = out;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        const uint64_t r = bench_random(state);
        memcpy(p + i, &r, 8);
    }
}

/* Scales and minima of Q4_K and Q5_K: s for both, so that with dmin = d (levels - 1) / 2 the mean
 * is zero. */
static void pack(uint8_t sc[12], const uint8_t s[8])
{
    for (int k = 0; k < 4; k++) {
        sc[k] = sc[k + 4] = (uint8_t)(s[k] | (s[k + 4] >> 4) << 6);
        sc[k + 8] = (uint8_t)((s[k + 4] & 15) * 17);
    }
}

/* 16 .. 31, and the root of their mean square. */
enum { LEAST = 16 };
static const double TYPICAL = 23.94;

static void random_scales(uint8_t sc[12], uint64_t *state)
{
    uint8_t s[8];
    const uint64_t r = bench_random(state);
    for (int k = 0; k < 8; k++) s[k] = (uint8_t)(LEAST + (r >> (8 * k) & 15));
    pack(sc, s);
}

/* Scale of a block whose values are uniform over `levels` levels. */
static double unit(double spread, int levels)
{
    return spread / (TYPICAL * sqrt((double)levels * levels - 1.0) / sqrt(12.0));
}

void bench_fill_blocks(uint32_t type, void *out, int64_t n, double spread, uint64_t *state)
{
    const int levels = type == FL_TYPE_Q4_K ? 16 : type == FL_TYPE_Q5_K ? 32 : 64;
    const double d = unit(spread, levels);
    const uint16_t half = fl_f32_to_f16((float)d);
    const uint16_t half_min = fl_f32_to_f16((float)(d * (levels - 1) / 2));
    for (int64_t b = 0; b < n / 256; b++) {
        if (type == FL_TYPE_Q4_K) {
            fl_block_q4_k *q = (fl_block_q4_k *)out + b;
            q->d = half, q->dmin = half_min;
            random_scales(q->sc, state);
            fill(q->q, sizeof q->q, state);
        } else if (type == FL_TYPE_Q5_K) {
            fl_block_q5_k *q = (fl_block_q5_k *)out + b;
            q->d = half, q->dmin = half_min;
            random_scales(q->sc, state);
            fill(q->qh, sizeof q->qh, state);
            fill(q->q, sizeof q->q, state);
        } else {
            fl_block_q6_k *q = (fl_block_q6_k *)out + b;
            fill(q->ql, sizeof q->ql, state);
            fill(q->qh, sizeof q->qh, state);
            fill(q->sc, sizeof q->sc, state);
            for (int i = 0; i < 16; i++) q->sc[i] = (int8_t)(LEAST + (q->sc[i] & 15));
            q->d = half;
        }
    }
}

void bench_fill_pattern(void *out, int64_t d_model, int pattern)
{
    fl_block_q4_k *q = out;
    const uint8_t s[8] = {32, 32, 32, 32, 32, 32, 32, 32};
    for (int64_t b = 0; b < d_model / 256; b++) {
        q[b].d = fl_f32_to_f16(2.0f / (15 * 32));
        q[b].dmin = fl_f32_to_f16(1.0f / 32);
        pack(q[b].sc, s);
        for (int i = 0; i < 128; i++) {
            const int64_t low = 256 * b + i / 32 * 64 + i % 32;
            q[b].q[i] = (uint8_t)((bench_pattern(pattern, low) ? 0 : 15) |
                                  (bench_pattern(pattern, low + 32) ? 0 : 0xf0));
        }
    }
}
