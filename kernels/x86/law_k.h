#ifndef FL_KERNELS_X86_LAW_K_H
#define FL_KERNELS_X86_LAW_K_H

#include "kernels/x86/law_avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* L2 for Q4_K and Q5_K. All integer work is exact, so only the float chain has an order: lanes of
 * it are four weight rows (one activation row) or four activation rows (one weight row). */

/* Eight scales (low half) and eight minima (high half) as 16-bit numbers. */
FL_INLINE __m256i k_scales(const uint8_t *sc)
{
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    uint32_t u[3], o[4];
    memcpy(u, sc, 12);
    o[0] = u[0] & six;
    o[1] = (u[2] & four) | ((u[0] >> 6) & two) << 4;
    o[2] = u[1] & six;
    o[3] = ((u[2] >> 4) & four) | ((u[1] >> 6) & two) << 4;
    return _mm256_cvtepu8_epi16(fl_load128(o));
}

/* The 32 levels of sub-block k. qh is the plane of fifth bits (Q5_K). */
FL_INLINE __m256i k_levels(const uint8_t *q, __m256i qh, int k, bool five)
{
    __m256i y = fl_load256(q + 32 * (k / 2));
    if (k & 1) y = _mm256_srli_epi16(y, 4);
    y = _mm256_and_si256(y, _mm256_set1_epi8(15));
    if (!five) return y;
    __m256i h = k <= 4 ? _mm256_slli_epi16(qh, 4 - k) : _mm256_srli_epi16(qh, k - 4);
    return _mm256_or_si256(y, _mm256_and_si256(h, _mm256_set1_epi8(16)));
}

FL_INLINE __m256i both_halves(__m128i v) { return _mm256_broadcastsi128_si256(v); }

/* acc = fma(A, fma(d, I, -(dmin M)), acc) in four lanes. */
FL_INLINE __m128 k_step(__m128 acc, __m128 scale, __m128 d, __m128 dmin, const __m256i sum[4],
                        const __m128i min[4])
{
    __m128i m = _mm_hadd_epi32(_mm_hadd_epi32(min[0], min[1]), _mm_hadd_epi32(min[2], min[3]));
    __m128 u = _mm_mul_ps(dmin, _mm_cvtepi32_ps(m));
    __m128 r = _mm_fmsub_ps(d, _mm_cvtepi32_ps(fl_hsum4(sum)), u);
    return _mm_fmadd_ps(scale, r, acc);
}

FL_INLINE __m128 k_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,
                        int64_t n_blocks, bool five, fl_pair_fn pair)
{
    const int64_t bytes = five ? 176 : 144;
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, x++) {
        __m256i sum[4];
        __m128i min[4], j = fl_load128(x->sum), p = fl_load128(x->p);
        uint16_t halves[8];
        for (int i = 0; i < 4; i++) {
            const uint8_t *w = row[i] + b * bytes, *q = w + (five ? 48 : 16);
            fl_prefetch(row[0] + (4 * b + i) * bytes + ahead, bytes);
            memcpy(&halves[i], w, 2);
            memcpy(&halves[4 + i], w + 2, 2);
            __m256i sm = k_scales(w + 4), qh = five ? fl_load256(w + 16) : sm;
            __m256i s = both_halves(_mm_mullo_epi16(_mm256_castsi256_si128(sm), p));
            min[i] = _mm_madd_epi16(_mm256_extracti128_si256(sm, 1), j);
            sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int k = 0; k < 8; k += 2)
                sum[i] = pair(sum[i], s, k, k_levels(q, qh, k, five), fl_load256(x->x + 32 * k),
                              k_levels(q, qh, k + 1, five), fl_load256(x->x + 32 * k + 32));
        }
        __m256 d = _mm256_cvtph_ps(fl_load128(halves));
        acc = k_step(acc, _mm_set1_ps(x->scale), _mm256_castps256_ps128(d),
                     _mm256_extractf128_ps(d, 1), sum, min);
    }
    return acc;
}

/* sum + the products of sub-blocks k and k + 1. */
FL_INLINE __m256i k_add(__m256i sum, __m256i s, int k, const __m256i q[8], const fl_act *x,
                        fl_pair_fn pair)
{
    return pair(sum, s, k, q[k], fl_load256(x->x + 32 * k), q[k + 1],
                fl_load256(x->x + 32 * k + 32));
}

/* One super-block against four activation rows: without option H they share the scales, with it
 * each row has its own. The two cases are separate functions of `plain`; under one branch the
 * compiler computes the products of both first and spills them. */
FL_INLINE void k_group(const __m256i q[8], __m128i s, const fl_act *const x[4], bool plain,
                       fl_pair_fn pair, __m256i sum[4])
{
    for (int i = 0; i < 4; i++) sum[i] = _mm256_setzero_si256();
    if (plain) {
        __m256i s2 = both_halves(s), v0 = sum[0], v1 = v0, v2 = v0, v3 = v0;
#pragma GCC unroll 4
        for (int k = 0; k < 8; k += 2) {
            v0 = k_add(v0, s2, k, q, x[0], pair);
            v1 = k_add(v1, s2, k, q, x[1], pair);
            v2 = k_add(v2, s2, k, q, x[2], pair);
            v3 = k_add(v3, s2, k, q, x[3], pair);
        }
        sum[0] = v0;
        sum[1] = v1;
        sum[2] = v2;
        sum[3] = v3;
        return;
    }
    for (int i = 0; i < 4; i++) {
        __m256i s2 = both_halves(_mm_mullo_epi16(s, fl_load128(x[i]->p)));
#pragma GCC unroll 4
        for (int k = 0; k < 8; k += 2) sum[i] = k_add(sum[i], s2, k, q, x[i], pair);
    }
}

FL_INLINE void k_rows(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, bool five,
                      bool plain, fl_pair_fn pair, float *out)
{
    const int64_t bytes = five ? 176 : 144;
    __m128 acc[FL_ROW_TILE / 4];
    for (int g = 0; g < t->groups; g++) acc[g] = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const uint8_t *w = row + b * bytes;
        uint16_t halves[2];
        memcpy(halves, w, 4);
        __m256i q[8], sm = k_scales(w + 4), qh = five ? fl_load256(w + 16) : sm;
        for (int k = 0; k < 8; k++) q[k] = k_levels(w + (five ? 48 : 16), qh, k, five);
        __m128i s = _mm256_castsi256_si128(sm), m = _mm256_extracti128_si256(sm, 1);
        __m128 d = _mm_set1_ps(_cvtsh_ss(halves[0])), dmin = _mm_set1_ps(_cvtsh_ss(halves[1]));
        for (int g = 0; g < t->groups; g++) {
            const fl_act *const *at = t->at + 4 * g;
            const fl_act *const x[4] = {at[0] + b, at[1] + b, at[2] + b, at[3] + b};
            __m256i sum[4];
            __m128i min[4];
            for (int i = 0; i < 4; i++) min[i] = _mm_madd_epi16(m, fl_load128(x[i]->sum));
            k_group(q, s, x, plain, pair, sum);
            acc[g] = k_step(acc[g], fl_act_scales(x), d, dmin, sum, min);
        }
    }
    for (int g = 0; g < t->groups; g++) _mm_storeu_ps(out + 4 * g, acc[g]);
}

#define FL_LAW_K_OF(TIER, DOT, NAME, FIVE)                                                     \
    static __m128 NAME##_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,     \
                              int64_t nb)                                                      \
    {                                                                                          \
        return k_four(row, ahead, x, nb, FIVE, fl_pair_##DOT);                                 \
    }                                                                                          \
    static void NAME##_plain(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out) \
    {                                                                                          \
        k_rows(row, t, nb, FIVE, true, fl_pair_##DOT, out);                                    \
    }                                                                                          \
    static void NAME##_rows(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out)  \
    {                                                                                          \
        if (t->plain)                                                                          \
            NAME##_plain(row, t, nb, out);                                                     \
        else                                                                                   \
            k_rows(row, t, nb, FIVE, false, fl_pair_##DOT, out);                               \
    }                                                                                          \
    const fl_law_x86 fl_law_##TIER##_##NAME = {NAME##_four, NAME##_rows};

#endif
#endif
