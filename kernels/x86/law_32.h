#ifndef FL_KERNELS_X86_LAW_32_H
#define FL_KERNELS_X86_LAW_32_H

#include "kernels/x86/law_avx2.h"
#include "quant/blocks.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* L2 for blocks of 32 (NVFP4: of 16): one step of the float chain per block, eight (sixteen) per
 * activation block. P_k is a power of two, so (float)(P I) = P (float)I and it is applied there. */

/* A type's two readers, for sub-block k (of 32 elements) of eight: its levels, and the scale of its
 * half h (always 0 but for NVFP4). */
typedef __m256i (*levels_fn)(const uint8_t *p, int k);
typedef float (*scale_fn)(const uint8_t *p, int k, int h);

FL_INLINE __m256i nibbles(const uint8_t *p)
{
    __m128i y = fl_load128(p);
    __m256i v = _mm256_set_m128i(_mm_srli_epi16(y, 4), y);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

FL_INLINE __m256i lookup(const int8_t table[16], __m256i nibble)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(fl_load128(table)), nibble);
}

FL_INLINE __m256i q8_0_levels(const uint8_t *p, int k) { return fl_load256(p + 34 * k + 2); }
FL_INLINE float q8_0_scale(const uint8_t *p, int k, int h) { return fl_half_at(p + 34 * k + h); }

FL_INLINE __m256i q4_0_levels(const uint8_t *p, int k)
{
    return _mm256_sub_epi8(nibbles(p + 18 * k + 2), _mm256_set1_epi8(8));
}
FL_INLINE float q4_0_scale(const uint8_t *p, int k, int h) { return fl_half_at(p + 18 * k + h); }

FL_INLINE __m256i iq4_nl_levels(const uint8_t *p, int k)
{
    return lookup(fl_iq4_values, nibbles(p + 18 * k + 2));
}
FL_INLINE float iq4_nl_scale(const uint8_t *p, int k, int h) { return fl_half_at(p + 18 * k + h); }

FL_INLINE __m256i mxfp4_levels(const uint8_t *p, int k)
{
    return lookup(fl_fp4_values, nibbles(p + 17 * k + 1));
}
FL_INLINE float mxfp4_scale(const uint8_t *p, int k, int h)
{
    return fl_e8m0_half_to_f32(p[17 * k + h]);
}

/* Two groups of 8 bytes: low nibbles are elements 0..7 of a group, high ones 8..15. */
FL_INLINE __m256i nvfp4_levels(const uint8_t *p, int k)
{
    __m128i y = fl_load128(p + 36 * (k / 2) + 4 + 16 * (k % 2)), z = _mm_srli_epi16(y, 4);
    __m256i v = _mm256_set_m128i(_mm_unpackhi_epi64(y, z), _mm_unpacklo_epi64(y, z));
    return lookup(fl_fp4_values, _mm256_and_si256(v, _mm256_set1_epi8(15)));
}
FL_INLINE float nvfp4_scale(const uint8_t *p, int k, int h)
{
    return fl_ue4m3_half_to_f32(p[36 * (k / 2) + 2 * (k % 2) + h]);
}

/* Eight sums of four products each of 32 levels. */
FL_INLINE __m256i b_dot(__m256i q, __m256i mag, const int8_t *x, fl_fours_fn fours)
{
    return fours(mag, _mm256_sign_epi8(fl_load256(x), q));
}

/* Chain steps of sub-block k. p: P_k of the four lanes; d[0] is the scale of the block, or d[0] and
 * d[1] those of its two halves. */
FL_INLINE __m128 b_step(__m128 acc, __m128 scale, __m128 p, const __m128 d[2], const __m256i v[4],
                        bool halves)
{
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m128i lo = _mm256_castsi256_si128(s), hi = _mm256_extracti128_si256(s, 1);
    if (!halves) {
        __m128 i = _mm_mul_ps(_mm_cvtepi32_ps(_mm_add_epi32(lo, hi)), p);
        return _mm_fmadd_ps(scale, _mm_mul_ps(d[0], i), acc);
    }
    __m128 i = _mm_mul_ps(_mm_cvtepi32_ps(lo), p), j = _mm_mul_ps(_mm_cvtepi32_ps(hi), p);
    acc = _mm_fmadd_ps(scale, _mm_mul_ps(d[0], i), acc);
    return _mm_fmadd_ps(scale, _mm_mul_ps(d[1], j), acc);
}

FL_INLINE __m128 b_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,
                        int64_t n_blocks, int64_t bytes, bool halves, levels_fn levels,
                        scale_fn scale, fl_fours_fn fours)
{
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, x++) {
        const uint8_t *w[4];
        for (int i = 0; i < 4; i++) {
            w[i] = row[i] + b * bytes;
            fl_prefetch(row[0] + (4 * b + i) * bytes + ahead, bytes);
        }
        __m128 a = _mm_set1_ps(x->scale);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __m256i dot[4];
            __m128 d[2];
            for (int i = 0; i < 4; i++) {
                __m256i q = levels(w[i], k);
                dot[i] = b_dot(q, _mm256_abs_epi8(q), x->x + 32 * k, fours);
            }
            for (int h = 0; h < 1 + halves; h++)
                d[h] = _mm_setr_ps(scale(w[0], k, h), scale(w[1], k, h), scale(w[2], k, h),
                                   scale(w[3], k, h));
            acc = b_step(acc, a, _mm_set1_ps((float)x->p[k]), d, dot, halves);
        }
    }
    return acc;
}

FL_INLINE void b_rows(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, float *out,
                      int64_t bytes, bool halves, levels_fn levels, scale_fn scale,
                      fl_fours_fn fours)
{
    __m128 acc[FL_ROW_TILE / 4];
    for (int g = 0; g < t->groups; g++) acc[g] = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const uint8_t *w = row + b * bytes;
        for (int k = 0; k < 8; k++) {
            __m256i q = levels(w, k), mag = _mm256_abs_epi8(q);
            __m128 d[2];
            for (int h = 0; h < 1 + halves; h++) d[h] = _mm_set1_ps(scale(w, k, h));
            for (int g = 0; g < t->groups; g++) {
                const fl_act *const *at = t->at + 4 * g;
                const fl_act *const x[4] = {at[0] + b, at[1] + b, at[2] + b, at[3] + b};
                __m256i dot[4];
                __m128 p = _mm_set1_ps(1.0f);
                for (int i = 0; i < 4; i++) dot[i] = b_dot(q, mag, x[i]->x + 32 * k, fours);
                if (!t->plain)
                    p = _mm_cvtepi32_ps(
                        _mm_setr_epi32(x[0]->p[k], x[1]->p[k], x[2]->p[k], x[3]->p[k]));
                acc[g] = b_step(acc[g], fl_act_scales(x), p, d, dot, halves);
            }
        }
    }
    for (int g = 0; g < t->groups; g++) _mm_storeu_ps(out + 4 * g, acc[g]);
}

#define FL_LAW_32_OF(TIER, DOT, NAME, BYTES, HALVES)                                          \
    static __m128 NAME##_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,    \
                              int64_t nb)                                                     \
    {                                                                                         \
        return b_four(row, ahead, x, nb, BYTES, HALVES, NAME##_levels, NAME##_scale,          \
                      fl_fours_##DOT);                                                        \
    }                                                                                         \
    static void NAME##_rows(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out) \
    {                                                                                         \
        b_rows(row, t, nb, out, BYTES, HALVES, NAME##_levels, NAME##_scale, fl_fours_##DOT);  \
    }                                                                                         \
    const fl_law_x86 fl_law_##TIER##_##NAME = {NAME##_four, NAME##_rows};

#endif
#endif
