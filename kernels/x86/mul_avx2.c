#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/pairs_law.h"
#include "kernels/x86/x86.h"

void fl_avx2_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                     int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, true));
    fl_pair_law(w, n0, n1, x, n_rows, y, ldy);
}
