#include "quant/round.h"

#include <math.h>
#include <string.h>

#include "quant/format.h"

/* Sums run over 8 lanes (element i in lane i % 8) and a fixed tree, so that the compiler may use
 * vectors of any width and the bytes stay the same. */
enum { LANES = 8, SUB = 32, SUPER = 256, N_SUB = 8, MAX_ROUNDS = 4 };

static float lanes_sum(const float a[LANES])
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

void fl_round_weights(const float *x, float *w, int n)
{
    float sq = 0.0f;
    for (int i = 0; i < n; i++) sq += x[i] * x[i];
    const float rms = sqrtf(sq / (float)n);
    for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

int64_t fl_round_nonfinite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

/* A scale as the file will hold it: float16, finite. */
static float scale_f16(float s, uint16_t *bits)
{
    const float lim = 65504.0f;
    *bits = fl_f32_to_f16(s > lim ? lim : s < -lim ? -lim : s);
    return fl_f16_to_f32(*bits);
}

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* ---- Q4_K and Q5_K: y = scale * q - min, q in 0..qmax ---- */

/* Rounds 32 values with a given scale and minimum; returns the weighted error. */
static float affine_round(const float *x, const float *w, float scale, float min, float qmax,
                          float *q)
{
    const float inv = scale > 0.0f ? 1.0f / scale : 0.0f;
    float acc[LANES] = {0};
    for (int i = 0; i < SUB; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float l = rintf((x[i + j] + min) * inv);
            l = l > 0.0f ? l : 0.0f;
            l = l < qmax ? l : qmax;
            const float e = scale * l - min - x[i + j];
            acc[j] += w[i + j] * e * e;
            q[i + j] = l;
        }
    }
    return lanes_sum(acc);
}

/* Sums that the least squares of one sub-block need. */
typedef struct sums {
    float w, x, l, l2, xl; /* sum w, w x, w l, w l^2, w x l */
} sums;

static void affine_sums(const float *x, const float *w, const float *q, sums *s)
{
    float a[5][LANES] = {{0}};
    for (int i = 0; i < SUB; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            const float wl = w[i + j] * q[i + j], wx = w[i + j] * x[i + j];
            a[0][j] += w[i + j];
            a[1][j] += wx;
            a[2][j] += wl;
            a[3][j] += wl * q[i + j];
            a[4][j] += wl * x[i + j];
        }
    }
    s->w = lanes_sum(a[0]);
    s->x = lanes_sum(a[1]);
    s->l = lanes_sum(a[2]);
    s->l2 = lanes_sum(a[3]);
    s->xl = lanes_sum(a[4]);
}

/* Weighted least squares of x = scale * q - min with min >= 0; false when q says nothing. */
static bool affine_solve(const sums *s, float *scale, float *min)
{
    const float det = s->w * s->l2 - s->l * s->l;
    if (!(det > 0.0f)) return false;
    float a = (s->w * s->xl - s->x * s->l) / det;
    float m = (s->l * s->xl - s->l2 * s->x) / det;
    if (m < 0.0f) {
        m = 0.0f;
        a = s->l2 > 0.0f ? s->xl / s->l2 : 0.0f;
    }
    if (!(a > 0.0f) || !isfinite(a) || !isfinite(m)) return false;
    *scale = a;
    *min = m;
    return true;
}

static void range_of(const float *x, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < SUB; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
    if (*lo > 0.0f) *lo = 0.0f; /* the minimum is stored as a positive subtrahend */
}

/* Best real-valued scale and minimum of one sub-block over a grid of steps. */
static void affine_search(const float *x, const float *w, float qmax, float *scale, float *min)
{
    float lo, hi, q[SUB];
    range_of(x, &lo, &hi);
    *min = -lo;
    *scale = (hi - lo) / qmax;
    if (!(hi > lo)) {
        *scale = 0.0f;
        return;
    }
    float best = affine_round(x, w, *scale, *min, qmax, q);
    for (int step = 0; step <= 12; step++) {
        float a = (hi - lo) / (qmax - 0.9f + 0.15f * (float)step), m = -lo;
        /* The second round starts from the first one's least squares. */
        for (int round = 0; round < 2; round++) {
            sums s;
            affine_round(x, w, a, m, qmax, q);
            affine_sums(x, w, q, &s);
            if (!affine_solve(&s, &a, &m)) break;
            const float e = affine_round(x, w, a, m, qmax, q);
            if (e < best) {
                best = e;
                *scale = a;
                *min = m;
            }
        }
    }
}

typedef struct affine_block {
    float d, dmin;
    uint16_t d_bits, dmin_bits;
    int s[N_SUB], m[N_SUB]; /* 6 bits each */
    float err;
    float q[SUPER];
} affine_block;

/* The best pair (s, m) of a sub-block among the neighbours of (s0, m0). */
static float affine_pair(const float *x, const float *w, float qmax, affine_block *b, int k, int s0,
                         int m0)
{
    float best = INFINITY, q[SUB];
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            if (s < 0 || s > 63 || m < 0 || m > 63) continue;
            const float e = affine_round(x, w, b->d * (float)s, b->dmin * (float)m, qmax, q);
            if (e < best) {
                best = e;
                b->s[k] = s;
                b->m[k] = m;
                memcpy(b->q + k * SUB, q, sizeof q);
            }
        }
    }
    return best;
}

static int clamp6(float v) { return v > 0.0f ? (v < 63.0f ? (int)rintf(v) : 63) : 0; }

/* Rounds wanted scales and minima to the block's 6-bit grid and the values with them. With
 * `plain` the nearest 6-bit numbers are taken as they are. */
static void affine_encode(const float *x, const float *w, float qmax, const float *scale,
                          const float *min, bool plain, affine_block *b)
{
    b->err = 0.0f;
    for (int k = 0; k < N_SUB; k++) {
        const int s = b->d > 0.0f ? clamp6(scale[k] / b->d) : 0;
        const int m = b->dmin > 0.0f ? clamp6(min[k] / b->dmin) : 0;
        if (plain) {
            b->s[k] = s;
            b->m[k] = m;
            b->err += affine_round(x + k * SUB, w + k * SUB, b->d * (float)s, b->dmin * (float)m,
                                   qmax, b->q + k * SUB);
        } else {
            b->err += affine_pair(x + k * SUB, w + k * SUB, qmax, b, k, s, m);
        }
    }
}

static void affine_start(const float *scale, const float *min, affine_block *b)
{
    float s = 0.0f, m = 0.0f;
    for (int k = 0; k < N_SUB; k++) {
        s = scale[k] > s ? scale[k] : s;
        m = min[k] > m ? min[k] : m;
    }
    b->d = scale_f16(s / 63.0f, &b->d_bits);
    b->dmin = scale_f16(m / 63.0f, &b->dmin_bits);
}

/* Least squares of d and dmin for given 6-bit numbers and values; false when degenerate. */
static bool affine_refit(const float *x, const float *w, const affine_block *b, float *d,
                         float *dmin)
{
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int k = 0; k < N_SUB; k++) {
        sums s;
        affine_sums(x + k * SUB, w + k * SUB, b->q + k * SUB, &s);
        const double sk = b->s[k], mk = b->m[k];
        aa += sk * sk * (double)s.l2;
        ab -= sk * mk * (double)s.l;
        bb += mk * mk * (double)s.w;
        xa += sk * (double)s.xl;
        xb -= mk * (double)s.x;
    }
    const double det = aa * bb - ab * ab;
    if (aa > 0 && !(bb > 0)) { /* no minima at all */
        *d = (float)(xa / aa);
        *dmin = b->dmin;
    } else if (det > 1e-12 * aa * bb) {
        *d = (float)((xa * bb - xb * ab) / det);
        *dmin = (float)((xb * aa - xa * ab) / det);
    } else {
        return false;
    }
    return *d > 0.0f && *dmin >= 0.0f && isfinite(*d) && isfinite(*dmin);
}

static void affine_refine(const float *x, const float *w, float qmax, affine_block *best)
{
    for (int round = 0; round < MAX_ROUNDS; round++) {
        affine_block t;
        float d, dmin, scale[N_SUB], min[N_SUB];
        if (!affine_refit(x, w, best, &d, &dmin)) return;
        t.d = scale_f16(d, &t.d_bits);
        t.dmin = scale_f16(dmin, &t.dmin_bits);
        for (int k = 0; k < N_SUB; k++) {
            scale[k] = t.d * (float)best->s[k];
            min[k] = t.dmin * (float)best->m[k];
        }
        affine_encode(x, w, qmax, scale, min, false, &t);
        if (!(t.err < best->err)) return;
        *best = t;
    }
}

static void affine_block_fit(const float *x, float qmax, affine_block *best)
{
    float w[SUPER], scale[N_SUB], min[N_SUB];
    affine_block t;
    for (int k = 0; k < N_SUB; k++) {
        float lo, hi;
        fl_round_weights(x + k * SUB, w + k * SUB, SUB);
        range_of(x + k * SUB, &lo, &hi);
        scale[k] = (hi - lo) / qmax;
        min[k] = -lo;
    }
    affine_start(scale, min, best);
    affine_encode(x, w, qmax, scale, min, true, best);
    for (int k = 0; k < N_SUB; k++)
        affine_search(x + k * SUB, w + k * SUB, qmax, &scale[k], &min[k]);
    affine_start(scale, min, &t);
    affine_encode(x, w, qmax, scale, min, false, &t);
    affine_refine(x, w, qmax, &t);
    if (t.err < best->err) *best = t;
}

static void put_scales(const affine_block *b, uint8_t *sc)
{
    for (int k = 0; k < 4; k++) {
        sc[k] = (uint8_t)(b->s[k] | ((b->s[k + 4] >> 4) << 6));
        sc[k + 4] = (uint8_t)(b->m[k] | ((b->m[k + 4] >> 4) << 6));
        sc[k + 8] = (uint8_t)((b->s[k + 4] & 15) | ((b->m[k + 4] & 15) << 4));
    }
}

void fl_quantize_q4_k(const float *src, void *dst, int64_t n)
{
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += SUPER, o += 144) {
        affine_block b;
        affine_block_fit(src + i, 15.0f, &b);
        put_u16(o, b.d_bits);
        put_u16(o + 2, b.dmin_bits);
        put_scales(&b, o + 4);
        for (int k = 0; k < N_SUB; k += 2)
            for (int j = 0; j < SUB; j++)
                o[16 + 16 * k + j] =
                    (uint8_t)((int)b.q[k * SUB + j] | (int)b.q[(k + 1) * SUB + j] << 4);
    }
}

void fl_quantize_q5_k(const float *src, void *dst, int64_t n)
{
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += SUPER, o += 176) {
        affine_block b;
        affine_block_fit(src + i, 31.0f, &b);
        put_u16(o, b.d_bits);
        put_u16(o + 2, b.dmin_bits);
        put_scales(&b, o + 4);
        memset(o + 16, 0, 32);
        for (int k = 0; k < N_SUB; k += 2) {
            for (int j = 0; j < SUB; j++) {
                const int a = (int)b.q[k * SUB + j], c = (int)b.q[(k + 1) * SUB + j];
                o[48 + 16 * k + j] = (uint8_t)((a & 15) | (c & 15) << 4);
                o[16 + j] |= (uint8_t)((a >> 4) << k | (c >> 4) << (k + 1));
            }
        }
    }
}

/* ---- formats with one signed scale: y = scale * q, q in -half .. half - 1 ---- */

static float signed_round(const float *x, const float *w, int n, float scale, float half, float *q)
{
    const float inv = scale != 0.0f ? 1.0f / scale : 0.0f;
    float acc[LANES] = {0};
    for (int i = 0; i < n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float l = rintf(x[i + j] * inv);
            l = l > -half ? l : -half;
            l = l < half - 1.0f ? l : half - 1.0f;
            const float e = scale * l - x[i + j];
            acc[j] += w[i + j] * e * e;
            q[i + j] = l;
        }
    }
    return lanes_sum(acc);
}

/* The value of largest magnitude, with its sign. */
static float peak_of(const float *x, int n)
{
    float p = 0.0f;
    for (int i = 0; i < n; i++) p = fabsf(x[i]) > fabsf(p) ? x[i] : p;
    return p;
}

/* Best real-valued scale; the sign of the peak is mapped to -half, which has no positive twin. */
static float signed_search(const float *x, const float *w, int n, float half)
{
    float q[SUB];
    const float peak = peak_of(x, n);
    if (peak == 0.0f) return 0.0f;
    float scale = peak / -half;
    float best = signed_round(x, w, n, scale, half, q);
    for (int step = -9; step <= 9; step++) {
        float s = peak / -(half + 0.1f * (float)step);
        for (int sign = 0; sign < 2; sign++, s = -s) {
            signed_round(x, w, n, s, half, q);
            float xl = 0.0f, l2 = 0.0f;
            for (int i = 0; i < n; i++) {
                xl += w[i] * x[i] * q[i];
                l2 += w[i] * q[i] * q[i];
            }
            if (!(l2 > 0.0f) || !isfinite(xl / l2)) continue;
            const float e = signed_round(x, w, n, xl / l2, half, q);
            if (e < best) {
                best = e;
                scale = xl / l2;
            }
        }
    }
    return scale;
}

void fl_quantize_q4_0(const float *src, void *dst, int64_t n)
{
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += SUB, o += 18) {
        float w[SUB], q[SUB], q_plain[SUB];
        uint16_t bits, bits_plain;
        const float *x = src + i;
        fl_round_weights(x, w, SUB);
        const float plain = scale_f16(peak_of(x, SUB) / -8.0f, &bits_plain);
        const float found = scale_f16(signed_search(x, w, SUB, 8.0f), &bits);
        const float e_plain = signed_round(x, w, SUB, plain, 8.0f, q_plain);
        if (e_plain <= signed_round(x, w, SUB, found, 8.0f, q)) {
            memcpy(q, q_plain, sizeof q);
            bits = bits_plain;
        }
        put_u16(o, bits);
        for (int j = 0; j < 16; j++)
            o[2 + j] = (uint8_t)(((int)q[j] + 8) | ((int)q[j + 16] + 8) << 4);
    }
}

void fl_quantize_q8_0(const float *src, void *dst, int64_t n)
{
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += SUB, o += 34) {
        uint16_t bits;
        const float d = scale_f16(fabsf(peak_of(src + i, SUB)) / 127.0f, &bits);
        const float inv = d > 0.0f ? 1.0f / d : 0.0f;
        put_u16(o, bits);
        for (int j = 0; j < SUB; j++) {
            float l = rintf(src[i + j] * inv);
            l = l > -127.0f ? l : -127.0f;
            l = l < 127.0f ? l : 127.0f;
            o[2 + j] = (uint8_t)(int8_t)l;
        }
    }
}

enum { SUB6 = 16, N_SUB6 = 16 };

typedef struct signed_block {
    float d, err;
    uint16_t d_bits;
    int s[N_SUB6]; /* int8 */
    float q[SUPER];
} signed_block;

/* Rounds wanted scales to int8 multiples of b->d; `reach` neighbours on each side compete. */
static void signed_encode(const float *x, const float *w, const float *scale, int reach,
                          signed_block *b)
{
    b->err = 0.0f;
    for (int k = 0; k < N_SUB6; k++) {
        float best = INFINITY, q[SUB6];
        const float want = b->d != 0.0f ? rintf(scale[k] / b->d) : 0.0f;
        const int s0 = want > -128.0f ? (want < 127.0f ? (int)want : 127) : -128;
        for (int s = s0 - reach; s <= s0 + reach; s++) {
            if (s < -128 || s > 127) continue;
            const float e =
                signed_round(x + k * SUB6, w + k * SUB6, SUB6, b->d * (float)s, 32.0f, q);
            if (e < best) {
                best = e;
                b->s[k] = s;
                memcpy(b->q + k * SUB6, q, sizeof q);
            }
        }
        b->err += best;
    }
}

static void signed_start(const float *scale, signed_block *b)
{
    b->d = scale_f16(peak_of(scale, N_SUB6) / -128.0f, &b->d_bits);
}

static void signed_refine(const float *x, const float *w, signed_block *best)
{
    for (int round = 0; round < MAX_ROUNDS; round++) {
        signed_block t;
        double xl = 0, l2 = 0;
        float scale[N_SUB6];
        for (int i = 0; i < SUPER; i++) {
            const double y = (double)best->q[i] * best->s[i / SUB6];
            xl += (double)w[i] * (double)x[i] * y;
            l2 += (double)w[i] * y * y;
        }
        if (!(l2 > 0) || !isfinite(xl / l2)) return;
        t.d = scale_f16((float)(xl / l2), &t.d_bits);
        for (int k = 0; k < N_SUB6; k++) scale[k] = t.d * (float)best->s[k];
        signed_encode(x, w, scale, 1, &t);
        if (!(t.err < best->err)) return;
        *best = t;
    }
}

static void signed_block_fit(const float *x, signed_block *best)
{
    float w[SUPER], scale[N_SUB6];
    signed_block t;
    for (int k = 0; k < N_SUB6; k++) {
        fl_round_weights(x + k * SUB6, w + k * SUB6, SUB6);
        scale[k] = peak_of(x + k * SUB6, SUB6) / -32.0f;
    }
    signed_start(scale, best);
    signed_encode(x, w, scale, 0, best);
    for (int k = 0; k < N_SUB6; k++)
        scale[k] = signed_search(x + k * SUB6, w + k * SUB6, SUB6, 32.0f);
    signed_start(scale, &t);
    signed_encode(x, w, scale, 1, &t);
    signed_refine(x, w, &t);
    if (t.err < best->err) *best = t;
}

void fl_quantize_q6_k(const float *src, void *dst, int64_t n)
{
    uint8_t *o = dst;
    for (int64_t i = 0; i < n; i += SUPER, o += 210) {
        signed_block b;
        signed_block_fit(src + i, &b);
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 32; j++) {
                int v[4];
                for (int g = 0; g < 4; g++) v[g] = (int)b.q[128 * h + 32 * g + j] + 32;
                o[64 * h + j] = (uint8_t)((v[0] & 15) | (v[2] & 15) << 4);
                o[64 * h + 32 + j] = (uint8_t)((v[1] & 15) | (v[3] & 15) << 4);
                o[128 + 32 * h + j] =
                    (uint8_t)(v[0] >> 4 | (v[1] >> 4) << 2 | (v[2] >> 4) << 4 | (v[3] >> 4) << 6);
            }
        }
        for (int k = 0; k < N_SUB6; k++) o[192 + k] = (uint8_t)(int8_t)b.s[k];
        put_u16(o + 208, b.d_bits);
    }
}
