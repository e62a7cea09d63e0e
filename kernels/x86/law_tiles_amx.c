#include "kernels/x86/tiles.h"

#include "kernels/x86/law_amx.h"
#include "kernels/x86/law_vnni.h"

void fl_amx_mul_tiles(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                      float *y, int64_t ldy)
{
    fl_lane_mul_law(w, n0, n1, x, n_rows, y, ldy);
}
