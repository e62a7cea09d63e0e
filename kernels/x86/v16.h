#ifndef FL_KERNELS_X86_V16_H
#define FL_KERNELS_X86_V16_H

#include "kernels/x86/avx2.h"

/* The 16 virtual lanes of L6 as one value: a vector of AVX-512 or two of AVX2. What is written
 * with these gives the same bits on both. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#if defined(__AVX512F__) && defined(__AVX512DQ__)
typedef __m512 fl_v16;
FL_INLINE fl_v16 fl_v16_zero(void) { return _mm512_setzero_ps(); }
FL_INLINE fl_v16 fl_v16_all(float v) { return _mm512_set1_ps(v); }
FL_INLINE fl_v16 fl_v16_load(const float *p) { return _mm512_loadu_ps(p); }
FL_INLINE void fl_v16_store(float *p, fl_v16 v) { _mm512_storeu_ps(p, v); }
/* A load that the compiler may not repeat for each use. */
FL_INLINE fl_v16 fl_v16_once(const float *p)
{
    __m512 v = _mm512_loadu_ps(p);
    __asm__("" : "+v"(v));
    return v;
}
FL_INLINE fl_v16 fl_v16_add(fl_v16 a, fl_v16 b) { return _mm512_add_ps(a, b); }
FL_INLINE fl_v16 fl_v16_sub(fl_v16 a, fl_v16 b) { return _mm512_sub_ps(a, b); }
FL_INLINE fl_v16 fl_v16_mul(fl_v16 a, fl_v16 b) { return _mm512_mul_ps(a, b); }
FL_INLINE fl_v16 fl_v16_div(fl_v16 a, fl_v16 b) { return _mm512_div_ps(a, b); }
FL_INLINE fl_v16 fl_v16_min(fl_v16 a, fl_v16 b) { return _mm512_min_ps(a, b); }
FL_INLINE fl_v16 fl_v16_max(fl_v16 a, fl_v16 b) { return _mm512_max_ps(a, b); }
FL_INLINE fl_v16 fl_v16_fma(fl_v16 a, fl_v16 b, fl_v16 c) { return _mm512_fmadd_ps(a, b, c); }
FL_INLINE fl_v16 fl_v16_round(fl_v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n from -126 to 127. */
FL_INLINE fl_v16 fl_v16_power(fl_v16 n)
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
/* Sixteen halves, sixteen bytes as floats. */
FL_INLINE fl_v16 fl_v16_of_half(const void *p) { return _mm512_cvtph_ps(fl_load256(p)); }
FL_INLINE fl_v16 fl_v16_of_int8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(fl_load128(p)));
}
/* The trees of sixteen sums at once: element 4 i + j is the sum of v[4 j + i]. */
FL_INLINE fl_v16 fl_v16_sum16(const fl_v16 v[16])
{
    __m512 a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++) {
        __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], _MM_SHUFFLE(2, 0, 2, 0)),
                         _mm512_shuffle_ps(c[0], c[1], _MM_SHUFFLE(3, 1, 3, 1)));
}
FL_INLINE __m256 fl_v16_low(fl_v16 v) { return _mm512_castps512_ps256(v); }
FL_INLINE __m256 fl_v16_high(fl_v16 v) { return _mm512_extractf32x8_ps(v, 1); }
#else
typedef struct fl_v16 {
    __m256 a, b; /* lanes 0..7, 8..15 */
} fl_v16;
#define FL_V16_BOTH(f, x, y) ((fl_v16){f((x).a, (y).a), f((x).b, (y).b)})
FL_INLINE fl_v16 fl_v16_all(float v) { return (fl_v16){_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
FL_INLINE fl_v16 fl_v16_zero(void) { return fl_v16_all(0.0f); }
FL_INLINE fl_v16 fl_v16_load(const float *p)
{
    return (fl_v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
FL_INLINE void fl_v16_store(float *p, fl_v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
FL_INLINE fl_v16 fl_v16_once(const float *p)
{
    fl_v16 v = fl_v16_load(p);
    __asm__("" : "+x"(v.a), "+x"(v.b));
    return v;
}
FL_INLINE fl_v16 fl_v16_add(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_add_ps, x, y); }
FL_INLINE fl_v16 fl_v16_sub(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_sub_ps, x, y); }
FL_INLINE fl_v16 fl_v16_mul(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_mul_ps, x, y); }
FL_INLINE fl_v16 fl_v16_fma(fl_v16 x, fl_v16 y, fl_v16 z)
{
    return (fl_v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
FL_INLINE fl_v16 fl_v16_div(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_div_ps, x, y); }
FL_INLINE fl_v16 fl_v16_min(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_min_ps, x, y); }
FL_INLINE fl_v16 fl_v16_max(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_max_ps, x, y); }
#undef FL_V16_BOTH
FL_INLINE __m256 fl_v8_round(__m256 a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
FL_INLINE fl_v16 fl_v16_round(fl_v16 x) { return (fl_v16){fl_v8_round(x.a), fl_v8_round(x.b)}; }
FL_INLINE __m256 fl_v8_power(__m256 n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
FL_INLINE fl_v16 fl_v16_power(fl_v16 n) { return (fl_v16){fl_v8_power(n.a), fl_v8_power(n.b)}; }
FL_INLINE fl_v16 fl_v16_of_half(const void *p)
{
    __m256i h = fl_load256(p);
    return (fl_v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
FL_INLINE fl_v16 fl_v16_of_int8(const void *p)
{
    __m128i q = fl_load128(p);
    return (fl_v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)))};
}
FL_INLINE __m256 fl_v16_low(fl_v16 v) { return v.a; }
FL_INLINE __m256 fl_v16_high(fl_v16 v) { return v.b; }
#endif

/* The tree of L6. */
FL_INLINE float fl_v16_sum(fl_v16 v) { return fl_lanes_sum(fl_v16_low(v), fl_v16_high(v)); }

/* fl_law_exp of sixteen values. min and max give their second operand for NaN, so it stays NaN. */
FL_INLINE fl_v16 fl_v16_exp(fl_v16 x)
{
    static const float c[] = {0x1.6a23d0p-10f,
                              0x1.123a20p-7f,
                              0x1.5558f2p-5f,
                              0x1.555492p-3f,
                              0x1.fffffcp-2f,
                              1.0f,
                              1.0f};
    x = fl_v16_max(fl_v16_all(-87.0f), fl_v16_min(fl_v16_all(87.0f), x));
    const fl_v16 n = fl_v16_round(fl_v16_mul(x, fl_v16_all(0x1.715476p+0f)));
    fl_v16 r = fl_v16_fma(n, fl_v16_all(-0x1.63p-1f), x), p = fl_v16_all(c[0]);
    r = fl_v16_fma(n, fl_v16_all(0x1.bd0106p-13f), r);
#pragma GCC unroll 6
    for (int i = 1; i < 7; i++) p = fl_v16_fma(p, r, fl_v16_all(c[i]));
    return fl_v16_mul(p, fl_v16_power(n));
}

#endif
#endif
