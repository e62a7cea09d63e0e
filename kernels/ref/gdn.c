#include <math.h>

#include "kernels/ref/ref.h"

/* o_j of column j: chain over the key dimension. */
static float read_column(const float *s, const float *q, int dk, int dv)
{
    float o = 0.0f;
    for (int i = 0; i < dk; i++) o = fmaf(q[i], s[(int64_t)i * dv], o);
    return o;
}

static void step_column(const fl_gdn_args *a, float *s, int64_t t, int j)
{
    const float *k = a->k + t * a->k_stride, *q = a->q + t * a->q_stride;
    float decay = a->decay[t * a->gate_stride], beta = a->beta[t * a->gate_stride];
    float *o = a->o + t * a->o_stride + j;
    if (a->strict) *o = read_column(s, q, a->dk, a->dv);
    float m = 0.0f;
    for (int i = 0; i < a->dk; i++) {
        float *e = s + (int64_t)i * a->dv;
        *e *= decay;
        m = fmaf(k[i], *e, m);
    }
    float d = beta * (a->v[t * a->v_stride + j] - m);
    for (int i = 0; i < a->dk; i++) {
        float *e = s + (int64_t)i * a->dv;
        *e = fmaf(k[i], d, *e);
    }
    if (!a->strict) *o = read_column(s, q, a->dk, a->dv);
}

void fl_ref_gdn_scan(const fl_gdn_args *a)
{
    for (int j = 0; j < a->dv; j++) {
        for (int step = 0; step < a->n_rows; step++)
            step_column(a, a->s + j, a->reverse ? a->n_rows - 1 - step : step, j);
    }
}
