#ifndef FL_QUANT_GUIDE_H
#define FL_QUANT_GUIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/status.h"

/* Rounding of weights led by what the layer's inputs look like.
 *
 * A weight row w meets inputs x; the mean squared error of its product after rounding to y is
 *     (w - y) H (w - y)^T,    H = mean of x x^T over the calibration rows.
 * fl_guide_round looks for blocks with a small value of it; quant/FORMAT.md section 5 has the
 * method and its figures. Bytes depend on the row, the moment and the type alone: never on the
 * machine, the threads or how rows are split between calls. */

/* Second moments of one matrix's inputs, owned by the caller and copied. Scale does not matter. */
typedef struct fl_moment {
    int64_t cols;
    const float *diag; /* [cols] mean of x_i^2, or NULL */
    const float *full; /* [cols][cols] mean of x_i x_j, symmetric, or NULL */
} fl_moment;

typedef struct fl_guide fl_guide;

/* Prepares a moment: damped, and with `full` factored (cols^3 / 3 multiply-adds). The guide is
 * immutable and may be shared by threads. With both, `full` is scaled on both sides so that its
 * diagonal becomes `diag`: a layer's correlations with an expert's energies. Zero rows and
 * singular moments are fine. A moment that is zero everywhere says nothing: rounding is then that
 * of g = NULL.
 * Fails with FL_E_NAN naming the index of a NaN, infinity or negative energy; FL_E_ARG when both
 * are NULL or cols < 1; FL_E_NOMEM. */
FL_CHECKED fl_status fl_guide_create(fl_guide **out, const fl_moment *m, fl_err *err);

/* As `base` (which has a full moment) with the diagonal `diag` [base cols]: what fl_guide_create
 * gives for base's full and this diag, without another factorization or copy of the matrices.
 * `base` must outlive the new guide. Errors as of fl_guide_create. */
FL_CHECKED fl_status fl_guide_derive(fl_guide **out, const fl_guide *base, const float *diag,
                                     fl_err *err);
void fl_guide_destroy(fl_guide **g);

/* Bytes that a guide holds; fl_guide_create needs at most fl_guide_create_bytes while it runs
 * (those included), fl_guide_derive what a guide without `full` does. */
uint64_t fl_guide_bytes(int64_t cols, bool full);
uint64_t fl_guide_create_bytes(int64_t cols, bool full);

/* Bytes of scratch for one call of fl_guide_round, for any number of rows; alignment 64. */
uint64_t fl_guide_scratch_bytes(int64_t cols, bool full);

/* Rounds `rows` rows of the guide's cols values to blocks of `type`, at dst one row after the
 * other. `type` must have fl_type_info.quantize and whole blocks in a row. g NULL: exactly
 * fl_type_info.quantize, cols and scratch are not looked at beyond n = rows * cols. Values must be
 * finite (fl_round_nonfinite). Types without a search (F32, F16, BF16) are converted as ever.
 * No row has a greater fl_guide_loss than the same search without error feedback gives. */
void fl_guide_round(const fl_guide *g, uint32_t type, const float *x, int64_t rows, int64_t cols,
                    void *dst, void *scratch);

/* sum over rows of (x - y) H (x - y)^T with the guide's damped H (its diagonal when it has no full
 * moment), in double. x, y: [rows][cols]. In units of the moment; 0 for a guide that says nothing.
 * rows * cols^2 multiply-adds. */
double fl_guide_loss(const fl_guide *g, const float *x, const float *y, int64_t rows);

#endif
