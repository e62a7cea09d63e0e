#ifndef FL_QUANT_DESCENT_H
#define FL_QUANT_DESCENT_H

#include "quant/fit.h"

/* Rows that are rounded already, made better under the whole moment; the functions of fl_fitter.
 * Each move is an exact step down of e H e^T with all else kept. */

/* ---- products of many rows ---- */

/* R rows by 16 columns. */
FL_INLINE void descent_tile(int R, float *c, int64_t ldc, const float *e, int64_t lde,
                            const float *a, int64_t lda, int64_t k)
{
    fl_v8 s[4][2];
    for (int r = 0; r < R; r++) {
        s[r][0] = fl_v8_load(c + r * ldc);
        s[r][1] = fl_v8_load(c + r * ldc + 8);
    }
    for (int64_t j = 0; j < k; j++) {
        const fl_v8 a0 = fl_v8_load(a + j * lda), a1 = fl_v8_load(a + j * lda + 8);
        for (int r = 0; r < R; r++) {
            s[r][0] = s[r][0] + e[r * lde + j] * a0;
            s[r][1] = s[r][1] + e[r * lde + j] * a1;
        }
    }
    for (int r = 0; r < R; r++) {
        fl_v8_store(c + r * ldc, s[r][0]);
        fl_v8_store(c + r * ldc + 8, s[r][1]);
    }
}

static void descent_accumulate(float *c, int64_t ldc, const float *e, int64_t lde, const float *a,
                               int64_t lda, int64_t rows, int64_t k, int64_t n)
{
    /* Rows of `a` lie far apart and fall on the same cache lines: parts of it are brought together.
     */
    enum { DEPTH = 128, WIDTH = 64 };
    float part[DEPTH * WIDTH] __attribute__((aligned(32)));
    for (int64_t j = 0; j < k; j += DEPTH) {
        const int64_t d = k - j < DEPTH ? k - j : DEPTH;
        for (int64_t at = 0; at < n; at += WIDTH) {
            const int64_t w = n - at < WIDTH ? n - at : WIDTH;
            for (int64_t l = 0; l < d; l++)
                memcpy(part + l * WIDTH, a + (j + l) * lda + at, (size_t)w * sizeof *part);
            for (int64_t i = 0; i < w; i += 16) {
                float *ci = c + at + i;
                int64_t r = 0;
                for (; r + 4 <= rows; r += 4)
                    descent_tile(4, ci + r * ldc, ldc, e + r * lde + j, lde, part + i, WIDTH, d);
                for (; r < rows; r++)
                    descent_tile(1, ci + r * ldc, ldc, e + r * lde + j, lde, part + i, WIDTH, d);
            }
        }
    }
}

/* ---- moves ---- */

FL_INLINE float descent_scale(const fl_descent *d, int64_t i) { return d->scale ? d->scale[i] : 1; }

/* g after value i of a row has grown by step / scale_i. */
FL_INLINE void descent_step(const fl_descent *d, float *g, int64_t i, float step)
{
    const float *h = d->h + i * d->cols;
    if (step == 0.0f) return;
    for (int64_t j = 0; j < d->cols; j += 8)
        fl_v8_store(g + j, fl_v8_load(g + j) - step * fl_v8_load(h + j));
}

/* One pass over single values: each goes to its best level. */
FL_INLINE int64_t descent_values_as(const fl_grid *f, bool curve, const fl_descent *d)
{
    int64_t moves = 0;
    for (int64_t i = 0; i < d->cols; i++) {
        const float own = d->h[i * d->cols + i], up = descent_scale(d, i), inv = 1.0f / (own * up);
        const int64_t b = i / f->block, at = i % f->block, k = at / f->sub;
        for (int64_t r = 0; r < d->rows; r++) {
            fl_fit *fit = &d->fit[r * (d->cols / f->block) + b];
            float *g = d->g + r * d->cols;
            const float a = fit->d * (float)fit->s[k], m = fit->dmin * (float)fit->m[k];
            if (a == 0.0f) continue;
            const float q = fit->q[at], y = a * q - m;
            const fl_v8 want = fl_v8_all((y + g[i] * inv + m) * (1.0f / a));
            const float l = fit_level(f, curve, want)[0];
            /* In the units of h: the error falls by step, the loss by step (2 g - step h). */
            const float step = a * (l - q) * up;
            if (l == q || !(step * (2.0f * g[i] - step * own) > 0.0f)) continue;
            fit->q[at] = l;
            descent_step(d, g, i, step);
            moves++;
        }
    }
    return moves;
}

static int64_t descent_values(const fl_grid *f, const fl_descent *d)
{
    return f->curve ? descent_values_as(f, true, d) : descent_values_as(f, false, d);
}

/* h = A D A^T of one sub-block's own moment in the weights' scale; a as in fl_fitter. */
static void descent_factor(const fl_descent *m, int64_t at, int n, float *a, float *d)
{
    for (int k = n - 1; k >= 0; k--) {
        const float *h = m->h + (at + k) * m->cols + at;
        const double up = (double)descent_scale(m, at + k);
        a[k * FL_GRID_MAX + k] = 0.0f;
        for (int j = k; j >= 0; j--) {
            double v = (double)h[j] * up * (double)descent_scale(m, at + j);
            const double least = 1e-9 * v; /* of its own energy, should rounding eat all of it */
            for (int l = k + 1; l < n; l++)
                v -= (double)a[j * FL_GRID_MAX + l] * (double)a[k * FL_GRID_MAX + l] * (double)d[l];
            if (j == k)
                d[k] = (float)(v > least ? v : least);
            else
                a[j * FL_GRID_MAX + k] = a[k * FL_GRID_MAX + j] = (float)(v / (double)d[k]);
        }
    }
}

/* v = g h^-1 with that h; returns g h^-1 g^T. */
static float descent_solve(int n, const float *g, const float *a, const float *d, float *v)
{
    float cost = 0.0f;
    memcpy(v, g, (size_t)n * sizeof *v);
    for (int k = n - 1; k > 0; k--)
        for (int i = 0; i < k; i++) v[i] -= v[k] * a[k * FL_GRID_MAX + i];
    for (int k = 0; k < n; k++) {
        cost += v[k] * v[k] / d[k];
        v[k] /= d[k];
    }
    for (int j = 0; j < n; j++)
        for (int k = j + 1; k < n; k++) v[k] -= v[j] * a[j * FL_GRID_MAX + k];
    return cost;
}

/* Sub-block k of a row's block anew: scale, minimum and levels for what the other values leave to
 * it; whether it moved. */
FL_INLINE bool descent_sub(const fl_grid *f, bool curve, bool has_min, const fl_descent *d,
                           int64_t at, const float *a, const float *own, fl_fit *fit, float *g)
{
    const int n = f->sub, k = (int)(at % f->block) / n;
    const float scale = fit->d * (float)fit->s[k], min = fit->dmin * (float)fit->m[k];
    float x[FL_SUB_MAX], v[FL_SUB_MAX], q[FL_SUB_MAX], e[FL_SUB_MAX], s, m, err, *old;
    fit_pairs p;
    old = fit->q + k * n;
    for (int i = 0; i < n; i++) x[i] = g[at + i] * descent_scale(d, at + i);
    const float cost = descent_solve(n, x, a, own, v);
    for (int i = 0; i < n; i++) x[i] = scale * old[i] - min + v[i];
    const fit_task task = {x, x, a, own};
    fit_search(f, curve, has_min, n, x, own, &s, &m);
    fit_near(f, fit, s, m, &p);
    p.s[FL_TRY - 1] = fit->s[k]; /* what it has competes */
    p.m[FL_TRY - 1] = fit->m[k];
    p.d_bits[FL_TRY - 1] = fit->d_bits;
    p.real.scale[FL_TRY - 1] = scale;
    p.real.min[FL_TRY - 1] = min;
    const int c = fit_paths(f, curve, n, &task, &p.real, &err);
    if (!(err < cost * 0.9999f)) return false; /* less is the rounding of the costs themselves */
    fit_path(f, curve, n, &task, p.real.scale[c], p.real.min[c], q, e);
    fit_take(&p, c, k, fit);
    for (int i = 0; i < n; i++) {
        const float y = p.real.scale[c] * q[i] - p.real.min[c];
        const float step = (y - (scale * old[i] - min)) * descent_scale(d, at + i);
        old[i] = q[i];
        descent_step(d, g, at + i, step);
    }
    return true;
}

FL_INLINE int64_t descent_subs_as(const fl_grid *f, bool curve, bool has_min, const fl_descent *d)
{
    float a[FL_SUB_MAX * FL_GRID_MAX], own[FL_SUB_MAX];
    int64_t moves = 0;
    for (int64_t at = 0; at < d->cols; at += f->sub) {
        descent_factor(d, at, f->sub, a, own);
        for (int64_t r = 0; r < d->rows; r++) {
            fl_fit *fit = &d->fit[r * (d->cols / f->block) + at / f->block];
            moves += descent_sub(f, curve, has_min, d, at, a, own, fit, d->g + r * d->cols);
        }
    }
    return moves;
}

static int64_t descent_subs(const fl_grid *f, const fl_descent *d)
{
    if (f->has_min) return descent_subs_as(f, false, true, d);
    return f->curve ? descent_subs_as(f, true, false, d) : descent_subs_as(f, false, false, d);
}

/* out = v h for one block's own part of h. */
static void descent_product(const fl_descent *d, int64_t at, int n, const float *v, float *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < n; i++) {
        const float *h = d->h + (at + i) * d->cols + at;
        for (int j = 0; j < n; j += 8)
            fl_v8_store(out + j, fl_v8_load(out + j) + v[i] * fl_v8_load(h + j));
    }
}

static double descent_dot(const float *x, const float *y, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)x[i] * (double)y[i];
    return s;
}

/* d and dmin of a row's block by least squares; whether they moved. */
static bool descent_block(const fl_grid *f, const fl_descent *m, int64_t at, fl_fit *b, float *g)
{
    const int n = f->block;
    float u[FL_GRID_MAX], v[FL_GRID_MAX], hu[FL_GRID_MAX], hv[FL_GRID_MAX] = {0}, d, dmin;
    uint16_t d_bits, dmin_bits;
    for (int i = 0; i < n; i++) {
        u[i] = descent_scale(m, at + i) * (float)b->s[i / f->sub] * b->q[i];
        v[i] = descent_scale(m, at + i) * (float)b->m[i / f->sub];
    }
    descent_product(m, at, n, u, hu);
    if (f->has_min) descent_product(m, at, n, v, hv);
    const double uu = descent_dot(u, hu, n), uv = descent_dot(u, hv, n), vv = descent_dot(v, hv, n);
    const double gu = descent_dot(u, g + at, n), gv = descent_dot(v, g + at, n);
    const double was = (double)b->d, was_min = (double)b->dmin;
    dmin = b->dmin;
    if (!fit_solve(uu, uv, vv, gu + was * uu - was_min * uv, gv + was * uv - was_min * vv, &d,
                   &dmin))
        return false;
    d = fit_f16(d, &d_bits);
    dmin = fit_f16(dmin, &dmin_bits);
    const double p = (double)d - was, q = (double)dmin - was_min;
    if (!(p * p * uu - 2 * p * q * uv + q * q * vv < 2 * (p * gu - q * gv))) return false;
    b->d = d;
    b->d_bits = d_bits;
    b->dmin = dmin;
    b->dmin_bits = dmin_bits;
    for (int i = 0; i < n; i++) descent_step(m, g, at + i, (float)p * u[i] - (float)q * v[i]);
    return true;
}

static int64_t descent_blocks(const fl_grid *f, const fl_descent *d)
{
    int64_t moves = 0;
    for (int64_t at = 0; at < d->cols && f->s_lo != f->s_hi; at += f->block) {
        for (int64_t r = 0; r < d->rows; r++) {
            fl_fit *b = &d->fit[r * (d->cols / f->block) + at / f->block];
            moves += descent_block(f, d, at, b, d->g + r * d->cols);
        }
    }
    return moves;
}

static const fl_fitter fit_functions = {
    .fit = fit_any,
    .fit_feedback = fit_any_feedback,
    .values = fit_values,
    .accumulate = descent_accumulate,
    .values_again = descent_values,
    .subs_again = descent_subs,
    .blocks_again = descent_blocks,
};

#endif
