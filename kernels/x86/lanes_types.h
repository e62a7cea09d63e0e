#ifndef FL_KERNELS_X86_LANES_TYPES_H
#define FL_KERNELS_X86_LANES_TYPES_H

#include "kernels/x86/lanes_unpack.h"

/* Weights for products whose lanes are activation rows: how each type is unpacked. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* One block of a weight row. */
typedef struct fl_lane_block {
    uint8_t q[256];    /* levels; signed ones are int8 */
    int32_t start[64]; /* signed levels: -128 times the sum of a part, at [the part's first / 4] */
    int32_t s[16];     /* scales, per 32 or per 16 */
    float step[16];    /* stepwise: scales, per part */
    int32_t min[4];    /* pairs of minima */
    float d, dmin;
} fl_lane_block;

/* How a type is multiplied. Products of `part` levels are summed before the scale is applied; these
 * sums fit 16 bits, but for wide ones. Scales are per 32 / halves. Stepwise: the float chain takes
 * a step per part (the types of law 32 and 16). */
typedef struct fl_lane_kind {
    void (*unpack)(const uint8_t *p, fl_lane_block *o);
    int bytes, part, halves;
    bool is_signed, has_min, wide, stepwise;
} fl_lane_kind;

FL_INLINE void fl_lane_unsigned(__m256i q, int k, fl_lane_block *o)
{
    _mm256_storeu_si256((__m256i *)(o->q + 32 * k), q);
}

/* Parts of 8, 16 or 32 levels. */
FL_INLINE void fl_lane_signed(__m256i q, int k, int part, fl_lane_block *o)
{
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(-128));
    s = _mm256_add_epi32(s, _mm256_srli_epi64(s, 32));
    if (part >= 16) s = _mm256_add_epi32(s, _mm256_unpackhi_epi64(s, s));
    if (part == 32) s = _mm256_add_epi32(s, _mm256_permute2x128_si256(s, s, 1));
    _mm256_storeu_si256((__m256i *)(o->q + 32 * k), q);
    _mm256_storeu_si256((__m256i *)(o->start + 8 * k), s);
}

FL_INLINE void lane_k(const uint8_t *p, bool five, fl_lane_block *o)
{
    __m256i sm = k_scales(p + 4), qh = five ? fl_load256(p + 16) : sm;
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) fl_lane_unsigned(k_levels(p + (five ? 48 : 16), qh, k, five), k, o);
    __m256i s = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sm));
    _mm256_storeu_si256((__m256i *)o->s, s);
    _mm_storeu_si128((__m128i *)o->min, _mm256_extracti128_si256(sm, 1));
    o->d = fl_half_at(p);
    o->dmin = fl_half_at(p + 2);
}
static inline void lane_q4_k(const uint8_t *p, fl_lane_block *o) { lane_k(p, false, o); }
static inline void lane_q5_k(const uint8_t *p, fl_lane_block *o) { lane_k(p, true, o); }

/* s_block keeps scales of even groups of 16 in the low half, of odd ones in the high half. */
FL_INLINE void lane_s(const s_block *v, int part, fl_lane_block *o)
{
    for (int k = 0; k < 8; k++) fl_lane_signed(v->q[k], k, part, o);
    __m128i even = _mm256_castsi256_si128(v->s), odd = _mm256_extracti128_si256(v->s, 1);
    __m256i lo = _mm256_cvtepi16_epi32(_mm_unpacklo_epi16(even, odd));
    _mm256_storeu_si256((__m256i *)o->s, lo);
    _mm256_storeu_si256((__m256i *)(o->s + 8),
                        _mm256_cvtepi16_epi32(_mm_unpackhi_epi16(even, odd)));
    o->d = _cvtsh_ss(v->d);
}
static inline void lane_q6_k(const uint8_t *p, fl_lane_block *o)
{
    s_block v;
    unpack_q6_k(p, &v);
    lane_s(&v, 8, o);
}
static inline void lane_q3_k(const uint8_t *p, fl_lane_block *o)
{
    s_block v;
    unpack_q3_k(p, &v);
    lane_s(&v, 16, o);
}

static inline void lane_iq4_xs(const uint8_t *p, fl_lane_block *o)
{
    s_block v;
    unpack_iq4_xs(p, &v);
    for (int k = 0; k < 8; k++) fl_lane_signed(v.q[k], k, 32, o);
    _mm256_storeu_si256((__m256i *)o->s, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(v.s)));
    o->d = _cvtsh_ss(v.d);
}

FL_INLINE void lane_32(const uint8_t *p, int part, levels_fn levels, scale_fn scale,
                       fl_lane_block *o)
{
    for (int k = 0; k < 8; k++) {
        fl_lane_signed(levels(p, k), k, part, o);
        for (int h = 0; h < 32 / part; h++) o->step[k * (32 / part) + h] = scale(p, k, h);
    }
}
#define LANE_32(NAME, PART)                                            \
    static inline void lane_##NAME(const uint8_t *p, fl_lane_block *o) \
    {                                                                  \
        lane_32(p, PART, NAME##_levels, NAME##_scale, o);              \
    }
LANE_32(q8_0, 32)
LANE_32(q4_0, 32)
LANE_32(iq4_nl, 32)
LANE_32(mxfp4, 32)
LANE_32(nvfp4, 16)

#endif
#endif
