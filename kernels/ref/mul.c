#include <assert.h>
#include <stddef.h>

#include "kernels/ref/ref.h"

bool fl_mat_fits(const fl_mat *w, int64_t n0, int64_t n1, bool law)
{
    const fl_type_info *t = fl_type_get(w->type);
    if (!t || !t->readable || n0 < 0 || n0 > n1 || n1 > w->rows || w->cols <= 0) return false;
    return law ? t->law > FL_LAW_FLOAT && w->cols % 256 == 0 : w->cols % t->block_elems == 0;
}

bool fl_ref_act_quantize(const float *x, int64_t cols, fl_act *out)
{
    return fl_law_quantize(x, cols, out);
}

void fl_ref_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, true));
    int64_t bytes = (int64_t)fl_type_row_bytes(w->type, (uint64_t)w->cols);
    for (int64_t n = n0; n < n1; n++) {
        const uint8_t *row = (const uint8_t *)w->data + n * bytes;
        for (int r = 0; r < n_rows; r++)
            y[r * ldy + n] = fl_law_dot(w->type, row, x + r * (w->cols / 256), w->cols) * w->scale;
    }
}

/* One output: the weight row is turned into floats 256 at a time, the lanes run through. */
static float float_row(const fl_type_info *t, const uint8_t *row, const float *x, int64_t cols)
{
    float buf[256], lanes[16] = {0};
    for (int64_t i = 0; i < cols; i += 256) {
        int64_t n = cols - i < 256 ? cols - i : 256;
        t->dequantize(row + i / t->block_elems * t->block_bytes, buf, n);
        fl_law_lanes_add(lanes, buf, x + i, n);
    }
    return fl_law_lanes_sum(lanes);
}

void fl_ref_mul_float(const fl_mat *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                      int n_rows, float *y, int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, false));
    const fl_type_info *t = fl_type_get(w->type);
    int64_t bytes = (int64_t)fl_type_row_bytes(w->type, (uint64_t)w->cols);
    for (int64_t n = n0; n < n1; n++) {
        const uint8_t *row = (const uint8_t *)w->data + n * bytes;
        for (int r = 0; r < n_rows; r++)
            y[r * ldy + n] = float_row(t, row, x + r * ldx, w->cols) * w->scale;
    }
}
