#ifndef FL_KERNELS_X86_LAW_VNNI_H
#define FL_KERNELS_X86_LAW_VNNI_H

#include "kernels/kernels.h"
#include "kernels/x86/avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* Activation rows that share one unpacking of a weight block. */
#define FL_ROW_TILE 64

/* mul_law of many rows (law_lanes.h), in vectors of 16 lanes with AVX-512, else of 8. */
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

#endif
#endif
