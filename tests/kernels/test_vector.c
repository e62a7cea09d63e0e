/* Vector entries: activation quantization, norms, gates, the convolution and axpy: every tier
 * against the reference bit for bit, the reference against double precision. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/kern.h"
#include "tests/support/test.h"

enum { MAX_N = 600 };
static const int lengths[] = {1,  2,  7,  8,  9,  15, 16, 17,  23,  24,  31,  32,
                              33, 47, 48, 63, 64, 65, 96, 128, 255, 256, 257, MAX_N};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

typedef struct input {
    float x[MAX_N], w[MAX_N * 4], row[4][MAX_N];
    int n, kind;
} input;

/* One entry of the table applied to an input; in_place asks for y = x where that is allowed. */
typedef void (*apply_fn)(const fl_kernels *k, const input *in, bool in_place, float *y);

static void start_in_place(const input *in, bool in_place, float *y)
{
    if (in_place) memcpy(y, in->x, (size_t)in->n * sizeof *y);
}
static void apply_rmsnorm(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    start_in_place(in, in_place, y);
    k->rmsnorm(in_place ? y : in->x, in->w, in->n, 1e-6f, y);
}
static void apply_l2norm(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    start_in_place(in, in_place, y);
    k->l2norm(in_place ? y : in->x, in->n, 0.088388346f, y);
}
static void apply_silu_mul(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    start_in_place(in, in_place, y);
    k->silu_mul(in_place ? y : in->x, in->w, in->n, y);
}
static void apply_sigmoid_mul(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    start_in_place(in, in_place, y);
    k->sigmoid_mul(in_place ? y : in->x, in->w, in->n, y);
}
static void apply_conv(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    (void)in_place;
    const float *const row[4] = {in->row[0], in->row[1], in->row[2], in->row[3]};
    k->conv4_silu(row, in->w, in->n, y);
}
static void apply_axpy(const fl_kernels *k, const input *in, bool in_place, float *y)
{
    (void)in_place;
    memcpy(y, in->w, (size_t)in->n * sizeof *y);
    k->axpy(-0.7f, in->x, in->n, y);
}

static const struct {
    const char *name;
    apply_fn apply;
} entries[] = {
    {"rmsnorm", apply_rmsnorm},         {"l2norm", apply_l2norm},   {"silu_mul", apply_silu_mul},
    {"sigmoid_mul", apply_sigmoid_mul}, {"conv4_silu", apply_conv}, {"axpy", apply_axpy},
};
enum { N_ENTRIES = sizeof entries / sizeof *entries };

static void fill(input *in, int n, int kind)
{
    in->n = n;
    in->kind = kind;
    fl_rnd_floats(in->x, MAX_N, kind);
    fl_rnd_floats(in->w, MAX_N * 4, kind);
    for (int a = 0; a < 4; a++) fl_rnd_floats(in->row[a], MAX_N, kind);
    if (kind == 1) { /* arguments on both sides of the clamp of E */
        for (int i = 0; i < n; i++) in->x[i] *= 10.0f;
    }
}

static void test_vector_tiers(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    if (n_tiers == 0) skip();
    assert_true(fl_kernels_init(&ref, "reference"));
    static input in;
    for (int l = 0; l < N_LENGTHS * FL_DATA_KINDS; l++) {
        fill(&in, lengths[l % N_LENGTHS], l / N_LENGTHS);
        for (int e = 0; e < N_ENTRIES; e++) {
            float *want = fl_guard_new(in.n), *got = fl_guard_new(in.n);
            entries[e].apply(&ref, &in, false, want);
            fl_guard_check(want, in.n, entries[e].name);
            for (int t = 0; t < 2 * n_tiers; t++) {
                entries[e].apply(&tier[t / 2], &in, t & 1, got);
                fl_guard_check(got, in.n, entries[e].name);
                fl_same_bits(got, want, in.n, tier[t / 2].name, entries[e].name);
            }
            entries[e].apply(&ref, &in, true, got);
            fl_same_bits(got, want, in.n, "reference in place", entries[e].name);
            fl_guard_free(want);
            fl_guard_free(got);
        }
    }
}

/* A NaN comes out where it went in, in the vectors and in their tails, and nowhere else. */
static void test_vector_nan(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS + 1];
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&tier[n_tiers++], "reference"));
    static input in;
    float y[MAX_N];
    for (int at = 0; at < 19; at++) {
        fill(&in, 19, 0);
        in.x[at] = in.w[at] = in.row[2][at] = NAN;
        for (int e = 2; e < N_ENTRIES; e++) { /* the norms spread it over the row */
            if (entries[e].apply == apply_conv) in.w[at] = 1.0f;
            for (int t = 0; t < n_tiers; t++) {
                entries[e].apply(&tier[t], &in, false, y);
                for (int i = 0; i < 19; i++) assert_true(isnan(y[i]) == (i == at));
            }
            in.w[at] = NAN;
        }
    }
}

/* The sum, with and without its terms, also in front of memory that is not the row's. */
static void test_exp_sum(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS + 1], ref;
    const int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&ref, "reference"));
    static input in;
    static float x[4096];
    for (int l = 0; l < N_LENGTHS; l++) {
        fill(&in, lengths[l], 1);
        float max = in.x[0];
        double sum = 0.0;
        for (int i = 1; i < in.n; i++) max = in.x[i] > max ? in.x[i] : max;
        if (in.n > 20) in.x[3] = -INFINITY; /* a banned id */
        for (int i = 0; i < in.n; i++) sum += exp((double)in.x[i] - max);
        float *e = fl_guard_new(in.n), *want = fl_guard_new(in.n);
        const double got = ref.exp_sum(in.x, in.n, max, want);
        assert_true(fabs(got - sum) <= 3e-7 * sum);
        for (int i = 0; i < in.n; i++) assert_true(want[i] == fl_law_exp(in.x[i] - max));
        for (int t = 0; t < n_tiers; t++) {
            const double a = tier[t].exp_sum(in.x, in.n, max, e);
            const double b = tier[t].exp_sum(in.x, in.n, max, NULL);
            fl_guard_check(e, in.n, "exp_sum");
            assert_memory_equal(&a, &got, sizeof(got));
            assert_memory_equal(&b, &got, sizeof(got));
            fl_same_bits(e, want, in.n, tier[t].name, "exp_sum");
        }
        fl_guard_free(e);
        fl_guard_free(want);
    }
    /* The order is the law's: what a lane has absorbed shows. */
    for (int i = 0; i < 4096; i++) x[i] = i % 3 ? -38.0f : 0.0f;
    double lane[16] = {0};
    for (int i = 0; i < 4096; i++) lane[i % 16] += (double)fl_law_exp(x[i]);
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    assert_true(ref.exp_sum(x, 4096, 0.0f, NULL) == lane[0]);
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static void test_vector_accuracy(void **state)
{
    (void)state;
    fl_kernels ref;
    assert_true(fl_kernels_init(&ref, "reference"));
    static input in;
    float y[MAX_N];
    for (int l = 0; l < N_LENGTHS; l++) {
        fill(&in, lengths[l], 0);
        double sq = 0;
        for (int i = 0; i < in.n; i++) sq += (double)in.x[i] * in.x[i];
        for (int e = 0; e < N_ENTRIES; e++) {
            entries[e].apply(&ref, &in, false, y);
            for (int i = 0; i < in.n; i++) {
                double x = in.x[i], w = in.w[i], want = 0, mag = 0, conv = 0;
                for (int a = 0; a < 4; a++) {
                    conv += (double)in.w[4 * i + a] * in.row[a][i];
                    mag += fabs((double)in.w[4 * i + a] * in.row[a][i]);
                }
                switch (e) {
                case 0: want = x / sqrt(sq / in.n + 1e-6) * w; break;
                case 1: want = x * 0.088388346 / sqrt(sq + 1e-6); break;
                case 2: want = x * sigmoid(x) * w; break;
                case 3: want = x * sigmoid(w); break;
                case 4: want = conv * sigmoid(conv); break;
                default: want = fma((double)-0.7f, x, w); break;
                }
                double bound = 1e-6 * fabs(want) + (e == 4 ? 1e-6 * mag : e == 5 ? 1e-7 : 0);
                if (!(fabs(y[i] - want) <= bound + 1e-30))
                    fail_msg("%s: %g, expected %g", entries[e].name, (double)y[i], want);
            }
        }
    }
}

static void test_act_quantize_tiers(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    if (n_tiers == 0) skip();
    assert_true(fl_kernels_init(&ref, "reference"));
    enum { COLS = 768, WORDS = 3 * sizeof(fl_act) / 4 };
    static float x[COLS];
    static const float edge[] = {3.4028235e38f, -3.4028235e38f, 0x1p-121f, 0x1.fffffep-122f,
                                 1e-45f,        -0.0f,          1e-38f,    127.5f};
    float *want = fl_guard_new(WORDS), *got = fl_guard_new(WORDS);
    for (int rep = 0; rep < 120; rep++) {
        fl_law_option_h = rep & 1;
        fl_rnd_floats(x, COLS, rep / 2);
        for (int k = 0; k < 24; k += 1 + rep % 5) {
            for (int i = 0; i < 32; i++) x[32 * k + i] *= 0.1f;
        }
        if (rep >= 60) x[fl_rnd_below(COLS)] = edge[rep % 8];
        assert_true(ref.act_quantize(x, COLS, (fl_act *)(void *)want));
        for (int t = 0; t < n_tiers; t++) {
            assert_true(tier[t].act_quantize(x, COLS, (fl_act *)(void *)got));
            fl_guard_check(got, WORDS, "act_quantize");
            fl_same_bits(got, want, WORDS, tier[t].name, "act_quantize");
        }
    }
    fl_law_option_h = false;
    fl_guard_free(want);
    fl_guard_free(got);
}

/* A value that is not finite is refused wherever it stands. */
static void test_act_quantize_refuses(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS + 1];
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&tier[n_tiers++], "reference"));
    static float x[512];
    fl_act out[2];
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 512; i++) {
        x[i] = bad[i % 4];
        for (int t = 0; t < n_tiers; t++) assert_false(tier[t].act_quantize(x, 512, out));
        x[i] = 1.0f;
    }
    for (int t = 0; t < n_tiers; t++) assert_true(tier[t].act_quantize(x, 512, out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_sum),
        cmocka_unit_test(test_vector_accuracy),
        cmocka_unit_test(test_vector_tiers),
        cmocka_unit_test(test_vector_nan),
        cmocka_unit_test(test_act_quantize_tiers),
        cmocka_unit_test(test_act_quantize_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
