#include "runtime/tools/importance_moments.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_sites.h"

enum { PANEL = 32 /* rows of the matrix that one task sums */ };

fl_status fl_moments_work_init(fl_moments_work *w, int64_t max_cols, int threads, fl_err *err)
{
    *w = (fl_moments_work){.max_cols = max_cols};
    w->turned = malloc((size_t)max_cols * FL_MOMENTS_ROWS * sizeof(float));
    w->panel = malloc((size_t)threads * PANEL * (size_t)max_cols * sizeof(float));
    if (w->turned && w->panel) return FL_OK;
    fl_moments_work_fini(w);
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to sum rows of %lld values", (long long)max_cols);
}

void fl_moments_work_fini(fl_moments_work *w)
{
    free(w->turned);
    free(w->panel);
    *w = (fl_moments_work){0};
}

uint64_t fl_moments_bytes(int64_t cols)
{
    return (uint64_t)fl_triangle(cols) * sizeof(double) +
           (uint64_t)cols * FL_MOMENTS_ROWS * sizeof(float);
}

fl_status fl_moments_init(fl_moments *m, int64_t cols, fl_err *err)
{
    *m = (fl_moments){.cols = cols};
    m->sum = calloc((size_t)fl_triangle(cols), sizeof *m->sum);
    m->pending = malloc((size_t)cols * FL_MOMENTS_ROWS * sizeof *m->pending);
    if (m->sum && m->pending) return FL_OK;
    fl_moments_fini(m);
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for moments of %lld inputs", (long long)cols);
}

void fl_moments_fini(fl_moments *m)
{
    free(m->sum);
    free(m->pending);
    *m = (fl_moments){0};
}

void fl_moments_reset(fl_moments *m)
{
    memset(m->sum, 0, (size_t)fl_triangle(m->cols) * sizeof *m->sum);
    m->rows = 0.0;
    m->n_pending = 0;
}

typedef struct sum_run {
    fl_moments *m;
    const fl_exec *x;
    fl_moments_work *w;
    int64_t n; /* rows, up to a whole number of lanes */
} sum_run;

static void turn_task(void *arg, int task, int worker)
{
    const sum_run *r = arg;
    const int64_t cols = r->m->cols, c0 = (int64_t)task * PANEL;
    const int64_t c1 = c0 + PANEL < cols ? c0 + PANEL : cols;
    (void)worker;
    for (int64_t c = c0; c < c1; c++)
        for (int64_t t = 0; t < r->n; t++)
            r->w->turned[c * r->n + t] = t < r->m->n_pending ? r->m->pending[t * cols + c] : 0.0f;
}

/* Rows [i0, i1) of the triangle: turned rows times turned rows. */
static void panel_task(void *arg, int task, int worker)
{
    const sum_run *r = arg;
    const int64_t cols = r->m->cols, last = (cols + PANEL - 1) / PANEL - 1;
    const int64_t i0 = (last - task) * PANEL; /* the longest first */
    const int64_t i1 = i0 + PANEL < cols ? i0 + PANEL : cols;
    const fl_mat w = {
        .data = r->w->turned, .type = FL_TYPE_F32, .rows = cols, .cols = r->n, .scale = 1.0f};
    float *y = r->w->panel + (int64_t)worker * PANEL * r->w->max_cols;
    r->x->k.mul_float(&w, 0, i1, r->w->turned + i0 * r->n, r->n, (int)(i1 - i0), y, i1);
    for (int64_t i = i0; i < i1; i++) {
        double *sum = r->m->sum + fl_triangle(i);
        const float *row = y + (i - i0) * i1;
        for (int64_t j = 0; j <= i; j++) sum[j] += (double)row[j];
    }
}

void fl_moments_flush(fl_moments *m, const fl_exec *x, fl_moments_work *w)
{
    const int tasks = (int)((m->cols + PANEL - 1) / PANEL);
    sum_run r = {m, x, w, (m->n_pending + 15) / 16 * 16};
    if (m->n_pending == 0) return;
    assert(m->cols <= w->max_cols);
    fl_pool_run(x->pool, turn_task, &r, tasks);
    fl_pool_run(x->pool, panel_task, &r, tasks);
    m->rows += (double)m->n_pending;
    m->n_pending = 0;
}

/* Copies a row into its order; false when a value is not finite. */
static bool take_row(const fl_moments *m, const float *x, float *to, bool *zero)
{
    uint32_t any = 0, bad = 0;
    for (int64_t i = 0; i < m->cols; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= bits << 1;
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    *zero = any == 0;
    if (bad) return false;
    if (m->unit == 0) {
        memcpy(to, x, (size_t)m->cols * sizeof *to);
        return true;
    }
    for (int64_t n = 0; n < m->cols / m->unit; n++)
        memcpy(to + n * m->unit, x + (m->n_r * (n % m->n_k) + n / m->n_k) * m->unit,
               (size_t)m->unit * sizeof *to);
    return true;
}

void fl_moments_add(fl_moments *m, const fl_exec *x, fl_moments_work *w, const fl_rows *in)
{
    assert(in->cols == m->cols);
    for (int t = 0; t < in->n; t++) {
        bool zero = false;
        if (!take_row(m, in->x + t * in->ld, m->pending + m->n_pending * m->cols, &zero)) {
            m->n_bad++;
            continue;
        }
        m->n_zero += zero;
        if (++m->n_pending == FL_MOMENTS_ROWS) fl_moments_flush(m, x, w);
    }
}
