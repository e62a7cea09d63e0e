/* Rounding of weights: never worse than plain rounding, within bounds, the same bytes everywhere.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "quant/format.h"
#include "quant/round.h"

enum { BLOCK = 256, N_KINDS = 12 };

static uint64_t rng_state;
static double rng_uniform(void)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return (double)((rng_state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1p-53;
}

/* Sum of 12 uniforms: close to normal, with + and * alone, so the same bits everywhere. */
static float rng_normal(void)
{
    double s = -6.0;
    for (int i = 0; i < 12; i++) s += rng_uniform();
    return (float)s;
}

static void fill(float *x, int kind)
{
    for (int i = 0; i < BLOCK; i++) {
        const float g = rng_normal();
        switch (kind) {
        case 0: x[i] = 0.02f * g; break;
        case 1: x[i] = 0.02f * g * g * g; break; /* heavy tails */
        case 2: x[i] = 0.5f + 0.1f * g; break;   /* all positive */
        case 3: x[i] = -0.5f + 0.1f * g; break;
        case 4: x[i] = 0.0f; break;
        case 5: x[i] = -0.25f; break;
        case 6: x[i] = i == 100 ? 3.0f : 0.01f * g; break; /* one outlier */
        case 7: x[i] = 1e-7f * g; break;                   /* scales below float16's normals */
        case 8: x[i] = 1e5f * g; break;
        case 9: x[i] = i % 2 ? 0.125f : -0.125f; break;
        case 10: x[i] = (float)(1 << (i / 32)) * 0.01f * g; break; /* uneven sub-blocks */
        default: x[i] = i / 32 == 3 ? 0.0f : 0.02f * g; break;     /* one empty sub-block */
        }
    }
}

/* sum w (x - y)^2 with the documented weights, in double. */
static double weighted_error(const float *x, const float *y, int sub)
{
    double e = 0;
    for (int k = 0; k < BLOCK; k += sub) {
        double sq = 0;
        for (int i = 0; i < sub; i++) sq += (double)x[k + i] * (double)x[k + i];
        const double rms = sqrt(sq / sub);
        for (int i = 0; i < sub; i++) {
            const double d = (double)x[k + i] - (double)y[k + i];
            e += (rms + fabs((double)x[k + i])) * d * d;
        }
    }
    return e;
}

static float half(float s)
{
    return fl_f16_to_f32(fl_f32_to_f16(fminf(fmaxf(s, -65504.0f), 65504.0f)));
}
static float clampf(float v, float lo, float hi) { return v > lo ? (v < hi ? v : hi) : lo; }
static float ratio(float a, float b) { return b != 0.0f ? a / b : 0.0f; }

/* Plain rounding, written apart from the module: step from min and max, nothing searched. */
static void plain_affine(const float *x, float *y, float qmax)
{
    float scale[8], min[8], d = 0, dmin = 0;
    for (int k = 0; k < 8; k++) {
        float lo = 0, hi = x[32 * k];
        for (int i = 0; i < 32; i++) {
            lo = fminf(lo, x[32 * k + i]);
            hi = fmaxf(hi, x[32 * k + i]);
        }
        scale[k] = (hi - lo) / qmax;
        min[k] = -lo;
        d = fmaxf(d, scale[k]);
        dmin = fmaxf(dmin, min[k]);
    }
    d = half(d / 63.0f);
    dmin = half(dmin / 63.0f);
    for (int i = 0; i < BLOCK; i++) {
        const float s = d * clampf(rintf(ratio(scale[i / 32], d)), 0, 63);
        const float m = dmin * clampf(rintf(ratio(min[i / 32], dmin)), 0, 63);
        y[i] = s * clampf(rintf(ratio(x[i] + m, s)), 0, qmax) - m;
    }
}

static float peak(const float *x, int n)
{
    float p = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(p)) p = x[i];
    return p;
}

static void plain_q6_k(const float *x, float *y)
{
    float scale[16];
    for (int k = 0; k < 16; k++) scale[k] = peak(x + 16 * k, 16) / -32.0f;
    const float d = half(peak(scale, 16) / -128.0f);
    for (int i = 0; i < BLOCK; i++) {
        const float s = d * clampf(rintf(ratio(scale[i / 16], d)), -128, 127);
        y[i] = s * clampf(rintf(ratio(x[i], s)), -32, 31);
    }
}

static float nearest_level(float v)
{
    static const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    float best = levels[0];
    for (int i = 1; i < 16; i++)
        if (fabsf(v - levels[i]) < fabsf(v - best)) best = levels[i];
    return best;
}

static void plain_iq4_xs(const float *x, float *y)
{
    float scale[8];
    for (int k = 0; k < 8; k++) scale[k] = peak(x + 32 * k, 32) / -127.0f;
    const float d = half(peak(scale, 8) / -32.0f);
    for (int i = 0; i < BLOCK; i++) {
        const float s = d * clampf(rintf(ratio(scale[i / 32], d)), -32, 31);
        y[i] = s * nearest_level(ratio(x[i], s));
    }
}

static void plain_32(const float *x, float *y, float div, float lo, float hi)
{
    for (int k = 0; k < BLOCK; k += 32) {
        const float p = peak(x + k, 32), d = half(lo == -8.0f ? p / div : fabsf(p) / div);
        for (int i = k; i < k + 32; i++) y[i] = d * clampf(rintf(ratio(x[i], d)), lo, hi);
    }
}

static void plain(uint32_t type, const float *x, float *y)
{
    switch (type) {
    case FL_TYPE_Q4_K: plain_affine(x, y, 15); break;
    case FL_TYPE_Q5_K: plain_affine(x, y, 31); break;
    case FL_TYPE_Q6_K: plain_q6_k(x, y); break;
    case FL_TYPE_IQ4_XS: plain_iq4_xs(x, y); break;
    case FL_TYPE_Q4_0: plain_32(x, y, -8, -8, 7); break;
    default: plain_32(x, y, 127, -127, 127); break;
    }
}

static const struct {
    uint32_t type;
    int sub;
    double bound[2]; /* relative RMS error: normal weights, heavy tails */
} cases[] = {{FL_TYPE_Q4_K, 32, {0.072, 0.105}}, {FL_TYPE_Q5_K, 32, {0.036, 0.052}},
             {FL_TYPE_Q6_K, 16, {0.018, 0.032}}, {FL_TYPE_IQ4_XS, 32, {0.077, 0.115}},
             {FL_TYPE_Q4_0, 32, {0.084, 0.150}}, {FL_TYPE_Q8_0, 32, {0.0056, 0.0110}}};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void never_worse_than_plain_per_block(void **state)
{
    (void)state;
    rng_state = 0x9e3779b97f4a7c15u;
    for (int c = 0; c < N_CASES; c++) {
        const fl_type_info *ti = fl_type_get(cases[c].type);
        for (int kind = 0; kind < N_KINDS; kind++) {
            for (int rep = 0; rep < 40; rep++) {
                float x[BLOCK], y[BLOCK], p[BLOCK];
                uint8_t bytes[8 * 34];
                fill(x, kind);
                ti->quantize(x, bytes, BLOCK);
                ti->dequantize(bytes, y, BLOCK);
                plain(cases[c].type, x, p);
                const double ours = weighted_error(x, y, cases[c].sub);
                const double theirs = weighted_error(x, p, cases[c].sub);
                /* The module compares in float: allow its rounding, nothing more. */
                if (!(ours <= theirs * (1 + 1e-4) + 1e-30))
                    fail_msg("%s kind %d: %.9g, plain %.9g", ti->name, kind, ours, theirs);
            }
        }
    }
}

static void errors_are_within_bounds(void **state)
{
    (void)state;
    rng_state = 12345;
    for (int c = 0; c < N_CASES; c++) {
        const fl_type_info *ti = fl_type_get(cases[c].type);
        for (int kind = 0; kind < 2; kind++) {
            double err = 0, plain_err = 0, ref = 0;
            for (int rep = 0; rep < 200; rep++) {
                float x[BLOCK], y[BLOCK], p[BLOCK];
                uint8_t bytes[8 * 34];
                fill(x, kind);
                ti->quantize(x, bytes, BLOCK);
                ti->dequantize(bytes, y, BLOCK);
                plain(cases[c].type, x, p);
                for (int i = 0; i < BLOCK; i++) {
                    err += pow((double)x[i] - (double)y[i], 2);
                    plain_err += pow((double)x[i] - (double)p[i], 2);
                    ref += pow((double)x[i], 2);
                }
            }
            const double rms = sqrt(err / ref);
            print_message("%s %s: relative RMS error %.5f, plain %.5f\n", ti->name,
                          kind ? "heavy" : "normal", rms, sqrt(plain_err / ref));
            assert_true(rms > cases[c].bound[kind] * 0.5 && rms < cases[c].bound[kind]);
        }
    }
}

/* A value that a block can hold exactly comes back exactly. */
static void exact_values_survive(void **state)
{
    (void)state;
    float x[BLOCK], y[BLOCK];
    uint8_t bytes[8 * 34];
    for (int c = 0; c < N_CASES; c++) {
        const fl_type_info *ti = fl_type_get(cases[c].type);
        for (int i = 0; i < BLOCK; i++) x[i] = (float)(i % 16 - 8) * 0.125f;
        ti->quantize(x, bytes, BLOCK);
        ti->dequantize(bytes, y, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
            if (cases[c].type == FL_TYPE_Q4_0) assert_true(x[i] == y[i]);
            /* The levels of IQ4_XS lie further apart near the ends. */
            const float step = cases[c].type == FL_TYPE_IQ4_XS ? 0.2f : 0.125f;
            assert_true(fabsf(x[i] - y[i]) <= 0.5f * step);
        }
        memset(x, 0, sizeof x);
        ti->quantize(x, bytes, BLOCK);
        ti->dequantize(bytes, y, BLOCK);
        for (int i = 0; i < BLOCK; i++) assert_true(y[i] == 0.0f);
    }
}

/* Values past what the scales can hold saturate; they never become NaN or infinity. */
static void huge_values_stay_finite(void **state)
{
    (void)state;
    float x[BLOCK], y[BLOCK];
    uint8_t bytes[8 * 34];
    for (int c = 0; c < N_CASES; c++) {
        const fl_type_info *ti = fl_type_get(cases[c].type);
        for (int i = 0; i < BLOCK; i++) x[i] = i % 3 ? 3e8f : -2e9f;
        ti->quantize(x, bytes, BLOCK);
        ti->dequantize(bytes, y, BLOCK);
        for (int i = 0; i < BLOCK; i++) assert_true(isfinite(y[i]));
    }
}

/* The bytes depend on the values of the block alone, and are those of every build. */
static void the_same_bytes_everywhere(void **state)
{
    (void)state;
    static const uint64_t want[N_CASES] = {
        UINT64_C(0x6bb9431af925bc38), UINT64_C(0x3593b1dad4a6e38c), UINT64_C(0x21da46395475ada5),
        UINT64_C(0xd29e4acd2a3a9f58), UINT64_C(0xf7489cc45a4c78e4), UINT64_C(0x33af9d06f0e59d3d)};
    enum { N = 36 };
    float *x = malloc((N * BLOCK + 1) * sizeof *x);
    uint8_t *a = malloc(N * 8 * 34), *b = malloc(N * 8 * 34 + 1);
    assert_true(x && a && b);
    int differing = 0;
    rng_state = 777;
    for (int i = 0; i < N; i++) fill(x + i * BLOCK, i % N_KINDS);
    for (int c = 0; c < N_CASES; c++) {
        const fl_type_info *ti = fl_type_get(cases[c].type);
        const size_t per = (size_t)(BLOCK / ti->block_elems) * ti->block_bytes;
        ti->quantize(x, a, (int64_t)N * BLOCK);
        for (int i = N - 1; i >= 0; i--) ti->quantize(x + i * BLOCK, b + 1 + i * per, BLOCK);
        assert_memory_equal(a, b + 1, N * per);
        const uint64_t h = XXH64(a, N * per, 0);
        print_message("%s: XXH64 %016llx\n", ti->name, (unsigned long long)h);
        differing += h != want[c];
    }
    assert_int_equal(differing, 0);
    free(x);
    free(a);
    free(b);
}

static void nonfinite_values_are_found(void **state)
{
    (void)state;
    float x[300] = {0};
    assert_int_equal(fl_round_nonfinite(x, 300), -1);
    x[299] = INFINITY;
    assert_int_equal(fl_round_nonfinite(x, 300), 299);
    x[17] = NAN;
    assert_int_equal(fl_round_nonfinite(x, 300), 17);
    assert_int_equal(fl_round_nonfinite(x, 17), -1);
}

static void weights_follow_the_formula(void **state)
{
    (void)state;
    const float x[4] = {3.0f, -4.0f, 0.0f, 0.0f};
    float w[4];
    fl_round_weights(x, w, 4);
    assert_true(w[0] == 5.5f && w[1] == 6.5f && w[2] == 2.5f && w[3] == 2.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_worse_than_plain_per_block),
        cmocka_unit_test(errors_are_within_bounds),
        cmocka_unit_test(exact_values_survive),
        cmocka_unit_test(huge_values_stay_finite),
        cmocka_unit_test(the_same_bytes_everywhere),
        cmocka_unit_test(nonfinite_values_are_found),
        cmocka_unit_test(weights_follow_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
