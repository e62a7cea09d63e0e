#ifndef FL_KERNELS_X86_V16_H
#define FL_KERNELS_X86_V16_H

#include "kernels/x86/avx2.h"

/* The 16 virtual lanes of L6 as one value: a vector of AVX-512 or two of AVX2. What is written
 * with these gives the same bits on both. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#if defined(__AVX512F__) && defined(__AVX512DQ__)
typedef __m512 fl_v16;
FL_INLINE fl_v16 fl_v16_zero(void) { return _mm512_setzero_ps(); }
FL_INLINE fl_v16 fl_v16_all(float v) { return _mm512_set1_ps(v); }
FL_INLINE fl_v16 fl_v16_load(const float *p) { return _mm512_loadu_ps(p); }
FL_INLINE void fl_v16_store(float *p, fl_v16 v) { _mm512_storeu_ps(p, v); }
FL_INLINE fl_v16 fl_v16_add(fl_v16 a, fl_v16 b) { return _mm512_add_ps(a, b); }
FL_INLINE fl_v16 fl_v16_sub(fl_v16 a, fl_v16 b) { return _mm512_sub_ps(a, b); }
FL_INLINE fl_v16 fl_v16_mul(fl_v16 a, fl_v16 b) { return _mm512_mul_ps(a, b); }
FL_INLINE fl_v16 fl_v16_fma(fl_v16 a, fl_v16 b, fl_v16 c) { return _mm512_fmadd_ps(a, b, c); }
#else
typedef struct fl_v16 {
    __m256 a, b; /* lanes 0..7, 8..15 */
} fl_v16;
#define FL_V16_BOTH(f, x, y) ((fl_v16){f((x).a, (y).a), f((x).b, (y).b)})
FL_INLINE fl_v16 fl_v16_all(float v) { return (fl_v16){_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
FL_INLINE fl_v16 fl_v16_zero(void) { return fl_v16_all(0.0f); }
FL_INLINE fl_v16 fl_v16_load(const float *p)
{
    return (fl_v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
FL_INLINE void fl_v16_store(float *p, fl_v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
FL_INLINE fl_v16 fl_v16_add(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_add_ps, x, y); }
FL_INLINE fl_v16 fl_v16_sub(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_sub_ps, x, y); }
FL_INLINE fl_v16 fl_v16_mul(fl_v16 x, fl_v16 y) { return FL_V16_BOTH(_mm256_mul_ps, x, y); }
FL_INLINE fl_v16 fl_v16_fma(fl_v16 x, fl_v16 y, fl_v16 z)
{
    return (fl_v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
#undef FL_V16_BOTH
#endif

#endif
#endif
