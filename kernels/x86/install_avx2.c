#include "kernels/x86/x86.h"

void fl_kernels_avx2(fl_kernels *k)
{
    k->name = "avx2";
    k->act_quantize = fl_avx2_act_quantize;
    k->mul_law = fl_avx2_mul_law;
    k->mul_float = fl_avx2_mul_float;
    k->rmsnorm = fl_avx2_rmsnorm;
    k->l2norm = fl_avx2_l2norm;
    k->silu_mul = fl_avx2_silu_mul;
    k->sigmoid_mul = fl_avx2_sigmoid_mul;
    k->conv4_silu = fl_avx2_conv4_silu;
    k->axpy = fl_avx2_axpy;
    k->exp_sum = fl_avx2_exp_sum;
    k->gdn_scan = fl_avx2_gdn_scan;
    k->attention = fl_avx2_attention;
    k->attention_chunk = fl_avx2_attention_chunk;
    k->attention_join = fl_avx2_attention_join;
}
