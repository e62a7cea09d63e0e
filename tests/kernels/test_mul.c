/* Products: every type and tier against the reference bit for bit, the reference against double
 * precision, row independence (L5), outputs and guards. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/problem.h"
#include "tests/support/test.h"

static void check_tiers(uint32_t type, bool law, int64_t rows, int64_t cols, int n_rows, int kind)
{
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    fl_problem p;
    assert_true(fl_kernels_init(&ref, "reference"));
    fl_problem_make(&p, type, rows, cols, n_rows, kind);
    float *want = fl_guard_new(n_rows * p.ldy);
    fl_problem_multiply(&ref, &p, law, 0, rows, want);
    for (int t = 0; t < n_tiers; t++) {
        fl_problem_compare(&tier[t], &p, law, 0, rows, want);
        int64_t n0 = fl_rnd_below((int)rows), n1 = n0 + fl_rnd_below((int)(rows - n0) + 1);
        fl_problem_compare(&tier[t], &p, law, n0, n1, want);
    }
    fl_guard_free(want);
    fl_problem_free(&p);
}

static void need_tier(void)
{
    fl_kernels tier[FL_MAX_TIERS];
    if (fl_tiers_present(tier) == 0) skip();
}

static void test_mul_law_tiers(void **state)
{
    (void)state;
    need_tier();
    for (int h = 0; h < 2; h++) {
        fl_law_option_h = h;
        for (const uint32_t *t = fl_law_types; *t != UINT32_MAX; t++) {
            for (int n_rows = 1; n_rows <= 9; n_rows++)
                check_tiers(*t, true, 1 + fl_rnd_below(9), 256 * (1 + fl_rnd_below(3)), n_rows,
                            n_rows);
            for (int kind = 0; kind < FL_BLOCK_KINDS; kind++) {
                check_tiers(*t, true, 10 + kind, 512, 1 + 4 * (kind % 2), kind);
                check_tiers(*t, true, 3, 256, 10 + fl_rnd_below(24), kind);
            }
            check_tiers(*t, true, 2, 256, 64, 0);
            check_tiers(*t, true, 2, 256, 67, 0);
            /* More blocks and weight rows than the kernels for many rows take at once. */
            check_tiers(*t, true, 35, 256 * 10, 7 + fl_rnd_below(20), h);
            check_tiers(*t, true, 9, 256 * 70, 1 + fl_rnd_below(8), h);
            check_tiers(*t, true, 261, 256, 1 + fl_rnd_below(8), h);
            /* One row: eight blocks at a time begin anywhere in a weight row. */
            for (int nb = 1 + h; nb <= 25; nb += 2) check_tiers(*t, true, 17, 256 * nb, 1, h);
        }
    }
    fl_law_option_h = false;
}

static void test_mul_float_tiers(void **state)
{
    (void)state;
    need_tier();
    for (const uint32_t *t = fl_readable_types; *t != UINT32_MAX; t++) {
        int block = fl_type_get(*t)->block_elems;
        for (int n_rows = 1; n_rows <= 8; n_rows++) {
            int64_t cols = block > 1 ? block * (1 + fl_rnd_below(3)) : 1 + fl_rnd_below(80);
            check_tiers(*t, false, 1 + fl_rnd_below(9), cols, n_rows, n_rows);
        }
        for (int kind = 0; kind < FL_BLOCK_KINDS; kind++)
            check_tiers(*t, false, 5, block > 1 ? 5 * block : 515, 1 + kind, kind);
        check_tiers(*t, false, 3, block > 1 ? 3 * block : 1043, 3, 0);
        check_tiers(*t, false, 2, block > 1 ? block : 37, 33, 0);
        check_tiers(*t, false, 3, block > 1 ? block : 64, 50, 0);
    }
}

/* Extreme activations that quantization would not often make: all +-127, all zero. */
static void test_mul_law_extremes(void **state)
{
    (void)state;
    need_tier();
    fl_kernels tier[FL_MAX_TIERS], ref;
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&ref, "reference"));
    for (const uint32_t *t = fl_law_types; *t != UINT32_MAX; t++) {
        for (int kind = 0; kind < FL_BLOCK_KINDS; kind++) {
            fl_problem p;
            fl_problem_make(&p, *t, 5, 512, 6, kind);
            for (int i = 0; i < 12; i++) fl_act_fill(&p.act[i], i);
            float *want = fl_guard_new(p.n_rows * p.ldy);
            fl_problem_multiply(&ref, &p, true, 0, 5, want);
            for (int i = 0; i < n_tiers; i++) {
                fl_problem_compare(&tier[i], &p, true, 0, 5, want);
                p.n_rows = 1;
                fl_problem_compare(&tier[i], &p, true, 0, 5, want);
                p.n_rows = 6;
            }
            fl_guard_free(want);
            fl_problem_free(&p);
        }
    }
}

/* L5: a row among many has the bits it has alone, on every tier. */
static void test_row_independence(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS + 1];
    int n_tiers = fl_tiers_present(tier);
    assert_true(fl_kernels_init(&tier[n_tiers++], "reference"));
    static const int counts[] = {1, 2, 3, 4, 5, 31, 32, 33, 64};
    for (const uint32_t *t = fl_readable_types; *t != UINT32_MAX; t++) {
        bool law = fl_type_get(*t)->law != FL_LAW_FLOAT;
        fl_problem p;
        fl_problem_make(&p, *t, 5, 256, 64, 0);
        float *all = fl_guard_new(64 * p.ldy), *y = fl_guard_new(64 * p.ldy);
        for (int k = 0; k < n_tiers; k++) {
            p.n_rows = 64;
            fl_problem_multiply(&tier[k], &p, law, 0, 5, all);
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                fl_problem q = p;
                int first = fl_rnd_below(65 - counts[c]);
                q.n_rows = counts[c];
                q.x += first * p.ldx;
                q.act += first;
                fl_problem_multiply(&tier[k], &q, law, 0, 5, y);
                for (int r = 0; r < counts[c]; r++)
                    fl_same_bits(y + r * p.ldy, all + (first + r) * p.ldy, 5, tier[k].name,
                                 fl_type_get(*t)->name);
            }
        }
        fl_guard_free(all);
        fl_guard_free(y);
        fl_problem_free(&p);
    }
}

/* The reference itself: error against the sum of magnitudes in double precision. */
static void test_accuracy(void **state)
{
    (void)state;
    fl_kernels ref;
    assert_true(fl_kernels_init(&ref, "reference"));
    enum { COLS = 1024, ROWS = 8 };
    float *w = malloc(COLS * sizeof *w), y[ROWS];
    for (const uint32_t *t = fl_readable_types; *t != UINT32_MAX; t++) {
        const fl_type_info *info = fl_type_get(*t);
        for (int law = 0; law <= (info->law != FL_LAW_FLOAT); law++) {
            fl_problem p;
            fl_problem_make(&p, *t, ROWS, COLS, 1, 0);
            fl_problem_multiply(&ref, &p, law, 0, ROWS, y);
            for (int n = 0; n < ROWS; n++) {
                const uint8_t *row = p.data + (uint64_t)n * fl_type_row_bytes(*t, COLS);
                info->dequantize(row, w, COLS);
                double sum = 0, mag = 0, slack = 0;
                for (int i = 0; i < COLS; i++) {
                    double e = (double)w[i] * p.x[i];
                    sum += e;
                    mag += fabs(e);
                    /* The law rounds activations to half a step of their sub-block. */
                    const fl_act *x = &p.act[i / 256];
                    if (law) slack += fabs((double)w[i]) * x->scale * x->p[i % 256 / 32] * 0.5;
                }
                if (!(fabs(y[n] / (double)p.w.scale - sum) <= 2e-6 * mag + slack))
                    fail_msg("%s: %g, expected %g", info->name, (double)y[n], sum);
            }
            fl_problem_free(&p);
        }
    }
    free(w);
}

static void test_tier_names(void **state)
{
    (void)state;
    fl_kernels k;
    assert_false(fl_kernels_init(&k, "sse9"));
    assert_false(fl_kernels_init(&k, ""));
    assert_true(fl_kernels_init(&k, "reference"));
    assert_string_equal(k.name, "reference");
    assert_string_equal(fl_kernels_tiers()[0], "reference");
    assert_true(fl_kernels_init(&k, NULL));
    /* Any name is taken on any machine, and gives that tier or a lower one. */
    const char *const *all = fl_kernels_tiers();
    for (int i = 0; all[i]; i++) {
        int got = 0;
        assert_true(fl_kernels_init(&k, all[i]));
        while (strcmp(k.name, all[got]) != 0) got++;
        assert_in_range(got, 0, i);
    }
}

/* Skipped where the CPU lacks the tier, so that a run says what it did not test. */
static void need(const char *name)
{
    fl_kernels k;
    assert_true(fl_kernels_init(&k, name));
    if (strcmp(k.name, name) != 0) skip();
}
static void test_avxvnni_is_here(void **state)
{
    (void)state;
    need("avxvnni");
}
static void test_avx512vnni_is_here(void **state)
{
    (void)state;
    need("avx512vnni");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tier_names),      cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_mul_law_tiers),   cmocka_unit_test(test_mul_law_extremes),
        cmocka_unit_test(test_mul_float_tiers), cmocka_unit_test(test_row_independence),
        cmocka_unit_test(test_avxvnni_is_here), cmocka_unit_test(test_avx512vnni_is_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
