#ifndef FL_QUANT_FIT_H
#define FL_QUANT_FIT_H

#include <math.h>
#include <string.h>

#include "quant/format.h"
#include "quant/grid.h"
#include "quant/lanes.h"

/* The search for a good block. Included by one source file for each instruction tier.
 *
 * Most of it runs over 16 candidates at a time, one in each lane, and along the values of a
 * sub-block: no sum crosses lanes. */

enum { FL_TRY = 16, FL_TRY_V = 2, FL_SUB_MAX = 32 };
#define FL_INLINE static inline __attribute__((always_inline))

/* Nearest level. */
FL_INLINE fl_v8 fit_level(const fl_grid *f, bool curve, fl_v8 v)
{
    if (!curve) return fl_v8_rint(fl_v8_clamp(v, f->lo, f->hi));
    typedef int32_t v8i __attribute__((vector_size(32)));
    fl_v8 l = fl_v8_all(fl_grid_levels[0]);
    for (int i = 1; i < 16; i++) {
        const float a = fl_grid_levels[i - 1], b = fl_grid_levels[i];
        const v8i above = v > 0.5f * (a + b);
        l = l + (fl_v8)(above & (v8i)fl_v8_all(b - a));
    }
    return l;
}

typedef struct fit_try {
    float scale[FL_TRY], min[FL_TRY];
} fit_try;

FL_INLINE float fit_inverse(float a) { return a != 0.0f ? 1.0f / a : 0.0f; }

/* Real-valued least squares. */
typedef struct fit_best {
    float gain; /* how far below sum w x^2 */
    float scale, min;
} fit_best;

/* Rounds x with each candidate and replaces it by the least squares scale and minimum of its
 * levels; the best goes to `best`. */
FL_INLINE void fit_squares(const fl_grid *f, bool curve, bool has_min, int n, const float *x,
                           const float *w, float sw, float sx, fit_try *c, fit_best *best)
{
    float inv[FL_TRY], sl[FL_TRY], sl2[FL_TRY], sxl[FL_TRY];
    for (int t = 0; t < FL_TRY; t++) inv[t] = fit_inverse(c->scale[t]);
    for (int h = 0; h < FL_TRY; h += 8) {
        const fl_v8 vi = fl_v8_load(inv + h), vm = fl_v8_load(c->min + h);
        fl_v8 al = {0}, al2 = {0}, axl = {0};
        for (int i = 0; i < n; i++) {
            const fl_v8 l = fit_level(f, curve, (has_min ? x[i] + vm : fl_v8_all(x[i])) * vi);
            const fl_v8 wl = w[i] * l;
            if (has_min) al = al + wl;
            al2 = al2 + wl * l;
            axl = axl + wl * x[i];
        }
        fl_v8_store(sl + h, al);
        fl_v8_store(sl2 + h, al2);
        fl_v8_store(sxl + h, axl);
    }
    for (int t = 0; t < FL_TRY; t++) {
        if (!(sl2[t] > 0.0f)) continue;
        float a = sxl[t] / sl2[t], m = 0.0f, gain = a * sxl[t];
        const float det = sw * sl2[t] - sl[t] * sl[t];
        if (has_min && det > 0.0f) {
            const float b = (sl[t] * sxl[t] - sl2[t] * sx) / det;
            if (b > 0.0f) {
                m = b;
                a = (sw * sxl[t] - sx * sl[t]) / det;
                gain = a * sxl[t] - m * sx;
            }
        }
        if (!isfinite(gain) || (has_min && !(a > 0.0f))) continue;
        c->scale[t] = a;
        c->min[t] = m;
        if (gain > best->gain) *best = (fit_best){gain, a, m};
    }
}

static void fit_range(const float *x, int n, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
    if (*lo > 0.0f) *lo = 0.0f; /* the minimum is stored as a positive subtrahend */
}

/* The value of largest magnitude, with its sign. */
static float fit_peak(const float *x, int n)
{
    float p = 0.0f;
    for (int i = 0; i < n; i++) p = fabsf(x[i]) > fabsf(p) ? x[i] : p;
    return p;
}

/* Plain choice of a sub-block: from its range. */
static void fit_plain(const fl_grid *f, const float *x, float *scale, float *min)
{
    if (f->has_min) {
        float lo, hi;
        fit_range(x, f->sub, &lo, &hi);
        *scale = (hi - lo) / f->hi;
        *min = -lo;
    } else {
        *scale = fit_peak(x, f->sub) / f->lo;
        *min = 0.0f;
    }
}

/* Best real-valued scale and minimum of one sub-block: steps around the plain choice, each with
 * its least squares, twice. */
FL_INLINE void fit_search(const fl_grid *f, bool curve, bool has_min, int n, const float *x,
                          const float *w, float *scale, float *min)
{
    fit_try c;
    float sw = 0.0f, sx = 0.0f, a, m;
    fit_plain(f, x, &a, &m);
    *scale = a;
    *min = m;
    if (a == 0.0f) return;
    for (int i = 0; i < n; i++) {
        sw += w[i];
        sx += w[i] * x[i];
    }
    for (int t = 0; t < FL_TRY; t++) {
        if (has_min) {
            c.scale[t] = a * f->hi / (f->hi - 1.2f + 0.15f * (float)t);
        } else {
            /* Either sign: the range has one level more on its low side. */
            const float s = a * -f->lo / (-f->lo - 1.05f + 0.3f * (float)(t / 2));
            c.scale[t] = t % 2 ? -s : s;
        }
        c.min[t] = m;
    }
    fit_best best = {0.0f, a, m};
    fit_squares(f, curve, has_min, n, x, w, sw, sx, &c, &best);
    fit_squares(f, curve, has_min, n, x, w, sw, sx, &c, &best);
    *scale = best.scale;
    *min = best.min;
}

/* Errors of 16 candidates without feedback; returns the best. */
FL_INLINE int fit_errors(const fl_grid *f, bool curve, int n, const float *x, const float *w,
                         const fit_try *c, float *err)
{
    float e[FL_TRY], inv[FL_TRY];
    for (int t = 0; t < FL_TRY; t++) inv[t] = fit_inverse(c->scale[t]);
    for (int h = 0; h < FL_TRY; h += 8) {
        const fl_v8 va = fl_v8_load(c->scale + h), vi = fl_v8_load(inv + h),
                    vm = fl_v8_load(c->min + h);
        fl_v8 acc = {0};
        for (int i = 0; i < n; i++) {
            const fl_v8 d = va * fit_level(f, curve, (x[i] + vm) * vi) - vm - x[i];
            acc = acc + w[i] * d * d;
        }
        fl_v8_store(e + h, acc);
    }
    int best = 0;
    for (int t = 1; t < FL_TRY; t++) best = e[t] < e[best] ? t : best;
    *err = e[best];
    return best;
}

/* Levels of one candidate. */
FL_INLINE void fit_levels(const fl_grid *f, bool curve, int n, const float *x, float scale,
                          float min, float *q)
{
    const float inv = fit_inverse(scale);
    for (int i = 0; i < n; i += 8)
        fl_v8_store(q + i, fit_level(f, curve, (fl_v8_load(x + i) + min) * inv));
}

/* A scale as the file will hold it: float16, finite. */
static float fit_f16(float s, uint16_t *bits)
{
    const float lim = 65504.0f;
    *bits = fl_f32_to_f16(s > lim ? lim : s < -lim ? -lim : s);
    return fl_f16_to_f32(*bits);
}

static int fit_int(float v, int lo, int hi)
{
    return v > (float)lo ? (v < (float)hi ? (int)v : hi) : lo;
}

/* The numbers that a block holds around wanted real ones: 4 scales by 4 minima, or 16 scales; for
 * a block of one scale 16 values of d. */
typedef struct fit_pairs {
    int s[FL_TRY], m[FL_TRY];
    uint16_t d_bits[FL_TRY];
    fit_try real;
} fit_pairs;

static void fit_near(const fl_grid *f, const fl_fit *b, float scale, float min, fit_pairs *p)
{
    const bool one = f->s_lo == f->s_hi;
    const float vs = b->d != 0.0f ? floorf(scale * (1.0f / b->d)) : 0.0f;
    const float vm = b->dmin > 0.0f ? floorf(min * (1.0f / b->dmin)) : 0.0f;
    for (int t = 0; t < FL_TRY; t++) {
        const int ds = f->has_min ? t / 4 - 1 : t - 7, dm = t % 4 - 1;
        float d = b->d;
        p->d_bits[t] = b->d_bits;
        if (one) d = fit_f16(scale * (1.0f + 0.01f * (float)ds), &p->d_bits[t]);
        p->s[t] = one ? f->s_lo : fit_int(vs + (float)ds, f->s_lo, f->s_hi);
        p->m[t] = f->has_min ? fit_int(vm + (float)dm, 0, 63) : 0;
        p->real.scale[t] = d * (float)p->s[t];
        p->real.min[t] = b->dmin * (float)p->m[t];
    }
}

static void fit_take(const fit_pairs *p, int t, int k, fl_fit *b)
{
    b->s[k] = p->s[t];
    b->m[k] = p->m[t];
    b->d_bits = p->d_bits[t];
    b->d = fl_f16_to_f32(b->d_bits);
}

/* d and dmin that just reach the greatest wanted scale and minimum. */
static void fit_start(const fl_grid *f, const float *scale, const float *min, fl_fit *b)
{
    const int n = f->block / f->sub;
    float m = 0.0f;
    for (int k = 0; k < n; k++) m = min[k] > m ? min[k] : m;
    b->d = fit_f16(fit_peak(scale, n) / f->s_den, &b->d_bits);
    b->dmin = fit_f16(m / 63.0f, &b->dmin_bits);
}

/* Least squares of d and dmin for given numbers and levels, from the sums over one block of
 * u = s q and v = m: uu, uv, vv, xu, xv. */
static bool fit_solve(double uu, double uv, double vv, double xu, double xv, float *d, float *dmin)
{
    const double det = uu * vv - uv * uv;
    if (uu > 0 && !(vv > 0)) { /* no minima at all */
        *d = (float)(xu / uu);
    } else if (det > 1e-12 * uu * vv) {
        *d = (float)((xu * vv - xv * uv) / det);
        *dmin = (float)((xu * uv - xv * uu) / det);
    } else {
        return false;
    }
    return *d != 0.0f && *dmin >= 0.0f && isfinite(*d) && isfinite(*dmin);
}

FL_INLINE bool fit_refit(const fl_grid *f, const float *x, const float *w, const fl_fit *b,
                         float *d, float *dmin)
{
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
    for (int k = 0; k < f->block / f->sub; k++) {
        fl_v8 a[5] = {{0}};
        for (int i = k * f->sub; i < (k + 1) * f->sub; i += 8) {
            const fl_v8 vw = fl_v8_load(w + i), vx = fl_v8_load(x + i), q = fl_v8_load(b->q + i);
            const fl_v8 wl = vw * q;
            a[0] = a[0] + vw;
            a[1] = a[1] + vw * vx;
            a[2] = a[2] + wl;
            a[3] = a[3] + wl * q;
            a[4] = a[4] + wl * vx;
        }
        const double s = b->s[k], m = b->m[k];
        uu += s * s * (double)fl_v8_sum(a[3]);
        uv += s * m * (double)fl_v8_sum(a[2]);
        vv += m * m * (double)fl_v8_sum(a[0]);
        xu += s * (double)fl_v8_sum(a[4]);
        xv += m * (double)fl_v8_sum(a[1]);
    }
    *dmin = b->dmin;
    return fit_solve(uu, uv, vv, xu, xv, d, dmin);
}

/* Rounds wanted scales and minima to the block's numbers and the values with them; with `plain`
 * the nearest numbers are taken as they are. */
FL_INLINE void fit_encode(const fl_grid *f, bool curve, const float *x, const float *w,
                          const float *scale, const float *min, bool plain, fl_fit *b)
{
    b->err = 0.0f;
    for (int k = 0; k < f->block / f->sub; k++) {
        const int at = k * f->sub;
        fit_pairs p;
        float err;
        if (plain) {
            const float s = b->d != 0.0f ? rintf(scale[k] / b->d) : 0.0f;
            const float m = b->dmin > 0.0f ? rintf(min[k] / b->dmin) : 0.0f;
            b->s[k] = fit_int(s, f->s_lo, f->s_hi);
            b->m[k] = fit_int(m, 0, 63);
        } else {
            fit_near(f, b, scale[k], min[k], &p);
            const int t = fit_errors(f, curve, f->sub, x + at, w + at, &p.real, &err);
            fit_take(&p, t, k, b);
        }
        const float a = b->d * (float)b->s[k], c = b->dmin * (float)b->m[k];
        fit_levels(f, curve, f->sub, x + at, a, c, b->q + at);
        if (plain) {
            fl_v8 acc = {0};
            for (int i = at; i < at + f->sub; i += 8) {
                const fl_v8 e = a * fl_v8_load(b->q + i) - c - fl_v8_load(x + i);
                acc = acc + fl_v8_load(w + i) * e * e;
            }
            err = fl_v8_sum(acc);
        }
        b->err += err;
    }
}

enum { FIT_ROUNDS = 3 };

FL_INLINE void fit_block(const fl_grid *f, bool curve, bool has_min, const float *x, const float *w,
                         fl_fit *best)
{
    float scale[FL_GRID_SUBS] = {0}, min[FL_GRID_SUBS] = {0}, d, dmin;
    const int n = f->block / f->sub;
    fl_fit t;
    for (int k = 0; k < n; k++) fit_plain(f, x + k * f->sub, &scale[k], &min[k]);
    fit_start(f, scale, min, best);
    fit_encode(f, curve, x, w, scale, min, true, best);
    for (int k = 0; k < n; k++)
        fit_search(f, curve, has_min, f->sub, x + k * f->sub, w + k * f->sub, &scale[k], &min[k]);
    fit_start(f, scale, min, &t);
    for (int round = 0; round < FIT_ROUNDS; round++) {
        fit_encode(f, curve, x, w, scale, min, false, &t);
        if (!(t.err < best->err)) return;
        *best = t;
        if (!fit_refit(f, x, w, best, &d, &dmin)) return;
        t.d = fit_f16(d, &t.d_bits);
        t.dmin = fit_f16(dmin, &t.dmin_bits);
        for (int k = 0; k < n; k++) {
            scale[k] = t.d * (float)best->s[k];
            min[k] = t.dmin * (float)best->m[k];
        }
    }
}

static void fit_any(const fl_grid *f, const float *x, const float *w, fl_fit *out)
{
    if (f->has_min)
        fit_block(f, false, true, x, w, out);
    else if (f->curve)
        fit_block(f, true, false, x, w, out);
    else
        fit_block(f, false, false, x, w, out);
}

static void fit_values(const fl_grid *f, const fl_fit *b, float *y)
{
    for (int i = 0; i < f->block; i++) {
        const int k = i / f->sub;
        y[i] = b->d * (float)b->s[k] * b->q[i] - b->dmin * (float)b->m[k];
    }
}

/* ---- with error feedback ---- */

/* One block's part of the problem: x its weights, t these plus what the errors of earlier blocks
 * ask of them, a and d as in fl_fitter. */
typedef struct fit_task {
    const float *x, *t, *a, *d;
} fit_task;

/* Costs of 16 candidates for one sub-block when every value's error moves the later targets;
 * returns the best. */
FL_INLINE int fit_paths(const fl_grid *f, bool curve, int n, const fit_task *k, const fit_try *c,
                        float *err)
{
    float cost[FL_TRY], inv[FL_TRY];
    for (int t = 0; t < FL_TRY; t++) inv[t] = fit_inverse(c->scale[t]);
    for (int h = 0; h < FL_TRY; h += 8) {
        const fl_v8 va = fl_v8_load(c->scale + h), vi = fl_v8_load(inv + h),
                    vm = fl_v8_load(c->min + h);
        fl_v8 e[FL_SUB_MAX], acc = {0};
        for (int i = 0; i < n; i++) {
            const float *a = k->a + i * FL_GRID_MAX;
            fl_v8 v = fl_v8_all(k->t[i]), v2 = {0};
            int j = 0;
            for (; j + 1 < i; j += 2) {
                v = v + e[j] * a[j];
                v2 = v2 + e[j + 1] * a[j + 1];
            }
            if (j < i) v = v + e[j] * a[j];
            v = v + v2;
            const fl_v8 y = va * fit_level(f, curve, (v + vm) * vi) - vm;
            e[i] = k->x[i] - y;
            acc = acc + k->d[i] * (v - y) * (v - y);
        }
        fl_v8_store(cost + h, acc);
    }
    int best = 0;
    for (int t = 1; t < FL_TRY; t++) best = cost[t] < cost[best] ? t : best;
    *err = cost[best];
    return best;
}

/* Levels and errors of one candidate. */
FL_INLINE void fit_path(const fl_grid *f, bool curve, int n, const fit_task *k, float scale,
                        float min, float *q, float *e)
{
    const float inv = fit_inverse(scale);
    float t[FL_SUB_MAX];
    memcpy(t, k->t, (size_t)n * sizeof *t);
    for (int i = 0; i < n; i++) {
        const float *a = k->a + i * FL_GRID_MAX;
        const fl_v8 l = fit_level(f, curve, fl_v8_all((t[i] + min) * inv));
        q[i] = l[0];
        e[i] = k->x[i] - (scale * q[i] - min);
        for (int j = i + 1; j < n; j++) t[j] += e[i] * a[j];
    }
}

/* out[i] = x[i] + sum_{j < i} v[j] a[j][i]. */
FL_INLINE void fit_carry(float *out, const float *x, const float *v, const float *a, int k, int n)
{
    for (int i = 0; i < n; i += 8) {
        fl_v8 s = fl_v8_load(x + i);
        for (int j = 0; j < k; j++) s = s + v[j] * fl_v8_load(a + j * FL_GRID_MAX + i);
        fl_v8_store(out + i, s);
    }
}

/* out = v A: out[i] = v[i] + sum_{j < i} v[j] a[j][i], for a whole block. */
FL_INLINE void fit_transform(float *out, const float *v, const float *a, int n)
{
    for (int at = 0; at < n; at += 8) {
        fit_carry(out + at, v + at, v, a + at, at, 8);
        for (int j = at; j < at + 8; j++)
            for (int i = j + 1; i < at + 8; i++) out[i] += v[j] * a[j * FL_GRID_MAX + i];
    }
}

FL_INLINE void fit_run(const fl_grid *f, bool curve, bool has_min, const fit_task *whole, fl_fit *b)
{
    float t[FL_SUB_MAX], e[FL_GRID_MAX];
    const int n = f->sub;
    b->err = 0.0f;
    for (int k = 0; k < f->block / n; k++) {
        const int at = k * n;
        const fit_task own = {whole->x + at, t, whole->a + at * FL_GRID_MAX + at, whole->d + at};
        float scale, min, err;
        fit_pairs p;
        fit_carry(t, whole->t + at, e, whole->a + at, at, n);
        fit_search(f, curve, has_min, n, t, own.d, &scale, &min);
        fit_near(f, b, scale, min, &p);
        const int c = fit_paths(f, curve, n, &own, &p.real, &err);
        fit_take(&p, c, k, b);
        fit_path(f, curve, n, &own, p.real.scale[c], p.real.min[c], b->q + at, e + at);
        b->err += err;
    }
}

/* Least squares of d and dmin under the block's own energies: everything is first brought to the
 * coordinates in which they are diagonal. */
FL_INLINE bool fit_refit_feedback(const fl_grid *f, const fit_task *k, const fl_fit *b, float *d,
                                  float *dmin)
{
    float u[FL_GRID_MAX], v[FL_GRID_MAX], zu[FL_GRID_MAX], zv[FL_GRID_MAX], zx[FL_GRID_MAX];
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
    for (int i = 0; i < f->block; i++) {
        u[i] = (float)b->s[i / f->sub] * b->q[i];
        v[i] = (float)b->m[i / f->sub];
    }
    fit_transform(zu, u, k->a, f->block);
    if (f->has_min) fit_transform(zv, v, k->a, f->block);
    fit_transform(zx, k->x, k->a, f->block);
    for (int i = 0; i < f->block; i++) {
        const double w = k->d[i], c = (double)zx[i] - (double)k->x[i] + (double)k->t[i];
        uu += w * (double)zu[i] * (double)zu[i];
        xu += w * (double)zu[i] * c;
        if (!f->has_min) continue;
        uv += w * (double)zu[i] * (double)zv[i];
        vv += w * (double)zv[i] * (double)zv[i];
        xv += w * (double)zv[i] * c;
    }
    *dmin = b->dmin;
    return fit_solve(uu, uv, vv, xu, xv, d, dmin);
}

FL_INLINE void fit_block_feedback(const fl_grid *f, bool curve, bool has_min, const fit_task *k,
                                  fl_fit *best)
{
    float d, dmin;
    fl_fit t;
    fit_any(f, k->t, k->d, &t);
    for (int round = 0; round < FIT_ROUNDS; round++) {
        fit_run(f, curve, has_min, k, &t);
        if (round && !(t.err < best->err)) return;
        *best = t;
        if (f->s_lo == f->s_hi || !fit_refit_feedback(f, k, best, &d, &dmin)) return;
        t.d = fit_f16(d, &t.d_bits);
        t.dmin = fit_f16(dmin, &t.dmin_bits);
    }
}

static void fit_any_feedback(const fl_grid *f, const float *x, const float *t, const float *a,
                             const float *d, fl_fit *out)
{
    const fit_task k = {x, t, a, d};
    if (f->has_min)
        fit_block_feedback(f, false, true, &k, out);
    else if (f->curve)
        fit_block_feedback(f, true, false, &k, out);
    else
        fit_block_feedback(f, false, false, &k, out);
}

#endif
