#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/law_vnni.h"
#include "kernels/x86/pairs_law.h"
#include "kernels/x86/x86.h"

/* Weight rows that stay in the L2 cache for all activation rows. */
enum { TILE = 256 };

/* Full vectors of eight activation rows; the others by pairs. */
void fl_avxvnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                        float *y, int64_t ldy)
{
    const int by8 = n_rows & ~7;
    assert(fl_mat_fits(w, n0, n1, true));
    for (int64_t m = n0; m < n1; m += TILE) {
        const int64_t end = n1 - m < TILE ? n1 : m + TILE;
        if (by8) fl_avxvnni_mul_lanes(w, m, end, x, by8, y, ldy);
        if (by8 < n_rows)
            fl_pair_law(w, m, end, x + by8 * (w->cols / 256), n_rows - by8, y + by8 * ldy, ldy);
    }
}
