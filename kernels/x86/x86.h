#ifndef FL_KERNELS_X86_H
#define FL_KERNELS_X86_H

#include "kernels/kernels.h"

/* Overwrites the entries that have AVX2 + FMA + F16C code. The caller has checked the CPU. */
void fl_kernels_avx2(fl_kernels *k);
/* Likewise, after AVX2: AVX-VNNI; AVX-512 with BW, DQ, VL and VNNI; and after that AMX, for which
 * the system has given its permission. */
void fl_kernels_avxvnni(fl_kernels *k);
void fl_kernels_avx512vnni(fl_kernels *k);
void fl_kernels_amx(fl_kernels *k);

bool fl_avx2_act_quantize(const float *x, int64_t cols, fl_act *out);
void fl_avx2_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                     int64_t ldy);
void fl_avx2_mul_float(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                       int n_rows, float *y, int64_t ldy);
void fl_avx2_rmsnorm(const float *x, const float *w, int64_t n, float eps, float *y);
void fl_avx2_l2norm(const float *x, int64_t n, float scale, float *y);
void fl_avx2_silu_mul(const float *g, const float *u, int64_t n, float *h);
void fl_avx2_sigmoid_mul(const float *x, const float *g, int64_t n, float *y);
void fl_avx2_conv4_silu(const float *const row[4], const float *w, int64_t n, float *y);
void fl_avx2_axpy(float a, const float *x, int64_t n, float *y);
double fl_avx2_exp_sum(const float *x, int64_t n, float max, float *e);
void fl_avx2_gdn_scan(const fl_gdn_args *a);
void fl_avx2_attention(const fl_attn_args *a, float *out, int64_t out_stride);
void fl_avx2_attention_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to);
void fl_avx2_attention_join(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                            int head_dim);

void fl_avxvnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                        float *y, int64_t ldy);
void fl_avx512vnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                           float *y, int64_t ldy);
void fl_avx512vnni_gdn_scan(const fl_gdn_args *a);
void fl_avx512vnni_attention(const fl_attn_args *a, float *out, int64_t out_stride);
void fl_avx512vnni_attention_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to);
void fl_avx512vnni_attention_join(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                                  int head_dim);
void fl_amx_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy);

#endif
