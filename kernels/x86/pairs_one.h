#ifndef FL_KERNELS_X86_PAIRS_ONE_H
#define FL_KERNELS_X86_PAIRS_ONE_H

#include "kernels/x86/pairs.h"

/* One activation row, types with a head (pairs.h). Eight weight rows side by side are eight
 * streams, which memory delivers slower than one: here a vector holds 16 levels each of two
 * neighbouring blocks, and weights are read in the order of addresses, eight blocks at a time, no
 * matter where rows end. What the blocks of eight rows contribute comes first, then the rows'
 * float chains. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

enum {
    FL_ONE_ROWS = 8,         /* weight rows whose chains go on together */
    FL_ONE_ACTS = 16,        /* most packed groups of eight blocks */
    FL_ONE_AHEAD = 27 * 1024 /* bytes between what is read and what is asked for (FORMAT.md) */
};

/* Groups of eight blocks until a group begins where a row does; 0: too many to be packed. */
static inline int fl_one_groups(int64_t nb)
{
    const int64_t n = nb % 8 == 0 ? nb / 8 : nb % 4 == 0 ? nb / 4 : nb % 2 == 0 ? nb / 2 : nb;
    return n <= FL_ONE_ACTS ? (int)n : 0;
}

/* Eight blocks: half i of element e is of x[(b + 2 e + i) % nb]. */
FL_INLINE void fl_one_pack(const fl_act *x, int64_t nb, int64_t b, const fl_pair_kind *t,
                           fl_pair_acts *o)
{
    for (int g = 0; g < 8; g++) {
        const fl_act *from = x + (b + g) % nb;
        const int e = g / 2, i = g % 2;
        int16_t p[16], j[16];
        for (int c = 0; c < 16; c++)
            _mm_store_si128((__m128i *)&o->x[e][c] + i, fl_load128(from->x + 16 * c));
        fl_pair_numbers(from, t, p, j);
        for (int h = 0; h < t->halves; h++) {
            _mm_store_si128((__m128i *)&o->p[e][h] + i, fl_load128(p + 8 * h));
            _mm_store_si128((__m128i *)&o->j[e][h] + i, fl_load128(j + 8 * h));
        }
    }
}

/* What eight blocks at w contribute, but for activation scales. */
FL_INLINE __m256 fl_one_terms(fl_bytes w, const fl_pair_acts *x, const fl_pair_kind *t)
{
    __m256i sum[4], min[4], halves = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++) {
        fl_bytes a = w + 2 * e * t->bytes, b = a + t->bytes;
        fl_pair_head h;
        t->head(a, b, &h);
        fl_pair_mul(a, b, &h, x, e, 1, t, sum + e, min + e);
        halves = _mm256_or_si256(halves, fl_pair_halves(h.halves, 4, e));
    }
    const __m256 v = fl_pair_term(halves, sum, min, t);
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* y of FL_ONE_ROWS rows from what their blocks contribute. */
FL_INLINE void fl_one_chains(const float *term, const fl_act *x, int64_t nb, float scale, float *y)
{
    float acc[FL_ONE_ROWS] = {0};
    for (int64_t b = 0; b < nb; b++)
#pragma GCC unroll 8
        for (int r = 0; r < FL_ONE_ROWS; r++)
            acc[r] = __builtin_fmaf(x[b].scale, term[r * nb + b], acc[r]);
    for (int r = 0; r < FL_ONE_ROWS; r++) y[r] = acc[r] * scale;
}

/* Weight rows from n0 on; returns the first row that is left to fl_pair_rows. */
FL_INLINE int64_t fl_pair_one(const fl_mat *w, const fl_pair_kind *t, int64_t n0, int64_t n1,
                              const fl_act *x, float *y)
{
    const int64_t nb = w->cols / 256;
    const int groups = fl_one_groups(nb);
    fl_pair_acts acts[FL_ONE_ACTS];
    float term[FL_ONE_ROWS * 8 * FL_ONE_ACTS];
    if (groups == 0 || n1 - n0 < FL_ONE_ROWS) return n0;
    for (int g = 0; g < groups; g++) fl_one_pack(x, nb, 8 * g, t, &acts[g]);
    fl_bytes p = (fl_bytes)w->data + n0 * nb * t->bytes;
    for (; n1 - n0 >= FL_ONE_ROWS; n0 += FL_ONE_ROWS) {
        for (int g = 0, i = 0; g < nb; g++, p += 8 * t->bytes) {
            fl_prefetch_far(p + FL_ONE_AHEAD, 8 * t->bytes);
            _mm256_storeu_ps(term + 8 * g, fl_one_terms(p, &acts[i], t));
            i = i + 1 < groups ? i + 1 : 0;
        }
        fl_one_chains(term, x, nb, w->scale, y + n0);
    }
    return n0;
}

#endif
#endif
