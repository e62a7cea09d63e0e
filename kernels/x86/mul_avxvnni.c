#include "kernels/x86/law_avxvnni.h"
#include "kernels/x86/x86.h"

/* NULL: AVX2 is as fast. */
static const fl_law_x86 *law_of(uint32_t type)
{
    switch (type) {
    case FL_TYPE_Q4_K: return &fl_law_avxvnni_q4_k;
    case FL_TYPE_Q5_K: return &fl_law_avxvnni_q5_k;
    case FL_TYPE_Q6_K: return &fl_law_avxvnni_q6_k;
    case FL_TYPE_Q3_K: return &fl_law_avxvnni_q3_k;
    case FL_TYPE_Q8_0: return &fl_law_avxvnni_q8_0;
    case FL_TYPE_Q4_0: return &fl_law_avxvnni_q4_0;
    case FL_TYPE_IQ4_NL: return &fl_law_avxvnni_iq4_nl;
    default: return NULL;
    }
}

void fl_avxvnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                        float *y, int64_t ldy)
{
    const fl_law_x86 *law = law_of(w->type);
    if (law)
        fl_law_mul(law, w, n0, n1, x, n_rows, y, ldy);
    else
        fl_avx2_mul_law(w, n0, n1, x, n_rows, y, ldy);
}
