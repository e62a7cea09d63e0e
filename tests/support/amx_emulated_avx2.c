#include "tests/support/tiles.h"

#include "kernels/x86/law_amx.h"

void fl_emulated_mul_tiles(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                           float *y, int64_t ldy)
{
#if defined(__AVX2__)
    fl_lane_mul_law(w, n0, n1, x, n_rows, y, ldy);
#endif
}
