#ifndef FL_KERNELS_X86_LAW_AVX2_H
#define FL_KERNELS_X86_LAW_AVX2_H

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
typedef struct fl_law_avx2 {
    __m128 (*four)(const uint8_t *const row[4], int64_t ahead, const fl_act *x, int64_t n_blocks);
    void (*rows)(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, float *out);
} fl_law_avx2;

extern const fl_law_avx2 fl_law_avx2_q4_k, fl_law_avx2_q5_k;
extern const fl_law_avx2 fl_law_avx2_q6_k, fl_law_avx2_q3_k, fl_law_avx2_iq4_xs;
extern const fl_law_avx2 fl_law_avx2_q8_0, fl_law_avx2_q4_0, fl_law_avx2_iq4_nl;
extern const fl_law_avx2 fl_law_avx2_mxfp4, fl_law_avx2_nvfp4;

FL_INLINE __m128 fl_act_scales(const fl_act *const a[4])
{
    return _mm_setr_ps(a[0]->scale, a[1]->scale, a[2]->scale, a[3]->scale);
}

#endif
#endif
