#ifndef FL_KERNELS_REF_H
#define FL_KERNELS_REF_H

#include "kernels/kernels.h"

/* The C reference: fills every entry. The contracts are in kernels.h; the order of every sum is
 * in quant/FORMAT.md. Tiers fall back to single entries of it for shapes they have no code for. */
void fl_kernels_ref(fl_kernels *k);

bool fl_ref_act_quantize(const float *x, int64_t cols, fl_act *out);
void fl_ref_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy);
void fl_ref_mul_float(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                      int n_rows, float *y, int64_t ldy);
void fl_ref_rmsnorm(const float *x, const float *w, int64_t n, float eps, float *y);
void fl_ref_l2norm(const float *x, int64_t n, float scale, float *y);
void fl_ref_silu_mul(const float *g, const float *u, int64_t n, float *h);
void fl_ref_sigmoid_mul(const float *x, const float *g, int64_t n, float *y);
void fl_ref_conv4_silu(const float *const row[4], const float *w, int64_t n, float *y);
void fl_ref_axpy(float a, const float *x, int64_t n, float *y);
double fl_ref_exp_sum(const float *x, int64_t n, float max, float *e);
void fl_ref_gdn_scan(const fl_gdn_args *a);
void fl_ref_attention(const fl_attn_args *a, float *out, int64_t out_stride);
void fl_ref_attention_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to);
void fl_ref_attention_join(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                           int head_dim);

/* Promise of mul_law and mul_float: rows inside the matrix, a readable type of the right law and
 * whole blocks. Asserted by every tier. */
bool fl_mat_fits(const fl_mat *w, int64_t n0, int64_t n1, bool law);

/* The same of the attention entries: keys for every row, a type that caches have. */
bool fl_attn_fits(const fl_attn_args *a);

#endif
