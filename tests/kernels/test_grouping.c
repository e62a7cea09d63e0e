/* L5 and its like for threads: 512 rows have the reference's bits on every tier, whatever number of
 * rows a call has and however many threads share the work. */
#include <stdlib.h>

#include "runtime/model/linear.h"
#include "tests/support/problem.h"
#include "tests/support/test.h"

/* No multiples of what kernels take at once. */
enum { ROWS = 512, WEIGHT_ROWS = FL_SANITIZED_OR(5, 21), MAX_THREADS = 8 };

static const uint32_t float_types[] = {FL_TYPE_F32, FL_TYPE_F16, FL_TYPE_BF16, FL_TYPE_Q4_1,
                                       UINT32_MAX};

static float *reference_of(const fl_problem *p, bool law)
{
    fl_kernels ref;
    assert_true(fl_kernels_init(&ref, "reference"));
    float *want = fl_guard_new(ROWS * p->ldy);
    fl_problem_multiply(&ref, p, law, 0, WEIGHT_ROWS, want);
    return want;
}

/* All rows, `group` a call, one call after the other. */
static void check_group(const fl_kernels *k, const fl_problem *p, bool law, int group,
                        const float *want)
{
    const char *name = fl_type_get(p->w.type)->name;
    float *y = fl_guard_new(ROWS * p->ldy);
    for (int r = 0; r < ROWS; r += group) {
        fl_problem part = *p;
        part.n_rows = group;
        part.x += r * p->ldx;
        part.act += r * (p->w.cols / 256);
        fl_problem_multiply(k, &part, law, 0, WEIGHT_ROWS, y + r * p->ldy);
    }
    fl_guard_check(y, ROWS * p->ldy, name);
    for (int r = 0; r < ROWS; r++)
        fl_same_bits(y + r * p->ldy, want + r * p->ldy, WEIGHT_ROWS, k->name, name);
    fl_guard_free(y);
}

static void check_groups(const fl_kernels *tier, int n_tiers, const uint32_t *types, int64_t cols)
{
    static const int groups[] = {1, 4, 32, 64, 512};
    for (; *types != UINT32_MAX; types++) {
        const bool law = fl_type_get(*types)->law != FL_LAW_FLOAT;
        fl_problem p;
        fl_problem_make(&p, *types, WEIGHT_ROWS, cols, ROWS, 0);
        float *want = reference_of(&p, law);
        for (int t = 0; t < n_tiers; t++) {
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
                check_group(&tier[t], &p, law, groups[g], want);
        }
        fl_guard_free(want);
        fl_problem_free(&p);
    }
}

static void test_groups_of_rows(void **state)
{
    (void)state;
    fl_kernels tier[FL_MAX_TIERS];
    int n_tiers = fl_tiers_present(tier);
    if (n_tiers == 0) skip();
    check_groups(tier, n_tiers, fl_law_types, 512);
    check_groups(tier, n_tiers, float_types, 96);
}

/* The problem's rows r0 .. r0 + n - 1 by the pool. */
static void check_pool(const fl_exec *x, const fl_problem *p, int r0, int n, const float *want)
{
    const char *name = fl_type_get(p->w.type)->name;
    float *y = fl_guard_new(n * p->ldy);
    const fl_linear_job job = {&p->w, y, p->ldy};
    const fl_rows rows = {p->x + r0 * p->ldx, p->ldx, p->w.cols, p->act + r0 * (p->w.cols / 256),
                          n};
    fl_linear_run(x, &job, 1, &rows);
    fl_guard_check(y, n * p->ldy, name);
    for (int r = 0; r < n; r++)
        fl_same_bits(y + r * p->ldy, want + (r0 + r) * p->ldy, WEIGHT_ROWS, x->k.name, name);
    fl_guard_free(y);
}

static void check_threads(fl_exec *x, uint32_t type, int64_t cols)
{
    const char *const *names = fl_kernels_tiers();
    fl_problem p;
    fl_problem_make(&p, type, WEIGHT_ROWS, cols, ROWS, 1);
    float *want = reference_of(&p, fl_type_get(type)->law != FL_LAW_FLOAT);
    for (; *names; names++) {
        assert_true(fl_kernels_init(&x->k, *names));
        check_pool(x, &p, 7, 1, want);
        check_pool(x, &p, 100, 32, want);
        if (strcmp(x->k.name, "reference") != 0) check_pool(x, &p, 0, ROWS, want);
    }
    fl_guard_free(want);
    fl_problem_free(&p);
}

static void test_threads(void **state)
{
    (void)state;
    fl_err err = {0};
    for (int n = 1; n <= MAX_THREADS; n++) {
        fl_exec x = {.act_f32 = false};
        ASSERT_OK(fl_pool_create(&x.pool, n, &err));
        check_threads(&x, n % 2 ? FL_TYPE_Q4_K : FL_TYPE_Q6_K, 512);
        check_threads(&x, n % 2 ? FL_TYPE_Q8_0 : FL_TYPE_IQ4_XS, 256);
        check_threads(&x, n % 2 ? FL_TYPE_BF16 : FL_TYPE_F32, 96);
        fl_pool_destroy(&x.pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_of_rows),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
