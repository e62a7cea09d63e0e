#ifndef FL_KERNELS_X86_LANES_VEC_H
#define FL_KERNELS_X86_LANES_VEC_H

#include "kernels/x86/law_vnni.h"

/* Vectors of integers and of floats, as wide as the tier's. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* FL_EIGHT_LANES: narrower vectors, of which few rows leave less empty. */
#if defined(__AVX512VNNI__) && !defined(FL_EIGHT_LANES)
enum { FL_LANES = 16 };
typedef __m512i fl_vi;
typedef __m512 fl_vf;
FL_INLINE fl_vi fl_vi_zero(void) { return _mm512_setzero_si512(); }
FL_INLINE fl_vi fl_vi_load(const void *p) { return _mm512_loadu_si512(p); }
FL_INLINE void fl_vi_store(void *p, fl_vi v) { _mm512_storeu_si512(p, v); }
FL_INLINE fl_vi fl_vi_all(int32_t v) { return _mm512_set1_epi32(v); }
FL_INLINE fl_vi fl_vi_sll(fl_vi v, int n) { return _mm512_slli_epi32(v, (unsigned)n); }
/* Bytes of four numbers (of two in a vector of eight lanes), chosen for each 16 bytes by `pick`. */
FL_INLINE fl_vi fl_vi_pick(const int32_t *p, fl_vi pick)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)), pick);
}
FL_INLINE fl_vi fl_vi_mul16(fl_vi a, fl_vi b) { return _mm512_mullo_epi16(a, b); }
FL_INLINE fl_vi fl_vi_mul32(fl_vi a, fl_vi b) { return _mm512_mullo_epi32(a, b); }
FL_INLINE fl_vi fl_vi_add(fl_vi a, fl_vi b) { return _mm512_add_epi32(a, b); }
FL_INLINE fl_vi fl_vi_dot8(fl_vi s, fl_vi u, fl_vi x) { return _mm512_dpbusd_epi32(s, u, x); }
FL_INLINE fl_vi fl_vi_dot16(fl_vi s, fl_vi a, fl_vi b) { return _mm512_dpwssd_epi32(s, a, b); }
FL_INLINE fl_vf fl_vf_of(fl_vi v) { return _mm512_cvtepi32_ps(v); }
FL_INLINE fl_vf fl_vf_load(const float *p) { return _mm512_loadu_ps(p); }
FL_INLINE void fl_vf_store(float *p, fl_vf v) { _mm512_storeu_ps(p, v); }
FL_INLINE fl_vf fl_vf_all(float v) { return _mm512_set1_ps(v); }
FL_INLINE fl_vf fl_vf_mul(fl_vf a, fl_vf b) { return _mm512_mul_ps(a, b); }
FL_INLINE fl_vf fl_vf_fma(fl_vf a, fl_vf b, fl_vf c) { return _mm512_fmadd_ps(a, b, c); }
FL_INLINE fl_vf fl_vf_fms(fl_vf a, fl_vf b, fl_vf c) { return _mm512_fmsub_ps(a, b, c); }
#else
enum { FL_LANES = 8 };
typedef __m256i fl_vi;
typedef __m256 fl_vf;
FL_INLINE fl_vi fl_vi_zero(void) { return _mm256_setzero_si256(); }
FL_INLINE fl_vi fl_vi_load(const void *p) { return fl_load256(p); }
FL_INLINE void fl_vi_store(void *p, fl_vi v) { _mm256_storeu_si256((__m256i *)p, v); }
FL_INLINE fl_vi fl_vi_all(int32_t v) { return _mm256_set1_epi32(v); }
FL_INLINE fl_vi fl_vi_sll(fl_vi v, int n) { return _mm256_slli_epi32(v, n); }
FL_INLINE fl_vi fl_vi_pick(const int32_t *p, fl_vi pick)
{
    __m128i two = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(two), pick);
}
FL_INLINE fl_vi fl_vi_mul16(fl_vi a, fl_vi b) { return _mm256_mullo_epi16(a, b); }
FL_INLINE fl_vi fl_vi_mul32(fl_vi a, fl_vi b) { return _mm256_mullo_epi32(a, b); }
FL_INLINE fl_vi fl_vi_add(fl_vi a, fl_vi b) { return _mm256_add_epi32(a, b); }
#if defined(FL_DPBUSD)
FL_INLINE fl_vi fl_vi_dot8(fl_vi s, fl_vi u, fl_vi x) { return FL_DPBUSD(s, u, x); }
FL_INLINE fl_vi fl_vi_dot16(fl_vi s, fl_vi a, fl_vi b) { return FL_DPWSSD(s, a, b); }
#else
FL_INLINE fl_vi fl_vi_dot16(fl_vi s, fl_vi a, fl_vi b)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
}
#endif
FL_INLINE fl_vf fl_vf_of(fl_vi v) { return _mm256_cvtepi32_ps(v); }
FL_INLINE fl_vf fl_vf_load(const float *p) { return _mm256_loadu_ps(p); }
FL_INLINE void fl_vf_store(float *p, fl_vf v) { _mm256_storeu_ps(p, v); }
FL_INLINE fl_vf fl_vf_all(float v) { return _mm256_set1_ps(v); }
FL_INLINE fl_vf fl_vf_mul(fl_vf a, fl_vf b) { return _mm256_mul_ps(a, b); }
FL_INLINE fl_vf fl_vf_fma(fl_vf a, fl_vf b, fl_vf c) { return _mm256_fmadd_ps(a, b, c); }
FL_INLINE fl_vf fl_vf_fms(fl_vf a, fl_vf b, fl_vf c) { return _mm256_fmsub_ps(a, b, c); }
#endif

#endif
#endif
