#include "tests/support/problem.h"

#include <stdlib.h>

#include "tests/support/test.h"

void fl_problem_make(fl_problem *p, uint32_t type, int64_t rows, int64_t cols, int n_rows, int kind)
{
    uint64_t bytes = fl_type_row_bytes(type, (uint64_t)cols);
    p->n_rows = n_rows;
    p->ldx = cols + fl_rnd_below(5);
    p->ldy = rows + fl_rnd_below(5);
    p->data = malloc((uint64_t)rows * bytes);
    p->x = malloc((uint64_t)(n_rows * p->ldx) * sizeof *p->x);
    p->act = malloc((uint64_t)n_rows * ((uint64_t)cols / 256 + 1) * sizeof *p->act);
    assert_true(p->data && p->x && p->act);
    fl_rnd_blocks(type, p->data, rows * cols, kind);
    for (int r = 0; r < n_rows; r++) {
        float *x = p->x + r * p->ldx;
        fl_rnd_floats(x, p->ldx, kind + r);
        if (cols % 256 == 0) assert_true(fl_law_quantize(x, cols, p->act + r * (cols / 256)));
    }
    p->w = (fl_mat){p->data, type, rows, cols, kind & 1 ? 1.0f : 0.37f};
}

void fl_problem_free(fl_problem *p)
{
    free(p->data);
    free(p->x);
    free(p->act);
}

void fl_problem_multiply(const fl_kernels *k, const fl_problem *p, bool law, int64_t n0, int64_t n1,
                         float *y)
{
    if (law)
        k->mul_law(&p->w, n0, n1, p->act, p->n_rows, y, p->ldy);
    else
        k->mul_float(&p->w, n0, n1, p->x, p->ldx, p->n_rows, y, p->ldy);
}

void fl_problem_compare(const fl_kernels *k, const fl_problem *p, bool law, int64_t n0, int64_t n1,
                        const float *want)
{
    int64_t n = p->n_rows * p->ldy;
    const char *name = fl_type_get(p->w.type)->name;
    float *y = fl_guard_new(n);
    fl_problem_multiply(k, p, law, n0, n1, y);
    fl_guard_check(y, n, name);
    for (int64_t i = 0; i < n; i++) {
        int64_t col = i % p->ldy;
        if (col >= n0 && col < n1)
            fl_same_bits(y + i, want + i, 1, k->name, name);
        else
            assert_true(fl_guard_untouched(y, i));
    }
    fl_guard_free(y);
}
