#ifndef FL_KERNELS_X86_LAW_AVX2_H
#define FL_KERNELS_X86_LAW_AVX2_H

#include "kernels/kernels.h"
#include "kernels/x86/avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* Activation rows that share one unpacking of a weight block. */
#define FL_ROW_TILE 64

/* First blocks of up to FL_ROW_TILE activation rows, filled up to a multiple of four with the last
 * one. */
typedef struct fl_act_tile {
    const fl_act *at[FL_ROW_TILE];
    int groups; /* of four rows */
    bool plain; /* every exponent is 1: scales are shared by the rows */
} fl_act_tile;

/* The two inner products of a type. `four`: outputs of four weight rows for one activation row;
 * the rows follow each other, but for repeats of the last one, and `ahead` bytes behind them lies
 * what to prefetch. `rows`: outputs of one weight row for
 * a tile of activation rows, each of n_blocks blocks; out has room for 4 * groups. Both are the
 * bits of fl_law_dot. */
typedef struct fl_law_x86 {
    __m128 (*four)(const uint8_t *const row[4], int64_t ahead, const fl_act *x, int64_t n_blocks);
    void (*rows)(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, float *out);
} fl_law_x86;

extern const fl_law_x86 fl_law_avx2_q4_k, fl_law_avx2_q5_k;
extern const fl_law_x86 fl_law_avx2_q6_k, fl_law_avx2_q3_k, fl_law_avx2_iq4_xs;
extern const fl_law_x86 fl_law_avx2_q8_0, fl_law_avx2_q4_0, fl_law_avx2_iq4_nl;
extern const fl_law_x86 fl_law_avx2_mxfp4, fl_law_avx2_nvfp4;

/* mul_law by the products of one type. */
void fl_law_mul(const fl_law_x86 *law, const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x,
                int n_rows, float *y, int64_t ldy);

/* sum + the products of two sub-blocks of 32, each times its scale: unsigned levels u, signed x,
 * 16-bit scales k and k + 1 of each half of s (x's halves may have different scales). */
typedef __m256i (*fl_pair_fn)(__m256i sum, __m256i s, int k, __m256i u0, __m256i x0, __m256i u1,
                              __m256i x1);

FL_INLINE __m256i fl_pair_avx2(__m256i sum, __m256i s, int k, __m256i u0, __m256i x0, __m256i u1,
                               __m256i x1)
{
    __m256i a = _mm256_shuffle_epi8(s, fl_spread16(k)),
            b = _mm256_shuffle_epi8(s, fl_spread16(k + 1));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_maddubs_epi16(u0, x0)));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(b, _mm256_maddubs_epi16(u1, x1)));
}

/* Eight sums of four products of unsigned levels u and signed x. */
typedef __m256i (*fl_fours_fn)(__m256i u, __m256i x);

FL_INLINE __m256i fl_fours_avx2(__m256i u, __m256i x)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(u, x), _mm256_set1_epi16(1));
}

FL_INLINE __m128 fl_act_scales(const fl_act *const a[4])
{
    return _mm_setr_ps(a[0]->scale, a[1]->scale, a[2]->scale, a[3]->scale);
}

#endif
#endif
