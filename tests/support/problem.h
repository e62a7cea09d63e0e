#ifndef FL_TESTS_SUPPORT_PROBLEM_H
#define FL_TESTS_SUPPORT_PROBLEM_H

#include "tests/support/kern.h"

/* A product to compute: random weights and activations. */
typedef struct fl_problem {
    fl_mat w;
    uint8_t *data;
    float *x;    /* [n_rows][ldx] */
    fl_act *act; /* [n_rows][cols / 256], when cols is a multiple of 256 */
    int n_rows;
    int64_t ldx, ldy; /* some more than cols and rows */
} fl_problem;

/* kind: of the blocks (fl_rnd_blocks), and of the rows of x in turn (fl_rnd_floats). */
void fl_problem_make(fl_problem *p, uint32_t type, int64_t rows, int64_t cols, int n_rows,
                     int kind);
void fl_problem_free(fl_problem *p);

/* y[n_rows][ldy] for weight rows [n0, n1), by mul_law or by mul_float. */
void fl_problem_multiply(const fl_kernels *k, const fl_problem *p, bool law, int64_t n0, int64_t n1,
                         float *y);
/* The same in one call: fails the test unless it gives `want` there and leaves all else alone. */
void fl_problem_compare(const fl_kernels *k, const fl_problem *p, bool law, int64_t n0, int64_t n1,
                        const float *want);

#endif
