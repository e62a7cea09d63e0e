#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

/* Eight integer vectors -> the sum of each. */
FL_INLINE __m256i hsum8(const __m256i v[8])
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

/* Largest magnitude (as bits: magnitudes order like integers) of each of eight runs of 32. */
FL_INLINE __m256i max_bits(const float *v)
{
    const __m256i mag = _mm256_set1_epi32(0x7fffffff);
    uint32_t top[8];
    for (int k = 0; k < 8; k++, v += 32) {
        __m256i m = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++)
            m = _mm256_max_epi32(m, _mm256_and_si256(fl_load256(v + 8 * i), mag));
        __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        h = _mm_max_epi32(h, _mm_shuffle_epi32(h, _MM_SHUFFLE(1, 0, 3, 2)));
        h = _mm_max_epi32(h, _mm_shuffle_epi32(h, _MM_SHUFFLE(2, 3, 0, 1)));
        top[k] = (uint32_t)_mm_cvtsi128_si32(h);
    }
    return fl_load256(top);
}

/* P_k from the maxima of the runs and of the block. */
FL_INLINE void exponents(__m256i runs, float m, int16_t p[8], float up[8])
{
    float mk[8];
    _mm256_storeu_ps(mk, _mm256_castsi256_ps(runs));
    for (int k = 0; k < 8; k++) {
        int e = 1;
        if (fl_law_option_h) {
            while (e < 8 && mk[k] > m * 0.125f * (float)e) e *= 2;
        }
        p[k] = (int16_t)e;
        up[k] = fl_law_option_h ? 8.0f / (float)e : 1.0f;
    }
}

static bool quantize_block(const float *v, fl_act *out)
{
    __m256i runs = max_bits(v);
    uint32_t tops[8], top = 0;
    _mm256_storeu_si256((__m256i *)tops, runs);
    for (int k = 0; k < 8; k++) top = tops[k] > top ? tops[k] : top;
    if (top >= 0x7f800000) return false;
    float m, up[8];
    memcpy(&m, &top, sizeof m);
    bool zero = m < 0x1p-121f;
    float id = zero ? 0.0f : 127.0f / m;
    out->scale = zero ? 0.0f : m / 127.0f * (fl_law_option_h ? 0.125f : 1.0f);
    out->unused = 0;
    exponents(runs, m, out->p, up);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i sum[8];
    for (int k = 0; k < 8; k++, v += 32) {
        __m256i q[4];
        for (int i = 0; i < 4; i++) {
            __m256 t = _mm256_mul_ps(_mm256_loadu_ps(v + 8 * i), _mm256_set1_ps(id));
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(t, _mm256_set1_ps(up[k])));
        }
        sum[k] = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        __m256i b =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256((__m256i *)(out->x + 32 * k), _mm256_permutevar8x32_epi32(b, order));
    }
    int32_t j[8];
    _mm256_storeu_si256((__m256i *)j, hsum8(sum));
    for (int k = 0; k < 8; k++) out->sum[k] = (int16_t)(j[k] * out->p[k]);
    return true;
}

bool fl_avx2_act_quantize(const float *x, int64_t cols, fl_act *out)
{
    for (int64_t b = 0; b < cols / 256; b++) {
        if (!quantize_block(x + 256 * b, out + b)) return false;
    }
    return true;
}

void fl_avx2_rmsnorm(const float *x, const float *w, int64_t n, float eps, float *y)
{
    float r = 1.0f / sqrtf(fl_sumsq8(x, n) / (float)n + eps);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 t = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(r));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(t, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++) y[i] = x[i] * r * w[i];
}

void fl_avx2_l2norm(const float *x, int64_t n, float scale, float *y)
{
    float r = scale / sqrtf(fl_sumsq8(x, n) + 1e-6f);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(r)));
    for (; i < n; i++) y[i] = x[i] * r;
}

void fl_avx2_silu_mul(const float *g, const float *u, int64_t n, float *h)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 t = _mm256_loadu_ps(g + i);
        t = _mm256_div_ps(t, fl_one_plus_exp_neg8(t));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(t, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) h[i] = fl_law_silu_mul(g[i], u[i]);
}

void fl_avx2_sigmoid_mul(const float *x, const float *g, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 d = fl_one_plus_exp_neg8(_mm256_loadu_ps(g + i));
        _mm256_storeu_ps(y + i, _mm256_div_ps(_mm256_loadu_ps(x + i), d));
    }
    for (; i < n; i++) y[i] = x[i] / (1.0f + fl_law_exp(-g[i]));
}

/* The weights of eight channels lie as [8][4]: turned into one vector per tap. */
FL_INLINE void taps8(const float *w, __m256 tap[4])
{
    __m256 r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(w + 4 * i)),
                                    _mm_loadu_ps(w + 4 * i + 16), 1);
    __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    __m256 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    tap[0] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0));
    tap[1] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
    tap[2] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0));
    tap[3] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
}

void fl_avx2_conv4_silu(const float *const row[4], const float *w, int64_t n, float *y)
{
    int64_t c = 0;
    for (; c + 8 <= n; c += 8) {
        __m256 tap[4], s = _mm256_setzero_ps();
        taps8(w + 4 * c, tap);
        for (int a = 0; a < 4; a++) s = _mm256_fmadd_ps(tap[a], _mm256_loadu_ps(row[a] + c), s);
        _mm256_storeu_ps(y + c, _mm256_div_ps(s, fl_one_plus_exp_neg8(s)));
    }
    for (; c < n; c++) {
        float s = 0.0f;
        for (int a = 0; a < 4; a++) s = fmaf(w[4 * c + a], row[a][c], s);
        y[c] = fl_law_silu(s);
    }
}

void fl_avx2_axpy(float a, const float *x, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 t =
            _mm256_fmadd_ps(_mm256_set1_ps(a), _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i));
        _mm256_storeu_ps(y + i, t);
    }
    for (; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

/* Lanes 4 j .. 4 j + 3 in sum[j]. */
FL_INLINE void add_lanes(__m256d sum[4], __m256 a, __m256 b)
{
    sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(a)));
    sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    sum[2] = _mm256_add_pd(sum[2], _mm256_cvtps_pd(_mm256_castps256_ps128(b)));
    sum[3] = _mm256_add_pd(sum[3], _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1)));
}

double fl_avx2_exp_sum(const float *x, int64_t n, float max, float *e)
{
    __m256d sum[4];
    for (int j = 0; j < 4; j++) sum[j] = _mm256_setzero_pd();
    const __m256 m = _mm256_set1_ps(max);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 a = fl_exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        const __m256 b = fl_exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), m));
        if (e) {
            _mm256_storeu_ps(e + i, a);
            _mm256_storeu_ps(e + i + 8, b);
        }
        add_lanes(sum, a, b);
    }
    double lane[16];
    for (int j = 0; j < 4; j++) _mm256_storeu_pd(lane + 4 * j, sum[j]);
    for (; i < n; i++) {
        const float t = fl_law_exp(x[i] - max);
        if (e) e[i] = t;
        lane[i % 16] += (double)t;
    }
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}
