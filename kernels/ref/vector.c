#include <math.h>

#include "kernels/ref/ref.h"

void fl_ref_rmsnorm(const float *x, const float *w, int64_t n, float eps, float *y)
{
    float r = 1.0f / sqrtf(fl_law_sumsq(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * w[i];
}

void fl_ref_l2norm(const float *x, int64_t n, float scale, float *y)
{
    float r = scale / sqrtf(fl_law_sumsq(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r;
}

void fl_ref_silu_mul(const float *g, const float *u, int64_t n, float *h)
{
    for (int64_t i = 0; i < n; i++) h[i] = fl_law_silu_mul(g[i], u[i]);
}

void fl_ref_sigmoid_mul(const float *x, const float *g, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1.0f + fl_law_exp(-g[i]));
}

void fl_ref_conv4_silu(const float *const row[4], const float *w, int64_t n, float *y)
{
    for (int64_t c = 0; c < n; c++) {
        float s = 0.0f;
        for (int a = 0; a < 4; a++) s = fmaf(w[4 * c + a], row[a][c], s);
        y[c] = fl_law_silu(s);
    }
}

void fl_ref_axpy(float a, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

double fl_ref_exp_sum(const float *x, int64_t n, float max, float *e)
{
    double lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        const float t = fl_law_exp(x[i] - max);
        if (e) e[i] = t;
        lane[i % 16] += (double)t;
    }
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

void fl_kernels_ref(fl_kernels *k)
{
    *k = (fl_kernels){
        .name = "reference",
        .act_quantize = fl_ref_act_quantize,
        .mul_law = fl_ref_mul_law,
        .mul_float = fl_ref_mul_float,
        .rmsnorm = fl_ref_rmsnorm,
        .l2norm = fl_ref_l2norm,
        .silu_mul = fl_ref_silu_mul,
        .sigmoid_mul = fl_ref_sigmoid_mul,
        .conv4_silu = fl_ref_conv4_silu,
        .axpy = fl_ref_axpy,
        .exp_sum = fl_ref_exp_sum,
        .gdn_scan = fl_ref_gdn_scan,
        .attention = fl_ref_attention,
        .attention_chunk = fl_ref_attention_chunk,
        .attention_join = fl_ref_attention_join,
    };
}
