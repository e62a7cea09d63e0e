#ifndef FL_KERNELS_X86_GDN_H
#define FL_KERNELS_X86_GDN_H

#include "kernels/ref/ref.h"
#include "kernels/x86/v16.h"

/* The gated delta scan, for every tier with vectors of floats; empty without them. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* A panel of columns is copied out of S, whose rows lie too far apart for the ways of the first
 * cache, and stays there over all rows. One sweep over it finishes a row and begins the next, so
 * that every element is loaded and stored once per row. */
enum { GDN_W = 2, GDN_PANEL = 16 * GDN_W, GDN_MAX_DK = 256 };
/* Rows of S, all columns, that the first panel's first sweep asks for ahead of time: S comes from
 * memory once per call, and pieces of a panel are too short a stream to be foreseen. */
enum { GDN_AHEAD = 8 };

typedef struct gdn_sweep {
    const float *from; /* the panel as it is, rows from_ld apart */
    float *to;         /* as it will be; may be `from` */
    int64_t from_ld, to_ld;
    int dk;
    int64_t fetch;   /* bytes of a row of `from` to ask for; 0 but in a call's first sweep */
    const float *k;  /* write: S_ij = fma(k_i, d_j, S_ij) */
    const float *q;  /* read: o_j = chain of q_i S_ij */
    const float *k1; /* next: S_ij *= decay, m_j = chain of k1_i S_ij */
    float decay;
} gdn_sweep;

FL_INLINE void gdn_sweep_run(const gdn_sweep *g, bool write, bool read, bool next,
                             const fl_v16 d[GDN_W], fl_v16 o[GDN_W], fl_v16 m[GDN_W])
{
    const fl_v16 decay = fl_v16_all(g->decay);
    fl_v16 so[GDN_W], sm[GDN_W];
    for (int c = 0; c < GDN_W; c++) so[c] = sm[c] = fl_v16_zero();
    for (int i = 0; i < g->dk; i++) {
        const float *from = g->from + i * g->from_ld;
        float *to = g->to + i * g->to_ld;
        if (!write && g->fetch)
            fl_prefetch((const uint8_t *)(from + GDN_AHEAD * g->from_ld), g->fetch);
        for (int c = 0; c < GDN_W; c++) {
            fl_v16 s = fl_v16_load(from + 16 * c);
            if (write) s = fl_v16_fma(fl_v16_all(g->k[i]), d[c], s);
            if (read) so[c] = fl_v16_fma(fl_v16_all(g->q[i]), s, so[c]);
            if (next) s = fl_v16_mul(s, decay);
            if (next) sm[c] = fl_v16_fma(fl_v16_all(g->k1[i]), s, sm[c]);
            fl_v16_store(to + 16 * c, s);
        }
    }
    for (int c = 0; c < GDN_W; c++) {
        if (read) o[c] = so[c];
        if (next) m[c] = sm[c];
    }
}

static int64_t gdn_row(const fl_gdn_args *a, int step)
{
    return a->reverse ? a->n_rows - 1 - step : step;
}

/* `width` of GDN_PANEL floats that lie at p; the others are zeros. */
static void gdn_get(const float *p, int width, fl_v16 v[GDN_W])
{
    float part[GDN_PANEL] = {0};
    if (width < GDN_PANEL) p = memcpy(part, p, (size_t)width * sizeof *p);
    for (int c = 0; c < GDN_W; c++) v[c] = fl_v16_load(p + 16 * c);
}
static void gdn_put(float *p, int width, const fl_v16 v[GDN_W])
{
    float part[GDN_PANEL];
    float *to = width < GDN_PANEL ? part : p;
    for (int c = 0; c < GDN_W; c++) fl_v16_store(to + 16 * c, v[c]);
    if (width < GDN_PANEL) memcpy(p, part, (size_t)width * sizeof *p);
}

/* The first row's decay and chain, and in the strict form its output. */
static void gdn_first(const fl_gdn_args *a, gdn_sweep *g, int64_t j, int width, fl_v16 m[GDN_W])
{
    const int64_t t = gdn_row(a, 0);
    fl_v16 o[GDN_W];
    g->k1 = a->k + t * a->k_stride;
    g->q = a->q + t * a->q_stride;
    g->decay = a->decay[t * a->gate_stride];
    if (!a->strict) {
        gdn_sweep_run(g, false, false, true, NULL, NULL, m);
        return;
    }
    gdn_sweep_run(g, false, true, true, NULL, o, m);
    gdn_put(a->o + t * a->o_stride + j, width, o);
}

/* Writes the row of `step` and begins the one behind it. */
static void gdn_middle(const fl_gdn_args *a, gdn_sweep *g, int step, int64_t j, int width,
                       const fl_v16 d[GDN_W], fl_v16 m[GDN_W])
{
    const int64_t t = gdn_row(a, step), t1 = gdn_row(a, step + 1), read = a->strict ? t1 : t;
    fl_v16 o[GDN_W];
    g->k = a->k + t * a->k_stride;
    g->q = a->q + read * a->q_stride;
    g->k1 = a->k + t1 * a->k_stride;
    g->decay = a->decay[t1 * a->gate_stride];
    gdn_sweep_run(g, true, true, true, d, o, m);
    gdn_put(a->o + read * a->o_stride + j, width, o);
}

static void gdn_last(const fl_gdn_args *a, gdn_sweep *g, int64_t j, int width,
                     const fl_v16 d[GDN_W])
{
    const int64_t t = gdn_row(a, a->n_rows - 1);
    fl_v16 o[GDN_W];
    g->k = a->k + t * a->k_stride;
    g->q = a->q + t * a->q_stride;
    if (a->strict) {
        gdn_sweep_run(g, true, false, false, d, NULL, NULL);
        return;
    }
    gdn_sweep_run(g, true, true, false, d, o, NULL);
    gdn_put(a->o + t * a->o_stride + j, width, o);
}

static void gdn_panel(const fl_gdn_args *a, int64_t j, int width)
{
    _Alignas(64) float panel[GDN_MAX_DK * GDN_PANEL];
    const bool whole = width == GDN_PANEL;
    const size_t bytes = (size_t)width * sizeof(float);
    gdn_sweep g = {.from = panel, .to = panel, .from_ld = GDN_PANEL, .to_ld = GDN_PANEL};
    g.dk = a->dk;
    fl_v16 d[GDN_W], m[GDN_W];
    for (int c = 0; c < GDN_W; c++) m[c] = d[c] = fl_v16_zero();
    if (whole) {
        g.from = a->s + j;
        g.from_ld = a->dv;
        g.fetch = j == 0 ? a->dv * (int64_t)sizeof(float) : 0;
    } else {
        memset(panel, 0, (size_t)a->dk * GDN_PANEL * sizeof(float));
        for (int i = 0; i < a->dk; i++) memcpy(panel + i * GDN_PANEL, a->s + i * a->dv + j, bytes);
    }
    gdn_first(a, &g, j, width, m);
    g.from = panel;
    g.from_ld = GDN_PANEL;
    for (int step = 0; step < a->n_rows; step++) {
        const int64_t t = gdn_row(a, step);
        const fl_v16 beta = fl_v16_all(a->beta[t * a->gate_stride]);
        gdn_get(a->v + t * a->v_stride + j, width, d);
        for (int c = 0; c < GDN_W; c++) d[c] = fl_v16_mul(beta, fl_v16_sub(d[c], m[c]));
        if (step + 1 < a->n_rows) gdn_middle(a, &g, step, j, width, d, m);
    }
    if (whole) {
        g.to = a->s + j;
        g.to_ld = a->dv;
    }
    gdn_last(a, &g, j, width, d);
    for (int i = 0; !whole && i < a->dk; i++)
        memcpy(a->s + i * a->dv + j, panel + i * GDN_PANEL, bytes);
}

FL_INLINE void fl_gdn_scan_panels(const fl_gdn_args *a)
{
    if (a->n_rows == 0) return;
    if (a->dk > GDN_MAX_DK) {
        fl_ref_gdn_scan(a);
        return;
    }
    for (int64_t j = 0; j < a->dv; j += GDN_PANEL)
        gdn_panel(a, j, a->dv - j < GDN_PANEL ? (int)(a->dv - j) : GDN_PANEL);
}

#endif
#endif
