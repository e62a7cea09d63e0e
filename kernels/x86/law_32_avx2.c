#include "kernels/x86/law_avx2.h"
#include "quant/blocks.h"

/* L2 for blocks of 32 (NVFP4: of 16): one step of the float chain per block, eight (sixteen) per
 * activation block. P_k is a power of two, so (float)(P I) = P (float)I and it is applied there. */

/* 256 levels and the float scale of each block of 32 (or 16). */
typedef struct b_block {
    __m256i q[8];
    float d[16];
} b_block;

FL_INLINE __m256i nibbles(const uint8_t *p)
{
    __m128i y = fl_load128(p);
    __m256i v = _mm256_set_m128i(_mm_srli_epi16(y, 4), y);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

FL_INLINE float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _cvtsh_ss(h);
}

FL_INLINE void unpack_q8_0(const uint8_t *p, b_block *o)
{
    for (int k = 0; k < 8; k++, p += 34) {
        o->d[k] = half_at(p);
        o->q[k] = fl_load256(p + 2);
    }
}

FL_INLINE void unpack_q4_0(const uint8_t *p, b_block *o)
{
    for (int k = 0; k < 8; k++, p += 18) {
        o->d[k] = half_at(p);
        o->q[k] = _mm256_sub_epi8(nibbles(p + 2), _mm256_set1_epi8(8));
    }
}

FL_INLINE void unpack_iq4_nl(const uint8_t *p, b_block *o)
{
    const __m256i values = _mm256_broadcastsi128_si256(fl_load128(fl_iq4_values));
    for (int k = 0; k < 8; k++, p += 18) {
        o->d[k] = half_at(p);
        o->q[k] = _mm256_shuffle_epi8(values, nibbles(p + 2));
    }
}

FL_INLINE void unpack_mxfp4(const uint8_t *p, b_block *o)
{
    const __m256i values = _mm256_broadcastsi128_si256(fl_load128(fl_fp4_values));
    for (int k = 0; k < 8; k++, p += 17) {
        o->d[k] = fl_e8m0_half_to_f32(p[0]);
        o->q[k] = _mm256_shuffle_epi8(values, nibbles(p + 1));
    }
}

FL_INLINE void unpack_nvfp4(const uint8_t *p, b_block *o)
{
    const __m256i values = _mm256_broadcastsi128_si256(fl_load128(fl_fp4_values));
    for (int i = 0; i < 4; i++, p += 36) {
        for (int s = 0; s < 4; s++) o->d[4 * i + s] = fl_ue4m3_half_to_f32(p[s]);
        for (int k = 0; k < 2; k++) {
            /* Two groups of 8 bytes: low nibbles are elements 0..7 of a group, high ones 8..15. */
            __m128i y = fl_load128(p + 4 + 16 * k), z = _mm_srli_epi16(y, 4);
            __m256i v = _mm256_set_m128i(_mm_unpackhi_epi64(y, z), _mm_unpacklo_epi64(y, z));
            v = _mm256_and_si256(v, _mm256_set1_epi8(15));
            o->q[2 * i + k] = _mm256_shuffle_epi8(values, v);
        }
    }
}

typedef void (*unpack_fn)(const uint8_t *p, b_block *o);

/* Eight sums of four products each of 32 levels. */
FL_INLINE __m256i b_dot(__m256i q, __m256i mag, const int8_t *x)
{
    __m256i dot = _mm256_maddubs_epi16(mag, _mm256_sign_epi8(fl_load256(x), q));
    return _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
}

/* Chain steps of sub-block k. p: P_k of the four lanes; d[0] is the scale of the block, or d[0] and
 * d[1] those of its two halves. */
FL_INLINE __m128 b_step(__m128 acc, __m128 scale, __m128 p, const __m128 d[2], const __m256i v[4],
                        bool halves)
{
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m128i lo = _mm256_castsi256_si128(s), hi = _mm256_extracti128_si256(s, 1);
    if (!halves) {
        __m128 i = _mm_mul_ps(_mm_cvtepi32_ps(_mm_add_epi32(lo, hi)), p);
        return _mm_fmadd_ps(scale, _mm_mul_ps(d[0], i), acc);
    }
    __m128 i = _mm_mul_ps(_mm_cvtepi32_ps(lo), p), j = _mm_mul_ps(_mm_cvtepi32_ps(hi), p);
    acc = _mm_fmadd_ps(scale, _mm_mul_ps(d[0], i), acc);
    return _mm_fmadd_ps(scale, _mm_mul_ps(d[1], j), acc);
}

FL_INLINE __m128 b_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,
                        int64_t n_blocks, int64_t bytes, bool halves, unpack_fn unpack)
{
    const int per = halves ? 2 : 1;
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, x++) {
        b_block v[4];
        for (int i = 0; i < 4; i++) {
            const uint8_t *w = row[i] + b * bytes;
            fl_prefetch(w + ahead, bytes);
            unpack(w, &v[i]);
        }
        __m128 scale = _mm_set1_ps(x->scale);
        for (int k = 0; k < 8; k++) {
            __m256i dot[4];
            __m128 d[2];
            for (int i = 0; i < 4; i++)
                dot[i] = b_dot(v[i].q[k], _mm256_abs_epi8(v[i].q[k]), x->x + 32 * k);
            for (int h = 0; h < per; h++) {
                int at = per * k + h;
                d[h] = _mm_setr_ps(v[0].d[at], v[1].d[at], v[2].d[at], v[3].d[at]);
            }
            acc = b_step(acc, scale, _mm_set1_ps((float)x->p[k]), d, dot, halves);
        }
    }
    return acc;
}

FL_INLINE void b_rows(const uint8_t *row, const fl_act_tile *t, int64_t n_blocks, float *out,
                      int64_t bytes, bool halves, unpack_fn unpack)
{
    const int per = halves ? 2 : 1;
    __m128 acc[FL_ROW_TILE / 4];
    for (int g = 0; g < t->groups; g++) acc[g] = _mm_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        b_block v;
        __m256i mag[8];
        unpack(row + b * bytes, &v);
        for (int k = 0; k < 8; k++) mag[k] = _mm256_abs_epi8(v.q[k]);
        for (int g = 0; g < t->groups; g++) {
            const fl_act *a[4];
            for (int i = 0; i < 4; i++) a[i] = t->at[4 * g + i] + b;
            __m128 scale = fl_act_scales(a);
            for (int k = 0; k < 8; k++) {
                __m256i dot[4];
                __m128 d[2];
                __m128i p = _mm_setr_epi32(a[0]->p[k], a[1]->p[k], a[2]->p[k], a[3]->p[k]);
                for (int i = 0; i < 4; i++) dot[i] = b_dot(v.q[k], mag[k], a[i]->x + 32 * k);
                for (int h = 0; h < per; h++) d[h] = _mm_set1_ps(v.d[per * k + h]);
                acc[g] = b_step(acc[g], scale, _mm_cvtepi32_ps(p), d, dot, halves);
            }
        }
    }
    for (int g = 0; g < t->groups; g++) _mm_storeu_ps(out + 4 * g, acc[g]);
}

#define LAW_32(NAME, BYTES, HALVES)                                                           \
    static __m128 NAME##_four(const uint8_t *const row[4], int64_t ahead, const fl_act *x,    \
                              int64_t nb)                                                     \
    {                                                                                         \
        return b_four(row, ahead, x, nb, BYTES, HALVES, unpack_##NAME);                       \
    }                                                                                         \
    static void NAME##_rows(const uint8_t *row, const fl_act_tile *t, int64_t nb, float *out) \
    {                                                                                         \
        b_rows(row, t, nb, out, BYTES, HALVES, unpack_##NAME);                                \
    }                                                                                         \
    const fl_law_avx2 fl_law_avx2_##NAME = {NAME##_four, NAME##_rows};

LAW_32(q8_0, 8 * 34, false)
LAW_32(q4_0, 8 * 18, false)
LAW_32(iq4_nl, 8 * 18, false)
LAW_32(mxfp4, 8 * 17, false)
LAW_32(nvfp4, 4 * 36, true)
