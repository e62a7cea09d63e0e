#ifndef FL_KERNELS_X86_LAW_AVXVNNI_H
#define FL_KERNELS_X86_LAW_AVXVNNI_H

#include "kernels/x86/law_avx2.h"

#if defined(__AVXVNNI__)

extern const fl_law_x86 fl_law_avxvnni_q4_k, fl_law_avxvnni_q5_k;
extern const fl_law_x86 fl_law_avxvnni_q6_k, fl_law_avxvnni_q3_k;
extern const fl_law_x86 fl_law_avxvnni_q8_0, fl_law_avxvnni_q4_0, fl_law_avxvnni_iq4_nl;

FL_INLINE __m256i fl_fours_avxvnni(__m256i u, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), u, x);
}

/* Sums of four products fit 16 bits for levels up to 64, so those of two sub-blocks are packed and
 * one instruction multiplies them by their scales. */
FL_INLINE __m256i fl_pair_avxvnni(__m256i sum, __m256i s, int k, __m256i u0, __m256i x0, __m256i u1,
                                  __m256i x1)
{
    const long long a = 0x0100010001000100 + 0x0202020202020202 * k, b = a + 0x0202020202020202;
    __m256i dot = _mm256_packs_epi32(fl_fours_avxvnni(u0, x0), fl_fours_avxvnni(u1, x1));
    return _mm256_dpwssd_avx_epi32(sum, dot,
                                   _mm256_shuffle_epi8(s, _mm256_setr_epi64x(a, b, a, b)));
}

#endif
#endif
