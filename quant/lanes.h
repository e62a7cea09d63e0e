#ifndef FL_QUANT_LANES_H
#define FL_QUANT_LANES_H

#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Vectors of 8 floats whose results are those of 8 scalar operations in every build: the compiler
 * splits them where the machine's registers are narrower. No reduction hides in an operator. */

/* Everything here is inlined: how vectors would be passed does not matter. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float fl_v8 __attribute__((vector_size(32)));

static inline fl_v8 fl_v8_all(float f)
{
    const fl_v8 zero = {0};
    return zero + f;
}

static inline fl_v8 fl_v8_load(const float *p)
{
    fl_v8 v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

static inline void fl_v8_store(float *p, fl_v8 v) { __builtin_memcpy(p, &v, sizeof v); }

/* v limited to lo .. hi; NaN becomes lo. */
static inline fl_v8 fl_v8_clamp(fl_v8 v, float lo, float hi)
{
#if defined(__AVX2__)
    const __m256 low = _mm256_max_ps((__m256)v, _mm256_set1_ps(lo));
    return (fl_v8)_mm256_min_ps(low, _mm256_set1_ps(hi));
#else
    union {
        fl_v8 v;
        float f[8];
    } a = {v};
    for (int j = 0; j < 8; j++) {
        const float low = a.f[j] > lo ? a.f[j] : lo;
        a.f[j] = low < hi ? low : hi;
    }
    return a.v;
#endif
}

/* Rounded to the nearest integer, ties to even; |v| below 2^22. */
static inline fl_v8 fl_v8_rint(fl_v8 v)
{
    const float magic = 0x1.8p23f;
    return (v + magic) - magic;
}

static inline float fl_v8_sum(fl_v8 v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

#endif
