#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/law_vnni.h"
#include "kernels/x86/pairs_law.h"
#include "kernels/x86/x86.h"

/* Weight rows that stay in the L2 cache for all activation rows. */
enum { TILE = 256 };

/* Vectors of sixteen (with at most a quarter empty), then of eight activation rows; the others by
 * pairs. */
void fl_avx512vnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                           float *y, int64_t ldy)
{
    const int by16 = n_rows % 16 >= 12 ? n_rows : n_rows & ~15;
    const int by8 = (n_rows - by16) & 8, r = by16 + by8;
    const int64_t nb = w->cols / 256;
    assert(fl_mat_fits(w, n0, n1, true));
    for (int64_t m = n0; m < n1; m += TILE) {
        const int64_t end = n1 - m < TILE ? n1 : m + TILE;
        if (by16) fl_avx512vnni_mul_lanes(w, m, end, x, by16, y, ldy);
        if (by8) fl_avx512vnni_mul_lanes8(w, m, end, x + by16 * nb, by8, y + by16 * ldy, ldy);
        if (r < n_rows) fl_pair_law(w, m, end, x + r * nb, n_rows - r, y + r * ldy, ldy);
    }
}

/* Tiles of sixteen activation rows (with at most half of the last one empty); the others as above,
 * and so are fewer than sixteen. */
void fl_amx_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy)
{
    const int by16 = n_rows >= 16 && n_rows % 16 >= 8 ? n_rows : n_rows & ~15;
    const int64_t nb = w->cols / 256;
    assert(fl_mat_fits(w, n0, n1, true));
    for (int64_t m = n0; m < n1 && by16; m += TILE)
        fl_amx_mul_tiles(w, m, n1 - m < TILE ? n1 : m + TILE, x, by16, y, ldy);
    if (by16 < n_rows)
        fl_avx512vnni_mul_law(w, n0, n1, x + by16 * nb, n_rows - by16, y + by16 * ldy, ldy);
}
