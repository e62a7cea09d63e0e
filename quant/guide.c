#include "quant/guide.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "quant/moment.h"

/* Part of the mean energy that is added to every energy: keeps a moment of few rows definite, and
 * weights of channels that calibration never saw from being given away. */
static const double damping = 0.01;

uint64_t fl_guide_bytes(int64_t cols, bool full)
{
    const uint64_t n = (uint64_t)cols;
    return sizeof(fl_guide) + (3 * n + (full ? 2 * n * n : 0)) * sizeof(float);
}

uint64_t fl_guide_create_bytes(int64_t cols, bool full) { return fl_guide_bytes(cols, full); }

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

/* diag[i] = energies[i * stride] / mean + damping; returns the mean. */
static double damp(const float *energies, int64_t stride, int64_t n, float *diag)
{
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)energies[i * stride];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        diag[i] = (float)((mean > 0 ? (double)energies[i * stride] / mean : 1) + damping);
    return mean;
}

static double dot(const float *x, const float *y, const float *d, int64_t n)
{
    double s[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += (double)x[i + j] * (double)y[i + j] * (double)d[i + j];
    for (; i < n; i++) s[0] += (double)x[i] * (double)y[i] * (double)d[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* h = A D A^T with A unit upper triangular, from the last column to the first. */
static void factor(fl_guide *g)
{
    const int64_t n = g->cols;
    const double floor = damping / 2; /* of a definite h no d is below the damping */
    for (int64_t k = n - 1; k >= 0; k--) {
        float *ak = g->a + k * n;
        const double d =
            (double)g->h[k * n + k] - dot(ak + k + 1, ak + k + 1, g->d + k + 1, n - k - 1);
        g->d[k] = (float)(d > floor ? d : floor);
        ak[k] = 0.0f;
        for (int64_t j = 0; j < k; j++) {
            float *aj = g->a + j * n;
            const double v =
                (double)g->h[j * n + k] - dot(aj + k + 1, ak + k + 1, g->d + k + 1, n - k - 1);
            aj[k] = (float)(v / (double)g->d[k]);
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) g->a[i * n + j] = g->a[j * n + i];
}

static fl_guide *new_guide(int64_t n, bool full)
{
    fl_guide *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->cols = n;
    g->diag = malloc((size_t)n * sizeof *g->diag);
    if (full) {
        g->own[0] = g->h = malloc((size_t)n * (size_t)n * sizeof *g->h);
        g->own[1] = g->a = malloc((size_t)n * (size_t)n * sizeof *g->a);
        g->own[2] = g->d = malloc((size_t)n * sizeof *g->d);
    }
    if (!g->diag || (full && (!g->h || !g->a || !g->d))) fl_guide_destroy(&g);
    return g;
}

static fl_status no_memory(int64_t n, fl_err *err)
{
    return FL_FAIL(err, FL_E_NOMEM, 0, "moment of %lld columns: no memory", (long long)n);
}

/* Scales a guide's moment to other energies. */
static fl_status rescale(fl_guide *g, const float *diag, fl_err *err)
{
    g->scale = malloc((size_t)g->cols * sizeof *g->scale);
    if (!g->scale) return no_memory(g->cols, err);
    g->unit = damp(diag, 1, g->cols, g->diag);
    for (int64_t i = 0; i < g->cols; i++) g->scale[i] = sqrtf(g->diag[i] / g->h[i * g->cols + i]);
    return FL_OK;
}

fl_status fl_guide_create(fl_guide **out, const fl_moment *m, fl_err *err)
{
    FL_TRY(check_moment(m, err));
    const int64_t n = m->cols;
    fl_guide *g = new_guide(n, m->full);
    if (!g) return no_memory(n, err);
    fl_status st = FL_OK;
    if (m->full) {
        g->unit = damp(m->full, n + 1, n, g->diag);
        const double inv = g->unit > 0 ? 1 / g->unit : 0;
        for (int64_t i = 0; i < n * n; i++) g->h[i] = (float)((double)m->full[i] * inv);
        for (int64_t i = 0; i < n; i++) g->h[i * n + i] = g->diag[i];
        factor(g);
        if (m->diag) FL_GO(rescale(g, m->diag, err));
    } else {
        g->unit = damp(m->diag, 1, n, g->diag);
    }
    *out = g;
    return FL_OK;
out:
    fl_guide_destroy(&g);
    return st;
}

fl_status fl_guide_derive(fl_guide **out, const fl_guide *base, const float *diag, fl_err *err)
{
    assert(base->h);
    FL_TRY(check_energies(diag, base->cols, 1, err));
    fl_guide *g = new_guide(base->cols, false);
    if (!g) return no_memory(base->cols, err);
    g->h = base->h;
    g->a = base->a;
    g->d = base->d;
    const fl_status st = rescale(g, diag, err);
    if (st == FL_OK)
        *out = g;
    else
        fl_guide_destroy(&g);
    return st;
}

void fl_guide_destroy(fl_guide **g)
{
    if (!*g) return;
    free((*g)->diag);
    free((*g)->scale);
    for (int i = 0; i < 3; i++) free((*g)->own[i]);
    free(*g);
    *g = NULL;
}

double fl_guide_loss(const fl_guide *g, const float *x, const float *y, int64_t rows)
{
    const int64_t n = g->cols;
    double sum = 0;
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        for (int64_t i = 0; i < n; i++) {
            const double e = (double)x[i] - (double)y[i];
            double he = 0;
            if (!g->h) {
                he = (double)g->diag[i] * e;
            } else {
                for (int64_t j = 0; j < n; j++)
                    he += (double)g->h[i * n + j] * ((double)x[j] - (double)y[j]) *
                          (g->scale ? (double)g->scale[j] : 1);
                if (g->scale) he *= (double)g->scale[i];
            }
            sum += e * he;
        }
    }
    return sum * g->unit;
}
