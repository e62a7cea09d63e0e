#include "kernels/x86/x86.h"

void fl_kernels_avx512vnni(fl_kernels *k)
{
    k->name = "avx512vnni";
    k->mul_law = fl_avx512vnni_mul_law;
    k->gdn_scan = fl_avx512vnni_gdn_scan;
    k->attention = fl_avx512vnni_attention;
    k->attention_chunk = fl_avx512vnni_attention_chunk;
    k->attention_join = fl_avx512vnni_attention_join;
}
