#ifndef FL_MODEL_LINEAR_H
#define FL_MODEL_LINEAR_H

#include "kernels/kernels.h"
#include "runtime/base/pool.h"

/* Products of activation rows with weight matrices, split over the worker pool by weight rows
 * (outputs). Each output is computed whole by one worker, so results do not depend on the number
 * of threads (tests/model/test_forward.c). */

/* What computes: a kernel table, the workers, and which of the two activation paths is in use. */
typedef struct fl_exec {
    fl_kernels k;
    fl_pool *pool; /* owned by the engine */
    bool act_f32;  /* --act f32: float activations everywhere instead of the numeric law */
} fl_exec;

/* n activation rows of `cols` values, `ld` floats apart, and (where a product under the law reads
 * them) their quantized blocks [n][cols / 256]. Borrowed. */
typedef struct fl_rows {
    const float *x;
    int64_t ld, cols;
    const fl_act *q;
    int n;
} fl_rows;

/* y[r * ldy + o] = sum_i w[o][i] x[r][i]; y does not alias the input. */
typedef struct fl_linear_job {
    const fl_mat *w;
    float *y;
    int64_t ldy;
} fl_linear_job;

/* True when products of a weight type over `cols` inputs run on quantized activations: the type
 * has a law of its own, rows are whole blocks of 256 and --act is law. */
bool fl_exec_uses_law(const fl_exec *x, uint32_t type, int64_t cols);

/* Quantizes rows->x into out[n][cols / 256] and sets rows->q. False when a value is NaN or
 * infinite. */
bool fl_rows_quantize(const fl_exec *x, fl_rows *rows, fl_act *out);

/* The same, but only when one of the jobs needs it. */
bool fl_rows_prepare(const fl_exec *x, fl_rows *rows, fl_act *out, const fl_linear_job *jobs,
                     int n_jobs);

/* Weight rows [n0, n1) of one matrix for all rows, on the calling thread. */
void fl_linear_piece(const fl_exec *x, const fl_mat *w, int64_t n0, int64_t n1, const fl_rows *in,
                     float *y, int64_t ldy);

/* All jobs (at most FL_LINEAR_MAX_JOBS) on the same input, in one dispatch to the pool. */
enum { FL_LINEAR_MAX_JOBS = 8 };
void fl_linear_run(const fl_exec *x, const fl_linear_job *jobs, int n_jobs, const fl_rows *in);

#endif
