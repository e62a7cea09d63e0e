#include "kernels/x86/law_avx2.h"

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
                        int64_t n_blocks, bool five)
{
    const int64_t bytes = five ? 176 : 144;
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, x++) {
        __m256i sum[4];
        __m128i min[4], j = fl_load128(x->sum), p = fl_load128(x->p);
        uint16_t halves[8];
        for (int i = 0; i < 4; i++) {
            const uint8_t *w = row[i] + b * bytes, *q = w + (five ? 48 : 16);
            fl_prefetch(w + ahead, bytes);
            memcpy(&halves[i], w, 2);
            memcpy(&halves[4 + i], w + 2, 2);
            __m256i sm = k_scales(w + 4), qh = five ? fl_load256(w + 16) : sm;
            __m256i s = both_halves(_mm_mullo_epi16(_mm256_castsi256_si128(sm), p));
            min[i] = _mm_madd_epi16(_mm256_extracti128_si256(sm, 1), j);
            sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) {
                __m256i dot =
                    _mm256_maddubs_epi16(k_levels(q, qh, k, five), fl_load256(x->x + 32 * k));
                dot = _mm256_madd_epi16(_mm256_shuffle_epi8(s, fl_spread16(k)), dot);
                sum[i] = _mm256_add_epi32(sum[i], dot);
            }
        }
        __m256 d = _mm256_cvtph_ps(fl_load128(halves));
        acc = k_step(acc, _mm_set1_ps(x->scale), _mm256_castps256_ps128(d),
                     _mm256_extractf128_ps(d, 1), sum, min);
    }
    return acc;
}

/* One super-block against activation rows: without option H the scales are shared by the four
 * rows of a group, with it each row has its own. */
FL_INLINE void k_group(const __m256i q[8], __m128i s, __m128i m, const fl_act *const x[4],
                       __m256i sum[4], __m128i min[4])
{
    __m128i p[4], all = _mm_set1_epi16(-1), one = _mm_set1_epi16(1);
    for (int i = 0; i < 4; i++) {
        p[i] = fl_load128(x[i]->p);
        all = _mm_and_si128(all, _mm_cmpeq_epi16(p[i], one));
        min[i] = _mm_madd_epi16(m, fl_load128(x[i]->sum));
        sum[i] = _mm256_setzero_si256();
    }
    if (_mm_movemask_epi8(all) == 0xffff) {
        __m256i s2 = both_halves(s);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __m256i scale = _mm256_shuffle_epi8(s2, fl_spread16(k));
            for (int i = 0; i < 4; i++) {
                __m256i dot = _mm256_maddubs_epi16(q[k], fl_load256(x[i]->x + 32 * k));
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(scale, dot));
            }
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        __m256i s2 = both_halves(_mm_mullo_epi16(s, p[i]));
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __m256i scale = _mm256_shuffle_epi8(s2, fl_spread16(k));
            __m256i dot = _mm256_maddubs_epi16(q[k], fl_load256(x[i]->x + 32 * k));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(scale, dot));
        }
    }
}

FL_INLINE void k_rows(const uint8_t *row, const fl_act *x, int64_t n_blocks, int n_rows, bool five,
                      float out[FL_ROW_TILE])
{
    const int64_t bytes = five ? 176 : 144;
    int groups = (n_rows + 3) / 4;
    __m128 acc[FL_ROW_TILE / 4];
    for (int g = 0; g < groups; g++) acc[g] = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const uint8_t *w = row + b * bytes;
        uint16_t halves[8] = {0};
        memcpy(halves, w, 4);
        __m256i q[8], sm = k_scales(w + 4), qh = five ? fl_load256(w + 16) : sm;
        for (int k = 0; k < 8; k++) q[k] = k_levels(w + (five ? 48 : 16), qh, k, five);
        __m128 d = _mm_cvtph_ps(fl_load128(halves));
        __m128 dmin = _mm_movehdup_ps(d);
        d = _mm_broadcastss_ps(d);
        dmin = _mm_broadcastss_ps(dmin);
        for (int g = 0; g < groups; g++) {
            const fl_act *a[4];
            __m256i sum[4];
            __m128i min[4];
            fl_act_group(a, x + b, n_blocks, 4 * g, n_rows);
            k_group(q, _mm256_castsi256_si128(sm), _mm256_extracti128_si256(sm, 1), a, sum, min);
            acc[g] = k_step(acc[g], fl_act_scales(a), d, dmin, sum, min);
        }
    }
    for (int g = 0; g < groups; g++) _mm_storeu_ps(out + 4 * g, acc[g]);
}

static __m128 q4_k_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x, int64_t nb)
{
    return k_four(row, ahead, x, nb, false);
}
static __m128 q5_k_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x, int64_t nb)
{
    return k_four(row, ahead, x, nb, true);
}
static void q4_k_rows(const uint8_t *row, const fl_act *x, int64_t nb, int n_rows, float *out)
{
    k_rows(row, x, nb, n_rows, false, out);
}
static void q5_k_rows(const uint8_t *row, const fl_act *x, int64_t nb, int n_rows, float *out)
{
    k_rows(row, x, nb, n_rows, true, out);
}

const fl_law_avx2 fl_law_avx2_q4_k = {q4_k_four, q4_k_rows};
const fl_law_avx2 fl_law_avx2_q5_k = {q5_k_four, q5_k_rows};
