#ifndef FL_KERNELS_X86_AVX2_H
#define FL_KERNELS_X86_AVX2_H

/* Pieces shared by the *_avx2.c files; empty for translation units without AVX2. Each gives the
 * bits of its counterpart in quant/law.c. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "quant/law.h"

#define FL_INLINE static inline __attribute__((always_inline, unused))

/* fl_law_exp of eight values. min and max give their second operand for NaN, so it stays NaN. */
FL_INLINE __m256 fl_exp8(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(87.0f), x));
    __m256 n = _mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f));
    n = _mm256_round_ps(n, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.63p-1f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(0x1.bd0106p-13f), r);
    __m256 p = _mm256_set1_ps(0x1.6a23d0p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123a20p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}

/* 1 + E(-x). */
FL_INLINE __m256 fl_one_plus_exp_neg8(__m256 x)
{
    __m256 neg = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_add_ps(_mm256_set1_ps(1.0f), fl_exp8(neg));
}

/* The tree of L6: lanes 0..7 in a, 8..15 in b. */
FL_INLINE float fl_lanes_sum(__m256 a, __m256 b)
{
    __m256 s8 = _mm256_add_ps(a, b);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* The same for four sums at once: element i is the sum of (a[i], b[i]). */
FL_INLINE __m128 fl_lanes_sum4(const __m256 a[4], const __m256 b[4])
{
    __m128 s[4];
    for (int i = 0; i < 4; i++) {
        __m256 s8 = _mm256_add_ps(a[i], b[i]);
        s[i] = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    }
    /* (0 + 2, 1 + 3) of two sums side by side, then the last pair. */
    __m128 p = _mm_add_ps(_mm_movelh_ps(s[0], s[1]), _mm_movehl_ps(s[1], s[0]));
    __m128 q = _mm_add_ps(_mm_movelh_ps(s[2], s[3]), _mm_movehl_ps(s[3], s[2]));
    return _mm_add_ps(_mm_shuffle_ps(p, q, _MM_SHUFFLE(2, 0, 2, 0)),
                      _mm_shuffle_ps(p, q, _MM_SHUFFLE(3, 1, 3, 1)));
}

/* Tree over lanes that also take the last n % 16 products of w and x, in plain C: padding with
 * zeros would turn a lane of -0 into +0. */
FL_INLINE float fl_lanes_finish(__m256 a, __m256 b, const float *w, const float *x, int64_t n)
{
    if (n == 0) return fl_lanes_sum(a, b);
    float lanes[16];
    _mm256_storeu_ps(lanes, a);
    _mm256_storeu_ps(lanes + 8, b);
    for (int64_t i = 0; i < n; i++) lanes[i] = fmaf(w[i], x[i], lanes[i]);
    return fl_lanes_sum(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
}

FL_INLINE float fl_sumsq8(const float *x, int64_t n)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 u = _mm256_loadu_ps(x + i), v = _mm256_loadu_ps(x + i + 8);
        a = _mm256_fmadd_ps(u, u, a);
        b = _mm256_fmadd_ps(v, v, b);
    }
    return fl_lanes_finish(a, b, x + i, x + i, n - i);
}

FL_INLINE __m256i fl_load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
FL_INLINE __m128i fl_load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
FL_INLINE float fl_half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

/* Weight rows that a kernel of float weights asks for ahead of time: the next group of four,
 * in the order of addresses, since one stream is fetched faster than four (FORMAT.md). */
enum { FL_PREFETCH_ROWS = 4 };
FL_INLINE void fl_prefetch(const uint8_t *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}
/* The same, into the L2 cache: for what is used later than the L1 cache could keep it. */
FL_INLINE void fl_prefetch_far(const uint8_t *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

#endif
#endif
