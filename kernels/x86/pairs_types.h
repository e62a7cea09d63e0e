#ifndef FL_KERNELS_X86_PAIRS_TYPES_H
#define FL_KERNELS_X86_PAIRS_TYPES_H

#include "kernels/x86/pairs.h"
#include "quant/blocks.h"

/* The types of pairs.h: blocks of two weight rows at once. Layouts are in FORMAT.md. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

FL_INLINE __m256i pair_low(__m256i y) { return _mm256_and_si256(y, _mm256_set1_epi8(15)); }
FL_INLINE __m256i pair_high(__m256i y) { return pair_low(_mm256_srli_epi16(y, 4)); }

/* ---- K: Q4_K, Q5_K ---- */

FL_INLINE void pair_k_head(fl_bytes a, fl_bytes b, bool five, fl_pair_head *o)
{
    const __m256i six = fl_two_words(0x003f003f003f003f, 0x000f000f000f000f);
    const __m256i two = fl_two_words(0, 0x0030003000300030);
    const __m256i h = fl_two_at(a, b); /* d, dmin, sc[12] */
    __m256i s = _mm256_shuffle_epi8(
        h, fl_two_words((long long)0x8007800680058004, (long long)0x800f800e800d800c));
    __m256i m = _mm256_shuffle_epi8(h, fl_two_words(0x0b800a8009800880, 0x0f800e800d800c80));
    __m256i s2 = _mm256_shuffle_epi8(h, fl_two_words(-1, (long long)0x8007800680058004));
    __m256i m2 = _mm256_shuffle_epi8(h, fl_two_words(-1, (long long)0x800b800a80098008));
    /* AVX2's way to shift each 16-bit number by its own count, here 8 or 12. */
    m = _mm256_mulhi_epu16(m, fl_two_words(0x0100010001000100, 0x0010001000100010));
    s2 = _mm256_and_si256(_mm256_srli_epi16(s2, 2), two);
    m2 = _mm256_and_si256(_mm256_srli_epi16(m2, 2), two);
    o->s[0] = _mm256_or_si256(_mm256_and_si256(s, six), s2);
    o->min = _mm256_or_si256(_mm256_and_si256(m, six), m2);
    o->halves = h;
    for (int i = 0; five && i < 2; i++) o->high[i] = fl_two_at(a + 16 + 16 * i, b + 16 + 16 * i);
}
FL_INLINE void pair_q4_k_head(fl_bytes a, fl_bytes b, fl_pair_head *o)
{
    pair_k_head(a, b, false, o);
}
FL_INLINE void pair_q5_k_head(fl_bytes a, fl_bytes b, fl_pair_head *o)
{
    pair_k_head(a, b, true, o);
}

FL_INLINE void pair_q4_k(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++) {
        const int at = 16 + 16 * (k + i);
        const __m256i y = fl_two_at(a + at, b + at);
        q[i] = pair_low(y);
        q[i + 2] = pair_high(y);
    }
}
FL_INLINE void pair_q5_k(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    const __m256i bit = _mm256_set1_epi8(16);
    pair_q4_k(a + 32, b + 32, k, h, q);
    for (int i = 0; i < 2; i++) {
        const __m256i v = h->high[i];
        __m256i u = k <= 4 ? _mm256_slli_epi16(v, 4 - k) : _mm256_srli_epi16(v, k - 4);
        __m256i w = k < 4 ? _mm256_slli_epi16(v, 3 - k) : _mm256_srli_epi16(v, k - 3);
        q[i] = _mm256_or_si256(q[i], _mm256_and_si256(u, bit));
        q[i + 2] = _mm256_or_si256(q[i + 2], _mm256_and_si256(w, bit));
    }
}

/* ---- S: Q6_K, Q3_K, IQ4_XS ---- */

/* Sixteen signed bytes of each half -> 16-bit numbers. */
FL_INLINE void pair_widen(__m256i v, __m256i s[2])
{
    s[0] = _mm256_srai_epi16(_mm256_unpacklo_epi8(v, v), 8);
    s[1] = _mm256_srai_epi16(_mm256_unpackhi_epi8(v, v), 8);
}

FL_INLINE void pair_q6_k_head(fl_bytes a, fl_bytes b, fl_pair_head *o)
{
    pair_widen(fl_two_at(a + 192, b + 192), o->s);
    o->halves = _mm256_srli_si256(fl_two_at(a + 194, b + 194), 14);
}
FL_INLINE void pair_q6_k(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    const __m256i two = _mm256_set1_epi8(48);
    const int n = k / 4;
    (void)h;
    for (int i = 0; i < 2; i++) {
        const int lo = 64 * n + 16 * i, hi = 128 + 32 * n + 16 * i;
        const __m256i y = fl_two_at(a + lo, b + lo), z = fl_two_at(a + lo + 32, b + lo + 32);
        const __m256i v = fl_two_at(a + hi, b + hi);
        __m256i u = k % 4 ? v : _mm256_slli_epi16(v, 4);
        __m256i w = k % 4 ? _mm256_srli_epi16(v, 2) : _mm256_slli_epi16(v, 2);
        q[i] = _mm256_or_si256(k % 4 ? pair_high(y) : pair_low(y), _mm256_and_si256(u, two));
        q[i + 2] = _mm256_or_si256(k % 4 ? pair_high(z) : pair_low(z), _mm256_and_si256(w, two));
    }
}

FL_INLINE void pair_q3_k_head(fl_bytes a, fl_bytes b, fl_pair_head *o)
{
    const __m256i v = fl_two_at(a + 94, b + 94); /* sc[12] from byte 2, d from byte 14 */
    __m256i lo = _mm256_shuffle_epi8(v, fl_two_words(0x0908070605040302, 0x0908070605040302));
    __m256i hi = _mm256_shuffle_epi8(v, fl_two_words(0x0d0c0b0a0d0c0b0a, 0x0d0c0b0a0d0c0b0a));
    hi = _mm256_srlv_epi32(hi, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    hi = _mm256_slli_epi16(_mm256_and_si256(hi, _mm256_set1_epi8(3)), 4);
    lo = _mm256_unpacklo_epi64(pair_low(lo), pair_high(lo));
    pair_widen(_mm256_sub_epi8(_mm256_or_si256(lo, hi), _mm256_set1_epi8(32)), o->s);
    o->halves = _mm256_srli_si256(v, 14);
    for (int i = 0; i < 2; i++) o->high[i] = fl_two_at(a + 16 * i, b + 16 * i);
}
FL_INLINE void pair_q3_k(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    const __m256i three = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4);
    for (int i = 0; i < 2; i++) {
        const int at = 32 + 32 * (k / 4) + 16 * i;
        const __m256i y = fl_two_at(a + at, b + at);
        for (int j = k; j < k + 2; j++) {
            __m256i v = h->high[i];
            v = j <= 2 ? _mm256_slli_epi16(v, 2 - j) : _mm256_srli_epi16(v, j - 2);
            const __m256i u = _mm256_and_si256(_mm256_srli_epi16(y, 2 * (j % 4)), three);
            q[2 * (j - k) + i] = _mm256_or_si256(u, _mm256_and_si256(v, four));
        }
    }
}

/* Levels of a table, as VNNI and AVX2 want signed ones (pairs.h). */
FL_INLINE __m256i pair_lookup(const int8_t table[16], __m256i nibble)
{
    const __m256i t = fl_two(fl_load128(table));
    return _mm256_shuffle_epi8(_mm256_xor_si256(t, _mm256_set1_epi8(FL_VNNI ? -128 : 0)), nibble);
}

/* Sub-block of 16 bytes: low nibbles first. */
FL_INLINE void pair_iq4(__m256i y, __m256i q[2])
{
    q[0] = pair_lookup(fl_iq4_values, pair_low(y));
    q[1] = pair_lookup(fl_iq4_values, pair_high(y));
}

FL_INLINE void pair_iq4_xs_head(fl_bytes a, fl_bytes b, fl_pair_head *o)
{
    const __m256i h = fl_two_at(a, b); /* d, sh, sl[4] */
    const long long lo_at = (long long)0x8005800580048004, hi_at = 0x0302030203020302;
    __m256i lo = _mm256_shuffle_epi8(h, fl_two_words(lo_at, lo_at + 0x0002000200020002));
    __m256i hi = _mm256_shuffle_epi8(h, fl_two_words(hi_at, hi_at));
    /* Shifts of each number by its own count: to the left, then all to the right. */
    lo = _mm256_mullo_epi16(lo, fl_two_words(0x0001001000010010, 0x0001001000010010));
    lo = _mm256_and_si256(_mm256_srli_epi16(lo, 4), _mm256_set1_epi16(15));
    hi = _mm256_mullo_epi16(hi, fl_two_words(0x0100040010004000, 0x0001000400100040));
    hi = _mm256_slli_epi16(_mm256_srli_epi16(hi, 14), 4);
    o->s[0] = _mm256_sub_epi16(_mm256_or_si256(lo, hi), _mm256_set1_epi16(32));
    o->halves = h;
}
FL_INLINE void pair_iq4_xs(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++)
        pair_iq4(fl_two_at(a + 8 + 16 * (k + i), b + 8 + 16 * (k + i)), q + 2 * i);
}

/* ---- 32, 16: a scale per step ---- */

FL_INLINE float pair_q8_0_scale(fl_bytes a, int k) { return fl_half_at(a + 34 * k); }
FL_INLINE void pair_q8_0(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 4; i++) {
        const int at = 34 * (k + i / 2) + 2 + 16 * (i % 2);
        q[i] = _mm256_xor_si256(fl_two_at(a + at, b + at), _mm256_set1_epi8(FL_VNNI ? -128 : 0));
    }
}

FL_INLINE float pair_q4_0_scale(fl_bytes a, int k) { return fl_half_at(a + 18 * k); }
FL_INLINE void pair_q4_0(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++) {
        const int at = 18 * (k + i) + 2;
        const __m256i y = fl_two_at(a + at, b + at);
        q[2 * i] = pair_low(y);
        q[2 * i + 1] = pair_high(y);
    }
}

FL_INLINE void pair_iq4_nl(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++)
        pair_iq4(fl_two_at(a + 18 * (k + i) + 2, b + 18 * (k + i) + 2), q + 2 * i);
}

/* Twice the E2M1 values plus 12. */
FL_INLINE __m256i pair_fp4(__m256i nibble)
{
    const __m256i t = _mm256_add_epi8(fl_two(fl_load128(fl_fp4_values)), _mm256_set1_epi8(12));
    return _mm256_shuffle_epi8(t, nibble);
}

FL_INLINE float pair_mxfp4_scale(fl_bytes a, int k) { return fl_e8m0_half_to_f32(a[17 * k]); }
FL_INLINE void pair_mxfp4(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++) {
        const __m256i y = fl_two_at(a + 17 * (k + i) + 1, b + 17 * (k + i) + 1);
        q[2 * i] = pair_fp4(pair_low(y));
        q[2 * i + 1] = pair_fp4(pair_high(y));
    }
}

/* Steps of 16; a group of 8 bytes has low nibbles first. */
FL_INLINE float pair_nvfp4_scale(fl_bytes a, int k)
{
    return fl_ue4m3_half_to_f32(a[36 * (k / 4) + k % 4]);
}
FL_INLINE void pair_nvfp4(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4])
{
    (void)h;
    for (int i = 0; i < 2; i++) {
        const int at = 36 * (k / 2) + 4 + 16 * i;
        const __m256i y = fl_two_at(a + at, b + at), z = _mm256_srli_epi16(y, 4);
        q[2 * i] = pair_fp4(pair_low(_mm256_unpacklo_epi64(y, z)));
        q[2 * i + 1] = pair_fp4(pair_low(_mm256_unpackhi_epi64(y, z)));
    }
}

#endif
#endif
