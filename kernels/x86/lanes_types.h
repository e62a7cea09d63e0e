#ifndef FL_KERNELS_X86_LANES_TYPES_H
#define FL_KERNELS_X86_LANES_TYPES_H

#include "kernels/x86/law_32.h"
#include "kernels/x86/law_k.h"
#include "kernels/x86/law_lanes.h"
#include "kernels/x86/law_s.h"

/* The types that law_lanes.h multiplies. */
#if defined(FL_DPBUSD)

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

static inline void fl_lane_mul_law(const fl_mat *m, int64_t n0, int64_t n1, const fl_act *x,
                                   int n_rows, float *y, int64_t ldy)
{
    /* unpack, bytes, part, halves, is_signed, has_min, wide, stepwise */
    static const fl_lane_kind q4_k = {lane_q4_k, 144, 16, 1, false, true, false, false};
    static const fl_lane_kind q5_k = {lane_q5_k, 176, 8, 1, false, true, false, false};
    static const fl_lane_kind q6_k = {lane_q6_k, 210, 8, 2, true, false, false, false};
    static const fl_lane_kind q3_k = {lane_q3_k, 110, 16, 2, true, false, false, false};
    static const fl_lane_kind iq4_xs = {lane_iq4_xs, 136, 32, 1, true, false, true, false};
    static const fl_lane_kind q8_0 = {lane_q8_0, 8 * 34, 32, 1, true, false, false, true};
    static const fl_lane_kind q4_0 = {lane_q4_0, 8 * 18, 32, 1, true, false, false, true};
    static const fl_lane_kind iq4_nl = {lane_iq4_nl, 8 * 18, 32, 1, true, false, false, true};
    static const fl_lane_kind mxfp4 = {lane_mxfp4, 8 * 17, 32, 1, true, false, false, true};
    static const fl_lane_kind nvfp4 = {lane_nvfp4, 4 * 36, 16, 2, true, false, false, true};
    switch (m->type) {
    case FL_TYPE_Q4_K: fl_lane_mul(m, &q4_k, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_Q5_K: fl_lane_mul(m, &q5_k, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_Q6_K: fl_lane_mul(m, &q6_k, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_Q3_K: fl_lane_mul(m, &q3_k, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_IQ4_XS: fl_lane_mul(m, &iq4_xs, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_Q8_0: fl_lane_mul(m, &q8_0, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_Q4_0: fl_lane_mul(m, &q4_0, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_IQ4_NL: fl_lane_mul(m, &iq4_nl, n0, n1, x, n_rows, y, ldy); break;
    case FL_TYPE_MXFP4: fl_lane_mul(m, &mxfp4, n0, n1, x, n_rows, y, ldy); break;
    default: fl_lane_mul(m, &nvfp4, n0, n1, x, n_rows, y, ldy); break;
    }
}

#endif
#endif
