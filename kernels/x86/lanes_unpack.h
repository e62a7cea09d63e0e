#ifndef FL_KERNELS_X86_LANES_UNPACK_H
#define FL_KERNELS_X86_LANES_UNPACK_H

#include "kernels/x86/avx2.h"
#include "quant/blocks.h"

/* Levels and scales of one block, in order. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* ---- Q4_K, Q5_K ---- */

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

/* ---- Q6_K, Q3_K, IQ4_XS ---- */

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

/* ---- blocks of 32 (NVFP4: of 16) ---- */

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

#endif
#endif
