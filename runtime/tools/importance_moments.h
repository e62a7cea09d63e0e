#ifndef FL_TOOLS_IMPORTANCE_MOMENTS_H
#define FL_TOOLS_IMPORTANCE_MOMENTS_H

#include "runtime/model/linear.h"

/* Sums over rows of x_i x_j. Products of up to FL_MOMENTS_ROWS rows are summed in float by the
 * kernel of float products, whose order is fixed, and those sums in double: the result depends on
 * the rows and on their order alone, not on threads or on how many come at once. */
enum { FL_MOMENTS_ROWS = 256 };

typedef struct fl_moments {
    int64_t cols;
    double *sum;           /* packed lower triangle [fl_triangle(cols)] */
    double rows;           /* that went in */
    int64_t n_zero, n_bad; /* of all zeros, counted; with a value that is not finite, left out */
    float *pending;        /* [FL_MOMENTS_ROWS][cols] rows that wait */
    int n_pending;
    int64_t unit; /* columns are heads of this many, to be put into another order; or 0 */
    int n_k, n_r; /* heads grouped by n_k, n_r each, become tiled (conversion.h) */
} fl_moments;

/* Scratch, shared by the moments of one thread. */
typedef struct fl_moments_work {
    float *turned; /* [max_cols][FL_MOMENTS_ROWS] */
    float *panel;  /* [threads][panel rows][max_cols] */
    int64_t max_cols;
} fl_moments_work;

FL_CHECKED fl_status fl_moments_work_init(fl_moments_work *w, int64_t max_cols, int threads,
                                          fl_err *err);
void fl_moments_work_fini(fl_moments_work *w);

FL_CHECKED fl_status fl_moments_init(fl_moments *m, int64_t cols, fl_err *err);
void fl_moments_fini(fl_moments *m);
void fl_moments_reset(fl_moments *m); /* back to no rows; n_zero and n_bad stay */
/* `in` has m->cols columns, at most w->max_cols. */
void fl_moments_add(fl_moments *m, const fl_exec *x, fl_moments_work *w, const fl_rows *in);
/* What waits goes in; before sum is read. */
void fl_moments_flush(fl_moments *m, const fl_exec *x, fl_moments_work *w);
/* Bytes that init takes. */
uint64_t fl_moments_bytes(int64_t cols);

#endif
