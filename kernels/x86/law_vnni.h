#ifndef FL_KERNELS_X86_LAW_VNNI_H
#define FL_KERNELS_X86_LAW_VNNI_H

#include "kernels/x86/law_avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

extern const fl_law_x86 fl_law_avxvnni_q4_k, fl_law_avxvnni_q5_k;
extern const fl_law_x86 fl_law_avxvnni_q6_k, fl_law_avxvnni_q3_k;
extern const fl_law_x86 fl_law_avxvnni_q8_0, fl_law_avxvnni_q4_0, fl_law_avxvnni_iq4_nl;
extern const fl_law_x86 fl_law_avx512vnni_q4_k, fl_law_avx512vnni_q5_k;
extern const fl_law_x86 fl_law_avx512vnni_q6_k, fl_law_avx512vnni_q3_k;
extern const fl_law_x86 fl_law_avx512vnni_q8_0, fl_law_avx512vnni_q4_0, fl_law_avx512vnni_iq4_nl;

/* mul_law of many rows (law_lanes.h). */
void fl_avxvnni_mul_lanes(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                          float *y, int64_t ldy);
void fl_avx512vnni_mul_lanes(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                             float *y, int64_t ldy);
void fl_avx512vnni_mul_lanes8(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                              float *y, int64_t ldy);

void fl_amx_mul_tiles(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                      float *y, int64_t ldy);

/* The same two instructions have one encoding for CPUs with AVX-512 and one for those without. */
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define FL_DPBUSD _mm256_dpbusd_epi32
#define FL_DPWSSD _mm256_dpwssd_epi32
#elif defined(__AVXVNNI__)
#define FL_DPBUSD _mm256_dpbusd_avx_epi32
#define FL_DPWSSD _mm256_dpwssd_avx_epi32
#endif

#if defined(FL_DPBUSD)

FL_INLINE __m256i fl_fours_vnni(__m256i u, __m256i x)
{
    return FL_DPBUSD(_mm256_setzero_si256(), u, x);
}

/* Sums of four products fit 16 bits for levels up to 64, so those of two sub-blocks are packed and
 * one instruction multiplies them by their scales. */
FL_INLINE __m256i fl_pair_vnni(__m256i sum, __m256i s, int k, __m256i u0, __m256i x0, __m256i u1,
                               __m256i x1)
{
    const long long a = 0x0100010001000100 + 0x0202020202020202 * k, b = a + 0x0202020202020202;
    __m256i dot = _mm256_packs_epi32(fl_fours_vnni(u0, x0), fl_fours_vnni(u1, x1));
    return FL_DPWSSD(sum, dot, _mm256_shuffle_epi8(s, _mm256_setr_epi64x(a, b, a, b)));
}

#endif
#endif
#endif
