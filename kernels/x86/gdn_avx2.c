#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

/* A slice of columns stays in the first cache over all rows; its chains (one per column) hide each
 * other's latency. Width in vectors of eight columns. */
enum { WIDE = 4 };

/* o = fma chain over i of q_i S_ij. */
FL_INLINE void read_slice(const float *s, int64_t dv, int dk, const float *q, int width, float *o)
{
    __m256 acc[WIDE];
    for (int c = 0; c < width; c++) acc[c] = _mm256_setzero_ps();
    for (int i = 0; i < dk; i++) {
        __m256 qi = _mm256_broadcast_ss(q + i);
        for (int c = 0; c < width; c++)
            acc[c] = _mm256_fmadd_ps(qi, _mm256_loadu_ps(s + i * dv + 8 * c), acc[c]);
    }
    for (int c = 0; c < width; c++) _mm256_storeu_ps(o + 8 * c, acc[c]);
}

/* S *= decay, giving d = beta (v - chain of k_i S_ij). */
FL_INLINE void decay_slice(float *s, int64_t dv, int dk, const float *k, float decay, float beta,
                           const float *v, int width, __m256 d[WIDE])
{
    for (int c = 0; c < width; c++) d[c] = _mm256_setzero_ps();
    for (int i = 0; i < dk; i++) {
        __m256 ki = _mm256_broadcast_ss(k + i);
        for (int c = 0; c < width; c++) {
            float *p = s + i * dv + 8 * c;
            __m256 e = _mm256_mul_ps(_mm256_loadu_ps(p), _mm256_set1_ps(decay));
            _mm256_storeu_ps(p, e);
            d[c] = _mm256_fmadd_ps(ki, e, d[c]);
        }
    }
    for (int c = 0; c < width; c++) {
        d[c] = _mm256_sub_ps(_mm256_loadu_ps(v + 8 * c), d[c]);
        d[c] = _mm256_mul_ps(_mm256_set1_ps(beta), d[c]);
    }
}

/* S = fma(k_i, d, S); with o, also the chain over the new S. */
FL_INLINE void write_slice(float *s, int64_t dv, int dk, const float *k, const __m256 d[WIDE],
                           const float *q, int width, float *o)
{
    __m256 acc[WIDE];
    for (int c = 0; c < width; c++) acc[c] = _mm256_setzero_ps();
    for (int i = 0; i < dk; i++) {
        __m256 ki = _mm256_broadcast_ss(k + i), qi = _mm256_broadcast_ss(q + i);
        for (int c = 0; c < width; c++) {
            float *p = s + i * dv + 8 * c;
            __m256 e = _mm256_fmadd_ps(ki, d[c], _mm256_loadu_ps(p));
            _mm256_storeu_ps(p, e);
            if (o) acc[c] = _mm256_fmadd_ps(qi, e, acc[c]);
        }
    }
    for (int c = 0; o && c < width; c++) _mm256_storeu_ps(o + 8 * c, acc[c]);
}

FL_INLINE void scan_slice(const fl_gdn_args *a, int64_t j, int width)
{
    for (int step = 0; step < a->n_rows; step++) {
        int64_t t = a->reverse ? a->n_rows - 1 - step : step;
        const float *k = a->k + t * a->k_stride, *q = a->q + t * a->q_stride;
        float *s = a->s + j, *o = a->o + t * a->o_stride + j;
        __m256 d[WIDE];
        if (a->strict) read_slice(s, a->dv, a->dk, q, width, o);
        decay_slice(s, a->dv, a->dk, k, a->decay[t * a->gate_stride], a->beta[t * a->gate_stride],
                    a->v + t * a->v_stride + j, width, d);
        if (a->strict)
            write_slice(s, a->dv, a->dk, k, d, q, width, NULL);
        else
            write_slice(s, a->dv, a->dk, k, d, q, width, o);
    }
}

static float read_column(const float *s, const float *q, int dk, int64_t dv)
{
    float o = 0.0f;
    for (int i = 0; i < dk; i++) o = fmaf(q[i], s[i * dv], o);
    return o;
}

/* One column in plain C, for dv that is no multiple of eight. */
static void scan_column(const fl_gdn_args *a, int64_t j)
{
    float *s = a->s + j;
    for (int step = 0; step < a->n_rows; step++) {
        int64_t t = a->reverse ? a->n_rows - 1 - step : step;
        const float *k = a->k + t * a->k_stride, *q = a->q + t * a->q_stride;
        float *o = a->o + t * a->o_stride + j, m = 0.0f;
        if (a->strict) *o = read_column(s, q, a->dk, a->dv);
        for (int i = 0; i < a->dk; i++) {
            s[(int64_t)i * a->dv] *= a->decay[t * a->gate_stride];
            m = fmaf(k[i], s[(int64_t)i * a->dv], m);
        }
        float d = a->beta[t * a->gate_stride] * (a->v[t * a->v_stride + j] - m);
        for (int i = 0; i < a->dk; i++)
            s[(int64_t)i * a->dv] = fmaf(k[i], d, s[(int64_t)i * a->dv]);
        if (!a->strict) *o = read_column(s, q, a->dk, a->dv);
    }
}

void fl_avx2_gdn_scan(const fl_gdn_args *a)
{
    int64_t j = 0;
    for (; j + 8 * WIDE <= a->dv; j += 8 * WIDE) scan_slice(a, j, WIDE);
    for (; j + 8 <= a->dv; j += 8) scan_slice(a, j, 1);
    for (; j < a->dv; j++) scan_column(a, j);
}
