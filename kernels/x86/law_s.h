#ifndef FL_KERNELS_X86_LAW_S_H
#define FL_KERNELS_X86_LAW_S_H

#include "kernels/x86/law_avx2.h"
#include "quant/blocks.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* L2 for the types whose levels are signed: Q6_K, Q3_K, IQ4_XS. A product of signed bytes is
 * |w| times (x with the sign of w), which the unsigned-signed multiply takes; |w| <= 128 keeps
 * its 16-bit pair sums exact. */

/* 256 levels; scales as 16-bit numbers, those of even groups of 16 in the low half, of odd ones in
 * the high half. */
typedef struct s_block {
    __m256i q[8];
    __m256i s;
    uint16_t d;
} s_block;

/* Sixteen 16-bit numbers in order -> even ones low, odd ones high. */
FL_INLINE __m256i even_odd(__m256i v)
{
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                          1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, pick), _MM_SHUFFLE(3, 1, 2, 0));
}

FL_INLINE void unpack_q6_k(const uint8_t *p, s_block *o)
{
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(48);
    const __m256i off = _mm256_set1_epi8(32);
    for (int n = 0; n < 2; n++) {
        __m256i a = fl_load256(p + 64 * n), b = fl_load256(p + 64 * n + 32);
        __m256i h = fl_load256(p + 128 + 32 * n);
        __m256i l[4] = {_mm256_and_si256(a, low), _mm256_and_si256(b, low),
                        _mm256_and_si256(_mm256_srli_epi16(a, 4), low),
                        _mm256_and_si256(_mm256_srli_epi16(b, 4), low)};
        __m256i u[4] = {_mm256_and_si256(_mm256_slli_epi16(h, 4), high),
                        _mm256_and_si256(_mm256_slli_epi16(h, 2), high), _mm256_and_si256(h, high),
                        _mm256_and_si256(_mm256_srli_epi16(h, 2), high)};
        for (int g = 0; g < 4; g++)
            o->q[4 * n + g] = _mm256_sub_epi8(_mm256_or_si256(l[g], u[g]), off);
    }
    o->s = even_odd(_mm256_cvtepi8_epi16(fl_load128(p + 192)));
    memcpy(&o->d, p + 208, 2);
}

FL_INLINE void unpack_q3_k(const uint8_t *p, s_block *o)
{
    const __m256i three = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4);
    __m256i hm = fl_load256(p);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        __m256i y = _mm256_srli_epi16(fl_load256(p + 32 + 32 * (k / 4)), 2 * (k % 4));
        __m256i h = k <= 2 ? _mm256_slli_epi16(hm, 2 - k) : _mm256_srli_epi16(hm, k - 2);
        y = _mm256_or_si256(_mm256_and_si256(y, three), _mm256_and_si256(h, four));
        o->q[k] = _mm256_sub_epi8(y, four);
    }
    int16_t s[16];
    for (int k = 0; k < 16; k++) s[k] = (int16_t)fl_q3_scale(p + 96, k);
    o->s = even_odd(fl_load256(s));
    memcpy(&o->d, p + 108, 2);
}

/* Eight scales of IQ4_XS: four low bits from bytes, two high ones from a 16-bit word. Multiplying
 * by powers of two is AVX2's way to shift each 16-bit number by its own count. */
FL_INLINE __m128i iq4_xs_scales(const uint8_t *p)
{
    const __m128i twice = _mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1);
    const __m128i nibble = _mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1);
    const __m128i up = _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    uint16_t sh;
    int sl;
    memcpy(&sh, p + 2, 2);
    memcpy(&sl, p + 4, 4);
    __m128i lo = _mm_mullo_epi16(_mm_shuffle_epi8(_mm_cvtsi32_si128(sl), twice), nibble);
    lo = _mm_and_si128(_mm_srli_epi16(lo, 4), _mm_set1_epi16(15));
    __m128i hi = _mm_srli_epi16(_mm_mullo_epi16(_mm_set1_epi16((short)sh), up), 14);
    return _mm_sub_epi16(_mm_or_si128(lo, _mm_slli_epi16(hi, 4)), _mm_set1_epi16(32));
}

FL_INLINE void unpack_iq4_xs(const uint8_t *p, s_block *o)
{
    const __m256i values = _mm256_broadcastsi128_si256(fl_load128(fl_iq4_values));
    const __m256i low = _mm256_set1_epi8(15);
    for (int k = 0; k < 8; k += 2) { /* two sub-blocks of 16 bytes, each low nibbles first */
        __m256i y = fl_load256(p + 8 + 16 * k);
        __m256i a = _mm256_shuffle_epi8(values, _mm256_and_si256(y, low));
        __m256i b = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(y, 4), low));
        o->q[k] = _mm256_permute2x128_si256(a, b, 0x20);
        o->q[k + 1] = _mm256_permute2x128_si256(a, b, 0x31);
    }
    o->s = _mm256_broadcastsi128_si256(iq4_xs_scales(p));
    memcpy(&o->d, p, 2);
}

typedef void (*unpack_fn)(const uint8_t *p, s_block *o);

/* sum + the products of sub-blocks k and k + 1. */
FL_INLINE __m256i s_add(__m256i sum, __m256i s, int k, const __m256i q[8], const __m256i mag[8],
                        const fl_act *x, fl_pair_fn pair)
{
    return pair(sum, s, k, mag[k], _mm256_sign_epi8(fl_load256(x->x + 32 * k), q[k]), mag[k + 1],
                _mm256_sign_epi8(fl_load256(x->x + 32 * k + 32), q[k + 1]));
}

/* Integer sum of one block: eight partial sums. */
FL_INLINE __m256i s_dot(const __m256i q[8], const __m256i mag[8], __m256i s, const fl_act *x,
                        fl_pair_fn pair)
{
    __m256i sum = _mm256_setzero_si256();
    s = _mm256_mullo_epi16(s, _mm256_broadcastsi128_si256(fl_load128(x->p)));
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) sum = s_add(sum, s, k, q, mag, x, pair);
    return sum;
}

FL_INLINE __m128 s_step(__m128 acc, __m128 scale, __m128 d, const __m256i sum[4])
{
    return _mm_fmadd_ps(scale, _mm_mul_ps(d, _mm_cvtepi32_ps(fl_hsum4(sum))), acc);
}

FL_INLINE __m128 s_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,
                        int64_t n_blocks, int64_t bytes, unpack_fn unpack, fl_pair_fn pair)
{
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, x++) {
        __m256i sum[4];
        uint16_t halves[8] = {0};
        for (int i = 0; i < 4; i++) {
            const uint8_t *w = row[i] + b * bytes;
            s_block v;
            __m256i mag[8];
            fl_prefetch(row[0] + (4 * b + i) * bytes + ahead, bytes);
            unpack(w, &v);
            halves[i] = v.d;
            for (int k = 0; k < 8; k++) mag[k] = _mm256_abs_epi8(v.q[k]);
            sum[i] = s_dot(v.q, mag, v.s, x, pair);
        }
        __m128 d = _mm_cvtph_ps(fl_load128(halves));
        acc = s_step(acc, _mm_set1_ps(x->scale), d, sum);
    }
    return acc;
}

/* The same for four activation rows whose exponents are all 1: they share each spread scale. */
FL_INLINE void s_dot4(const __m256i q[8], const __m256i mag[8], __m256i s, const fl_act *const x[4],
                      fl_pair_fn pair, __m256i sum[4])
{
    __m256i v[4];
    for (int i = 0; i < 4; i++) v[i] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) v[i] = s_add(v[i], s, k, q, mag, x[i], pair);
    }
    for (int i = 0; i < 4; i++) sum[i] = v[i];
}

FL_INLINE void s_rows(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, float *out,
                      int64_t bytes, bool plain, unpack_fn unpack, fl_pair_fn pair)
{
    __m128 acc[FL_ROW_TILE / 4];
    for (int g = 0; g < t->groups; g++) acc[g] = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        s_block v;
        __m256i mag[8];
        unpack(row + b * bytes, &v);
        for (int k = 0; k < 8; k++) mag[k] = _mm256_abs_epi8(v.q[k]);
        __m128 d = _mm_set1_ps(_cvtsh_ss(v.d));
        for (int g = 0; g < t->groups; g++) {
            const fl_act *const *at = t->at + 4 * g;
            const fl_act *const x[4] = {at[0] + b, at[1] + b, at[2] + b, at[3] + b};
            __m256i sum[4];
            if (plain)
                s_dot4(v.q, mag, v.s, x, pair, sum);
            else
                for (int i = 0; i < 4; i++) sum[i] = s_dot(v.q, mag, v.s, x[i], pair);
            acc[g] = s_step(acc[g], fl_act_scales(x), d, sum);
        }
    }
    for (int g = 0; g < t->groups; g++) _mm_storeu_ps(out + 4 * g, acc[g]);
}

#define FL_LAW_S_OF(TIER, DOT, NAME, BYTES)                                                    \
    static __m128 NAME##_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,     \
                              int64_t nb)                                                      \
    {                                                                                          \
        return s_four(row, ahead, x, nb, BYTES, unpack_##NAME, fl_pair_##DOT);                 \
    }                                                                                          \
    static void NAME##_plain(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out) \
    {                                                                                          \
        s_rows(row, t, nb, out, BYTES, true, unpack_##NAME, fl_pair_##DOT);                    \
    }                                                                                          \
    static void NAME##_rows(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out)  \
    {                                                                                          \
        if (t->plain)                                                                          \
            NAME##_plain(row, t, nb, out);                                                     \
        else                                                                                   \
            s_rows(row, t, nb, out, BYTES, false, unpack_##NAME, fl_pair_##DOT);               \
    }                                                                                          \
    const fl_law_x86 fl_law_##TIER##_##NAME = {NAME##_four, NAME##_rows};

#endif
#endif
