#include "kernels/x86/attention.h"
#include "kernels/x86/x86.h"

void fl_avx2_attention(const fl_attn_args *a, float *out, int64_t out_stride)
{
    fl_attn_rows(a, out, out_stride);
}
void fl_avx2_attention_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to)
{
    fl_attn_one_chunk(a, chunk, to);
}
void fl_avx2_attention_join(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                            int head_dim)
{
    fl_attn_join_heads(run, part, n_heads, head_dim);
}
