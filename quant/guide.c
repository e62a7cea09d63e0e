#include "quant/guide.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"

struct fl_guide {
    int64_t cols;
    float *diag; /* [cols], damped */
    float *full; /* [cols][cols], damped, or NULL */
    bool empty;  /* zero everywhere: says nothing */
};

/* Part of the mean energy that is added to every energy: keeps a moment of few rows definite, and
 * weights of channels that calibration never saw from being given away. */
static const double damping = 0.01;

uint64_t fl_guide_bytes(int64_t cols, bool full)
{
    const uint64_t n = (uint64_t)cols;
    return sizeof(fl_guide) + n * sizeof(float) + (full ? n * n * sizeof(float) : 0);
}

uint64_t fl_guide_create_bytes(int64_t cols, bool full) { return fl_guide_bytes(cols, full); }

uint64_t fl_guide_scratch_bytes(int64_t cols, bool full)
{
    (void)cols;
    (void)full;
    return 64;
}

static fl_status check_energies(const float *diag, int64_t n, int64_t stride, fl_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        const float v = diag[i * stride];
        if (!isfinite(v) || v < 0.0f)
            return FL_FAIL(err, FL_E_NAN, 0,
                           "moment: the energy of input %lld is %g, expected a finite number of at "
                           "least 0; measure the importance again",
                           (long long)i, (double)v);
    }
    return FL_OK;
}

static fl_status check_moment(const fl_moment *m, fl_err *err)
{
    if (m->cols < 1 || (!m->diag && !m->full))
        return FL_FAIL(err, FL_E_ARG, 0, "moment: %lld columns, %s", (long long)m->cols,
                       m->diag || m->full ? "expected at least 1" : "neither diagonal nor matrix");
    if (m->diag) FL_TRY(check_energies(m->diag, m->cols, 1, err));
    if (!m->full) return FL_OK;
    FL_TRY(check_energies(m->full, m->cols, m->cols + 1, err));
    for (int64_t i = 0; i < m->cols * m->cols; i++)
        if (!isfinite(m->full[i]))
            return FL_FAIL(err, FL_E_NAN, 0,
                           "moment: the product of inputs %lld and %lld is %g, expected a finite "
                           "number; measure the importance again",
                           (long long)(i / m->cols), (long long)(i % m->cols), (double)m->full[i]);
    return FL_OK;
}

/* diag[i] = energies[i * stride] + damping * mean; returns whether all were zero. */
static bool damp(const float *energies, int64_t stride, int64_t n, float *diag)
{
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)energies[i * stride];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        diag[i] = (float)((double)energies[i * stride] + damping * mean);
    return mean == 0;
}

fl_status fl_guide_create(fl_guide **out, const fl_moment *m, fl_err *err)
{
    FL_TRY(check_moment(m, err));
    const int64_t n = m->cols;
    fl_guide *g = calloc(1, sizeof *g);
    if (g) {
        g->diag = malloc((size_t)n * sizeof *g->diag);
        if (m->full) g->full = malloc((size_t)n * (size_t)n * sizeof *g->full);
    }
    if (!g || !g->diag || (m->full && !g->full)) {
        fl_guide_destroy(&g);
        return FL_FAIL(err, FL_E_NOMEM, 0, "moment of %lld columns: no memory", (long long)n);
    }
    g->cols = n;
    if (m->full) {
        g->empty = damp(m->full, n + 1, n, g->diag);
        memcpy(g->full, m->full, (size_t)n * (size_t)n * sizeof *g->full);
        for (int64_t i = 0; i < n; i++) g->full[i * n + i] = g->diag[i];
    } else {
        g->empty = damp(m->diag, 1, n, g->diag);
    }
    if (m->full && m->diag) {
        fl_guide *d = NULL;
        const fl_status st = fl_guide_derive(&d, g, m->diag, err);
        fl_guide_destroy(&g);
        if (st != FL_OK) return st;
        g = d;
    }
    *out = g;
    return FL_OK;
}

fl_status fl_guide_derive(fl_guide **out, const fl_guide *base, const float *diag, fl_err *err)
{
    const int64_t n = base->cols;
    assert(base->full);
    fl_moment m = {.cols = n, .full = base->full};
    FL_TRY(check_energies(diag, n, 1, err));
    float *scaled = malloc((size_t)n * (size_t)n * sizeof *scaled);
    float *damped = malloc((size_t)n * sizeof *damped);
    fl_status st = FL_OK;
    if (!scaled || !damped) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "moment of %lld columns: no memory", (long long)n);
        goto out;
    }
    damp(diag, 1, n, damped);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            const double a = base->diag[i] > 0.0f ? (double)damped[i] / (double)base->diag[i] : 0;
            const double b = base->diag[j] > 0.0f ? (double)damped[j] / (double)base->diag[j] : 0;
            scaled[i * n + j] = (float)((double)base->full[i * n + j] * sqrt(a) * sqrt(b));
        }
    }
    m.full = scaled;
    FL_GO(fl_guide_create(out, &m, err));
out:
    free(scaled);
    free(damped);
    return st;
}

void fl_guide_destroy(fl_guide **g)
{
    if (!*g) return;
    free((*g)->diag);
    free((*g)->full);
    free(*g);
    *g = NULL;
}

void fl_guide_round(const fl_guide *g, uint32_t type, const float *x, int64_t rows, int64_t cols,
                    void *dst, void *scratch)
{
    (void)g;
    (void)scratch;
    assert(!g || g->cols == cols);
    fl_type_get(type)->quantize(x, dst, rows * cols);
}

double fl_guide_loss(const fl_guide *g, const float *x, const float *y, int64_t rows)
{
    const int64_t n = g->cols;
    double sum = 0;
    if (g->empty) return 0;
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        for (int64_t i = 0; i < n; i++) {
            const double e = (double)x[i] - (double)y[i];
            double he = g->full ? 0 : (double)g->diag[i] * e;
            for (int64_t j = 0; g->full && j < n; j++)
                he += (double)g->full[i * n + j] * ((double)x[j] - (double)y[j]);
            sum += e * he;
        }
    }
    return sum;
}
