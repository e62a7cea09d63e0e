/* The numeric law: its own functions against double precision, L1 and L2 on random and extreme
 * blocks, the L6 order against a hand-made sum. */
#include <math.h>
#include <string.h>

#include "quant/format.h"
#include "quant/law.h"
#include "tests/support/test.h"

static uint64_t seed = 0x9e3779b97f4a7c15ull;
static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}
static float uniform(void) { return (float)(rnd() & 0xffffff) * 0x1p-23f - 1.0f; }

static double relative(double got, double want) { return fabs(got - want) / fabs(want); }

static void test_exp(void **state)
{
    (void)state;
    for (int i = -86999; i < 87000; i++) {
        float x = (float)i * 1e-3f;
        assert_true(relative(fl_law_exp(x), exp((double)x)) <= 2e-7);
    }
    assert_true(fl_law_exp(0.0f) == 1.0f && fl_law_exp(-0.0f) == 1.0f);
    float top = fl_law_exp(87.0f), low = fl_law_exp(-87.0f);
    assert_true(fl_law_exp(88.0f) == top && fl_law_exp(INFINITY) == top);
    assert_true(fl_law_exp(-1e9f) == low && fl_law_exp(-INFINITY) == low && low > 0.0f);
}

static void test_gates(void **state)
{
    (void)state;
    for (int i = -80000; i <= 80000; i++) {
        float x = (float)i * 1e-3f;
        double e = exp(-fabs((double)x)), sp = (x > 0 ? (double)x : 0) + log1p(e);
        assert_true(relative(fl_law_softplus(x), sp) <= 5e-7);
        double sig = x > 0 ? 1 / (1 + e) : e / (1 + e);
        assert_true(relative(fl_law_sigmoid(x), sig) <= 5e-7);
        if (i) {
            assert_true(relative(fl_law_silu(x), x * sig) <= 5e-7);
            assert_true(relative(fl_law_silu_mul(x, 3.0f), 3 * x * sig) <= 6e-7);
        }
    }
    for (int i = 1; i <= 10000; i++) {
        float t = (float)i * 1e-4f, small = t * 1e-20f;
        assert_true(relative(fl_law_log1p(t), log1p((double)t)) <= 3e-7);
        assert_true(relative(fl_law_log1p(small), log1p((double)small)) <= 3e-7);
    }
    assert_true(fl_law_log1p(0.0f) == 0.0f);
    /* Above 20 softplus is the identity, as in ggml and torch. */
    assert_true(fl_law_softplus(20.5f) == 20.5f && fl_law_softplus(1e30f) == 1e30f);
}

static void test_lanes(void **state)
{
    (void)state;
    float w[100], x[100];
    for (int n = 0; n <= 100; n++) {
        double sum = 0, mag = 0;
        float lane[16] = {0};
        for (int i = 0; i < n; i++) {
            w[i] = uniform();
            x[i] = uniform();
            sum += (double)w[i] * x[i];
            mag += fabs((double)w[i] * x[i]);
            lane[i % 16] = fmaf(w[i], x[i], lane[i % 16]);
        }
        float got = fl_law_float_dot(w, x, n);
        assert_true(fabs(got - sum) <= 1e-6 * mag);
        float t = ((lane[0] + lane[8]) + (lane[4] + lane[12])) +
                  ((lane[2] + lane[10]) + (lane[6] + lane[14]));
        float u = ((lane[1] + lane[9]) + (lane[5] + lane[13])) +
                  ((lane[3] + lane[11]) + (lane[7] + lane[15]));
        float want = t + u;
        assert_memory_equal(&got, &want, 4);
    }
    assert_true(fl_law_sumsq((const float[]){3.0f, 4.0f}, 2) == 25.0f);
}

/* No gate hides a NaN. */
static void test_nan(void **state)
{
    (void)state;
    assert_true(isnan(fl_law_exp(NAN)) && isnan(fl_law_softplus(NAN)));
    assert_true(isnan(fl_law_sigmoid(NAN)) && isnan(fl_law_silu(NAN)));
    assert_true(isnan(fl_law_silu_mul(NAN, 1.0f)) && isnan(fl_law_silu_mul(1.0f, NAN)));
}

/* Everything that L1 promises about one block. */
static void check_block(const float *v, const fl_act *a)
{
    float m = 0.0f;
    for (int i = 0; i < 256; i++) m = fmaxf(m, fabsf(v[i]));
    for (int k = 0; k < 8; k++) {
        float mk = 0.0f;
        int sum = 0, p = a->p[k];
        for (int i = 32 * k; i < 32 * k + 32; i++) {
            mk = fmaxf(mk, fabsf(v[i]));
            sum += a->x[i];
            assert_true(a->x[i] >= -127);
            double step = (double)a->scale * p;
            assert_true(fabs((double)v[i] - step * a->x[i]) <= 0.5001 * step + 0x1p-121);
        }
        assert_int_equal(a->sum[k], sum * p);
        assert_true(p == 1 || (fl_law_option_h && (p == 2 || p == 4 || p == 8)));
        if (fl_law_option_h && p > 1) assert_true((double)mk * 8 / (p / 2) > m);
        if (fl_law_option_h) assert_true((double)mk * 8 / p <= m || mk == 0.0f);
    }
}

static void test_quantize(void **state)
{
    (void)state;
    static const float scales[] = {1.0f, 1e-30f, 1e-36f, 1e-40f, 1e30f, 3.4e38f, 0.0f};
    float v[512];
    fl_act a[2];
    for (int h = 0; h < 2; h++) {
        fl_law_option_h = h;
        for (int rep = 0; rep < 70; rep++) {
            for (int i = 0; i < 512; i++) {
                v[i] = uniform() * scales[rep % 7];
                if (rep % 3 == 0) v[i] *= ldexpf(1.0f, -(i / 32 % 8));
            }
            if (rep % 5 == 0) memset(v + 64, 0, 128);
            memset(a, 0xee, sizeof a);
            assert_true(fl_law_quantize(v, 512, a));
            check_block(v, a);
            check_block(v + 256, a + 1);
        }
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int i = 0; i < 3; i++) {
            v[0] = 1.0f;
            v[300 + i] = bad[i];
            assert_false(fl_law_quantize(v, 512, a));
            v[300 + i] = 0.0f;
        }
    }
    fl_law_option_h = false;
}

/* Random block bytes with finite scales. */
static void random_row(uint32_t type, uint8_t *row, uint64_t bytes)
{
    const fl_type_info *t = fl_type_get(type);
    for (uint64_t i = 0; i < bytes; i++) row[i] = (uint8_t)rnd();
    for (uint64_t b = 0; b < bytes; b += t->block_bytes) {
        uint8_t *at = row + b;
        if (type == FL_TYPE_MXFP4) {
            at[0] = (uint8_t)(120 + at[0] % 16);
        } else if (type == FL_TYPE_NVFP4) {
            for (int s = 0; s < 4; s++) at[s] &= 0x7f;
        } else {
            int d = type == FL_TYPE_Q6_K ? 208 : type == FL_TYPE_Q3_K ? 108 : 0;
            at[d + 1] = (uint8_t)((at[d + 1] & 0x83) | 0x28);
            if (t->law == FL_LAW_K) at[3] = (uint8_t)((at[3] & 0x83) | 0x28);
        }
    }
}

static const uint8_t law_types[] = {FL_TYPE_Q4_K,  FL_TYPE_Q5_K, FL_TYPE_Q6_K,   FL_TYPE_Q3_K,
                                    FL_TYPE_Q8_0,  FL_TYPE_Q4_0, FL_TYPE_IQ4_NL, FL_TYPE_IQ4_XS,
                                    FL_TYPE_MXFP4, FL_TYPE_NVFP4};

/* L2 against the double-precision product of the dequantized weights and the quantized
 * activations: the only error left is one rounding or two per block. */
static void test_dot(void **state)
{
    (void)state;
    enum { COLS = 1024 };
    static float v[COLS], w[COLS];
    static uint8_t row[COLS * 4];
    fl_act a[COLS / 256];
    for (size_t t = 0; t < sizeof law_types; t++) {
        const fl_type_info *info = fl_type_get(law_types[t]);
        uint64_t bytes = fl_type_row_bytes(law_types[t], COLS);
        for (int rep = 0; rep < 40; rep++) {
            fl_law_option_h = rep & 1;
            for (int i = 0; i < COLS; i++) v[i] = uniform() * (rnd() % 64 ? 1.0f : 30.0f);
            assert_true(fl_law_quantize(v, COLS, a));
            random_row(law_types[t], row, bytes);
            info->dequantize(row, w, COLS);
            double sum = 0, mag = 0;
            for (int i = 0; i < COLS; i++) {
                const fl_act *b = a + i / 256;
                double e = (double)w[i] * b->scale * b->p[i % 256 / 32] * b->x[i % 256];
                sum += e;
                mag += fabs(e);
            }
            float got = fl_law_dot(law_types[t], row, a, COLS);
            if (!(fabs(got - sum) <= 2e-6 * mag))
                fail_msg("%s: %g, expected %g", info->name, (double)got, sum);
        }
    }
    fl_law_option_h = false;
}

/* Largest integers of each type: the 32-bit sums hold them (the sanitizers watch the reference),
 * and the result is the exact product of the numbers. */
static void test_extremes(void **state)
{
    (void)state;
    static uint8_t row[1024];
    static float w[256];
    fl_act a;
    for (int sign = -1; sign <= 1; sign += 2) {
        memset(&a, 0, sizeof a);
        a.scale = 1.0f;
        memset(a.x, sign * 127, sizeof a.x);
        for (int k = 0; k < 8; k++) {
            a.p[k] = 8;
            a.sum[k] = (int16_t)(8 * 32 * 127 * sign);
        }
        for (size_t t = 0; t < sizeof law_types; t++) {
            uint32_t type = law_types[t];
            const fl_type_info *info = fl_type_get(type);
            for (int fill = 0; fill < 3; fill++) {
                static const uint8_t fills[] = {0x00, 0xff, 0x80};
                uint64_t bytes = fl_type_row_bytes(type, 256);
                memset(row, fills[fill], bytes);
                random_row(type, row + 512, bytes); /* borrow its tame scales */
                for (uint64_t b = 0; b < bytes; b += info->block_bytes) {
                    int d = type == FL_TYPE_Q6_K ? 208 : type == FL_TYPE_Q3_K ? 108 : 0;
                    int n = type == FL_TYPE_NVFP4 || info->law == FL_LAW_K ? 4
                            : type == FL_TYPE_MXFP4                        ? 1
                                                                           : 2;
                    memcpy(row + b + d, row + 512 + b + d, (size_t)n);
                }
                info->dequantize(row, w, 256);
                double sum = 0, mag = 0;
                for (int i = 0; i < 256; i++) {
                    sum += (double)w[i] * 8 * a.x[i];
                    mag += fabs((double)w[i] * 8 * a.x[i]);
                }
                float got = fl_law_dot(type, row, &a, 256);
                assert_true(fabs(got - sum) <= 2e-6 * mag);
            }
        }
    }
}

/* Distance in units of the last place of `want`. */
static double ulps(double got, double want)
{
    return fabs(got - want) / (nextafter(fabs(want), INFINITY) - fabs(want));
}

/* L7 against libm. */
static void test_double(void **state)
{
    (void)state;
    for (int i = 1; i <= 200000; i++) {
        const double u = (i - 0.5) / 200000, big = u * ldexp(1.0, i % 600 - 300);
        assert_true(ulps(fl_law_log64(u), log(u)) <= 4);
        assert_true(ulps(fl_law_log64(big), log(big)) <= 4);
        assert_true(ulps(fl_law_log64(1 + u * 0x1p-20), log(1 + u * 0x1p-20)) <= 4);
        const double x = (u - 0.5) * 1400;
        assert_true(ulps(fl_law_exp64(x), exp(x)) <= 4);
    }
    assert_true(fl_law_log64(1.0) == 0.0 && fl_law_log64(0.0) == -INFINITY);
    assert_true(ulps(fl_law_log64(0x1p-1074), log(0x1p-1074)) <= 4);
    assert_true(fl_law_exp64(0.0) == 1.0 && fl_law_exp64(INFINITY) == INFINITY);
    assert_true(fl_law_exp64(-INFINITY) == 0.0 && isnan(fl_law_exp64(NAN)));
}

static void check_sincos(double x)
{
    double s, c;
    fl_law_sincos64(x, &s, &c);
    assert_true(fabs(s - sin(x)) <= 4e-16 && fabs(c - cos(x)) <= 4e-16);
    /* What the model uses: floats, never more than one place from libm's. */
    assert_true(fabsf((float)s - (float)sin(x)) <= fabs(s) * 0x1p-23);
    assert_true(fabsf((float)c - (float)cos(x)) <= fabs(c) * 0x1p-23);
}

/* The angles of positions up to 2^18, and the worst ones: near multiples of pi / 2. */
static void test_rope(void **state)
{
    (void)state;
    static const double bases[] = {1.0, 1e4, 1e7, 1e12};
    static const int counts[] = {1, 24, 32, 512};
    static double freq[512];
    for (int b = 0; b < 4; b++) {
        for (int c = 0; c < 4; c++) {
            const int n = counts[c];
            fl_law_rope_freq(bases[b], n, freq);
            assert_true(freq[0] == 1.0);
            for (int j = 1; j < n; j++) {
                /* pow itself sees a rounded exponent unless n is a power of two. */
                const double want = pow(bases[b], -(double)j / n);
                assert_true(ulps(freq[j], want) <= (n == 24 ? 32 : 1));
            }
        }
    }
    fl_law_rope_freq(1e7, 32, freq);
    for (int pos = 0; pos < 1 << 18; pos += pos < 1000 ? 1 : 397)
        for (int j = 0; j < 32; j++) check_sincos(pos * freq[j]);
    for (int k = -60000; k <= 60000; k += 7) {
        const double x = k * 1.5707963267948966;
        check_sincos(x);
        check_sincos(nextafter(x, INFINITY));
        check_sincos(x + 0.785398);
    }
    check_sincos(0x1p20);
}

/* ---- pinned bits: a compiler, a flag or an edit that changes one shows up here ---- */

static uint64_t hash;

static void pin(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)p)[i]) * 0x100000001b3ull;
}

static void pin_float(float f) { pin(&f, sizeof f); }

static void start_pins(void)
{
    hash = 0xcbf29ce484222325ull;
    seed = 0x9e3779b97f4a7c15ull;
}

static void test_pinned_functions(void **state)
{
    (void)state;
    start_pins();
    for (int i = -4000; i <= 4000; i++) {
        const float x = (float)i * 0.01f;
        pin_float(fl_law_exp((float)i * 0.022f));
        pin_float(fl_law_softplus(x));
        pin_float(fl_law_sigmoid(x));
        pin_float(fl_law_silu(x));
        pin_float(fl_law_silu_mul(x, (float)(i % 17)));
        pin_float(fl_law_log1p((float)(i + 4000) * 1.25e-4f));
    }
    assert_int_equal(hash, 0xe3fc7cdc32888b4eull);
}

static void test_pinned_doubles(void **state)
{
    (void)state;
    start_pins();
    for (int i = -4000; i <= 4000; i++) {
        double v[4] = {fl_law_log64((i + 4001) * 1.2345e-4), fl_law_exp64(i * 0.17), 0, 0};
        fl_law_sincos64(i * 31.4, v + 2, v + 3);
        pin(v, sizeof v);
    }
    double freq[32];
    fl_law_rope_freq(1e7, 32, freq);
    pin(freq, sizeof freq);
    assert_int_equal(hash, 0x2449b26ac0999280ull);
}

static void test_pinned_sums(void **state)
{
    (void)state;
    static float w[700], x[700];
    start_pins();
    for (int n = 0; n <= 700; n += n < 64 ? 1 : 53) {
        for (int i = 0; i < n; i++) {
            w[i] = uniform();
            x[i] = uniform();
        }
        pin_float(fl_law_float_dot(w, x, n));
        pin_float(fl_law_sumsq(x, n));
    }
    assert_int_equal(hash, 0x6809b115f85bc857ull);
}

/* L1 without and with option H, and L2 of every type on the same rows. */
static void test_pinned_products(void **state)
{
    (void)state;
    static const uint64_t quantized[2] = {0xad5310392c00c48full, 0xd527631d6876719cull};
    static const uint64_t product[sizeof law_types][2] = {
        {0xcba5f5caa818777full, 0x5e643cb5b032acc6ull},
        {0xd70e35fecc7c6388ull, 0x5e82f4d61d5d3976ull},
        {0xa1d608d7d140145full, 0x281a8e81289d0854ull},
        {0xe761cf4de4869471ull, 0x89e746c7317424aeull},
        {0x20d0121b1beeb541ull, 0x4dcd2fd5ef066bdaull},
        {0xbd94081b16438fa6ull, 0x6ed16c4ff217a7acull},
        {0xc7e9598fdd8c6b94ull, 0x1f688a8d6f5eb557ull},
        {0xdb908f22b5bf3930ull, 0x1d8d649a7a448662ull},
        {0xb8cee4a91c6bb89dull, 0xa79dd04a73ec2a72ull},
        {0x809c8d38fe1e2cf1ull, 0x39448be7323ecf00ull},
    };
    enum { COLS = 2048 };
    static float v[COLS];
    static uint8_t row[COLS * 4];
    static fl_act a[COLS / 256];
    for (int h = 0; h < 2; h++) {
        fl_law_option_h = h;
        start_pins();
        for (int i = 0; i < COLS; i++) v[i] = uniform() * (rnd() % 64 ? 1.0f : 30.0f);
        assert_true(fl_law_quantize(v, COLS, a));
        pin(a, sizeof a);
        assert_int_equal(hash, quantized[h]);
        for (size_t t = 0; t < sizeof law_types; t++) {
            hash = 0xcbf29ce484222325ull;
            for (int rep = 0; rep < 8; rep++) {
                random_row(law_types[t], row, fl_type_row_bytes(law_types[t], COLS));
                pin_float(fl_law_dot(law_types[t], row, a, COLS));
            }
            assert_int_equal(hash, product[t][h]);
        }
    }
    fl_law_option_h = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_pinned_functions),
        cmocka_unit_test(test_pinned_doubles),
        cmocka_unit_test(test_pinned_sums),
        cmocka_unit_test(test_pinned_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
