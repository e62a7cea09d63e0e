/* Rounding led by second moments: never worse than without feedback, better by a stated factor
 * where inputs are correlated, the same bytes however rows are split and on every tier. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/format.h"
#include "quant/grid.h"
#include "quant/guide.h"

static const uint32_t types[] = {FL_TYPE_Q4_K,   FL_TYPE_Q5_K, FL_TYPE_Q6_K,
                                 FL_TYPE_IQ4_XS, FL_TYPE_Q4_0, FL_TYPE_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };

static uint64_t rng_state;
static double rng_uniform(void)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return (double)((rng_state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1p-53;
}

/* Sum of 12 uniforms: close to normal, the same bits everywhere. */
static float rng_normal(void)
{
    double s = -6.0;
    for (int i = 0; i < 12; i++) s += rng_uniform();
    return (float)s;
}

static void *get(size_t n)
{
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static float *weights(int64_t rows, int64_t cols)
{
    float *x = get((size_t)(rows * cols) * sizeof *x);
    for (int64_t i = 0; i < rows * cols; i++) x[i] = 0.02f * rng_normal();
    return x;
}

/* Moment of `samples` inputs that share `ranks` hidden causes, with uneven energies and an empty
 * channel. Fewer samples than columns: singular. */
static float *moment(int64_t cols, int samples, int ranks)
{
    float *h = calloc((size_t)(cols * cols), sizeof *h), *mix = weights(ranks, cols);
    float *v = get((size_t)cols * sizeof *v);
    assert_non_null(h);
    for (int s = 0; s < samples; s++) {
        for (int64_t i = 0; i < cols; i++) v[i] = 0.01f * rng_normal();
        for (int r = 0; r < ranks; r++) {
            const float c = rng_normal();
            for (int64_t i = 0; i < cols; i++) v[i] += c * mix[r * cols + i];
        }
        for (int64_t i = 0; i < cols; i++) v[i] *= i == 7 ? 0.0f : i % 16 == 3 ? 8.0f : 1.0f;
        for (int64_t i = 0; i < cols; i++)
            for (int64_t j = 0; j < cols; j++) h[i * cols + j] += v[i] * v[j] / (float)samples;
    }
    free(mix);
    free(v);
    return h;
}

static fl_guide *guide(int64_t cols, const float *diag, const float *full)
{
    const fl_moment m = {cols, diag, full};
    fl_err err = {0};
    fl_guide *g = NULL;
    if (fl_guide_create(&g, &m, &err) != FL_OK) fail_msg("%s", err.msg);
    return g;
}

static float *energies(const float *h, int64_t n)
{
    float *d = get((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n; i++) d[i] = h[i * n + i];
    return d;
}

/* Blocks of `rows` rows, with guard words behind what may be written. */
static uint8_t *rounded(const fl_guide *g, uint32_t type, const float *x, int64_t rows,
                        int64_t cols)
{
    enum { GUARD = 64 };
    const uint64_t n = (uint64_t)rows * fl_type_row_bytes(type, (uint64_t)cols);
    const uint64_t s = fl_guide_scratch_bytes(cols, true);
    uint8_t *o = get(n + GUARD), *scratch = aligned_alloc(64, (s + 63) / 64 * 64 + GUARD);
    assert_non_null(scratch);
    memset(o + n, 0xa5, GUARD);
    memset(scratch + s, 0xa5, GUARD);
    fl_guide_round(g, type, x, rows, cols, o, scratch);
    for (int i = 0; i < GUARD; i++) assert_true(o[n + (unsigned)i] == 0xa5);
    for (int i = 0; i < GUARD; i++) assert_true(scratch[s + (unsigned)i] == 0xa5);
    free(scratch);
    return o;
}

static double loss_of(const fl_guide *judge, const fl_guide *g, uint32_t type, const float *x,
                      int64_t rows, int64_t cols, double *each)
{
    uint8_t *o = rounded(g, type, x, rows, cols);
    float *y = get((size_t)(rows * cols) * sizeof *y);
    double sum = 0;
    fl_type_get(type)->dequantize(o, y, rows * cols);
    for (int64_t r = 0; r < rows; r++) {
        const double l = fl_guide_loss(judge, x + r * cols, y + r * cols, 1);
        assert_true(isfinite(l) && l >= 0);
        if (each) each[r] = l;
        sum += l;
    }
    free(o);
    free(y);
    return sum;
}

static void without_a_guide_rounding_is_plain(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 256 };
    rng_state = 5;
    float *x = weights(ROWS, COLS), zero[COLS] = {0};
    fl_guide *silent = guide(COLS, zero, NULL);
    for (int t = 0; t < N_TYPES; t++) {
        const uint64_t n = ROWS * fl_type_row_bytes(types[t], COLS);
        uint8_t *want = get(n), *got = rounded(NULL, types[t], x, ROWS, COLS);
        fl_type_get(types[t])->quantize(x, want, ROWS * COLS);
        assert_memory_equal(want, got, n);
        free(got);
        got = rounded(silent, types[t], x, ROWS, COLS);
        assert_memory_equal(want, got, n);
        free(got);
        free(want);
    }
    assert_true(fl_guide_loss(silent, x, x + COLS, 1) == 0);
    fl_guide_destroy(&silent);
    assert_null(silent);
    free(x);
}

/* Float types are converted, with a guide too. */
static void types_without_a_search_are_converted(void **state)
{
    (void)state;
    enum { COLS = 48 };
    rng_state = 6;
    float *x = weights(1, COLS), ones[COLS];
    for (int i = 0; i < COLS; i++) ones[i] = 1.0f;
    fl_guide *g = guide(COLS, ones, NULL);
    uint16_t want[COLS];
    uint8_t *got = rounded(g, FL_TYPE_BF16, x, 1, COLS);
    for (int i = 0; i < COLS; i++) want[i] = fl_f32_to_bf16(x[i]);
    assert_memory_equal(got, want, sizeof want);
    fl_guide_destroy(&g);
    free(got);
    free(x);
}

/* A diagonal is better than none where energies differ, feedback better than the diagonal where
 * inputs are correlated, and no row is worse. */
static void correlated_inputs_gain(void **state)
{
    (void)state;
    enum { ROWS = 20 };
    static const struct {
        int cols, samples, ranks;
        double factor; /* of the diagonal's loss, at most */
    } cases[] = {{256, 400, 24, 0.2}, {512, 200, 24, 0.2}, {768, 40, 12, 0.2}, {288, 500, 24, 0.2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t n = cases[c].cols;
        rng_state = 17 + c;
        float *x = weights(ROWS, n), *h = moment(n, cases[c].samples, cases[c].ranks);
        float *d = energies(h, n);
        fl_guide *full = guide(n, NULL, h), *diag = guide(n, d, NULL);
        for (int t = 0; t < N_TYPES; t++) {
            double a[ROWS], b[ROWS];
            if (n % fl_type_get(types[t])->block_elems) continue;
            const double plain = loss_of(full, NULL, types[t], x, ROWS, n, NULL);
            const double weighted = loss_of(full, diag, types[t], x, ROWS, n, b);
            const double fed = loss_of(full, full, types[t], x, ROWS, n, a);
            print_message("%s %lld: loss %.3g plain, %.3f weighted, %.3f with feedback\n",
                          fl_type_get(types[t])->name, (long long)n, plain, weighted / plain,
                          fed / plain);
            assert_true(loss_of(diag, diag, types[t], x, ROWS, n, NULL) <
                        loss_of(diag, NULL, types[t], x, ROWS, n, NULL));
            assert_true(fed < cases[c].factor * weighted);
            for (int r = 0; r < ROWS; r++) assert_true(a[r] <= b[r] * (1 + 1e-4));
        }
        fl_guide_destroy(&full);
        fl_guide_destroy(&diag);
        free(x);
        free(h);
        free(d);
    }
}

static void bytes_do_not_depend_on_the_split_of_rows(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 512 };
    rng_state = 33;
    float *x = weights(ROWS, COLS), *h = moment(COLS, 100, 8);
    fl_guide *g = guide(COLS, NULL, h);
    for (int t = 0; t < N_TYPES; t++) {
        const uint64_t per = fl_type_row_bytes(types[t], COLS);
        uint8_t *all = rounded(g, types[t], x, ROWS, COLS);
        for (int64_t r = 0, step = 1; r < ROWS; r += step, step = step % 5 + 1) {
            const int64_t n = ROWS - r < step ? ROWS - r : step;
            uint8_t *part = rounded(g, types[t], x + r * COLS, n, COLS);
            assert_memory_equal(part, all + (uint64_t)r * per, (uint64_t)n * per);
            free(part);
        }
        free(all);
    }
    fl_guide_destroy(&g);
    free(x);
    free(h);
}

/* Each function of the tiers, on the same values. */
static void tiers_agree(void **state)
{
    (void)state;
    const fl_fitter *ref = fl_fitter_reference(), *best = fl_fitter_get();
    enum { COLS = 256, ROWS = 6 };
    rng_state = 44;
    float *x = weights(ROWS, COLS), *h = moment(COLS, 300, 8), w[COLS], d[COLS];
    float *a = get(COLS * COLS * sizeof *a), c[2][ROWS * COLS];
    for (int i = 0; i < COLS; i++) {
        w[i] = 0.1f + (float)rng_uniform();
        d[i] = 0.1f + (float)rng_uniform();
        for (int j = 0; j < i; j++) a[i * COLS + j] = a[j * COLS + i] = 0.1f * rng_normal();
        a[i * COLS + i] = 0.0f;
    }
    for (int t = 0; t < N_TYPES; t++) {
        const fl_grid *f = fl_grid_get(types[t]);
        static fl_fit p[ROWS], q[ROWS];
        float yp[COLS], yq[COLS];
        for (int r = 0; r < ROWS; r++) {
            memset(&p[r], 0, sizeof p[r]);
            memset(&q[r], 0, sizeof q[r]);
            ref->fit(f, x + r * COLS, w, &p[r]);
            best->fit(f, x + r * COLS, w, &q[r]);
            ref->values(f, &p[r], yp);
            best->values(f, &q[r], yq);
            assert_memory_equal(yp, yq, (size_t)f->block * sizeof *yp);
            ref->fit_feedback(f, x + r * COLS, x + r * COLS, a, d, &p[r]);
            best->fit_feedback(f, x + r * COLS, x + r * COLS, a, d, &q[r]);
            assert_true(p[r].d_bits == q[r].d_bits && p[r].err == q[r].err);
            assert_memory_equal(p[r].q, q[r].q, (size_t)f->block * sizeof *p[r].q);
        }
        if (f->block != COLS) continue;
        memset(c, 0, sizeof c);
        ref->accumulate(c[0], COLS, x, COLS, h, COLS, ROWS, COLS, COLS);
        best->accumulate(c[1], COLS, x, COLS, h, COLS, ROWS, COLS, COLS);
        assert_memory_equal(c[0], c[1], sizeof c[0]);
        for (int i = 0; i < COLS; i++) h[i * COLS + i] += 1e-3f;
        const fl_descent dp = {ROWS, COLS, h, NULL, p, c[0]}, dq = {ROWS, COLS, h, NULL, q, c[1]};
        assert_true(ref->blocks_again(f, &dp) == best->blocks_again(f, &dq));
        assert_true(ref->subs_again(f, &dp) == best->subs_again(f, &dq));
        assert_true(ref->values_again(f, &dp) == best->values_again(f, &dq));
        assert_memory_equal(c[0], c[1], sizeof c[0]);
        for (int r = 0; r < ROWS; r++) assert_memory_equal(p[r].q, q[r].q, sizeof p[r].q);
    }
    free(x);
    free(h);
    free(a);
}

/* A layer's matrix with an expert's energies: derived and created guides give the same bytes, and
 * with the matrix's own energies nothing changes. */
static void energies_rescale_a_matrix(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 256 };
    rng_state = 55;
    float *x = weights(ROWS, COLS), *h = moment(COLS, 300, 8), *d = energies(h, COLS);
    const uint64_t n = ROWS * fl_type_row_bytes(FL_TYPE_Q4_K, COLS);
    fl_guide *base = guide(COLS, NULL, h), *derived = NULL;
    for (int i = 0; i < COLS; i++) d[i] *= i % 5 ? 1.0f : i % 25 ? 9.0f : 0.0f;
    assert_int_equal(fl_guide_derive(&derived, base, d, NULL), FL_OK);
    fl_guide *both = guide(COLS, d, h);
    uint8_t *a = rounded(derived, FL_TYPE_Q4_K, x, ROWS, COLS);
    uint8_t *b = rounded(both, FL_TYPE_Q4_K, x, ROWS, COLS);
    uint8_t *c = rounded(base, FL_TYPE_Q4_K, x, ROWS, COLS);
    assert_memory_equal(a, b, n);
    assert_memory_not_equal(a, c, n);
    assert_true(loss_of(derived, derived, FL_TYPE_Q4_K, x, ROWS, COLS, NULL) <
                loss_of(derived, base, FL_TYPE_Q4_K, x, ROWS, COLS, NULL));
    fl_err err = {0};
    fl_guide *none = NULL;
    d[9] = -1.0f;
    assert_int_equal(fl_guide_derive(&none, base, d, &err), FL_E_NAN);
    assert_non_null(strstr(err.msg, "input 9"));
    assert_null(none);
    fl_guide_destroy(&derived);
    fl_guide_destroy(&both);
    fl_guide_destroy(&base);
    free(a);
    free(b);
    free(c);
    free(x);
    free(h);
    free(d);
}

/* Energies of any scale, in the moment or the weights; rows of zeros; a channel of great weights
 * without energy. */
static void extremes_stay_finite(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 256 };
    static const float units[] = {1e-30f, 1.0f, 1e30f};
    rng_state = 66;
    float *x = weights(ROWS, COLS), *h = moment(COLS, 10, 4), *s = get(COLS * COLS * sizeof *s);
    memset(x, 0, COLS * sizeof *x);
    for (int i = 0; i < COLS; i++) x[2 * COLS + i] *= 1e9f;
    x[COLS + 7] = 50.0f; /* the moment's empty channel */
    for (int u = 0; u < 3; u++) {
        for (int i = 0; i < COLS * COLS; i++) s[i] = h[i] * units[u];
        fl_guide *g = guide(COLS, NULL, s);
        for (int t = 0; t < N_TYPES; t++) {
            uint8_t *o = rounded(g, types[t], x, ROWS, COLS);
            float y[ROWS * COLS];
            fl_type_get(types[t])->dequantize(o, y, ROWS * COLS);
            for (int i = 0; i < COLS; i++) assert_true(y[i] == 0.0f);
            for (int i = 0; i < ROWS * COLS; i++) assert_true(isfinite(y[i]));
            free(o);
        }
        fl_guide_destroy(&g);
    }
    free(x);
    free(h);
    free(s);
}

static void broken_moments_are_refused(void **state)
{
    (void)state;
    float diag[4] = {1, 2, NAN, 4}, full[16] = {0};
    fl_guide *g = NULL;
    fl_err err = {0};
    fl_moment m = {4, diag, NULL};
    assert_int_equal(fl_guide_create(&g, &m, &err), FL_E_NAN);
    assert_non_null(strstr(err.msg, "input 2"));
    err = (fl_err){0};
    m = (fl_moment){4, NULL, full};
    full[3 * 4 + 1] = INFINITY;
    assert_int_equal(fl_guide_create(&g, &m, &err), FL_E_NAN);
    assert_non_null(strstr(err.msg, "inputs 3 and 1"));
    err = (fl_err){0};
    full[3 * 4 + 1] = 0;
    full[2 * 4 + 2] = -1;
    assert_int_equal(fl_guide_create(&g, &m, &err), FL_E_NAN);
    assert_non_null(strstr(err.msg, "input 2"));
    m = (fl_moment){4, NULL, NULL};
    assert_int_equal(fl_guide_create(&g, &m, NULL), FL_E_ARG);
    m = (fl_moment){0, diag, NULL};
    assert_int_equal(fl_guide_create(&g, &m, NULL), FL_E_ARG);
    assert_null(g);
    fl_guide_destroy(&g);
}

static void memory_is_accounted(void **state)
{
    (void)state;
    assert_true(fl_guide_bytes(512, true) >= 2 * 512 * 512 * sizeof(float));
    assert_true(fl_guide_bytes(512, false) < 64 * 1024);
    assert_true(fl_guide_create_bytes(512, true) >= fl_guide_bytes(512, true));
    assert_true(fl_guide_scratch_bytes(4096, true) < 16 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_guide_rounding_is_plain),
        cmocka_unit_test(types_without_a_search_are_converted),
        cmocka_unit_test(correlated_inputs_gain),
        cmocka_unit_test(bytes_do_not_depend_on_the_split_of_rows),
        cmocka_unit_test(tiers_agree),
        cmocka_unit_test(energies_rescale_a_matrix),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(broken_moments_are_refused),
        cmocka_unit_test(memory_is_accounted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
