#include <assert.h>
#include <string.h>

#include "quant/format.h"
#include "quant/grid.h"
#include "quant/moment.h"

enum { BATCH = 32 }; /* rows that are worked on together */

/* A move costs a row of the moment: where rows are long its rounds cost more than they give. */
static fl_effort usual(int64_t cols)
{
    return (fl_effort){.feedback = true, .sweeps = 8, .rounds = cols <= 1024 ? 1 : 0};
}

/* Carved from one piece of scratch. */
typedef struct work {
    const fl_guide *g;
    const fl_grid *f;
    const fl_fitter *fn;
    int64_t n_blocks;
    float *e, *t, *gr;   /* [BATCH][cols]: scaled errors, targets, gradients */
    float *a, *d;        /* one block's own factors [256][256] and energies */
    fl_fit *fit, *plain; /* [BATCH][n_blocks] */
} work;

static uint64_t up64(uint64_t n) { return (n + 63) / 64 * 64; }

uint64_t fl_guide_scratch_bytes(int64_t cols, bool full)
{
    (void)full;
    const uint64_t n = (uint64_t)cols;
    return 64 + 3 * up64(BATCH * n * sizeof(float)) +
           up64(FL_GRID_MAX * FL_GRID_MAX * sizeof(float)) + up64(FL_GRID_MAX * sizeof(float)) +
           2 * up64(BATCH * (n / 32 + 1) * sizeof(fl_fit));
}

static void *carve(uint8_t **at, uint64_t bytes)
{
    void *p = *at;
    *at += up64(bytes);
    return p;
}

static void carve_work(work *w, const fl_guide *g, uint32_t type, void *scratch)
{
    uint8_t *at = (uint8_t *)up64((uint64_t)(uintptr_t)scratch);
    const uint64_t n = (uint64_t)g->cols;
    w->g = g;
    w->f = fl_grid_get(type);
    w->fn = fl_fitter_get();
    w->n_blocks = g->cols / w->f->block;
    w->e = carve(&at, BATCH * n * sizeof(float));
    w->t = carve(&at, BATCH * n * sizeof(float));
    w->gr = carve(&at, BATCH * n * sizeof(float));
    w->a = carve(&at, FL_GRID_MAX * FL_GRID_MAX * sizeof(float));
    w->d = carve(&at, FL_GRID_MAX * sizeof(float));
    w->fit = carve(&at, BATCH * (uint64_t)w->n_blocks * sizeof(fl_fit));
    w->plain = carve(&at, BATCH * (uint64_t)w->n_blocks * sizeof(fl_fit));
}

/* Errors of row r in block b, in the guide's scale. */
static void errors_of(const work *w, const float *x, const fl_fit *fit, int64_t at, float *e)
{
    float y[FL_GRID_MAX];
    w->fn->values(w->f, fit, y);
    for (int i = 0; i < w->f->block; i++)
        e[i] = (x[i] - y[i]) * (w->g->scale ? w->g->scale[at + i] : 1.0f);
}

static void plain_rows(work *w, const float *x, int64_t rows)
{
    const int64_t n = w->g->cols;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t b = 0; b < w->n_blocks; b++) {
            const int64_t at = b * w->f->block;
            w->fn->fit(w->f, x + r * n + at, w->g->diag + at, &w->plain[r * w->n_blocks + b]);
        }
    }
}

/* The block's own part of the factors and energies, in the weights' scale. */
static void own_part(work *w, int64_t at)
{
    const int64_t n = w->g->cols, m = w->f->block;
    const float *s = w->g->scale ? w->g->scale + at : NULL;
    for (int64_t i = 0; i < m; i++) {
        w->d[i] = w->g->d[at + i] * (s ? s[i] * s[i] : 1.0f);
        for (int64_t j = 0; j < m; j++) {
            const float f = !s ? 1.0f : i < j ? s[i] / s[j] : s[j] / s[i];
            w->a[i * FL_GRID_MAX + j] = w->g->a[(at + i) * n + at + j] * f;
        }
    }
}

static void feedback_rows(work *w, const float *x, int64_t rows)
{
    const int64_t n = w->g->cols, m = w->f->block;
    memset(w->t, 0, (size_t)(rows * n) * sizeof *w->t);
    for (int64_t b = 0; b < w->n_blocks; b++) {
        const int64_t at = b * m;
        own_part(w, at);
        w->fn->accumulate(w->t + at, n, w->e, n, w->g->a + at, n, rows, at, m);
        for (int64_t r = 0; r < rows; r++) {
            float *t = w->t + r * n + at;
            const float *xr = x + r * n + at;
            for (int64_t i = 0; i < m; i++)
                t[i] = xr[i] + (w->g->scale ? t[i] / w->g->scale[at + i] : t[i]);
            fl_fit *fit = &w->fit[r * w->n_blocks + b];
            w->fn->fit_feedback(w->f, xr, t, w->a, w->d, fit);
            errors_of(w, xr, fit, at, w->e + r * n + at);
        }
    }
}

/* Errors of whole rows to w->e. */
static void errors_of_rows(work *w, const float *x, const fl_fit *fit, int64_t rows)
{
    const int64_t n = w->g->cols, m = w->f->block;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < w->n_blocks; b++)
            errors_of(w, x + r * n + b * m, &fit[r * w->n_blocks + b], b * m, w->e + r * n + b * m);
}

/* e h e^T of each row, from w->e and e h in w->gr. */
static void losses(const work *w, int64_t rows, double *loss)
{
    const int64_t n = w->g->cols;
    for (int64_t r = 0; r < rows; r++) {
        loss[r] = 0;
        for (int64_t i = 0; i < n; i++)
            loss[r] += (double)w->e[r * n + i] * (double)w->gr[r * n + i];
    }
}

static void gradients(work *w, int64_t rows)
{
    const int64_t n = w->g->cols;
    memset(w->gr, 0, (size_t)(rows * n) * sizeof *w->gr);
    w->fn->accumulate(w->gr, n, w->e, n, w->g->h, n, rows, n, n);
}

/* The better of the two of each row; all `plain` without losses. */
static void pack_rows(const work *w, const double *ours, const double *plain, int64_t rows,
                      uint8_t *dst)
{
    const uint64_t bytes = fl_type_get(w->f->type)->block_bytes;
    for (int64_t r = 0; r < rows; r++) {
        const fl_fit *fit = (ours && ours[r] < plain[r] ? w->fit : w->plain) + r * w->n_blocks;
        for (int64_t k = 0; k < w->n_blocks; k++, dst += bytes) w->f->pack(&fit[k], dst);
    }
}

static void descend(work *w, int64_t rows, fl_effort effort)
{
    const fl_descent d = {rows, w->g->cols, w->g->h, w->g->scale, w->fit, w->gr};
    for (int round = 0; round <= effort.rounds; round++) {
        if (round) {
            w->fn->blocks_again(w->f, &d);
            w->fn->subs_again(w->f, &d);
        }
        for (int k = 0; k < effort.sweeps && w->fn->values_again(w->f, &d); k++) {}
    }
}

static void round_batch(work *w, const float *x, int64_t rows, fl_effort effort, uint8_t *dst)
{
    double ours[BATCH], plain[BATCH];
    plain_rows(w, x, rows);
    if (!w->g->h) {
        pack_rows(w, NULL, NULL, rows, dst);
        return;
    }
    errors_of_rows(w, x, w->plain, rows);
    gradients(w, rows);
    losses(w, rows, plain);
    if (effort.feedback) {
        feedback_rows(w, x, rows);
        gradients(w, rows);
    } else {
        memcpy(w->fit, w->plain, (size_t)(rows * w->n_blocks) * sizeof *w->fit);
    }
    descend(w, rows, effort);
    errors_of_rows(w, x, w->fit, rows);
    losses(w, rows, ours);
    pack_rows(w, ours, plain, rows, dst);
}

void fl_guide_round_with(const fl_guide *g, uint32_t type, const float *x, int64_t rows,
                         int64_t cols, void *dst, void *scratch, fl_effort effort)
{
    uint8_t *o = dst;
    if (!g || g->unit == 0 || !fl_grid_get(type)) {
        fl_type_get(type)->quantize(x, dst, rows * cols);
        return;
    }
    assert(g->cols == cols);
    work w;
    carve_work(&w, g, type, scratch);
    for (int64_t r = 0; r < rows; r += BATCH) {
        const int64_t n = rows - r < BATCH ? rows - r : BATCH;
        round_batch(&w, x + r * cols, n, effort, o);
        o += (uint64_t)n * fl_type_row_bytes(type, (uint64_t)cols);
    }
}

void fl_guide_round(const fl_guide *g, uint32_t type, const float *x, int64_t rows, int64_t cols,
                    void *dst, void *scratch)
{
    fl_guide_round_with(g, type, x, rows, cols, dst, scratch, usual(cols));
}
